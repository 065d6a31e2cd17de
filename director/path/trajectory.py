"""What a student learns from: the states and variances of a teacher's path."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from director.errors import InputError
from director.path.view import ResidualPath, class_name


@dataclass(frozen=True)
class Trajectory:
    """A batch of paths through a frozen teacher.

    states: [L+1, B, N, d], X[0..L]. variances: [L, B, N, d] >= 0, of the transitions X[l-1] -> X[l]; their means are
    the states. mask: [B, N], True = real token, None: all real. Padding holds zeros.
    """

    states: Tensor
    variances: Tensor
    mask: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Trajectory":
        """The same in another precision."""
        return Trajectory(self.states.to(dtype), self.variances.to(dtype), self.mask)


def capture(path: ResidualPath, inputs: Any, softmax_variance: str = "attention_moments") -> Trajectory:
    """Walk the teacher's path once. softmax_variance: see `ResidualPath.moments`.

    Raises InputError for `dropout_moments` of a teacher whose dropout changes nothing.
    """
    x, mask = path.embed(inputs)
    states, variances = [x], []
    for step in range(1, path.steps + 1):
        x, variance = path.moments(step, x, mask, softmax_variance)
        states.append(x)
        variances.append(variance)
    states, variances = torch.stack(states), torch.stack(variances)
    if softmax_variance == "dropout_moments" and not variances.any():
        raise InputError(
            f"{class_name(path.model)} has no dropout between its attention layers, so softmax_variance "
            "dropout_moments is 0 everywhere; train the teacher with dropout, or choose attention_moments"
        )
    if mask is not None:
        states, variances = (torch.where(mask[..., None], values, 0.0) for values in (states, variances))
    return Trajectory(states, variances, mask)

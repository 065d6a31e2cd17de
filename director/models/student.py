"""The student of DIRECTOR: a teacher's embedding, L steps of one transition kernel, the teacher's readout.

arXiv 2602.08920. The losses are L1 (`path_loss`, uncertainty-aware, along the teacher's path) and L2 (`task_loss`,
performance-aware, along the student's own); L3 (`logit_loss`) is the plain distillation that they are compared with.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from director.errors import InputError
from director.models.kernel import TransitionKernel
from director.models.transformers import BACKBONES
from director.noise import Noise, fold
from director.settings.training import Kernel, Losses


class StudentNetwork(nn.Module):
    """X[0] = embedding; X[t+1] ~ N(mean, variance) = kernel(X[t], t) for t = 0..L-1; logits = readout(X[L]).

    embedding(inputs) -> (X[0] [B, N, d], mask [B, N] or None), readout(X[L], mask) -> logits [R, C]. R: rows, samples
    included, S*B (`director.noise.fold`). settings: what `from_settings` rebuilds the student from; None for a student
    that is not saved.
    """

    kind = "director"

    def __init__(
        self,
        embedding: nn.Module,
        kernel: TransitionKernel,
        readout: nn.Module,
        steps: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if steps < 1:
            raise InputError(f"a student takes at least 1 step, not {steps}")
        self.embedding, self.kernel, self.readout = embedding, kernel, readout
        self.steps, self.settings = steps, settings

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "StudentNetwork":
        """A student with fresh weights from the `settings` of another; its teacher is not built.

        settings: `backbone` (kind and settings of the teacher, whose embedding and readout it has), `steps`, and
        `width`, `heads` and `kernel` of the transition kernel.
        """
        backbone = settings["backbone"]
        if backbone["kind"] not in BACKBONES:
            raise InputError(
                f"a student of a model of kind {backbone['kind']!r} is built around its teacher; load it with "
                "director.path.students.load_student"
            )
        embedding, readout = BACKBONES[backbone["kind"]].ends_of(backbone["settings"])
        kernel = TransitionKernel(settings["width"], settings["heads"], Kernel(**settings["kernel"]))
        return cls(embedding, kernel, readout, settings["steps"], settings)

    def start(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """X[0] [B, N, d] and mask [B, N] or None, of inputs as the embedding takes them, or as they were embedded.

        These are a mapping with `start`, X[0], and `mask` if there is one, in any precision.
        """
        if isinstance(inputs, Mapping) and "start" in inputs:
            x, mask = inputs["start"], inputs.get("mask")
        else:
            x, mask = self.embedding(inputs)
        return x.to(self.kernel.modulation.weight.dtype), mask

    def step(
        self,
        t: int,
        x: Tensor,
        mask: Tensor | None = None,
        noise: Noise | None = None,
        conditions: Tensor | None = None,
        samples: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """X[t] -> X[t+1] (its mean without noise) and the log-variance of the step, both [R, N, d].

        conditions: see `TransitionKernel`. samples: S steps from each state, R = S*B of B rows; the mask is of the R.
        """
        mean, log_variance = self.kernel(x, t, None if mask is None else mask[: len(x)], conditions)
        mean, log_variance = fold(mean, samples), fold(log_variance, samples)
        if noise is None:
            return mean, log_variance
        return mean + (log_variance / 2).exp() * noise(t, mean.shape, mask).to(x.dtype), log_variance

    def forward(
        self,
        inputs: Any,
        noise: Noise | None = None,
        on_step: Callable[[Tensor, Tensor | None], None] | None = None,
        samples: int = 1,
    ) -> Tensor:
        """Logits [S*B, C] of S free-running roll-outs of each input; without noise each step takes its mean.

        inputs: see `start`. on_step: called after each step with the log-variance [S*B, N, d] that the kernel
        predicted, and the mask. The roll-outs of an input part with their first noise, so all before it runs once.
        """
        x, mask = self.start(inputs)
        mask = None if mask is None else fold(mask, samples)
        conditions = self._conditions(x)
        for t in range(self.steps):
            x, log_variance = self.step(t, x, mask, noise, conditions, samples if t == 0 else 1)
            if on_step is not None:
                on_step(log_variance, mask)
        return self.readout(x, mask)

    def path_loss(self, states: Tensor, variances: Tensor, mask: Tensor | None, losses: Losses) -> Tensor:
        """L1: the kernel's steps from the teacher's states (teacher forcing) against the teacher's transitions.

        states, variances, mask: of `director.path.trajectory.Trajectory`. losses.path `kl`: KL(p || q) of the teacher's
        p = N(m, v + variance_floor) and the kernel's q, per element, in nats; `mse` (the authors' code): squared error
        of the means + std_weight times that of the standard deviations. A mean over inputs, real tokens, channels and
        steps, so that its size does not depend on theirs.
        """
        steps, batch = variances.shape[:2]
        if steps != self.steps or states.shape[0] != steps + 1:
            raise InputError(f"a trajectory of {steps} steps was given to a student of {self.steps} steps")
        # All steps at once: the states do not depend on the student.
        t = torch.arange(steps, device=states.device).repeat_interleave(batch)  # [L*B]
        mask = None if mask is None else mask.repeat(steps, 1)  # [L*B, N]
        mean, log_variance = self.kernel(states[:-1].flatten(0, 1), t, mask, self._conditions(states))  # [L*B, N, d]
        error = (states[1:].flatten(0, 1) - mean).square()
        variance = variances.flatten(0, 1)
        if losses.path == "kl":
            variance = variance + losses.variance_floor
            loss = 0.5 * (log_variance - variance.log() + (variance + error) * (-log_variance).exp() - 1)
        elif losses.path == "mse":
            loss = error + losses.std_weight * ((log_variance / 2).exp() - variance.sqrt()).square()
        else:
            raise InputError(f"path loss {losses.path!r} has no value; choose kl or mse, or leave path_loss out")
        return loss.mean() if mask is None else loss[mask].mean()

    def _conditions(self, like: Tensor) -> Tensor:
        """Of all steps, on the device of `like`."""
        return self.kernel.conditions(torch.arange(self.steps, device=like.device))

    def task_loss(self, inputs: Any, labels: Tensor, noise: Noise | None) -> Tensor:
        """L2: cross-entropy of one roll-out from the inputs, with gradient through all its steps."""
        return F.cross_entropy(self(inputs, noise), labels)

    def logit_loss(self, inputs: Any, target: Tensor, noise: Noise | None) -> Tensor:
        """L3: KL(p || q) of the teacher's prediction p, from its logits `target` [B, C], and one roll-out's q, in nats.

        Plain distillation (Hinton et al., arXiv 1503.02531, at temperature 1), for comparison with the path.
        """
        predicted = self(inputs, noise).log_softmax(-1)
        return F.kl_div(predicted, target.log_softmax(-1), reduction="batchmean", log_target=True)

"""The path of a teacher: the L+1 states of its residual stream that DIRECTOR learns (arXiv 2602.08920).

    X[0] = token + position embedding      X[l] = state after the attention residual of layer l, l = 1..L

Segment l goes from X[l-1] to X[l] and ends with attention; the readout goes from X[L] to the logits.

One class per family of architectures, found by the model's class (`path_of`). A new family is a subclass of
`ResidualPath` with its parts, entered in PATHS.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from director.device import module_modes
from director.errors import InputError
from director.models.attention import SoftmaxAttention
from director.models.kernel import TransitionKernel
from director.models.student import Director
from director.models.transformers import PathReadout, Transformer
from director.settings.training import Kernel

SOFTMAX_VARIANCES = ("attention_moments", "zero")


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradient or autocast; every module's own mode is restored, also after an error."""
    device = next(model.parameters()).device
    # A variance is a small difference of large numbers, so the caller's autocast is not for it.
    with module_modes(model), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def _frozen(method):
    @wraps(method)
    def wrapped(self, *arguments, **options):
        with frozen(self.model):
            return method(self, *arguments, **options)

    return wrapped


class ResidualPath(ABC):
    """A view of a classifier as a path; the model is used as it is, frozen during each call, and never changed.

    Subclasses give the parts: the constants `steps` (L), `width` (d) and `heads`, and the methods with an underscore.
    Steps l count from 1 to L, mask is [B, N], True = real token, or None.
    """

    steps: int
    width: int
    heads: int

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @_frozen
    def embed(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """X[0] [B, N, d] and the mask."""
        return self._embed(inputs)

    @_frozen
    def segment(self, step: int, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X[l-1] -> X[l]."""
        self._check(step)
        return self._attend(step, self._open(step, x, mask), mask)

    @_frozen
    def moments(
        self, step: int, x: Tensor, mask: Tensor | None = None, softmax_variance: str = "attention_moments"
    ) -> tuple[Tensor, Tensor]:
        """The observed transition X[l-1] -> N(mean, variance), both [B, N, d]; the mean is X[l].

        softmax_variance: what a softmax layer's variance is: `attention_moments` reads its rows as categorical laws
        over the values, `zero` takes them as certain. Layers that are Gaussian processes have their own.
        """
        self._check(step)
        if softmax_variance not in SOFTMAX_VARIANCES:
            choices = ", ".join(SOFTMAX_VARIANCES)
            raise InputError(f"softmax_variance is {softmax_variance!r}; choose one of {choices}")
        x = self._open(step, x, mask)
        if softmax_variance == "zero" and self._is_softmax(step):
            mean = self._attend(step, x, mask)
            return mean, torch.zeros_like(mean)
        return self._moments(step, x, mask)

    @_frozen
    def readout(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X[L] -> logits [B, C]."""
        return self._readout(x, mask)

    def states(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """X[0..L] [L+1, B, N, d] and the mask."""
        x, mask = self.embed(inputs)
        states = [x]
        for step in range(1, self.steps + 1):
            states.append(self.segment(step, states[-1], mask))
        return torch.stack(states), mask

    def _check(self, step: int) -> None:
        if not 1 <= step <= self.steps:
            raise InputError(f"there is no step {step}: the path of this model has steps 1 to {self.steps}")

    @abstractmethod
    def student_parts(self) -> tuple[nn.Module, nn.Module]:
        """Trainable copies of what the student keeps: embedding(inputs) -> (X[0], mask), readout(X[L], mask)."""

    @abstractmethod
    def _embed(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Inputs as the model takes them -> X[0], mask."""

    @abstractmethod
    def _open(self, step: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """The part of segment l before the attention's residual branch: what ends layer l-1."""

    @abstractmethod
    def _attend(self, step: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """The rest of segment l, residual included: the mean of its attention."""

    @abstractmethod
    def _moments(self, step: int, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `_attend`, with the variance."""

    @abstractmethod
    def _is_softmax(self, step: int) -> bool:
        """Whether the attention of segment l has no distribution of its own."""

    @abstractmethod
    def _readout(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """X[L] -> logits."""


class TransformerPath(ResidualPath):
    """The path of this project's own transformers."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.steps = len(model.blocks)
        self.width, self.heads = (model.settings[name] for name in ("width", "heads"))

    def student_parts(self) -> tuple[nn.Module, nn.Module]:
        embedding, readout = self.model.embedding, PathReadout(self.model.blocks[-1].mlp_half, self.model.readout)
        return trainable_copy(embedding), trainable_copy(readout)

    def _embed(self, inputs):
        return self.model.embedding(inputs)

    def _open(self, step, x, mask):
        return x if step == 1 else self.model.blocks[step - 2].mlp_half(x)

    def _attend(self, step, x, mask):
        return self.model.blocks[step - 1].attention_half(x, mask)[0]

    def _moments(self, step, x, mask):
        return self.model.blocks[step - 1].attention_half.moments(x, mask)

    def _is_softmax(self, step):
        return isinstance(self.model.blocks[step - 1].attention_half.attention, SoftmaxAttention)

    def _readout(self, x, mask):
        return self.model.readout(self.model.blocks[-1].mlp_half(x), mask)


def trainable_copy(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with `module` and whose parameters are all trained."""
    return copy.deepcopy(module).requires_grad_()


# class of a model -> class of its path
PATHS: dict[type[nn.Module], type[ResidualPath]] = {Transformer: TransformerPath}


def path_of(model: nn.Module) -> ResidualPath:
    """The path of a model; raises `InputError` naming the class of an architecture without one, and those with one."""
    for model_class in type(model).__mro__:
        if model_class in PATHS:
            return PATHS[model_class](model)
    supported = ", ".join(f"{known.__module__}.{known.__qualname__}" for known in PATHS)
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    raise InputError(f"{name} has no residual path here; supported: {supported}")


def student_of(path: ResidualPath, kernel: Kernel) -> Director:
    """A student that starts as the teacher's embedding and readout, copied, around steps that change nothing."""
    embedding, readout = path.student_parts()
    parameter = next(embedding.parameters())  # the kernel lies beside the teacher, wherever that is
    transition = TransitionKernel(path.width, path.heads, kernel).to(parameter.device, parameter.dtype)
    settings = {
        "backbone": {"kind": path.model.kind, "settings": path.model.settings},
        "steps": path.steps,
        "width": path.width,
        "heads": path.heads,
        "kernel": kernel.model_dump(),
    }
    return Director(embedding, transition, readout, path.steps, settings)

"""A view of a classifier as a path: what every family of architectures has to give, and what those of softmax share."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from director.device import module_modes, seeded, trains_for_dropout
from director.errors import InputError
from director.models.attention import softmax_mean, softmax_moments

SOFTMAX_VARIANCES = ("attention_moments", "dropout_moments", "zero")
DROPOUT_PASSES = 16  # behind a variance over dropout masks, whose relative standard error is sqrt(2 / 15) = 0.37
DROPOUT_SEED = 0  # of these masks: a capture is a function of its batch, so that a resumed training is the same one


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

    Subclasses give the parts: the constants `steps` (L), `width` (d) and `heads`, whether no token attends to those
    behind it (`causal`), and the methods with an underscore. `backbone` is kind and settings of the model, where it is
    one that can be saved (`director.models.weights`). Steps l count from 1 to L, mask is [B, N], True = real
    token, or None.
    """

    steps: int
    width: int
    heads: int
    causal: bool = False
    backbone: Mapping[str, Any] | None = None

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
        over the values, `dropout_moments` is the variance of X[l] over DROPOUT_PASSES masks of the segment's own
        dropout, the same masks in every call, `zero` takes the step as certain. Layers that are Gaussian processes have
        their own.
        """
        self._check(step)
        if softmax_variance not in SOFTMAX_VARIANCES:
            choices = ", ".join(SOFTMAX_VARIANCES)
            raise InputError(f"softmax_variance is {softmax_variance!r}; choose one of {choices}")
        opened = self._open(step, x, mask)
        if softmax_variance == "attention_moments" or not self._is_softmax(step):
            return self._moments(step, opened, mask)
        mean = self._attend(step, opened, mask)
        return mean, torch.zeros_like(mean) if softmax_variance == "zero" else self._dropout_variance(step, x, mask)

    @_frozen
    def logits(self, inputs: Any) -> Tensor:
        """The model's own logits [B, C], which the readout of X[L] has to give as well."""
        return self._logits(inputs)

    @_frozen
    def readout(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X[L], in any precision, -> logits [B, C]."""
        return self._readout(x.to(next(self.model.parameters()).dtype), mask)

    def states(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """X[0..L] [L+1, B, N, d] and the mask."""
        x, mask = self.embed(inputs)
        states = [x]
        for step in range(1, self.steps + 1):
            states.append(self.segment(step, states[-1], mask))
        return torch.stack(states), mask

    def _dropout_variance(self, step: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """Unbiased variance of X[l] over dropout masks, given X[l-1]: there is no closed form through a norm."""
        with module_modes(self.model, trains_for_dropout), seeded(x.device, DROPOUT_SEED, step):
            passes = [self._attend(step, self._open(step, x, mask), mask) for _ in range(DROPOUT_PASSES)]
        return torch.stack(passes).var(0)

    def _check(self, step: int) -> None:
        if not 1 <= step <= self.steps:
            raise InputError(f"there is no step {step}: the path of this model has steps 1 to {self.steps}")

    def _logits(self, inputs: Any) -> Tensor:
        return self.model(inputs)

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


@dataclass(frozen=True)
class Attention:
    """What softmax attention is made of, for one layer and state: queries, keys and values [B, H, N, dh] and maps.

    output: H dh -> d. gain: what the output is multiplied by before it is added to the state (layer scale), [d] or 1.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    output: nn.Linear
    gain: Tensor | float = 1.0


class SoftmaxPath(ResidualPath):
    """The path of somebody else's classifier, with softmax attention in every layer.

    embedding(inputs) -> (X[0], mask). ends: what ends each layer l, after its attention residual, [B, N, d] ->
    [B, N, d]. head(x, mask) -> logits, x the output of the last layer. All three hold the model's own parts.
    """

    def __init__(
        self, model: nn.Module, width: int, heads: int, embedding: nn.Module, ends: list[nn.Module], head: nn.Module
    ) -> None:
        super().__init__(model)
        self.steps, self.width, self.heads = len(ends), width, heads
        self.embedding, self.ends, self.reader = embedding, ends, Reader(ends[-1], head)

    def student_parts(self) -> tuple[nn.Module, nn.Module]:
        return trainable_copy(self.embedding), trainable_copy(self.reader)

    def _embed(self, inputs):
        return self.embedding(inputs)

    def _open(self, step, x, mask):
        return x if step == 1 else self.ends[step - 2](x)

    def _attend(self, step, x, mask):
        parts = self._attention(step, x)
        return x + parts.gain * softmax_mean(*self._arguments(parts, mask))

    def _moments(self, step, x, mask):
        parts = self._attention(step, x)
        mean, variance = softmax_moments(*self._arguments(parts, mask))
        return x + parts.gain * mean, parts.gain**2 * variance

    def _is_softmax(self, step):
        return True

    def _readout(self, x, mask):
        return self.reader(x, mask)

    def _arguments(self, parts: Attention, mask: Tensor | None) -> tuple:
        allowed = self._allowed(mask, parts.queries.shape[2], parts.queries.device)
        return parts.queries, parts.keys, parts.values, allowed, parts.scale, parts.output

    def _allowed(self, mask: Tensor | None, tokens: int, device: torch.device) -> Tensor | None:
        """Which keys a query may attend to, as `softmax_moments` takes it: here all that are real."""
        return None if mask is None else mask[:, None, None, :]

    @abstractmethod
    def _attention(self, step: int, x: Tensor) -> Attention:
        """The attention of layer l for the state that `_open` gives, its own normalisation included."""


class Reader(nn.Module):
    """X[L] -> logits: what ends the last layer, then the head."""

    def __init__(self, end: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.end, self.head = end, head

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [B, C]."""
        return self.head(self.end(x), mask)


class Head(nn.Sequential):
    """A head that needs no mask: no token that it reads is padding."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


def class_name(part: type | object) -> str:
    """Where the class, or the class of an object, is defined: `package.module.Name`."""
    kind = part if isinstance(part, type) else type(part)
    return f"{kind.__module__}.{kind.__qualname__}"


def trainable_copy(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with `module` and whose parameters are all trained."""
    return copy.deepcopy(module).requires_grad_()

"""Where the noise of sampling comes from, and how samples share one batch.

A noise is a callable `(step, shape, mask=None) -> float32 tensor of that shape`, standard normal, whose first axis
is the batch a model sees. `ExampleNoise` makes predictions reproducible whatever the batches; `BatchNoise` is for
training, where only the run as a whole has to be.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from director.errors import InputError
from director.random_words import random_words


class Noise(Protocol):
    """Standard normal numbers for one step of a model (a layer, or a transition)."""

    def __call__(self, step: int, shape: Sequence[int], mask: Tensor | None = None) -> Tensor: ...


def fold(batch: Tensor, samples: int) -> Tensor:
    """[B, ...] -> [S*B, ...], sample-major: row s*B + i is sample s of example i."""
    return batch if samples == 1 else batch.expand(samples, *batch.shape).flatten(0, 1)


def unfold(batch: Tensor, samples: int) -> Tensor:
    """[S*B, ...] -> [S, B, ...], the inverse of `fold`."""
    return batch.unflatten(0, (samples, -1))


class ScaledNoise:
    """Another noise, multiplied by a number: its standard deviation in place of 1."""

    def __init__(self, noise: Noise, scale: float) -> None:
        if not 0 <= scale < float("inf"):
            raise InputError(f"a noise scale is 0 or more and finite, not {scale}")
        self.noise, self.scale = noise, scale

    def __call__(self, step: int, shape: Sequence[int], mask: Tensor | None = None) -> Tensor:
        return self.scale * self.noise(step, shape, mask)


class BatchNoise:
    """One stream of noise for everything, on the generator's device: training."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, step: int, shape: Sequence[int], mask: Tensor | None = None) -> Tensor:
        """A fresh draw of `shape`; `step` and `mask` do not matter."""
        return torch.randn(tuple(shape), generator=self.generator, device=self.generator.device)


class ExampleNoise:
    """Noise that belongs to the examples: their draws depend on (seed, example, samples, step, shape) alone.

    So the predictions of an example are the same in any batch, in any order, with any number of workers. (A CPU and
    a GPU have different streams.)

    seed: >= 0. examples: [B] integers >= 0, the identities of a batch's examples. samples: S; the model sees the
    batch folded to S*B rows (`fold`).
    """

    def __init__(
        self, seed: int, examples: Sequence[int] | np.ndarray | Tensor, samples: int, device: str | torch.device = "cpu"
    ) -> None:
        self.examples = [int(example) for example in examples]
        self.seed, self.samples = int(seed), int(samples)
        if self.seed < 0 or self.samples < 1 or min(self.examples, default=0) < 0:
            raise InputError(
                f"noise needs seed >= 0, samples >= 1 and example numbers >= 0, not seed {seed}, samples {samples}, "
                f"smallest example {min(self.examples, default=0)}"
            )
        self.generator = torch.Generator(device)

    def __call__(self, step: int, shape: Sequence[int], mask: Tensor | None = None) -> Tensor:
        """Noise of `shape` [S*B, ...].

        mask: [S*B, N] (folded; True = real token) where `shape` is [S*B, N, ...] of ragged text: each example draws
        for its own tokens, in order, so that its noise does not depend on the padding around it, which gets zeros.
        """
        count, device = len(self.examples), self.generator.device
        if shape[0] != self.samples * count:
            raise InputError(
                f"noise for {self.samples} samples of {count} examples was asked for {shape[0]} rows: "
                "fold the batch (director.noise.fold) and give the numbers of exactly its examples"
            )
        # Positions of each example's real tokens, the same in all its samples; without a mask all are real.
        positions = [slice(None)] * count if mask is None else [row.nonzero().squeeze(1) for row in mask[:count].cpu()]
        noise = torch.zeros(self.samples, count, *shape[1:], device=device)  # [S, B, ...]
        seeds = random_words(self.seed, step, np.array(self.examples, np.int64), draws=1)[0].tolist()  # [B]
        for row, (seed, real) in enumerate(zip(seeds, positions, strict=True)):
            self.generator.manual_seed(seed)
            example_shape = shape[1:] if mask is None else (len(real), *shape[2:])
            noise[:, row, real] = torch.randn(self.samples, *example_shape, generator=self.generator, device=device)
        return noise.flatten(0, 1)  # [S*B, ...]

"""From a model and examples to logits per sample: one pass, dropout samples, or samples of the model's own noise.

A model is any classifier whose call gives logits [B, C], or an object with `logits` (transformers). Examples are what
`director.data.examples.ImageExamples` is: a length, `dataset.example`, and `batch(rows)` with the inputs first; with
`lengths` where they differ in length.
"""

import inspect
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from director.device import autocast, module_modes, seeded, to_device, trains_for_dropout
from director.errors import InputError
from director.methods import Randomness
from director.noise import ExampleNoise, Noise, ScaledNoise, fold, unfold

IN_MEMORY = 1 << 28  # bytes of logits; more of them lie in a file as they are made


@dataclass(frozen=True)
class Output:
    """Logits float32 [S, N, C] of S samples, and of a student how uncertainty grows along its path.

    profile: float32 [N, L], the predicted variance of each step, a mean over tokens, channels and roll-outs; None for
    any other model, or without noise.
    """

    logits: np.ndarray
    profile: np.ndarray | None = None


def predict(
    model: nn.Module,
    examples: Any,
    *,
    randomness: Randomness = "none",
    samples: int = 1,
    noise_scale: float = 1.0,
    seed: int = 0,
    batch_size: int = 512,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    scratch: str | Path | None = None,
) -> Output:
    """Logits of every example in `samples` passes of the model; the mode of every module is restored.

    randomness: where the samples come from.
    - `none`: one deterministic pass in evaluation mode.
    - `dropout`: Monte Carlo dropout (Gal and Ghahramani, ICML 2016), of every module that has it
      (`director.device.trains_for_dropout`). The masks depend on `seed` and `batch_size`.
    - `noise`: the model's own, dropout off. The noise of an example depends on (seed, example, S) alone, so the batches
      do not matter, beyond rounding.

    noise_scale: what the standard deviations of this noise are multiplied by (`director.training.noise_scale`).
    batch_size: rows of one pass, S per input. scratch: folder for a file without a name that holds the logits where
    they are many (IN_MEMORY); None for the system's.

    Raises InputError for numbers out of range, if the samples cannot differ or are all alike, and for logits that are
    not finite.
    """
    device = torch.device(device)
    for name, number in {"samples": samples, "batch_size": batch_size, "number of examples": len(examples)}.items():
        if number < 1:
            raise InputError(f"{name} is {number}; it must be 1 or more")
    _check_randomness(model, randomness, samples)
    model.to(device)
    logits: np.ndarray | None = None
    profile: np.ndarray | None = None
    training = trains_for_dropout if randomness == "dropout" else lambda module: False
    with module_modes(model, training), torch.no_grad(), autocast(device, precision):
        for rows in batches(examples, max(1, batch_size // samples)):
            inputs = to_device(examples.batch(rows)[0], device)
            variances: list[Tensor] = []
            if randomness == "dropout":
                with seeded(device, seed, int(rows[0])):
                    output = logits_of(model, _folded(inputs, samples))
            elif randomness == "noise":
                noise = ScaledNoise(ExampleNoise(seed, examples.dataset.example[rows], samples, device), noise_scale)
                output = _sample(model, inputs, noise, samples, variances)
            else:
                output = logits_of(model, inputs)
            output = unfold(output.float(), samples)  # [S, B, C]
            if logits is None:
                logits = _empty((samples, len(examples), output.shape[2]), scratch)
            logits[:, rows] = output.cpu().numpy()
            if variances:
                steps = unfold(torch.stack(variances, dim=1), samples).mean(0).cpu().numpy() * noise_scale**2  # [B, L]
                profile = np.empty((len(examples), steps.shape[1]), np.float32) if profile is None else profile
                profile[rows] = steps
    _check_logits(model, logits, randomness, may_agree=noise_scale == 0)
    return Output(logits, profile)


def dropout_rates(model: nn.Module) -> dict[str, float]:
    """Every dropout rate in a model, by the name of its module and attribute.

    Those of dropout modules, and numbers that a module keeps for functional dropout, fused attention or stochastic
    depth: timm, transformers and torch all have `drop` in their names.
    """
    rates = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            is_rate = "drop" in attribute or (attribute == "p" and "drop" in type(module).__name__.lower())
            if is_rate and isinstance(value, int | float) and not isinstance(value, bool):
                rates[f"{name}.{attribute}".lstrip(".")] = float(value)
    return rates


def _check_randomness(model: nn.Module, randomness: Randomness, samples: int) -> None:
    """Raise InputError for an unknown randomness, and where the samples asked for could not differ."""
    name = type(model).__name__
    if randomness not in get_args(Randomness):
        raise InputError(f"randomness is {randomness!r}; it must be one of {', '.join(get_args(Randomness))}")
    if randomness == "none" and samples != 1:
        raise InputError(f"samples is {samples}, but a pass without randomness is always the same; use samples 1")
    if randomness == "dropout" and not any((rates := dropout_rates(model)).values()):
        raise InputError(
            f"{name} has no dropout rate above 0 (of {len(rates)} found), so {samples} passes would be one and the "
            "same; build the model with a rate above 0, or use another method"
        )
    if randomness == "noise" and "noise" not in inspect.signature(model.forward).parameters:
        raise InputError(f"{name} takes no noise, so it has no samples; use its single pass (mle) or mc_dropout")


def _check_logits(model: nn.Module, logits: np.ndarray, randomness: Randomness, may_agree: bool) -> None:
    """Raise InputError for logits that are not finite, and, unless they `may_agree`, for samples that are all alike."""
    name = type(model).__name__
    for sample in logits:
        if not (finite := np.isfinite(sample).all(axis=1)).all():
            raise InputError(
                f"{name} gives logits that are not finite, first for row {np.argmin(finite)} of {len(finite)}; "
                "its weights have diverged or its inputs are not normalised"
            )
    if len(logits) > 1 and not may_agree and all(np.array_equal(sample, logits[0]) for sample in logits[1:]):
        reason = "dropout has rates above 0 but no effect" if randomness == "dropout" else "noise has no effect"
        raise InputError(f"all {len(logits)} samples are identical: {reason} on the logits of {name}")


def has_steps(model: nn.Module) -> bool:
    """Whether a model walks a path and can tell of its steps, as a student does."""
    return "on_step" in inspect.signature(model.forward).parameters


def _sample(model: nn.Module, inputs: Any, noise: Noise, samples: int, variances: list[Tensor]) -> Tensor:
    """Logits [S*B, C] of the model's own noise; of a student, `variances` gets the mean variance [S*B] of each step."""
    if not has_steps(model):
        return logits_of(model, inputs, noise=noise, samples=samples)

    def on_step(log_variance: Tensor, mask: Tensor | None) -> None:
        variance = log_variance.exp().mean(-1).float()  # [R, N]
        real = torch.ones_like(variance) if mask is None else mask
        variances.append((variance * real).sum(1) / real.sum(1).clamp(min=1))

    return logits_of(model, inputs, noise=noise, on_step=on_step, samples=samples)


def _empty(shape: tuple[int, ...], scratch: str | Path | None) -> np.ndarray:
    """float32 of `shape`: in memory, or, where it is large, in a file that is gone when nobody holds it."""
    if 4 * np.prod(shape) <= IN_MEMORY:
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile(dir=scratch) as file:
        return np.memmap(file, np.float32, "w+", shape=shape)


def _folded(inputs: Any, samples: int) -> Any:
    """S copies of each input of a batch in one batch axis."""
    if isinstance(inputs, Mapping):
        return {name: fold(tensor, samples) for name, tensor in inputs.items()}
    return fold(inputs, samples)


def batches(examples: Any, size: int) -> Iterator[np.ndarray]:
    """Rows of the examples in their order, or from the shortest text to the longest, which pads least."""
    lengths = getattr(examples, "lengths", None)
    order = np.arange(len(examples)) if lengths is None else np.argsort(lengths, kind="stable")
    for start in range(0, len(examples), size):
        yield order[start : start + size]


def logits_of(model: nn.Module, inputs: Any, **options: Any) -> Tensor:
    """What a classifier's call gives for a batch, without the wrapping of transformers."""
    # The models of this project, which have a kind, take a mapping as it is; those of others its entries by name.
    by_name = isinstance(inputs, Mapping) and not hasattr(model, "kind")
    output = model(**inputs, **options) if by_name else model(inputs, **options)
    return output if isinstance(output, Tensor) else output.logits

"""From a model and data to logits per sample: one pass, dropout samples, or samples of the model's own noise.

A model is any classifier whose call gives logits [B, C], or an object with `logits` (transformers). Examples are what
`director.data.dataset.ImageExamples` is: a length, `dataset.example`, and `batch(rows)` with the inputs first; with
`lengths` where they differ in length.
"""

import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from director.backbones import load_model, parameter_count
from director.data.dataset import Dataset, ImageExamples, TextExamples
from director.data.splits import load_split
from director.data.texts import Texts
from director.device import (
    autocast,
    device_name,
    peak_memory_bytes,
    reset_peak_memory,
    resolve_device,
    seeded,
    set_threads,
    to_device,
)
from director.files import InputError, file_digest, read_json, replacing, write_json
from director.noise import ExampleNoise, fold, unfold
from director.predictions import Predictions, expected_entropy, mutual_information, predictive_entropy
from director.provenance import git_commit, versions


def predict(
    model: nn.Module,
    examples: Any,
    *,
    batch_size: int,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> np.ndarray:
    """Logits float32 [1, N, C] of one deterministic pass in evaluation mode; every module's mode is restored."""
    with _training_modes(model, lambda module: False):
        return _logits(model, examples, 1, batch_size, device, precision, lambda inputs, rows: _call(model, inputs))


def predict_dropout(
    model: nn.Module,
    examples: Any,
    *,
    samples: int,
    seed: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> np.ndarray:
    """Logits float32 [S, N, C] of S passes with dropout active (Gal and Ghahramani, ICML 2016).

    The whole model is in training mode, since fused attention takes its dropout from the attention module's own
    flag; only modules with running statistics stay in evaluation mode. Modes are restored afterwards.
    batch_size: rows of one pass, S per input; the masks depend on it, and else on `seed` alone.

    Raises InputError if every dropout rate is 0, or if the samples are all alike for another reason.
    """
    device = torch.device(device)
    rates = dropout_rates(model)
    if not any(rates.values()):
        raise InputError(
            f"{type(model).__name__} has no dropout rate above 0 (of {len(rates)} found), so {samples} passes would be "
            "one and the same; build the model with a rate above 0, or use another method"
        )

    def dropped(inputs: Any, rows: np.ndarray) -> Any:
        with seeded(device, seed, int(rows[0])):
            return _call(model, inputs)

    with _training_modes(model, lambda module: not _has_running_statistics(module)):
        logits = _logits(model, examples, samples, batch_size, device, precision, dropped)
    return _refuse_copies(logits, f"dropout of {type(model).__name__} has rates above 0 but no effect on its logits")


def predict_samples(
    model: nn.Module,
    examples: Any,
    *,
    samples: int,
    seed: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> np.ndarray:
    """Logits float32 [S, N, C] of a model with noise of its own, dropout off.

    The noise of an example depends on (seed, example, S) alone, so the batches do not matter, beyond rounding.
    batch_size: rows of one pass, S per input. Raises InputError if the model takes no noise or ignores it.
    """
    name = type(model).__name__
    if "noise" not in inspect.signature(model.forward).parameters:
        raise InputError(f"{name} takes no noise, so it has no samples; use its single pass (mle) or mc_dropout")

    def sampled(inputs: Any, noise: ExampleNoise, rows: np.ndarray) -> Tensor:
        return _call(model, inputs, noise=noise)

    logits = _noisy_logits(model, examples, samples, seed, batch_size, device, precision, sampled)
    return _refuse_copies(logits, f"{name} gives the same logits for every noise: it has no random layer")


def predict_director(
    model: nn.Module,
    examples: Any,
    *,
    samples: int,
    seed: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> tuple[np.ndarray, np.ndarray]:
    """Logits float32 [S, N, C] of S free roll-outs, and how uncertainty grows along their paths.

    The profile float32 [N, L] is the predicted variance of each step, a mean over tokens, channels and roll-outs. Noise
    as in `predict_samples`.
    """
    if not hasattr(model, "forward_with_profile"):
        raise InputError(f"{type(model).__name__} has no path to roll out; give the weights of a student of director")
    rows_seen, profiles = [], []

    def sampled(inputs: Any, noise: ExampleNoise, rows: np.ndarray) -> Tensor:
        logits, profile = model.forward_with_profile(inputs, noise)
        rows_seen.append(rows)
        profiles.append(unfold(profile.float(), samples).mean(0).cpu().numpy())  # [B, L]
        return logits

    logits = _noisy_logits(model, examples, samples, seed, batch_size, device, precision, sampled)
    profile = np.empty((len(examples), profiles[0].shape[1]), np.float32)
    profile[np.concatenate(rows_seen)] = np.concatenate(profiles)
    return logits, profile


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


def examples_for(
    model: nn.Module,
    dataset: Dataset,
    normalisation: Mapping[str, Any] | None = None,
    augmentation: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> ImageExamples | TextExamples:
    """What a model of this project, or a student, sees of a data set: texts as its own tokens, or images.

    normalisation, augmentation, seed: of `ImageExamples`. Raises InputError if the model reads the other kind.
    """
    settings = model.settings.get("teacher", {"settings": model.settings})["settings"]
    if "tokenizer" in settings:
        return TextExamples(dataset, settings["tokenizer"], settings["max_length"])
    if isinstance(dataset.inputs, Texts):
        raise InputError(f"{dataset.name} holds texts, not images; use a text model with it")
    return ImageExamples(dataset, normalisation, augmentation, seed)


def predict_suite(
    *,
    weights_file: str | Path,
    training_cost_file: str | Path,
    dataset_folder: str | Path,
    normalisation: Mapping[str, Any] | None,
    split_file: str | Path | None,
    part: str = "test",
    labelled: bool = True,
    depth_file: str | Path | None = None,
    at_most: int | None = None,
    method: str,
    samples: int,
    seed: int,
    batch_size: int,
    about: Mapping[str, Any],
    predictions_file: str | Path,
    cost_file: str | Path,
    device: str = "auto",
    precision: str = "float32",
    threads: int = 1,
) -> None:
    """Write the predictions of one method on one suite, and what they cost.

    split_file, part, at_most: predict the rows whose original is in this part (`validation`, `test`) of the split, or
    among `at_most` evenly spaced ones of it. Without a split file the data set has trained nothing: its official test
    part counts, its last `about["parts"]["test"]` rows, or all. labelled: False for inputs from out of distribution,
    whose labels are of another task. normalisation: of images. method: one of METHODS. about: experiment, backbone,
    suite and the like, kept in the file. The predictions file has the same bytes for the same seed and machine; seconds
    are in the cost file, without the time to load.

    depth_file: for `director`, where uncertainty per input is written: variance float32 [N, L] (see `predict_director`)
    and, for S > 1, predictive_entropy, expected_entropy and mutual_information float64 [N], in nats; .npz.
    """
    kind = "director" if method.startswith("director") else method
    if kind not in METHODS:
        raise InputError(f"method is {method!r}; a model predicts with one of {', '.join(METHODS)}")
    if (kind == "director") is not (depth_file is not None):
        raise InputError(f"depth_file is {depth_file} for method {method}; it is for director, which needs it")
    device = resolve_device(device)
    set_threads(threads)
    training_cost = read_json(training_cost_file)
    model, _ = load_model(weights_file, device)
    dataset = Dataset.load(dataset_folder)
    data, generated = dataset.about["fingerprint"], dataset.about.get("generated", False)
    if split_file is not None:
        split = load_split(split_file)
        if part not in split:
            raise InputError(f"part is {part!r}; {split_file} has {', '.join(split)}")
        dataset = dataset.of_examples(split[part], at_most)
        if not len(dataset):
            raise InputError(
                f"{dataset_folder} has no example of part {part} of {split_file}; is it another data set's?"
            )
    else:
        count = dataset.about.get("parts", {}).get("test", len(dataset))
        dataset = dataset.of_examples(dataset.example[len(dataset) - count :], at_most)
    examples = examples_for(model, dataset, normalisation)

    reset_peak_memory(device)
    start = time.perf_counter()
    logits = METHODS[kind](
        model, examples, samples=samples, seed=seed, batch_size=batch_size, device=device, precision=precision
    )
    logits, profile = logits if kind == "director" else (logits, None)
    seconds = time.perf_counter() - start

    origin = {
        "method": method,
        "samples": samples,
        "seed": seed,
        "weights": file_digest(weights_file),
        "data": data,
        "generated": generated,
        "precision": precision,
        "commit": git_commit(),
        "versions": versions("torch", "numpy"),
    }
    labels = dataset.labels if labelled else None
    columns = {"example": dataset.example, "shift": dataset.shift, "severity": dataset.severity}
    predictions = Predictions(logits, labels, **columns, about={**about, **origin})
    predictions.save(predictions_file)
    if profile is not None:
        _save_depth(depth_file, predictions, profile)
    cost = {
        "parameters": parameter_count(model),
        "train_seconds": training_cost["train_seconds"],
        "predict_seconds": seconds,
        "examples": len(examples),
        "samples": samples,
        "device": device_name(device),
        "threads": threads,
        "peak_memory_bytes": peak_memory_bytes(device),
    }
    write_json(cost_file, cost)


def _single(model: nn.Module, examples: Any, *, samples: int, seed: int, **options: Any) -> np.ndarray:
    if samples != 1:
        raise InputError(f"samples is {samples}, but mle is a single pass; use samples 1")
    return predict(model, examples, **options)


METHODS = {
    "mle": _single,
    "mc_dropout": predict_dropout,
    "kep_svgp": predict_samples,
    "director": predict_director,
}


def _save_depth(path: str | Path, predictions: Predictions, profile: np.ndarray) -> None:
    about = json.dumps(predictions.about, sort_keys=True)
    arrays = {"variance": profile, "example": predictions.example, "severity": predictions.severity}
    if len(predictions.logits) > 1:
        uncertainties = (predictive_entropy, expected_entropy, mutual_information)
        arrays |= {uncertainty.__name__: uncertainty(predictions) for uncertainty in uncertainties}
    with replacing(path) as temporary:
        np.savez(temporary, **arrays, shift=predictions.shift, about=np.array(about), allow_pickle=False)


def _noisy_logits(
    model: nn.Module,
    examples: Any,
    samples: int,
    seed: int,
    batch_size: int,
    device: str | torch.device,
    precision: str,
    forward: Callable[[Any, ExampleNoise, np.ndarray], Tensor],
) -> np.ndarray:
    """float32 [S, N, C] in evaluation mode: `forward(inputs, noise, rows)` gets inputs and rows as in `_logits`."""

    def with_noise(inputs: Any, rows: np.ndarray) -> Tensor:
        return forward(inputs, ExampleNoise(seed, examples.dataset.example[rows], samples, device), rows)

    with _training_modes(model, lambda module: False):
        return _logits(model, examples, samples, batch_size, device, precision, with_noise)


def _logits(
    model: nn.Module,
    examples: Any,
    samples: int,
    batch_size: int,
    device: str | torch.device,
    precision: str,
    forward: Callable[[Any, np.ndarray], Tensor],
) -> np.ndarray:
    """float32 [S, N, C]: `forward(inputs, rows)` gets S copies of each input of a batch, folded into one batch axis."""
    device = torch.device(device)
    for name, number in {"samples": samples, "batch_size": batch_size, "number of examples": len(examples)}.items():
        if number < 1:
            raise InputError(f"{name} is {number}; it must be 1 or more")
    model.to(device)
    logits = None
    with torch.no_grad(), autocast(device, precision):
        for rows in _batches(examples, max(1, batch_size // samples)):
            inputs = to_device(examples.batch(rows)[0], device)
            if isinstance(inputs, Mapping):
                folded = {name: fold(tensor, samples) for name, tensor in inputs.items()}
            else:
                folded = fold(inputs, samples)
            output = unfold(forward(folded, rows).float(), samples)  # [S, B, C]
            if logits is None:
                logits = np.empty((samples, len(examples), output.shape[2]), np.float32)
            logits[:, rows] = output.cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(logits).all(axis=(0, 2)))
    if len(bad):
        raise InputError(
            f"{type(model).__name__} gives logits that are not finite, first for row {bad[0]} of {len(examples)}; "
            "its weights have diverged or its inputs are not normalised"
        )
    return logits


def _batches(examples: Any, size: int) -> Iterator[np.ndarray]:
    """Rows in their order, or from the shortest text to the longest, which pads least."""
    lengths = getattr(examples, "lengths", None)
    order = np.arange(len(examples)) if lengths is None else np.argsort(lengths, kind="stable")
    for start in range(0, len(examples), size):
        yield order[start : start + size]


def _call(model: nn.Module, inputs: Any, **options: Any) -> Tensor:
    # The models of this project, which have a kind, take a mapping as it is; those of others its entries by name.
    by_name = isinstance(inputs, Mapping) and not hasattr(model, "kind")
    output = model(**inputs, **options) if by_name else model(inputs, **options)
    return output if isinstance(output, Tensor) else output.logits


def _refuse_copies(logits: np.ndarray, reason: str) -> np.ndarray:
    if len(logits) > 1 and (logits == logits[0]).all():
        raise InputError(f"all {len(logits)} samples are identical: {reason}")
    return logits


@contextmanager
def _training_modes(model: nn.Module, training: Callable[[nn.Module], bool]) -> Iterator[None]:
    """Set the training flag of each module, and every flag back as it was afterwards, also after an error."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = training(module)
        yield
    finally:
        for module, was in before:
            module.training = was


def _has_running_statistics(module: nn.Module) -> bool:
    return any(name.startswith("running_") for name, _ in module.named_buffers(recurse=False))

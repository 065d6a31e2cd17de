"""The predictions of one method with one trained model: every suite of its experiment, in one job."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from director.data.dataset import Dataset
from director.data.examples import Normalisation
from director.data.splits import load_split
from director.device import device_name, peak_memory_bytes, reset_peak_memory, resolve_device, set_threads
from director.errors import InputError
from director.files import file_digest, replacing
from director.methods import Randomness
from director.models.weights import load_model, parameter_count
from director.numbers.predictions import Predictions, expected_entropy, mutual_information, predictive_entropy
from director.numbers.suites import Made, write_suites
from director.path.students import load_student
from director.provenance import fingerprint, git_commit, versions
from director.settings.suite import Suite
from director.settings.training import Compute
from director.training.examples import examples_for
from director.training.job import read_train_seconds
from director.training.laplace import fit_last_layer
from director.training.predict import has_steps, predict

DEPTH = "depth.npz"  # <suite>.depth.npz lies beside the predictions of a student


def predict_run(
    *,
    weights_file: str | Path,
    teacher_file: str | Path | None = None,
    training_cost_file: str | Path,
    split_file: str | Path,
    dataset_folders: Mapping[str, str | Path],
    suites: Mapping[str, Suite],
    folder: str | Path,
    randomness: Randomness,
    samples: Sequence[int],
    profile: bool,
    seed: int,
    about: Mapping[str, Any],
    normalisation: Normalisation | None = None,
    batch_size: int = 512,
    precision: str = "float32",
    fit_noise: Callable[[Callable[[float], Predictions]], float] | None = None,
    laplace: bool = False,
    compute: Compute,
) -> None:
    """Write the predictions of every suite into `folder`, see `director.numbers.suites.write_suites`.

    teacher_file: of the teacher, where the weights are a student's. dataset_folders: by name of data set. samples: the
    numbers of samples that rows of the table have; the file holds the largest, and on `test` the time of each is taken.
    profile: the weights are a student's, whose uncertainty along its path is written as <suite>.depth.npz: variance
    float32 [N, L] (`Output.profile`) and, for S > 1, predictive_entropy, expected_entropy and mutual_information
    float64 [N], in nats. about: experiment, backbone, method and the like. fit_noise: gives the noise scale with which
    every suite is made, from a function that gives the predictions on the suite `val` with a scale and the most
    samples, see `director.training.noise_scale`; None: the noise as it was trained. laplace: with a posterior of the
    last layer, fitted on the training part (`director.training.laplace`); its time counts as training.

    Suites that an earlier, killed job has finished are kept. The same seed on the same machine gives the same bytes;
    seconds are in the cost file, without the time to load.
    """
    device = resolve_device(compute.device)
    set_threads(compute.threads)
    train_seconds = read_train_seconds(training_cost_file)
    if teacher_file is None:
        model, _ = load_model(weights_file, device)
    else:
        model, _ = load_student(weights_file, device, teacher_file)
    if profile and (not has_steps(model) or randomness != "noise"):
        raise InputError(
            f"{weights_file}: {type(model).__name__} with randomness {randomness} has no path to roll out; give the "
            "weights of a student, and randomness noise"
        )
    datasets = {name: Dataset.load(path) for name, path in dataset_folders.items()}
    split = load_split(split_file)
    options = {"randomness": randomness, "seed": seed, "batch_size": batch_size, "precision": precision}
    most, fitted, packages = max(samples), {}, ["torch", "numpy"]
    if laplace:
        part = _chosen(datasets[suites["val"].dataset], suites["val"].model_copy(update={"part": "train"}), split)
        model = fit_last_layer(model, examples_for(model, part, normalisation), batch_size=batch_size, device=device)
        train_seconds += model.seconds
        fitted, packages = {"prior_precision": model.prior_precision}, [*packages, "laplace-torch"]
    if fit_noise is not None:
        part = _chosen(datasets[suites["val"].dataset], suites["val"], split)
        validation = examples_for(model, part, normalisation)

        def on_validation(scale: float) -> Predictions:
            number = most if scale > 0 else 1  # without noise all roll-outs are the same
            output = predict(model, validation, samples=number, noise_scale=scale, device=device, **options)
            return Predictions(output.logits, part.labels)

        options["noise_scale"] = fit_noise(on_validation)
    origin = {
        **about,
        "samples": most,
        "seed": seed,
        "weights": file_digest(weights_file),
        "precision": precision,
        **({"noise_scale": options["noise_scale"]} if "noise_scale" in options else {}),
        **fitted,
        "commit": git_commit(),
        "versions": versions(*packages),
    }

    def make(name: str) -> Made:
        suite, dataset = suites[name], datasets[suites[name].dataset]
        chosen = _chosen(dataset, suite, split)
        examples = examples_for(model, chosen, normalisation)
        seconds = {}
        # The largest number comes last, so that what is kept is what was predicted last.
        for number in sorted(samples) if name == "test" else [most]:
            start = time.perf_counter()
            output = predict(model, examples, samples=number, device=device, scratch=folder, **options)
            seconds[number] = time.perf_counter() - start
        notes = {
            **origin,
            "suite": name,
            "data": dataset.about["fingerprint"],
            "generated": dataset.about.get("generated", False),
        }
        columns = {"example": chosen.example, "shift": chosen.shift, "severity": chosen.severity}
        labels = chosen.labels if suite.labelled else None
        predictions = Predictions(output.logits, labels, **columns, about=notes)
        if profile:
            about = {**predictions.about, "made_from": fingerprint(identities[name])}  # as in the predictions' file
            _save_depth(Path(folder, f"{name}.{DEPTH}"), predictions, output.profile, about)
        return Made(predictions, seconds)

    made_from = {
        **options,
        **{key: origin[key] for key in ("weights", "samples", "versions")},
        "about": dict(about),
        "normalisation": normalisation and normalisation.model_dump(),
        "split": file_digest(split_file),
    }
    identities = {
        name: {**made_from, "suite": suite.model_dump(), "data": datasets[suite.dataset].about["fingerprint"]}
        for name, suite in suites.items()
    }
    reset_peak_memory(device)
    Path(folder).mkdir(parents=True, exist_ok=True)

    def cost() -> dict[str, Any]:
        return {
            "parameters": parameter_count(model),
            "train_seconds": train_seconds,
            "device": device_name(device),
            "threads": compute.threads,
            "peak_memory_bytes": peak_memory_bytes(device),
        }

    write_suites(folder, identities, make, cost, beside=[DEPTH] if profile else [])


def _chosen(dataset: Dataset, suite: Suite, split: Mapping[str, np.ndarray]) -> Dataset:
    """The examples of a data set that a suite is made on."""
    if suite.part is not None:
        chosen = dataset.of_examples(split[suite.part], suite.at_most)
    else:
        count = dataset.about.get("parts", {}).get("test", len(dataset))
        chosen = dataset.of_examples(dataset.example[len(dataset) - count :], suite.at_most)
    if not len(chosen):
        raise InputError(f"{dataset.name} has no example of the part {suite.part} of the split; is it another set's?")
    return chosen


def _save_depth(path: Path, predictions: Predictions, profile: np.ndarray, about: Mapping[str, Any]) -> None:
    arrays = {"variance": profile, "example": predictions.example, "severity": predictions.severity}
    if len(predictions.logits) > 1:
        uncertainties = (predictive_entropy, expected_entropy, mutual_information)
        arrays |= {uncertainty.__name__: uncertainty(predictions) for uncertainty in uncertainties}
    with replacing(path) as temporary:
        np.savez(
            temporary,
            **arrays,
            shift=predictions.shift,
            about=np.array(json.dumps(about, sort_keys=True)),
            allow_pickle=False,
        )

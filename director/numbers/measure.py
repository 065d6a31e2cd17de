"""From the predictions of a run folder to the records of their metrics."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from director.files import read_json, reading, write_json
from director.numbers.metrics import ood_summary, records
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite, manifest_of, suites_of

FORMAT = "director metrics 1"
POOLING = "softmax"  # how the samples of every method are pooled
# score that tells inputs in and out of distribution apart -> what is put behind the names of its metrics
SCORES = {"max_softmax": "", "negative_entropy": "_entropy", "negative_mutual_information": "_mutual_information"}
FITTED = ("temperature", "noise_scale")  # of a suite's `about`: what its method fitted on validation data
ABOUT_KEYS = ("experiment", "backbone", "method", "seed", "suite")  # what tables read of a suite's `about`
CELL_KINDS = {"samples": int, "shift": str, "severity": int, "pooling": str, "n": int}  # of a record, beside metrics
Metrics = dict[str, dict[str, dict[str, Any]]]  # method -> suite -> {"about", "records"}


def measure_run(run_folder: str | Path, samples: Mapping[str, Sequence[int] | None], metrics_file: str | Path) -> None:
    """Write every metric of every suite, but `val`, of the methods in a run folder.

    samples: method -> the numbers of samples to measure with, each on its own; None for all of them. An
    out-of-distribution suite is held against the method's own `test`. Metrics that are undefined are null.
    """
    methods: Metrics = {}
    for method, numbers in samples.items():
        manifest = manifest_of(run_folder, method)
        inside = load_suite(manifest, "test")
        methods[method] = {}
        for suite in suites_of(manifest):
            if suite != "val":
                predictions = inside if suite == "test" else load_suite(manifest, suite)
                methods[method][suite] = {
                    "about": predictions.about,
                    "records": _records(predictions, inside if suite.startswith("ood-") else None, numbers),
                }
    write_json(metrics_file, {"format": FORMAT, "methods": methods})


def read_metrics(metrics_file: str | Path) -> Metrics:
    """What `measure_run` wrote: method -> suite -> about and records; InputError for a file that is not that."""
    content = read_json(metrics_file)
    with reading(metrics_file, f"a file of metrics, {FORMAT}", "delete it and run the same command again"):
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        for suites in content["methods"].values():
            for measured in suites.values():
                _check_keys(measured["about"], ABOUT_KEYS)
                for record in measured["records"]:
                    _check_keys(record, CELL_KINDS)
                    for name, value in record.items():
                        if not isinstance(value, CELL_KINDS.get(name, int | float | None)):
                            raise ValueError(f"{name} is {value!r}")
        return content["methods"]


def _check_keys(table: Mapping[str, Any], keys: Iterable[str]) -> None:
    """KeyError for the first key that is missing."""
    for key in keys:
        table[key]


def _records(
    predictions: Predictions, inside: Predictions | None, samples: Sequence[int] | None
) -> list[dict[str, Any]]:
    """For each number of samples a record per (shift, severity), then the overall one.

    With `inside`, for each number of samples one record: of how the two are told apart.
    """
    numbers = samples or [None]
    if inside is None:
        return [record for number in numbers for record in records(predictions, POOLING, number)]
    return [_detection(predictions, inside, number) for number in numbers]


def _detection(predictions: Predictions, inside: Predictions, samples: int | None) -> dict[str, Any]:
    """How well each score tells these out-of-distribution inputs from those of `inside`."""
    summary = ood_summary(inside, predictions, POOLING, samples)
    undefined = dict.fromkeys(("auroc", "aupr_in", "aupr_out", "fpr95"))
    numbers = {
        f"ood_{metric}{suffix}": value
        for score, suffix in SCORES.items()
        for metric, value in (summary[score] or undefined).items()
    }
    how = {**predictions.about, "pooling": POOLING, "samples": samples or len(predictions.logits)}
    if len(predictions.logits) == 1:  # the file may hold the mean of several samples: then `about` says of how many
        how |= {key: predictions.about[key] for key in ("pooling", "samples") if key in predictions.about}
    cell = {key: how[key] for key in ("samples", "pooling")} | {"n": predictions.logits.shape[1]}
    return cell | {"shift": predictions.about["suite"], "severity": 0} | numbers

"""From the predictions of an experiment to the differences of its rows to one of them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from director.errors import InputError
from director.files import replacing
from director.numbers.comparison import (
    DETECTION,
    METRICS,
    Draws,
    Values,
    aligned,
    draw,
    holm,
    interval,
    or_none,
    paired_test,
    require_level,
    resampled,
    resampled_detection,
)
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite, suites_of

COLUMNS = ("experiment", "backbone", "method", "samples", "suite", "metric", "reference", "runs", "difference")
COLUMNS += ("lower", "upper", "level", "p", "p_holm")
OOD = "ood"  # the mean over all out-of-distribution suites
# suite -> the metrics that are compared: those of the main table
COMPARED: dict[str, tuple[str, ...]] = {
    "test": METRICS,
    "corrupted": ("accuracy", "nll", "ece_15"),
    "shifted": ("accuracy", "mcc", "nll", "ece_15"),
    OOD: DETECTION,
}


def compare_rows(
    manifest_files: Sequence[str | Path],
    out_file: str | Path,
    *,
    reference: tuple[str, str],
    replicates: int = 1000,
    level: float = 0.95,
) -> None:
    """Write how every row of a table differs from the reference row (backbone, method), as CSV.

    manifest_files: of every run of every row of one experiment. One line per suite, metric (see COMPARED) and row, with
    all its samples: the difference, its bootstrap interval, and the p-value of the paired test over seeds, alone and
    adjusted by Holm over all lines of the file. `ood` is the mean over the out-of-distribution suites, by the largest
    probability. Empty where undefined: a row with one run, or with other seeds than the reference, has no pairs.
    `InputError` where the reference is no row, or runs have other inputs.
    """
    require_level(replicates, level)
    draws: dict[str, Draws] = {}
    rows: dict[tuple[str, str], dict[str, Mapping[tuple[str, str], Values]]] = {}  # row -> seed -> values
    samples: dict[tuple[str, str], int] = {}
    for manifest in manifest_files:
        about, values = _values(manifest, suites_of(manifest_files[0]), draws, replicates)
        row = about["backbone"], about["method"]
        rows.setdefault(row, {})[str(about["seed"])] = values
        samples[row] = about["samples"]
    base = rows.pop(tuple(reference), None)
    if base is None:
        raise InputError(f"the reference {'/'.join(reference)} is none of the rows {', '.join(map('/'.join, rows))}")
    lines = []
    for suite, metric in next(iter(base.values())):
        for (backbone, method), runs in rows.items():
            compared, referred = (
                {seed: values[suite, metric] for seed, values in side.items()} for side in (runs, base)
            )
            shared = [seed for seed in compared if seed in referred]
            sides = [[or_none(side[seed][0]) for seed in shared] for side in (compared, referred)]
            lines.append(
                {
                    "experiment": about["experiment"],
                    "backbone": backbone,
                    "method": method,
                    "samples": samples[backbone, method],
                    "suite": suite,
                    "metric": metric,
                    "reference": "/".join(reference),
                    "runs": len(runs),
                    "level": level,
                    "p": paired_test(*sides),
                    **interval(*([side[seed] for seed in sorted(side)] for side in (compared, referred)), level),
                }
            )
    adjusted = holm([line["p"] for line in lines])
    lines = [line | {"p_holm": p} for line, p in zip(lines, adjusted, strict=True)]
    with replacing(out_file) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _values(
    manifest: str | Path, suites: Sequence[str], draws: dict[str, Draws], replicates: int
) -> tuple[dict[str, Any], dict[tuple[str, str], Values]]:
    """What a run is, and (suite, metric) -> its values. The first run makes the draws of each suite."""

    def load(suite: str) -> Predictions:
        run = load_suite(manifest, suite)
        if suite not in draws:
            draws[suite] = draw(run, replicates, tuple(suite.encode()))  # each suite is drawn on its own
        return aligned(draws[suite], run, str(manifest))

    test = load("test")
    values: dict[tuple[str, str], Values] = {}
    for suite in [name for name in COMPARED if name in suites]:
        run = test if suite == "test" else load(suite)
        values |= {(suite, metric): found for metric, found in resampled(draws[suite], run, COMPARED[suite]).items()}
    foreign = [
        resampled_detection(draws["test"], test, draws[suite], run)
        for suite, run in ((name, load(name)) for name in suites if name.startswith("ood-"))
    ]
    if foreign:
        values |= {(OOD, metric): np.mean([found[metric] for found in foreign], axis=0) for metric in COMPARED[OOD]}
    return test.about, values

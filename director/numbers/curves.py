"""What figures draw, as numbers: curves, and the bands around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from director.numbers.comparison import Draws, Values, resampled_by_cell
from director.numbers.metrics import BINS, Counts, equal_width_bins, risk_coverage
from director.numbers.predictions import Predictions

Curve = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram of several runs, their predictions taken together.

    confidence, accuracy  [bins] means in each bin, in [0, 1]; NaN where it is empty
    lower, upper          [bins] bootstrap interval of the accuracy over the examples; NaN where the bin is empty
    count                 [bins] predictions of all runs in each bin
    error                 the calibration error of these bins, in [0, 1]: at most the mean of those of the runs
    """

    confidence: Curve
    accuracy: Curve
    lower: Curve
    upper: Curve
    count: Counts
    error: float


def pooled_reliability(
    runs: Sequence[Predictions], bins: int = BINS, replicates: int = 1000, level: float = 0.95
) -> Reliability:
    """The diagram of all runs together, in bins (lo, hi] of equal width.

    A replicate of the interval draws examples with replacement, all rows of an example together, also those of other
    runs; where a bin is empty in it, it does not count there.
    """
    confidence, correct, example = (
        np.concatenate(parts)
        for parts in zip(*((run.confidence, run.correct, run.example) for run in runs), strict=True)
    )
    index = equal_width_bins(confidence, bins)
    count, stated, hits = (np.bincount(index, of, minlength=bins) for of in (None, confidence, correct))
    code = np.unique(example, return_inverse=True)[1]
    examples = int(code.max()) + 1
    per_example = np.hstack(
        [
            np.bincount(code * bins + index, of, minlength=examples * bins).reshape(examples, bins)
            for of in (None, correct)
        ]
    )
    generator = np.random.default_rng(0)
    drawn = np.empty((replicates, 2 * bins))
    for replicate in drawn:
        weights = np.bincount(generator.integers(examples, size=examples), minlength=examples)
        replicate[:] = weights @ per_example
    rows, right = drawn[:, :bins], drawn[:, bins:]
    lower, upper = np.full((2, bins), np.nan)
    for filled in np.flatnonzero(count):
        met = rows[:, filled] > 0
        if met.any():
            ends = [(1 - level) / 2, (1 + level) / 2]
            lower[filled], upper[filled] = np.quantile(right[met, filled] / rows[met, filled], ends)
    means = (np.divide(of, count, out=np.full(bins, np.nan), where=count > 0) for of in (stated, hits))
    error = float(np.abs(hits - stated).sum() / len(confidence))
    return Reliability(*means, lower, upper, count, error)


def excess_risk(predictions: Predictions) -> tuple[Curve, Curve]:
    """Coverage i/N and excess risk [N] each: the error rate among the i most confident inputs above the least possible.

    The oracle keeps every correct input before the first wrong one (Geifman et al. 2019). The mean of the excess is
    the AURC above the oracle's.
    """
    coverage, risk = risk_coverage(predictions)
    inputs = np.arange(1, len(risk) + 1)
    return coverage, risk - np.maximum(0, inputs - predictions.correct.sum()) / inputs


def by_severity(
    draws: Draws, run: Predictions, metrics: Sequence[str], groups: Mapping[str, str]
) -> dict[tuple[str, str, int], Values]:
    """(metric, group, severity) -> the metric in each replicate, a mean over the kinds of corruption of a group.

    run: aligned with `draws`. groups: kind of corruption -> its group, for each kind of `run`.
    """
    cells = list(draws.inputs.cells())
    places: dict[tuple[str, int], list[int]] = {}
    for number, (kind, severity) in enumerate(cells):
        places.setdefault((groups[kind], severity), []).append(number)
    values = resampled_by_cell(draws, run, metrics)  # metric -> [R, K]
    return {
        (metric, *place): of_cells[:, numbers].mean(1)
        for metric, of_cells in values.items()
        for place, numbers in places.items()
    }

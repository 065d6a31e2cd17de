"""Is one method better than another? Spread over seeds, bootstrap over test examples, tests over seeds."""

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from director.files import InputError, replacing
from director.metrics import accuracy, aurc, brier, ece_15, nll
from director.predictions import Predictions

# what a metric may read of predictions whose rows were drawn anew
ROW_WISE = {"labels", "targets", "log_probabilities", "probabilities", "confidence", "rank", "predicted", "correct"}
ROW_WISE |= {"log_likelihood", "squared_distance"}

COMPARED = (accuracy, nll, brier, ece_15, aurc)  # what a table of differences shows
COLUMNS = ("backbone", "method", "samples", "metric", "reference", "runs", "difference", "lower", "upper")
COLUMNS += ("level", "p", "p_holm")


def spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean over seeds, and standard deviation (ddof 1; None for one value).

    Both are None if the metric is undefined (None) for a seed: a mean over the other seeds would be a number of
    another kind, and nothing in a table would show it.
    """
    if not values or None in values:
        return None, None
    _require_finite(values)
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_test(a: Sequence[float | None], b: Sequence[float | None]) -> float | None:
    """Two-sided p of the paired t-test that `a` and `b`, one value per seed, have the same mean.

    None for fewer than 2 pairs, or where a value is None. Equal pairs throughout give 1; one constant difference
    that is not 0 gives 0, the limit. `InputError` for different lengths.
    """
    if len(a) != len(b):
        raise InputError(f"{len(a)} and {len(b)} values cannot be paired: give one of each per seed")
    if len(a) < 2 or None in a or None in b:
        return None
    _require_finite([*a, *b])
    difference = np.subtract(a, b)
    if not difference.any():
        return 1.0
    error = difference.std(ddof=1) / math.sqrt(len(difference))
    return float(2 * stats.t.sf(abs(difference.mean()) / error, len(difference) - 1)) if error else 0.0


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment (Holm 1979) of a family of p-values in [0, 1]; None stays None and does not count."""
    defined = [place for place, p in enumerate(p_values) if p is not None]
    adjusted, largest = [None] * len(p_values), 0.0
    for rank, place in enumerate(sorted(defined, key=lambda place: p_values[place])):
        p = p_values[place]
        if not 0 <= p <= 1:
            raise InputError(f"p-value {p} at position {place} is outside [0, 1]")
        largest = max(largest, min(1.0, (len(defined) - rank) * p))
        adjusted[place] = largest
    return adjusted


def paired_bootstrap(
    metric: Callable[[Predictions], float | None],
    runs: Sequence[Predictions],
    reference: Sequence[Predictions],
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, float | None]:
    """Mean of `metric` over `runs` minus that over `reference`, with an interval over the choice of test examples.

    `difference`, and `lower` and `upper` of the percentile interval (Efron & Tibshirani 1993, ch. 13). A replicate
    draws examples with replacement, all rows of an example together and the same ones for every run, so the interval
    speaks of other test examples, not of other seeds. Runs are pooled by softmax. A metric sees what `Predictions` has
    per row, see `ROW_WISE`: enough for all of `director.metrics.METRICS`.

    All three are None where the metric is undefined for a run, the interval where that happens in a replicate.
    `InputError` unless all runs have the same examples with the same labels, in whatever order.
    """
    if not runs or not reference:
        raise InputError(f"{len(runs)} runs and {len(reference)} reference runs: give at least 1 of each")
    if replicates < 1 or not 0 < level < 1:
        raise InputError(f"{replicates} replicates at level {level}: give at least 1, and a level between 0 and 1")
    first, second = _aligned(runs, reference)
    values = [[_replicated(metric, run, replicates, seed) for run in side] for side in (first, second)]
    return _interval(*values, level)


def compare_rows(
    files: Sequence[str | Path],
    out_file: str | Path,
    *,
    reference: tuple[str, str],
    replicates: int = 1000,
    level: float = 0.95,
) -> None:
    """Write how every row of a table differs from the reference row (backbone, method), as CSV.

    One line per row and metric: the difference (negative is better for all but accuracy), its bootstrap interval, and
    the p-value of the paired test over seeds, alone and adjusted by Holm over all lines with that metric. Empty where
    undefined: a row with one run, or with other seeds than the reference, has no pairs.
    """
    rows: dict[tuple[str, str], dict[str, Predictions]] = {}
    for file in files:
        run = Predictions.load(file)
        rows.setdefault((run.about["backbone"], run.about["method"]), {})[str(run.about["seed"])] = run
    base = rows.pop(tuple(reference))
    aligned = {row: _aligned(list(runs.values()), list(base.values()))[0] for row, runs in rows.items()}
    lines = []
    for metric in COMPARED:
        before = {seed: metric(run) for seed, run in base.items()}
        values = [_replicated(metric, _sorted(run), replicates) for run in base.values()]
        found = []
        for (backbone, method), runs in rows.items():
            pairs = [(metric(run), before[seed]) for seed, run in runs.items() if seed in before]
            samples = next(iter(runs.values())).pool().about["samples"]
            line = {"backbone": backbone, "method": method, "samples": samples}
            line |= {"metric": metric.__name__, "reference": "/".join(reference), "runs": len(runs), "level": level}
            line |= _interval(
                [_replicated(metric, run, replicates) for run in aligned[backbone, method]], values, level
            )
            found.append(line | {"p": paired_test(*zip(*pairs, strict=True)) if pairs else None})
        for line, adjusted in zip(found, holm([line["p"] for line in found]), strict=True):
            lines.append(line | {"p_holm": adjusted})
    experiment = next(iter(base.values())).about["experiment"]
    with replacing(out_file) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["experiment", *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"experiment": experiment} | line for line in lines)


def _aligned(
    runs: Sequence[Predictions], reference: Sequence[Predictions]
) -> tuple[list[Predictions], list[Predictions]]:
    """Both pooled and sorted, if they have the same examples with the same labels."""
    aligned = [_sorted(run) for run in (*runs, *reference)]
    names = [f"run {n}" for n in range(len(runs))] + [f"reference run {n}" for n in range(len(reference))]
    for name, run in zip(names, aligned, strict=True):
        _require_same_inputs(aligned[0], run, name)
    return aligned[: len(runs)], aligned[len(runs) :]


def _replicated(
    metric: Callable[[Predictions], float | None], run: Predictions, replicates: int, seed: int = 0
) -> list[float | None]:
    """The metric of a sorted run, then of each replicate; the draws depend on seed and number of examples alone."""
    starts, counts = np.unique(run.example, return_index=True, return_counts=True)[1:]
    generator = np.random.default_rng(seed)
    draws = (generator.integers(len(starts), size=len(starts)) for _ in range(replicates))
    rows = (_ranges(starts[examples], counts[examples]) for examples in (np.arange(len(starts)), *draws))
    return [metric(_Drawn(run, chosen)) for chosen in rows]


def _interval(
    runs: list[list[float | None]], reference: list[list[float | None]], level: float
) -> dict[str, float | None]:
    """`difference`, `lower`, `upper` of what `_replicated` gave for each run."""
    result = dict.fromkeys(("difference", "lower", "upper"))
    point, *drawn = zip(*runs, *reference, strict=True)  # one tuple per replicate
    if None not in point:
        result["difference"] = float(np.mean(point[: len(runs)]) - np.mean(point[len(runs) :]))
        if not any(None in values for values in drawn):
            values = np.array(drawn)  # [replicates, runs + reference]
            differences = values[:, : len(runs)].mean(1) - values[:, len(runs) :].mean(1)
            lower, upper = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
            result |= {"lower": float(lower), "upper": float(upper)}
    return result


class _Drawn:
    """Rows of `predictions`, some of them many times, as a metric sees them: gathered, not computed anew."""

    def __init__(self, predictions: Predictions, rows: NDArray[np.int64]) -> None:
        self._predictions, self._rows = predictions, rows

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in ROW_WISE:
            raise AttributeError(f"a metric to bootstrap can use {', '.join(sorted(ROW_WISE))}, not {name}")
        value = getattr(self._predictions, name)[self._rows]
        setattr(self, name, value)
        return value


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[k] + 0..counts[k]-1 for each k, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def _sorted(predictions: Predictions) -> Predictions:
    order = np.lexsort((predictions.severity, predictions.shift, predictions.example))
    return predictions.pool().select(order)


def _require_same_inputs(first: Predictions, other: Predictions, name: str) -> None:
    """Both sorted. `InputError` with the first (example, shift, severity), then label, that differs."""
    inputs = [(side.example, side.shift, side.severity) for side in (first, other)]
    shared = min(len(first.example), len(other.example))
    same = np.all([a[:shared] == b[:shared] for a, b in zip(*inputs, strict=True)], axis=0)
    if len(first.example) != len(other.example) or not same.all():
        row = shared if same.all() else int(np.argmin(same))
        found = [tuple(column[row].item() for column in side) if row < len(side[0]) else "nothing" for side in inputs]
        raise InputError(
            f"run 0 and {name} have different inputs: the first (example, shift, severity) that differs is {found[0]} "
            f"and {found[1]}; compare predictions of one suite"
        )
    if len(rows := np.flatnonzero(first.targets != other.targets)):
        row = rows[0]
        raise InputError(
            f"run 0 and {name} have labels {first.targets[row]} and {other.targets[row]} for example "
            f"{first.example[row]}; make both from one data set"
        )


def _require_finite(values: Sequence[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise InputError(f"a value is {value}: an undefined metric is None")

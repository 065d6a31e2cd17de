"""Is one row better than another? Spread over seeds, bootstrap over examples and seeds, tests over seeds.

A bootstrap replicate draws examples with replacement, and so gives each example a weight: how often it was drawn. Every
metric here is computed from these weights, for all replicates at once, and equals that of `director.numbers.metrics` on
rows that are repeated so often. Then it draws seeds, of the trained models that there are.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from director.errors import InputError
from director.numbers.metrics import BINS, equal_width_bins
from director.numbers.predictions import Predictions

Values = NDArray[np.float64]  # [R]: a metric in each replicate, NaN where it is undefined
Cumulative = NDArray[np.int64]  # [r, G]: inputs at or above each score, from the highest score down

CHUNK = 1 << 17  # weights that are ranked at a time: small enough for a processor's cache


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
    if np.ptp(difference) == 0:
        return 0.0 if difference.any() else 1.0
    from scipy.stats import ttest_rel  # here, as scipy.stats alone takes longer to import than all numbers

    return float(ttest_rel(a, b).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment (Holm 1979) of a family of p-values in [0, 1]; None stays None and does not count."""
    defined = [index for index, p in enumerate(p_values) if p is not None]
    adjusted, largest = [None] * len(p_values), 0.0
    for rank, index in enumerate(sorted(defined, key=lambda index: p_values[index])):
        p = p_values[index]
        if not 0 <= p <= 1:
            raise InputError(f"p-value {p} at position {index} is outside [0, 1]")
        largest = max(largest, min(1.0, (len(defined) - rank) * p))
        adjusted[index] = largest
    return adjusted


# -- draws


@dataclass(frozen=True, eq=False)
class Draws:
    """The inputs of a suite, and how often each of its examples is drawn: the same for all runs that are compared.

    inputs   predictions whose example, shift, severity and labels say what the N rows are, in this order
    example  [N] which of the E examples a row is, 0..E-1
    cell     [N] which of the K cells, (shift, severity), a row is in, 0..K-1
    weights  [R, E] how often each example is drawn in each replicate; the first line is the data itself, 1 throughout
    rows     [R, K] how many rows that puts into each cell
    """

    inputs: Predictions
    example: NDArray[np.int64]
    cell: NDArray[np.int64]
    weights: NDArray[np.uint16]
    rows: NDArray[np.float64]


def draw(inputs: Predictions, replicates: int, stream: Sequence[int] = (0,)) -> Draws:
    """So many draws of the examples of `inputs` with replacement, behind the data itself. stream: seeds the draws."""
    example = np.unique(inputs.example, return_inverse=True)[1]
    cell = np.empty(len(example), np.int64)
    cells = inputs.cells()
    for number, chosen in enumerate(cells.values()):
        cell[chosen] = number
    count = int(example.max()) + 1
    generator = np.random.default_rng(tuple(stream))
    weights = np.ones((1 + replicates, count), np.uint16)
    for replicate in weights[1:]:
        replicate[:] = np.bincount(generator.integers(count, size=count), minlength=count)
    per_example = np.bincount(example * len(cells) + cell, minlength=count * len(cells)).reshape(count, len(cells))
    return Draws(inputs, example, cell, weights, weights.astype(float) @ per_example)


def aligned(draws: Draws, run: Predictions, name: str) -> Predictions:
    """`run`, pooled by softmax, with its rows in the order of `draws`.

    `InputError`, with the name of the run, unless it has the same inputs with the same labels, in whatever order.
    """
    run = run.pool()  # as before a table's metrics: what is equal there, and shares a rank, is equal here
    inputs = [(side.example, side.shift, side.severity) for side in (draws.inputs, run)]
    if not all(np.array_equal(*columns) for columns in zip(*inputs, strict=True)):
        orders = [np.lexsort((severity, shift, example)) for example, shift, severity in inputs]
        _require_same_inputs(
            *(side.select(order) for side, order in zip((draws.inputs, run), orders, strict=True)), name
        )
        run = run.select(orders[1][np.argsort(orders[0])])
    if (draws.inputs.labels is None) != (run.labels is None):
        raise InputError(f"of the first run and {name} only one has labels; make both from one data set")
    if run.labels is not None and len(differ := np.flatnonzero(draws.inputs.labels != run.labels)):
        row = differ[0]
        raise InputError(
            f"the first run and {name} have labels {draws.inputs.labels[row]} and {run.labels[row]} for example "
            f"{run.example[row]}; make both from one data set"
        )
    return run


# -- metrics of what was drawn


def resampled(draws: Draws, run: Predictions, metrics: Sequence[str]) -> dict[str, Values]:
    """Metrics (of METRICS) of a run that is aligned with `draws`, in each replicate, the first being the run's own.

    Of several cells, the mean over those where the metric is defined, as in `director.numbers.metrics.records`.
    """
    values = {name: _over_cells(BY_SUMS[name](draws, run)) for name in metrics if name in BY_SUMS}
    ranked = [name for name in metrics if name in BY_RANKS]
    if ranked:
        by_cell = []
        for cell in range(draws.rows.shape[1]):
            rows = np.flatnonzero(draws.cell == cell)
            weights = draws.weights[:, draws.example[rows]]
            by_cell.append(_by_ranks(ranked, run.confidence[rows], run.correct[rows], weights))
        values |= {name: _over_cells(np.stack([cell[name] for cell in by_cell], axis=1)) for name in ranked}
    return {name: values[name] for name in metrics}


def resampled_by_cell(draws: Draws, run: Predictions, metrics: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Metrics (of BY_SUMS) [R, K] of a run that is aligned with `draws`: in each replicate, in each of its cells."""
    return {name: BY_SUMS[name](draws, run) for name in metrics}


def resampled_detection(inside: Draws, run: Predictions, outside: Draws, foreign: Predictions) -> dict[str, Values]:
    """How well the largest probability tells `run` from `foreign`, each drawn on its own: auroc and fpr95 [R]."""
    scores = np.concatenate([run.confidence, foreign.confidence])
    positive = np.repeat([True, False], [len(inside.example), len(outside.example)])
    weights = np.concatenate([side.weights[:, side.example] for side in (inside, outside)], axis=1)
    return _by_ranks(DETECTION, scores, positive, weights)


def _sums(draws: Draws, values: ArrayLike, column: NDArray[np.int64] | int = 0, width: int = 1) -> NDArray[np.float64]:
    """Sums [R, K, width] over the drawn rows of each cell of `values` [N] or one number, by `column` in 0..width-1."""
    examples, cells = draws.weights.shape[1], draws.rows.shape[1]
    index = (draws.example * cells + draws.cell) * width + column
    values = np.broadcast_to(np.asarray(values, float), index.shape)
    per_example = np.bincount(index, values, minlength=examples * cells * width).reshape(examples, -1)
    return (draws.weights.astype(float) @ per_example).reshape(-1, cells, width)


def _mean_of(value: Callable[[Predictions], NDArray[Any]]) -> Callable[[Draws, Predictions], NDArray[np.float64]]:
    """The metric [R, K] that is the mean of one value per row."""
    return lambda draws, run: _ratio(_sums(draws, value(run))[:, :, 0], draws.rows)


def _ece_15(draws: Draws, run: Predictions) -> NDArray[np.float64]:
    gaps = _sums(draws, run.correct - run.confidence, equal_width_bins(run.confidence, BINS), BINS)
    return _ratio(np.abs(gaps).sum(2), draws.rows)


def _mcc(draws: Draws, run: Predictions) -> NDArray[np.float64]:
    classes = run.log_probabilities.shape[1]
    predicted, actual = (_sums(draws, 1, of, classes) for of in (run.predicted, run.targets))
    hits = _sums(draws, run.correct)[:, :, 0]
    predicted_variance, actual_variance = (draws.rows**2 - (of**2).sum(2) for of in (predicted, actual))
    covariance = draws.rows * hits - (predicted * actual).sum(2)
    values = _ratio(covariance, np.sqrt(predicted_variance * actual_variance))
    return np.where((predicted_variance == 0) & (draws.rows > 0), 0.0, values)


def _over_cells(values: NDArray[np.float64]) -> Values:
    """Mean of [R, K] over the cells where it is defined, NaN where it is in none."""
    defined = ~np.isnan(values)
    return _ratio(np.where(defined, values, 0).sum(1), defined.sum(1))


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> NDArray[np.float64]:
    """NaN where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator != 0)


def _by_ranks(
    metrics: Sequence[str], scores: NDArray[np.float64], positive: NDArray[np.bool_], weights: NDArray[np.uint16]
) -> dict[str, Values]:
    """Metrics (of BY_RANKS) of weighted rows: scores and positive [N], weights [R, N]."""
    parts = [
        [BY_RANKS[name](positives, negatives) for name in metrics]
        for positives, negatives in _tallies(scores, positive, weights)
    ]
    return dict(zip(metrics, map(np.concatenate, zip(*parts, strict=True)), strict=True))


def _tallies(
    scores: NDArray[np.float64], positive: NDArray[np.bool_], weights: NDArray[np.uint16]
) -> Iterator[tuple[Cumulative, Cumulative]]:
    """Positives and negatives at or above each score that occurs, a few replicates at a time."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)  # of the rows with one score
    chosen = positive[order]
    step = max(1, CHUNK // len(scores))
    for start in range(0, len(weights), step):
        drawn = weights[start : start + step][:, order]
        both, positives = (part.cumsum(1, dtype=np.int64) for part in (drawn, drawn * chosen))
        if len(last) < len(order):
            both, positives = both[:, last], positives[:, last]
        yield positives, both - positives


def _aurc(hits: Cumulative, misses: Cumulative) -> Values:
    """Mean over i of the error rate among the i most confident rows; equal confidences come in random order.

    In a group of n rows with m misses, behind N rows with M misses, the expected errors grow by r = m/n a row, so that
    the rates sum to m + (M - r N) (H(N + n) - H(N)), with the harmonic numbers H(i) = 1 + 1/2 + ... + 1/i.
    """
    both = hits + misses
    rows, errors = (np.diff(cumulative, axis=1, prepend=0) for cumulative in (both, misses))
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, int(both[:, -1].max()) + 1))])
    rate = errors / np.maximum(rows, 1)  # of a group that was not drawn, 0
    growth = np.diff(harmonic.take(both), axis=1, prepend=0)
    rates = misses[:, -1] + np.einsum("rg,rg->r", misses - errors - rate * (both - rows), growth)
    return _ratio(rates, both[:, -1])


def _auroc(positives: Cumulative, negatives: Cumulative) -> Values:
    """Probability that a positive scores higher than a negative; a tie is half a win. NaN unless both exist."""
    found, kept = (np.diff(cumulative, axis=1, prepend=0) for cumulative in (positives, negatives))
    half_wins = np.einsum("rg,rg->r", 2 * positives - found, kept)
    return _ratio(half_wins, 2 * positives[:, -1] * negatives[:, -1])


def _fpr95(positives: Cumulative, negatives: Cumulative) -> Values:
    """Share of negatives at or above the first score that keeps >= 95 % of the positives; NaN unless both exist."""
    first = np.argmax(20 * positives >= 19 * positives[:, -1:], axis=1)
    share = _ratio(negatives[np.arange(len(first)), first], negatives[:, -1])
    return np.where(positives[:, -1] > 0, share, np.nan)


BY_SUMS = {
    "accuracy": _mean_of(lambda run: run.correct),
    "mcc": _mcc,
    "nll": _mean_of(lambda run: -run.log_likelihood),
    "brier": _mean_of(lambda run: run.squared_distance),
    "ece_15": _ece_15,
}
BY_RANKS = {"aurc": _aurc, "auroc": _auroc, "fpr95": _fpr95}
METRICS = (*BY_SUMS, *BY_RANKS)
DETECTION = ("auroc", "fpr95")
SIDES = (0, 1)  # streams of the draws of runs: the same for every metric, so that its intervals speak of the same runs


# -- differences


def paired_bootstrap(
    metric: str,
    runs: Sequence[Predictions],
    reference: Sequence[Predictions],
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, float | None]:
    """Mean of a metric (of METRICS) over `runs` minus that over `reference`, with an interval over examples and seeds.

    `difference`, and `lower` and `upper` of the percentile interval (Efron and Tibshirani 1993, ch. 13). A replicate
    draws examples with replacement, all rows of an example together and the same ones for every run, then runs, see
    `interval`. So it speaks of other test examples and, where there are several runs, of other seeds. Runs are pooled
    by softmax.

    All three are None where the metric is undefined for a run, the interval where that happens in a replicate.
    `InputError` unless all runs have the same examples with the same labels, in whatever order.
    """
    if not runs or not reference:
        raise InputError(f"{len(runs)} runs and {len(reference)} reference runs: give at least 1 of each")
    require_level(replicates, level)
    if metric not in METRICS:
        raise InputError(f"metric is {metric!r}; choose one of {', '.join(METRICS)}")
    draws = draw(runs[0], replicates, (seed,))
    names = [f"run {n}" for n in range(len(runs))] + [f"reference run {n}" for n in range(len(reference))]
    values = [
        resampled(draws, aligned(draws, run, name), [metric])[metric]
        for name, run in zip(names, (*runs, *reference), strict=True)
    ]
    return interval(values[: len(runs)], values[len(runs) :], level)


def compare_pair(
    first: Predictions,
    second: Predictions,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    names: tuple[str, str] = ("the first", "the second"),
) -> list[dict[str, Any]]:
    """One line per metric (of METRICS): its value for each, and the difference as `paired_bootstrap` has it.

    names: what to call the two in an error. `InputError` as there.
    """
    require_level(replicates, level)
    if seed < 0:
        raise InputError(f"seed {seed}: give 0 or more")
    classes = [side.logits.shape[2] for side in (first, second)]
    if classes[0] != classes[1]:
        raise InputError(f"{names[0]} has {classes[0]} classes, {names[1]} {classes[1]}: compare those of one data set")
    draws = draw(first, replicates, (seed,))
    try:
        values = [
            resampled(draws, aligned(draws, run, name), METRICS)
            for name, run in zip(names, (first, second), strict=True)
        ]
    except InputError as error:
        raise InputError(f"{names[0]} and {names[1]}: {error}") from error
    sides = [(metric, *(side[metric] for side in values)) for metric in METRICS]
    return [
        {"metric": metric, "first": or_none(a[0]), "second": or_none(b[0]), **interval([a], [b], level)}
        for metric, a, b in sides
    ]


def interval(runs: Sequence[Values], reference: Sequence[Values], level: float) -> dict[str, float | None]:
    """`difference`, `lower`, `upper` of the mean over runs minus that over reference runs.

    Each replicate draws runs with replacement: pairs, where there are as many on both sides (give them in the order of
    their seeds), else each side on its own. One run is all there is to draw from, so the interval is over examples
    alone.
    """
    if len(runs) == len(reference):
        differences = _mean_of_drawn(np.subtract(runs, reference), SIDES[0])
    else:
        differences = _mean_of_drawn(runs, SIDES[0]) - _mean_of_drawn(reference, SIDES[1])
    ends = (math.nan, math.nan)
    if not np.isnan(differences).any():
        ends = np.quantile(differences[1:], [(1 - level) / 2, (1 + level) / 2])
    return dict(zip(("difference", "lower", "upper"), map(or_none, (differences[0], *ends)), strict=True))


def _mean_of_drawn(runs: Sequence[Values], stream: int) -> Values:
    """Mean over runs drawn with replacement, anew in each replicate; over the runs as they are in the first line."""
    values = np.asarray(runs)  # [n, R]
    count, replicates = values.shape
    drawn = np.random.default_rng((stream, count)).integers(count, size=(count, replicates))
    drawn[:, 0] = np.arange(count)
    return np.take_along_axis(values, drawn, axis=0).mean(0)


def or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def require_level(replicates: int, level: float) -> None:
    if replicates < 1 or not 0 < level < 1:
        raise InputError(f"{replicates} replicates at level {level}: give at least 1, and a level between 0 and 1")


def _require_same_inputs(first: Predictions, other: Predictions, name: str) -> None:
    """Both sorted. `InputError` with the first (example, shift, severity) that differs."""
    inputs = [(side.example, side.shift, side.severity) for side in (first, other)]
    shared = min(len(first.example), len(other.example))
    same = np.all([a[:shared] == b[:shared] for a, b in zip(*inputs, strict=True)], axis=0)
    if len(first.example) != len(other.example) or not same.all():
        row = shared if same.all() else int(np.argmin(same))
        differ = [tuple(column[row].item() for column in side) if row < len(side[0]) else "nothing" for side in inputs]
        raise InputError(
            f"the first run and {name} have different inputs: the first (example, shift, severity) that differs is "
            f"{differ[0]} and {differ[1]}; compare predictions of one suite"
        )


def _require_finite(values: Sequence[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise InputError(f"a value is {value}: an undefined metric is None")

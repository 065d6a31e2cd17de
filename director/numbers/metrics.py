"""One function per metric, from `Predictions` to a number in raw units; None where the metric is undefined.

Several samples are pooled by the mean of their softmax; call `Predictions.pool` first for anything else. All
metrics need labels (`InputError` otherwise), hold for N >= 1, and do not depend on the order of the rows: rows
of equal confidence enter together. "Confidence" is the largest probability, "correct" that it is the label's.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from director.errors import InputError
from director.numbers.predictions import Predictions, mutual_information, predictive_entropy

BINS = 15
Counts = NDArray[np.int64]


# -- the label's probability


def accuracy(predictions: Predictions) -> float:
    """Fraction of correct predictions, in [0, 1], higher is better."""
    return float(predictions.correct.mean())


def mcc(predictions: Predictions) -> float | None:
    """Matthews correlation of predictions and labels over the whole set, in [-1, 1], higher is better.

    For any number of classes, Gorodkin 2004, eq. 8, as covariance over the root of two variances. A predictor of
    one class gives 0 by convention; a varied predictor on labels of one class None.
    """
    n, hits, classes = len(predictions.correct), int(predictions.correct.sum()), predictions.probabilities.shape[1]
    predicted, actual = (np.bincount(of, minlength=classes) for of in (predictions.predicted, predictions.targets))
    predicted_variance, actual_variance = n**2 - int(predicted @ predicted), n**2 - int(actual @ actual)
    if predicted_variance == 0:
        return 0.0
    if actual_variance == 0:
        return None
    return (n * hits - int(predicted @ actual)) / math.sqrt(predicted_variance * actual_variance)


def nll(predictions: Predictions) -> float:
    """Mean negative log-likelihood of the label in nats, >= 0, lower is better."""
    return float(-predictions.log_likelihood.mean())


def brier(predictions: Predictions) -> float:
    """Mean squared distance of the probabilities to the one-hot label, summed over classes, in [0, 2], lower is better.

    Brier 1950.
    """
    return float(predictions.squared_distance.mean())


# -- calibration error: the sum over bins of (share of inputs) x |mean outcome - mean confidence|, in [0, 1]; lower is
# better


def ece_15(predictions: Predictions) -> float:
    """Top-label calibration error in 15 bins of equal width (lo, hi], Guo et al. 2017, eq. 3."""
    index = equal_width_bins(predictions.confidence, BINS)
    return _calibration_error(index, predictions.confidence, predictions.correct)


def ece_classwise_15(predictions: Predictions) -> float:
    """Mean over classes of the calibration error of that class's probability, 15 bins of equal width.

    Kull et al. 2019, eq. 5.
    """
    targets, probabilities = predictions.targets, predictions.probabilities
    errors = [calibration_error(column, targets == label) for label, column in enumerate(probabilities.T)]
    return float(np.mean(errors))


def ece_adaptive_15(predictions: Predictions) -> float:
    """Top-label calibration error in 15 bins of equal mass (Nguyen & O'Connor 2015); equal confidences share a bin."""
    confidence = predictions.confidence
    last = -(np.arange(-1, -BINS, -1) * len(confidence) // BINS) - 1  # the first k bins end with rank ceil(k N / 15)
    index = np.searchsorted(np.sort(confidence)[last], confidence)
    return _calibration_error(index, confidence, predictions.correct)


def ece_binary_15(predictions: Predictions) -> float | None:
    """Calibration error of the probability of class 1 against the label, 15 bins of equal width; None unless C = 2."""
    targets, probabilities = predictions.targets, predictions.probabilities
    return calibration_error(probabilities[:, 1], targets == 1) if probabilities.shape[1] == 2 else None


def calibration_error(confidence: ArrayLike, outcome: ArrayLike, bins: int = BINS) -> float:
    """Calibration error of `confidence` [N] in [0, 1] for binary `outcome` [N], in bins (lo, hi] of equal width.

    0.0 is in the first bin, 1.0 in the last. `InputError` for no values, or values outside [0, 1].
    """
    confidence, outcome = np.asarray(confidence, dtype=float), np.asarray(outcome, dtype=float)
    if confidence.shape != outcome.shape or confidence.ndim != 1 or not len(confidence):
        raise InputError(f"{confidence.shape} confidences for {outcome.shape} outcomes: give N of each, N at least 1")
    for name, values in (("confidence", confidence), ("outcome", outcome)):
        inside = (values >= 0) & (values <= 1)
        if not inside.all():
            row = int(np.argmin(inside))
            raise InputError(f"{name} {values[row]} in row {row} is outside [0, 1]: give probabilities and 0 or 1")
    return _calibration_error(equal_width_bins(confidence, bins), confidence, outcome)


def reliability(predictions: Predictions, bins: int = BINS) -> tuple[NDArray[np.float64], NDArray[np.float64], Counts]:
    """Mean confidence, accuracy and number of inputs, [bins] each, in bins (lo, hi] of equal width.

    An empty bin has count 0, and NaN for the two means: a figure shows a gap there.
    """
    index = equal_width_bins(predictions.confidence, bins)
    count = np.bincount(index, minlength=bins)
    sums = (np.bincount(index, of, minlength=bins) for of in (predictions.confidence, predictions.correct))
    confidence, correct = (np.divide(of, count, out=np.full(bins, np.nan), where=count > 0) for of in sums)
    return confidence, correct, count


def equal_width_bins(confidence: NDArray[np.float64], bins: int = BINS) -> NDArray[np.int64]:
    """The bin 0..bins-1 of each confidence [N], in bins (lo, hi] of equal width; `InputError` for fewer than 1."""
    if bins < 1:
        raise InputError(f"{bins} bins: give at least 1")
    return np.searchsorted(np.arange(1, bins) / bins, confidence)  # inner edges, each the last value of its bin


def _calibration_error(index: NDArray[np.int64], confidence: NDArray[np.float64], outcome: NDArray[Any]) -> float:
    return float(np.abs(np.bincount(index, outcome - confidence)).sum() / len(index))


# -- ranking: are correct predictions more confident than wrong ones?


def aurc(predictions: Predictions) -> float:
    """Area under the risk-coverage curve, in [0, 1], lower is better: the mean of `risk_coverage`'s risk.

    Geifman et al. 2019, eq. 2.
    """
    return float(risk_coverage(predictions)[1].mean())


def eaurc(predictions: Predictions) -> float:
    """How far the AURC is above that of the best ranking with the same error rate r; lower is better.

    aurc - (r + (1 - r) ln(1 - r)), Geifman et al. 2019, eq. 3; at least 0, up to a term of order 1/N.
    """
    error = 1 - accuracy(predictions)
    return aurc(predictions) - (error + (1 - error) * math.log1p(-error) if error < 1 else 1.0)


def risk_coverage(predictions: Predictions) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coverage i/N and risk [N] each: the error rate among the i most confident inputs, i = 1..N.

    Inputs of equal confidence come in random order: the risk is its expectation.
    """
    hits, misses = _misclassification(predictions)
    inputs = np.arange(1, len(predictions.confidence) + 1)
    errors = np.cumsum(np.repeat(misses / (hits + misses), hits + misses))
    return inputs / len(inputs), errors / inputs


def auroc(predictions: Predictions) -> float | None:
    """Probability that a correct prediction has more confidence than a wrong one, in [0, 1]; None unless both exist."""
    return _auroc(*_misclassification(predictions))


def aupr_success(predictions: Predictions) -> float | None:
    """Average precision of finding the correct predictions by high confidence, in [0, 1]; None unless both exist.

    The code published with KEP-SVGP (Chen et al. 2024) draws straight lines between the points of this curve, though
    not of that of `aupr_error`. That is a few 1e-4 higher, and far too high where many confidences are equal.
    """
    return _average_precision(*_misclassification(predictions))


def aupr_error(predictions: Predictions) -> float | None:
    """Average precision of finding the wrong predictions by low confidence, in [0, 1]; None unless both exist."""
    return _average_precision(*_reversed(*_misclassification(predictions)))


def fpr95(predictions: Predictions) -> float | None:
    """Share of wrong predictions kept at the first threshold that keeps >= 95 % of the correct ones, in [0, 1].

    Lower is better; None unless both exist.
    """
    return _fpr95(*_misclassification(predictions))


def fpr95_nearest(predictions: Predictions) -> float | None:
    """As `fpr95`, but at the threshold that keeps the share closest to 95 %, the higher of two equally close ones.

    So it is computed by the code published with KEP-SVGP (Chen et al. 2024).
    """
    return _fpr95(*_misclassification(predictions), nearest=True)


def detection(positive_scores: ArrayLike, negative_scores: ArrayLike) -> dict[str, float | None]:
    """How well a score separates positives, where it should be high, from negatives, where it should be low.

    auroc; aupr_positive, the average precision of finding positives from high scores down; aupr_negative, that of
    finding negatives from low scores up; fpr95, the share of negatives at or above the first threshold that keeps at
    least 95 % of the positives. Each in [0, 1], None where one side is empty. `InputError` for scores that are not
    finite.
    """
    scores = [np.asarray(side, dtype=float).ravel() for side in (positive_scores, negative_scores)]
    for name, side in zip(("positive", "negative"), scores, strict=True):
        if not np.isfinite(side).all():
            row = int(np.argmin(np.isfinite(side)))
            raise InputError(f"{name} score {side[row]} in row {row} is not finite: leave it out, or give it a rank")
    positive = np.repeat([True, False], [len(side) for side in scores])
    tally = _tally(np.unique(np.concatenate(scores), return_inverse=True)[1], positive)
    return {
        "auroc": _auroc(*tally),
        "aupr_positive": _average_precision(*tally),
        "aupr_negative": _average_precision(*_reversed(*tally)),
        "fpr95": _fpr95(*tally),
    }


def _misclassification(predictions: Predictions) -> tuple[Counts, Counts]:
    return _tally(predictions.rank, predictions.correct)


def _tally(rank: NDArray[np.int64], positive: NDArray[np.bool_]) -> tuple[Counts, Counts]:
    """Positives and negatives at each rank that occurs, from the highest down."""
    length = int(rank.max(initial=-1)) + 1
    positives, negatives = (np.bincount(rank[chosen], minlength=length)[::-1] for chosen in (positive, ~positive))
    occurs = positives + negatives > 0
    return positives[occurs], negatives[occurs]


def _reversed(positives: Counts, negatives: Counts) -> tuple[Counts, Counts]:
    """The tally if the score is negated, and what was positive is negative."""
    return negatives[::-1], positives[::-1]


def _auroc(positives: Counts, negatives: Counts) -> float | None:
    pairs = int(positives.sum()) * int(negatives.sum())
    return float((np.cumsum(positives) - positives / 2) @ negatives / pairs) if pairs else None  # a tie is half a win


def _average_precision(positives: Counts, negatives: Counts) -> float | None:
    if not (positives.any() and negatives.any()):
        return None
    recalled = np.cumsum(positives)  # positives at or above each threshold
    return float(positives @ (recalled / (recalled + np.cumsum(negatives))) / recalled[-1])


def _fpr95(positives: Counts, negatives: Counts, nearest: bool = False) -> float | None:
    if not (positives.any() and negatives.any()):
        return None
    true, false = np.cumsum(positives), np.cumsum(negatives)  # at or above each threshold
    excess = 20 * true - 19 * true[-1]  # true positive rate - 0.95, times 20 P: integers, so the comparison is exact
    return float(false[np.argmin(np.abs(excess)) if nearest else np.argmax(excess >= 0)] / false[-1])


# -- all of them

METRICS = {
    metric.__name__: metric
    for metric in (
        accuracy,
        mcc,
        nll,
        brier,
        ece_15,
        ece_classwise_15,
        ece_adaptive_15,
        ece_binary_15,
        aurc,
        eaurc,
        auroc,
        aupr_success,
        aupr_error,
        fpr95,
        fpr95_nearest,
    )
}


def summary(predictions: Predictions) -> dict[str, float | None]:
    """Every metric by name, over all rows together."""
    return {name: metric(predictions) for name, metric in METRICS.items()}


def records(predictions: Predictions, pooling: str = "softmax", samples: int | None = None) -> list[dict[str, Any]]:
    """One record per (shift, severity), sorted: samples, pooling, shift, severity, n and every metric.

    If any row is shifted, a last record (shift "overall", severity 0) holds the mean of each metric over the other
    records, all weighted alike. Records where a metric is None do not count in its mean, which is None if none counts.
    """
    pooled = predictions.pool(pooling, samples)
    how = {name: pooled.about[name] for name in ("samples", "pooling")}
    cells = [
        {**how, "shift": shift, "severity": severity, "n": len(rows), **summary(pooled.select(rows))}
        for (shift, severity), rows in pooled.cells().items()
    ]
    if any(record["shift"] != "clean" for record in cells):
        overall = {**how, "shift": "overall", "severity": 0, "n": sum(record["n"] for record in cells)}
        for name in METRICS:
            defined = [record[name] for record in cells if record[name] is not None]
            overall[name] = math.fsum(defined) / len(defined) if defined else None
        cells.append(overall)
    return cells


def ood_summary(
    inside: Predictions, outside: Predictions, pooling: str = "softmax", samples: int | None = None
) -> dict[str, dict[str, float | None] | None]:
    """Detection of out-of-distribution inputs, in-distribution as positive: auroc, aupr_in, aupr_out, fpr95 by score.

    Scores: max_softmax, negative_entropy, negative_mutual_information (None for S = 1). Labels are not used.
    `InputError` where the two differ in samples or classes, since one model must have made both.
    """
    inside, outside = inside.first(samples), outside.first(samples)
    for axis, meaning in ((0, "samples"), (2, "classes")):
        counts = inside.logits.shape[axis], outside.logits.shape[axis]
        if counts[0] != counts[1]:
            raise InputError(f"{counts[0]} {meaning} inside, {counts[1]} outside: compare predictions of one model")
    pooled = inside.pool(pooling), outside.pool(pooling)
    scores = {
        "max_softmax": [side.confidence for side in pooled],
        "negative_entropy": [-predictive_entropy(side) for side in pooled],
        "negative_mutual_information": None,
    }
    if len(inside.logits) > 1:
        scores["negative_mutual_information"] = [-mutual_information(side) for side in (inside, outside)]
    names = {"aupr_positive": "aupr_in", "aupr_negative": "aupr_out"}
    return {
        score: sides and {names.get(name, name): value for name, value in detection(*sides).items()}
        for score, sides in scores.items()
    }

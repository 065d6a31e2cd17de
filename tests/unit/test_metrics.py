"""Metrics against their definitions, written here the slow and obvious way."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from director.errors import InputError
from director.numbers.metrics import (
    METRICS,
    calibration_error,
    detection,
    ood_summary,
    records,
    reliability,
    risk_coverage,
    summary,
)
from director.numbers.predictions import Predictions

UNIT = {"accuracy", "ece_15", "ece_classwise_15", "ece_adaptive_15", "ece_binary_15", "aurc", "auroc", "aupr_success"}
UNIT |= {"aupr_error", "fpr95", "fpr95_nearest"}


def random_predictions(seed=0, rows=200, classes=3, samples=1, scale=1.0) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    logits = scale * (generator.normal(size=(samples, rows, classes)) + 1.5 * np.eye(classes)[labels])
    return Predictions(logits, labels)


def of_confidence(confidence, correct) -> Predictions:
    """Two classes, class 0 predicted with the given confidence (> 1/2)."""
    confidence = np.asarray(confidence)
    logits = np.stack([np.log(confidence), np.log1p(-confidence)], axis=1)
    return Predictions(logits - 1, 1 - np.asarray(correct, dtype=int))


def test_names_and_order():
    assert list(summary(random_predictions())) == [
        "accuracy", "mcc", "nll", "brier", "ece_15", "ece_classwise_15", "ece_adaptive_15", "ece_binary_15", "aurc",
        "eaurc", "auroc", "aupr_success", "aupr_error", "fpr95", "fpr95_nearest",
    ]  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
def test_against_the_definitions(classes):
    predictions = random_predictions(classes=classes)
    found, rows = summary(predictions), range(200)
    p, labels = np.exp(predictions.logits[0]), predictions.labels
    p /= p.sum(axis=1, keepdims=True)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    assert found["accuracy"] == correct.mean()
    assert found["nll"] == pytest.approx(np.mean([-np.log(p[i, labels[i]]) for i in rows]))
    onehot = np.eye(classes)[labels]
    assert found["brier"] == pytest.approx(((p - onehot) ** 2).sum(axis=1).mean())

    def ece(confidence, outcome):
        total = 0.0
        for low in range(15):
            inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
            if inside.any():
                total += inside.mean() * abs(outcome[inside].mean() - confidence[inside].mean())
        return total

    assert found["ece_15"] == pytest.approx(ece(confidence, correct))
    assert found["ece_classwise_15"] == pytest.approx(np.mean([ece(p[:, c], labels == c) for c in range(classes)]))
    order = np.argsort(confidence)
    equal_mass = [order[(15 * np.arange(200)) // 200 == k] for k in range(15)]
    assert [len(part) for part in equal_mass] == [14, 13, 13] * 5
    expected = sum(abs((correct[part] - confidence[part]).sum()) for part in equal_mass) / 200
    assert found["ece_adaptive_15"] == pytest.approx(expected)
    assert found["ece_binary_15"] == (pytest.approx(ece(p[:, 1], labels)) if classes == 2 else None)

    errors = ~correct[np.argsort(-confidence)]
    aurc = np.mean([errors[:i].mean() for i in range(1, 201)])
    error = errors.mean()
    assert found["aurc"] == pytest.approx(aurc)
    assert found["eaurc"] == pytest.approx(aurc - (error + (1 - error) * np.log(1 - error)))
    pairs = confidence[correct][:, None] - confidence[~correct]
    assert found["auroc"] == pytest.approx((pairs > 0).mean())


def test_false_positive_rate_at_the_first_and_the_nearest_threshold():
    # 30 correct: keeping 28 is 93.3 %, keeping 29 is 96.7 %, equally far from 95 %
    correct = np.ones(36, bool)
    correct[[5, 29, 31, 33, 34, 35]] = (
        False  # by falling confidence: 1 wrong before the 28th correct, 2 before the 29th
    )
    predictions = of_confidence(0.9 - np.arange(36) / 100, correct)
    assert METRICS["fpr95"](predictions) == pytest.approx(2 / 6)
    assert METRICS["fpr95_nearest"](predictions) == pytest.approx(1 / 6)


def test_equal_confidences_share_their_expected_risk():
    confidence, correct = np.array([0.9, 0.8, 0.8, 0.8, 0.6]), np.array([1, 0, 1, 1, 0])
    generator, risks = np.random.default_rng(0), []
    for _ in range(4000):
        order = np.lexsort((generator.random(5), -confidence))
        risks.append(np.cumsum(1 - correct[order]) / np.arange(1, 6))
    coverage, risk = risk_coverage(of_confidence(confidence, correct))
    np.testing.assert_allclose(coverage, [0.2, 0.4, 0.6, 0.8, 1])
    np.testing.assert_allclose(risk, np.mean(risks, axis=0), atol=0.01)
    np.testing.assert_allclose(risk, [0, 1 / 6, 2 / 9, 1 / 4, 2 / 5])


def test_reliability_bins():
    confidence, accuracy, count = reliability(of_confidence([0.7, 0.74, 0.76, 0.95], [1, 0, 1, 1]), bins=4)
    assert count.tolist() == [0, 0, 2, 2]
    np.testing.assert_allclose(confidence, [np.nan, np.nan, 0.72, 0.855])
    np.testing.assert_allclose(accuracy, [np.nan, np.nan, 0.5, 1])
    assert reliability(Predictions([[3.0, 3.0], [3.0, 3.1]], [0, 0]), bins=2)[2].tolist() == [1, 1]  # 0.5 is low
    with pytest.raises(InputError, match="0 bins"):
        reliability(random_predictions(), bins=0)


def test_a_bin_ends_with_its_upper_edge():
    assert calibration_error([0.70, 0.75], [0, 1], bins=4) == pytest.approx(abs(1 - 1.45) / 2)
    assert calibration_error([0.75, 0.80], [0, 1], bins=4) == pytest.approx((0.75 + 0.20) / 2)


def test_reliability_and_ece_agree():
    predictions = random_predictions(scale=3)
    confidence, accuracy, count = reliability(predictions)
    assert METRICS["ece_15"](predictions) == pytest.approx(np.nansum(count * abs(accuracy - confidence)) / 200)


@pytest.mark.parametrize(
    ("labels", "predicted", "expected"),
    [
        ([0, 1, 2], [0, 1, 2], 1.0),
        ([0, 1], [1, 0], -1.0),
        ([0, 1, 1], [1, 1, 1], 0.0),  # one class predicted
        ([1, 1, 1], [1, 1, 1], 0.0),
        ([1, 1, 1], [0, 1, 1], None),  # nothing to correlate with
    ],
)
def test_mcc_at_its_ends(labels, predicted, expected):
    assert METRICS["mcc"](Predictions(4 * np.eye(3)[predicted], labels)) == expected


def extremes():
    yield "one right", [[3.0, 1.0]], [0], {"accuracy": 1.0, "aurc": 0.0, "eaurc": 0.0, "auroc": None}
    yield "one wrong", [[3.0, 1.0]], [1], {"accuracy": 0.0, "aurc": 1.0, "eaurc": 0.0, "fpr95": None}
    several = random_predictions(scale=5)
    logits, right = several.logits, several.predicted
    yield "all right", logits, right, {"accuracy": 1.0, "eaurc": 0.0, "aupr_success": None, "aupr_error": None}
    wrong = {"accuracy": 0.0, "aurc": 1.0, "eaurc": 0.0, "auroc": None, "fpr95_nearest": None}
    yield "all wrong", logits, (right + 1) % 3, wrong
    constant = {"auroc": 0.5, "aurc": pytest.approx(0.6), "fpr95": 1.0, "mcc": 0.0}
    yield "constant", np.tile([1.0, 0.0, -1.0], (10, 1)), np.arange(10) % 3, constant
    sure = {"nll": pytest.approx(100 / 3), "brier": pytest.approx(2 / 3), "ece_15": pytest.approx(1 / 3)}
    yield "sure", [[50.0, -50], [-50, 50], [50, -50]], [0, 1, 1], sure
    largest = np.finfo(np.float32).max
    yield "largest", np.array([[largest, -largest]] * 2), [0, 1], {"brier": 1.0}
    yield "largest twice", np.full((2, 2), largest), [0, 1], {"nll": pytest.approx(np.log(2))}


@pytest.mark.parametrize(("logits", "labels", "expected"), [pytest.param(*e, id=name) for name, *e in extremes()])
def test_extremes_are_numbers_or_none_without_a_warning(logits, labels, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summary(Predictions(logits, labels))
    assert found | expected == found
    assert all(value is None or (isinstance(value, float) and np.isfinite(value)) for value in found.values())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ranges_and_independence_of_the_order(data):
    rows, classes, samples = (data.draw(st.integers(low, high)) for low, high in ((1, 12), (2, 4), (1, 3)))
    logits = data.draw(arrays(np.float64, (samples, rows, classes), elements=st.integers(-3, 3).map(float)))
    predictions = Predictions(logits * 1.7 - 2, data.draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1))))
    found = summary(predictions)
    for name in UNIT:
        assert found[name] is None or -1e-12 <= found[name] <= 1 + 1e-12, name
    assert found["mcc"] is None or -1 - 1e-12 <= found["mcc"] <= 1 + 1e-12
    assert 0 <= found["brier"] <= 2 + 1e-12
    assert found["nll"] >= 0
    shuffled = predictions.select(data.draw(st.permutations(range(rows))))
    for name, value in summary(shuffled).items():
        assert value == pytest.approx(found[name], abs=1e-12), name


def test_labels_are_required():
    for metric in METRICS.values():
        with pytest.raises(InputError, match="no labels"):
            metric(Predictions(np.zeros((3, 2)), None))


def test_samples_are_pooled_by_softmax():
    predictions = random_predictions(samples=4)
    assert summary(predictions) == pytest.approx(summary(predictions.pool()))
    assert METRICS["nll"](predictions) != pytest.approx(METRICS["nll"](predictions.pool("logits")))


def test_records_per_cell_and_their_mean():
    predictions = random_predictions(rows=100, samples=3)
    shift = np.where(np.arange(100) < 30, "fog", "snow")
    severity = np.where(np.arange(100) < 50, 1, 2)
    right = predictions.pool(samples=2).predicted
    labels = np.where(severity == 2, right, predictions.labels)
    shifted = Predictions(predictions.logits, labels, None, shift, severity)
    found = records(shifted, samples=2)
    assert [(r["shift"], r["severity"], r["n"]) for r in found] == [
        ("fog", 1, 30), ("snow", 1, 20), ("snow", 2, 50), ("overall", 0, 100),
    ]  # fmt: skip
    assert all((r["samples"], r["pooling"]) == (2, "softmax") for r in found)
    assert found[1] == found[1] | summary(shifted.pool(samples=2).select(np.arange(30, 50)))
    assert found[3]["accuracy"] == pytest.approx(np.mean([r["accuracy"] for r in found[:3]]))
    assert found[2]["auroc"] is None
    assert found[3]["auroc"] == pytest.approx((found[0]["auroc"] + found[1]["auroc"]) / 2)
    assert found[3]["ece_binary_15"] is None


def test_one_cell_has_one_record():
    predictions = random_predictions()
    (record,) = records(predictions, pooling="logits")
    how = {"samples": 1, "pooling": "logits", "shift": "clean", "severity": 0, "n": 200}
    assert record == pytest.approx(how | summary(predictions))


def test_detection():
    found = detection([3, 2, 2], [2, 1])
    assert found["auroc"] == pytest.approx((2 + 1.5 + 1.5) / 6)
    assert detection([1, 2], []) == dict.fromkeys(("auroc", "aupr_positive", "aupr_negative", "fpr95"))
    assert detection([2, 3], [0, 1]) == {"auroc": 1.0, "aupr_positive": 1.0, "aupr_negative": 1.0, "fpr95": 0.0}
    with pytest.raises(InputError, match="negative score nan in row 1"):
        detection([1.0], [0.0, np.nan])


def test_ood_summary():
    inside, outside = random_predictions(samples=3, scale=3), Predictions(random_predictions(5, 50, 3, 3).logits, None)
    found = ood_summary(inside, outside)
    assert list(found) == ["max_softmax", "negative_entropy", "negative_mutual_information"]
    expected = detection(inside.confidence, outside.confidence)
    assert found["max_softmax"] == {
        "auroc": expected["auroc"],
        "aupr_in": expected["aupr_positive"],
        "aupr_out": expected["aupr_negative"],
        "fpr95": expected["fpr95"],
    }
    assert found["max_softmax"]["auroc"] > 0.5
    assert ood_summary(inside, outside, samples=1)["negative_mutual_information"] is None
    assert ood_summary(inside, outside, samples=2) == ood_summary(inside.first(2), outside.first(2))
    assert ood_summary(inside, outside, "logits")["max_softmax"] != found["max_softmax"]
    with pytest.raises(InputError, match="3 samples inside, 1 outside"):
        ood_summary(inside, outside.first(1))
    with pytest.raises(InputError, match="3 classes inside, 2 outside"):
        ood_summary(inside, Predictions(np.zeros((3, 4, 2)), None))


@pytest.mark.parametrize(
    ("confidence", "outcome", "message"),
    [([0.5], [1, 0], r"\(1,\) confidences"), ([1.2], [1], "confidence 1.2 in row 0"), ([0.5], [-1], "outcome -1.0")],
)
def test_calibration_error_refuses_what_is_no_probability(confidence, outcome, message):
    with pytest.raises(InputError, match=message):
        calibration_error(confidence, outcome)

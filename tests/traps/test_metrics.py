"""Traps of calibration and detection metrics, each from a public report."""

import numpy as np
import pytest

from director.errors import InputError
from director.numbers.metrics import METRICS, calibration_error, detection, ood_summary, reliability, summary
from director.numbers.predictions import Predictions


def random_predictions(rows=300, classes=4, seed=0) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    return Predictions(generator.normal(size=(rows, classes)) * 2 + np.eye(classes)[labels], labels)


def test_confidence_one_falls_in_the_last_bin():
    """torchmetrics issue 3510."""
    assert calibration_error([0.95, 1.0], [1, 0], bins=10) == pytest.approx(0.475)
    sure = Predictions(np.array([[50.0, -50.0], [-50.0, 50.0]]), [0, 0])
    assert sure.confidence.tolist() == [1, 1]
    assert METRICS["ece_15"](sure) == pytest.approx(0.5)
    assert reliability(sure)[2][-1] == 2


def test_confidence_zero_falls_in_the_first_bin_and_no_input_is_lost():
    """torchmetrics issue 1646."""
    assert calibration_error([0.0, 0.0], [1, 1]) == 1
    assert calibration_error([0.0, 0.05], [1, 0], bins=10) == pytest.approx(0.475)  # one bin: |1 - 0.05| / 2
    for bins in (1, 7, 15, 1000):
        assert reliability(random_predictions(), bins)[2].sum() == 300
    impossible = Predictions(np.array([[900.0, -900.0], [-900.0, 900.0]]), [1, 0])
    assert METRICS["ece_binary_15"](impossible) == 1
    assert METRICS["ece_classwise_15"](impossible) == 1


def test_fewer_inputs_than_bins():
    """torch-uncertainty issue 300."""
    few = random_predictions(rows=3)
    for name in ("ece_15", "ece_classwise_15", "ece_adaptive_15"):
        assert 0 <= METRICS[name](few) <= 1
    assert METRICS["ece_adaptive_15"](few) == pytest.approx(np.abs(few.correct - few.confidence).mean())
    with pytest.raises(ValueError, match="N at least 1"):
        calibration_error([], [])
    with pytest.raises(InputError, match="N at least 1"):
        Predictions(np.zeros((0, 4)), [])


def test_the_order_of_rows_changes_no_metric():
    """CalFram pull request 4 and TrustLens pull request 163: sorts that split ties by position."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=200)
    predictions = Predictions(generator.integers(-1, 3, size=(200, 3)) - 0.5, labels)
    assert len(np.unique(predictions.confidence)) < 20
    reference = summary(predictions)
    for _ in range(5):
        assert summary(predictions.select(generator.permutation(200))) == pytest.approx(reference, abs=1e-12)


def test_constant_confidence_gives_the_gap_to_the_accuracy():
    """CalFram pull request 4 and TrustLens pull request 163."""
    constant = Predictions(np.tile([2.0, 0.5, -1.0], (40, 1)), np.arange(40) % 3)
    gap = abs(14 / 40 - constant.confidence[0])
    for name in ("ece_15", "ece_adaptive_15"):
        assert METRICS[name](constant) == pytest.approx(gap)
    assert METRICS["aurc"](constant) == pytest.approx(26 / 40)


def test_calibration_errors_name_their_bins():
    """laplace-lora issue 2: an ECE without its bin count cannot be compared."""
    assert [name for name in METRICS if "ece" in name and not name.endswith("_15")] == []


def test_the_calibration_errors_are_different_functions():
    """SGPA, netcal issue 25, torchmetrics issue 1105: top-label, class-wise and binary under one name."""
    logits = np.log(np.array([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]])) + 1
    predictions = Predictions(logits, [0, 1, 1, 0])
    found = summary(predictions)
    # top label: confidences .7 .6 .8 .9, correct 1 0 1 1; class 1: .3 .4 .8 .1 against labels 0 1 1 0; all bins apart
    assert found["ece_15"] == pytest.approx((0.3 + 0.6 + 0.2 + 0.1) / 4)
    assert found["ece_binary_15"] == pytest.approx((0.3 + 0.6 + 0.2 + 0.1) / 4)
    ten = random_predictions(classes=10)
    assert METRICS["ece_binary_15"](ten) is None
    assert METRICS["ece_15"](ten) > 2 * METRICS["ece_classwise_15"](ten)
    both_right = Predictions(np.array([[1.0, -1.0], [-1.0, 1.0]]), [0, 1])
    low = both_right.probabilities.min()
    assert METRICS["ece_15"](both_right) == pytest.approx(low)
    reversed_pair = Predictions(np.array([[1.0, -1.0], [1.0, -1.0]]), [0, 1])
    assert METRICS["ece_binary_15"](reversed_pair) == pytest.approx(0.5 - low)


def test_exchanging_inside_and_outside():
    """OpenOOD issue 308 and ood-metrics issue 2."""
    generator = np.random.default_rng(0)
    inside, outside = np.round(generator.normal(1, 1, 80), 1), np.round(generator.normal(0, 1, 50), 1)
    forth, back = detection(inside, outside), detection(-outside, -inside)
    assert forth["auroc"] == pytest.approx(back["auroc"])
    assert (forth["aupr_positive"], forth["aupr_negative"]) == pytest.approx(
        (back["aupr_negative"], back["aupr_positive"])
    )
    assert detection(outside, inside)["auroc"] == pytest.approx(1 - forth["auroc"])
    for rest in (forth, back):
        assert 0.5 < rest["auroc"] < 1


def test_out_of_distribution_metrics_take_two_sets_and_undefined_is_none():
    """torch-uncertainty issue 139."""
    right = random_predictions()
    right = Predictions(right.logits, right.predicted)
    found = summary(right)
    ranking = ("auroc", "aupr_success", "aupr_error", "fpr95", "fpr95_nearest")
    assert [found[name] for name in ranking] == [None] * 5
    detected = ood_summary(right, Predictions(right.logits / 4, None))
    assert detected["max_softmax"]["auroc"] > 0.6

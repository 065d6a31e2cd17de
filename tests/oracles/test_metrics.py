"""Metrics against the published code's numbers and against scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics as sklearn

from director.numbers.metrics import METRICS, detection, summary
from director.numbers.predictions import Predictions

PUBLISHED = {
    "accuracy": "acc",
    "aurc": "aurc",
    "eaurc": "eaurc",
    "nll": "nll",
    "brier": "brier",
    "ece_15": "ece",
    "auroc": "auroc",
    "aupr_error": "aupr_error",
    "fpr95_nearest": "fpr95",
}


@pytest.fixture(params=["ten_class", "overconfident", "binary", "tiny"])
def golden(request, shared):
    with np.load(shared / "golden" / f"metrics_{request.param}.npz") as archive:
        return dict(archive)


def test_published_numbers(golden):
    predictions = Predictions(golden["logits"], golden["labels"])
    np.testing.assert_allclose(predictions.probabilities, golden["probs"], atol=1e-6)
    found = summary(predictions)
    for ours, theirs in PUBLISHED.items():
        assert found[ours] == pytest.approx(golden[theirs].item(), abs=1e-6), ours


def test_published_aupr_success_is_the_trapezoid_under_the_same_curve(golden):
    """The published code takes the average precision for errors but the trapezoid for successes; we take the first."""
    predictions = Predictions(golden["logits"], golden["labels"])
    precision, recall, _ = sklearn.precision_recall_curve(predictions.correct, predictions.confidence)
    assert sklearn.auc(recall, precision) == pytest.approx(golden["aupr_success"].item(), abs=1e-9)
    assert METRICS["aupr_success"](predictions) == pytest.approx(golden["aupr_success"].item(), abs=3e-4)


@pytest.mark.parametrize("decimals", [1, 8], ids=["ties", "no ties"])
@pytest.mark.parametrize("classes", [2, 5])
def test_scikit_learn(classes, decimals):
    generator = np.random.default_rng(classes)
    labels = generator.integers(classes, size=500)
    logits = np.round(generator.normal(size=(500, classes)) + 1.5 * np.eye(classes)[labels], decimals)
    if decimals == 1:
        logits = np.round(logits)  # a dozen confidences
    predictions = Predictions(logits, labels)
    correct, confidence = predictions.correct, predictions.confidence
    found = summary(predictions)
    expected = {
        "accuracy": sklearn.accuracy_score(labels, predictions.predicted),
        "mcc": sklearn.matthews_corrcoef(labels, predictions.predicted),
        "nll": sklearn.log_loss(labels, predictions.probabilities),
        "auroc": sklearn.roc_auc_score(correct, confidence),
        "aupr_success": sklearn.average_precision_score(correct, confidence),
        "aupr_error": sklearn.average_precision_score(~correct, -confidence),
    }
    false, true, _ = sklearn.roc_curve(correct, confidence, drop_intermediate=False)
    expected["fpr95"] = false[np.argmax(true >= 0.95)]
    expected["fpr95_nearest"] = false[np.argmin(np.abs(true - 0.95))]
    if classes == 2:
        expected["brier"] = 2 * sklearn.brier_score_loss(labels, predictions.probabilities[:, 1])
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-10), name


def test_detection_against_scikit_learn():
    generator = np.random.default_rng(0)
    inside, outside = np.round(generator.normal(1, 1, 300), 1), np.round(generator.normal(0, 1, 200), 1)
    scores, labels = np.concatenate([inside, outside]), np.repeat([1, 0], [300, 200])
    found = detection(inside, outside)
    assert found["auroc"] == pytest.approx(sklearn.roc_auc_score(labels, scores), abs=1e-12)
    assert found["aupr_positive"] == pytest.approx(sklearn.average_precision_score(labels, scores), abs=1e-12)
    assert found["aupr_negative"] == pytest.approx(sklearn.average_precision_score(1 - labels, -scores), abs=1e-12)

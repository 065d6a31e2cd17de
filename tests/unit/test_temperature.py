"""Temperature scaling."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from director.files import InputError
from director.metrics import nll
from director.predictions import Predictions
from director.temperature import fit_temperature, scale


@pytest.fixture
def predictions() -> Predictions:
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=100)
    return Predictions(3 * (generator.normal(size=(4, 100, 3)) + np.eye(3)[labels]), labels, about={"seed": 1})


def test_it_is_the_best_of_the_interval(predictions):
    best = minimize_scalar(
        lambda log: nll(scale(predictions, np.exp(log))), bounds=np.log([0.05, 20]), method="bounded"
    )
    assert fit_temperature(predictions) == pytest.approx(np.exp(best.x), rel=1e-4)


def test_narrow_bounds_are_kept(predictions):
    free = fit_temperature(predictions)
    with pytest.warns(UserWarning, match="bound"):
        assert fit_temperature(predictions, lower=free + 0.1) == free + 0.1
    with pytest.warns(UserWarning, match="bound"):
        assert fit_temperature(predictions, upper=free - 0.1) == free - 0.1


def test_scaling_divides_the_pooled_logits_and_says_so(predictions):
    scaled = scale(predictions, 2.5)
    expected = np.exp(predictions.pool().logits[0] / 2.5)
    np.testing.assert_allclose(scaled.probabilities, expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_array_equal(scaled.predicted, predictions.predicted)
    assert scaled.about == {"seed": 1, "samples": 4, "pooling": "softmax", "temperature": 2.5}


def test_pooled_logits_are_scaled_as_they_are(predictions):
    pooled = predictions.pool("logits")
    expected = np.exp(pooled.logits[0] / 2)
    found = scale(pooled, 2)
    np.testing.assert_allclose(found.probabilities, expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)
    assert found.about["pooling"] == "logits"


def test_unlabelled_predictions_can_be_scaled_but_not_fitted_on(predictions):
    unlabelled = Predictions(predictions.logits, None)
    np.testing.assert_array_equal(scale(unlabelled, 2).confidence, scale(predictions, 2).confidence)
    with pytest.raises(InputError, match="no labels"):
        fit_temperature(unlabelled)


@pytest.mark.parametrize("temperature", [0, -1, np.nan, np.inf])
def test_temperatures_are_positive(predictions, temperature):
    with pytest.raises(InputError, match=f"temperature {temperature}"):
        scale(predictions, temperature)


@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (2, 1), (1, 1), (0.1, np.inf), (np.nan, 1)])
def test_bounds_are_ordered(predictions, lower, upper):
    with pytest.raises(InputError, match="give 0 < lower < upper"):
        fit_temperature(predictions, lower, upper)

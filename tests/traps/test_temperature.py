"""Traps of temperature scaling, each from a public report."""

import numpy as np
import pytest

from director.errors import InputError
from director.numbers.metrics import accuracy, nll
from director.numbers.predictions import Predictions
from director.numbers.temperature import fit_temperature, scale


def random_predictions(factor=4.0, seed=0) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(5, size=400)
    return Predictions(factor * (generator.normal(size=(400, 5)) + np.eye(5)[labels]), labels)


@pytest.mark.parametrize("factor", [0.1, 1.0, 50.0, 1e4])
def test_validation_set_without_errors(factor):
    """temperature_scaling issue 31 and experiments_dnn issue 3: negative or astronomically large T."""
    predictions = random_predictions(factor)
    right = Predictions(predictions.logits, predictions.predicted)
    with pytest.warns(UserWarning, match=r"temperature 0\.05 is a bound"):
        assert fit_temperature(right) == 0.05


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_logits_that_say_nothing_of_the_labels(spread):
    """temperature_scaling issues 23 and 20."""
    row = spread * np.array([1.0, 0.2, -0.4, -0.8])
    predictions = Predictions(np.tile(row, (40, 1)), np.arange(40) % 4)  # every label equally often
    fitted = []
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"temperature 20\.0 is a bound"):
            fitted.append(fit_temperature(predictions))
    assert fitted == [20, 20]
    assert nll(scale(predictions, 20)) == pytest.approx(np.log(4), abs=spread**2 / 500 + 1e-12)


@pytest.mark.parametrize("factor", [0.2, 1.0, 8.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_temperature_is_a_stationary_point(factor, seed):
    """robustness_metrics issue 79: a search that stops early."""
    predictions = random_predictions(factor, seed)
    temperature, step = fit_temperature(predictions), 1e-4
    above, below = (nll(scale(predictions, temperature * (1 + side * step))) for side in (1, -1))
    assert abs((above - below) / (2 * temperature * step)) < 1e-6
    assert nll(scale(predictions, temperature)) < min(above, below)
    assert fit_temperature(scale(predictions, temperature)) == pytest.approx(1, abs=1e-9)


def test_a_higher_temperature_lowers_the_confidence():
    """netcal issue 13: T and 1/T exchanged."""
    predictions = random_predictions()
    assert fit_temperature(predictions) > 1  # overconfident
    assert (scale(predictions, 2.0).confidence < predictions.confidence).all()
    assert (scale(predictions, 0.5).confidence > predictions.confidence - 1e-12).all()
    assert accuracy(scale(predictions, 7.0)) == accuracy(predictions)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_probabilities_are_refused(kind):
    """netcal issue 55: probabilities given where logits are meant."""
    predictions = random_predictions()
    with pytest.raises(InputError, match="look like probabilities"):
        Predictions(predictions.probabilities.astype(kind), predictions.labels)
    logarithms = Predictions(np.log(predictions.probabilities), predictions.labels)
    np.testing.assert_allclose(logarithms.probabilities, predictions.probabilities)

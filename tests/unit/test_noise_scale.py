"""The scale of a student's noise: fitted as a temperature is, by validation likelihood."""

import numpy as np
import pytest

from director.errors import InputError
from director.files import read_json, write_json
from director.noise import ScaledNoise
from director.numbers.metrics import nll
from director.numbers.predictions import Predictions
from director.training.noise_scale import GRID, fit_into_file, fit_noise_scale, read_noise_scale

LABELS = np.arange(300) % 3


def roll_outs(certainty, samples=8):
    """A student that is right three times in four, and as sure as `certainty`: scale -> its predictions."""
    generator = np.random.default_rng(0)
    believed = np.where(generator.random(300) < 0.75, LABELS, (LABELS + 1) % 3)
    noise = generator.normal(size=(samples, 300, 3))

    def predict(scale):
        return Predictions(certainty * np.eye(3)[believed] + scale * noise[: samples if scale else 1], LABELS)

    return predict


@pytest.mark.parametrize(("certainty", "low", "high"), [(6.0, 3.0, 8.0), (1.9, 0.0, 1.2)])
def test_the_scale_is_the_one_with_the_lowest_likelihood(certainty, low, high):
    """A student that is too sure needs more noise, one that is sure enough needs little."""
    predict = roll_outs(certainty)
    fitted = fit_noise_scale(predict)
    dense = min(nll(predict(scale)) for scale in np.linspace(0, 8, 161))
    assert low <= fitted["scale"] <= high
    assert nll(predict(fitted["scale"])) <= dense + 1e-3
    assert fitted["samples"] == 8


def test_what_was_tried_is_told_and_always_the_same():
    fitted = fit_noise_scale(roll_outs(6.0))
    assert fitted == fit_noise_scale(roll_outs(6.0))
    scales = [row["scale"] for row in fitted["tried"]]
    assert scales == sorted(set(scales)) and set(GRID) <= set(scales), "among them 0 and 1"
    assert fitted["scale"] == min(fitted["tried"], key=lambda row: row["nll"])["scale"]
    assert fitted["tried"][0]["nll"] == pytest.approx(nll(roll_outs(6.0)(0.0)))
    assert all(0 <= row["ece_15"] <= 1 and 0 <= row["accuracy"] <= 1 for row in fitted["tried"])


def test_where_noise_changes_nothing_none_is_taken():
    labels, logits = LABELS, 2.0 * np.eye(3)[LABELS][None]
    assert fit_noise_scale(lambda scale: Predictions(logits, labels))["scale"] == 0.0


def test_scaled_noise_is_the_same_draws():
    class Draws:
        def __call__(self, step, shape, mask=None):
            return np.arange(np.prod(shape)).reshape(shape) + step

    np.testing.assert_array_equal(ScaledNoise(Draws(), 2.5)(1, (2, 3)), 2.5 * Draws()(1, (2, 3)))
    for scale in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="noise scale is 0 or more and finite"):
            ScaledNoise(Draws(), scale)


@pytest.mark.parametrize(
    "change", [{"format": "director metrics 1"}, {"scale": "1"}, {"tried": []}, {"tried": [{"scale": 1.0}]}]
)
def test_a_file_of_something_else_is_refused(tmp_path, change):
    path = tmp_path / "noise_scale.json"
    scale = fit_into_file(path, {"method": "director_noise"}, roll_outs(6.0))
    assert read_noise_scale(path)["scale"] == scale == fit_noise_scale(roll_outs(6.0))["scale"]
    assert read_noise_scale(path)["about"] == {"method": "director_noise"}
    write_json(path, read_json(path) | change)
    with pytest.raises(InputError, match=r"noise_scale\.json: not a file of noise scales"):
        read_noise_scale(path)

"""Temperature scaling."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from director.errors import InputError
from director.numbers.metrics import nll
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, load_suite, manifest_of, read_cost, suites_of, write_suites
from director.numbers.temperature import fit_temperature, scale, scale_run

COST = {"parameters": 7, "train_seconds": 2.5, "device": "cpu", "threads": 1, "peak_memory_bytes": 9}
SCALED = {"temperature": "mle", "director_temperature": "director"}


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


def write_source(run_folder, method, samples, suites=("val", "test", "ood-photographs")):
    """The predictions that are scaled, as a job writes them."""

    def make(suite):
        generator = np.random.default_rng([samples, len(suite)])
        labels = generator.integers(3, size=60)
        logits = 3 * (generator.normal(size=(samples, 60, 3)) + np.eye(3)[labels])
        about = {
            "method": method,
            "suite": suite,
            "seed": 1,
            "weights": "digest",
            "code": "of predict",
            "commit": "old",
        }
        labels = None if suite.startswith("ood-") else labels
        return Made(Predictions(logits.astype(np.float32), labels, about=about), {1: 0.25, samples: 2.0})

    manifest = manifest_of(run_folder, method)
    write_suites(manifest.parent, {suite: [suite, method] for suite in suites}, make, lambda: COST)
    return manifest


def run(folder, upper=20.0, code="of scale"):
    scale_run(folder, SCALED, folder / "temperatures.json", lower=0.05, upper=upper, about={"code": code})
    return json.loads((folder / "temperatures.json").read_text())


def test_every_suite_but_the_validation_is_scaled_by_the_temperature_fitted_on_it(tmp_path):
    sources = {method: write_source(tmp_path, method, samples) for method, samples in (("mle", 1), ("director", 4))}
    fitted = run(tmp_path)
    assert list(fitted) == list(SCALED)
    for method, source in SCALED.items():
        validation = load_suite(sources[source], "val")
        temperature = fit_temperature(validation)
        before, after = nll(validation), nll(scale(validation, temperature))
        assert fitted[method] == {
            "scales": source,
            "temperature": temperature,
            "validation_nll": {"before": before, "after": after},
        }
        assert after < before
        manifest = manifest_of(tmp_path, method)
        assert suites_of(manifest) == ["test", "ood-photographs"]
        for suite in suites_of(manifest):
            scaled, expected = load_suite(manifest, suite), scale(load_suite(sources[source], suite), temperature)
            np.testing.assert_array_equal(scaled.logits, expected.logits.astype(np.float32))
            samples = len(load_suite(sources[source], suite).logits)
            about = {"method": method, "suite": suite, "seed": 1, "weights": "digest", "code": "of scale"}
            about |= {"temperature": temperature, "samples": samples, "pooling": "softmax"}
            assert scaled.about == scaled.about | about
            assert scaled.about["commit"] != "old" and set(scaled.about["versions"]) == {"director", "numpy", "scipy"}


def test_scaling_costs_what_its_source_does_with_all_samples(tmp_path):
    write_source(tmp_path, "mle", 1)
    write_source(tmp_path, "director", 4)
    run(tmp_path)
    cost = read_cost(manifest_of(tmp_path, "director_temperature").with_name("cost.json"))
    entry = {"examples": 60, "seconds": {"4": 2.0}}
    assert cost == COST | {"suites": {"test": entry, "ood-photographs": entry}}


def test_scaling_again_writes_only_what_changed(tmp_path):
    write_source(tmp_path, "mle", 1)
    write_source(tmp_path, "director", 4)
    first = run(tmp_path)

    def times():
        return [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*temperature/predictions/*.npz"))]

    before = times()
    assert run(tmp_path) == first
    assert times() == before
    write_source(tmp_path, "mle", 1, ("val", "test", "ood-photographs", "shifted"))
    run(tmp_path)
    assert times()[:-3] == before[:-2] and len(times()) == 5, "director_temperature first, then ood, shifted, test"
    assert [times()[index] for index in (2, 4)] == before[2:]
    run(tmp_path, code="another")
    assert not set(times()) & set(before)


def test_a_source_without_validation_or_costs_is_refused(tmp_path):
    write_source(tmp_path, "director", 4)
    manifest = write_source(tmp_path, "mle", 1, ("test",))
    with pytest.raises(InputError, match=r"mle/predictions/manifest\.json lists no val\.npz"):
        run(tmp_path)
    write_source(tmp_path, "mle", 1)
    cost_file = manifest.with_name("cost.json")
    cost = json.loads(cost_file.read_text())
    cost["suites"].pop("test")
    cost_file.write_text(json.dumps(cost))
    with pytest.raises(InputError, match=r"mle/predictions/cost\.json: no cost of test; delete it"):
        run(tmp_path)
    assert not (tmp_path / "temperatures.json").exists()

"""The predictions of one method with one trained model: all suites of an experiment, in one job."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from builders import CPU, NORMALISATION, kep_attention, random_images, random_model, random_student
from pydantic import ValidationError

from director.data.dataset import Dataset
from director.data.examples import ImageExamples
from director.data.splits import write_split
from director.errors import InputError
from director.files import file_digest, read_json, write_json
from director.models.weights import parameter_count, save_model
from director.numbers.metrics import nll
from director.numbers.predictions import expected_entropy, mutual_information, predictive_entropy
from director.numbers.suites import load_suite, read_cost, suite_file
from director.settings.suite import Suite
from director.training import predict_run as predict_run_module
from director.training.laplace import fit_last_layer
from director.training.noise_scale import fit_into_file, read_noise_scale
from director.training.predict import predict
from director.training.predict_run import predict_run

TEST = Suite(dataset="clean", part="test", labelled=True)
VALIDATION = Suite(dataset="clean", part="validation", labelled=True)
CORRUPTED = Suite(dataset="corrupted", part="test", labelled=True)
FOREIGN = Suite(dataset="other", part=None, labelled=False)
SUITES = {"val": VALIDATION, "test": TEST, "corrupted": CORRUPTED, "ood-other": FOREIGN}
DROPOUT = {"randomness": "dropout", "samples": [5]}
STUDENT = {"weights": "student", "randomness": "noise", "profile": True}


@pytest.fixture
def data(tmp_path):
    """Folder with weights, their cost, a clean set of 20, its split, a corrupted copy, and another set of 6."""
    network = random_model(dropout=0.3)
    save_model(tmp_path / "model.safetensors", network, {"seed": 0})
    save_model(tmp_path / "kep.safetensors", random_model(attention=kep_attention("sum")), {"seed": 0})
    save_model(tmp_path / "student.safetensors", random_student(), {"seed": 0})
    write_json(tmp_path / "cost.json", {"parameters": parameter_count(network), "train_seconds": 12.5})
    clean = random_images()
    clean.save(tmp_path / "clean")
    rows = np.tile(np.arange(20), 2)
    severity = np.repeat([1, 2], 20)
    fog = Dataset("grey_c", clean.inputs[rows] // 2, clean.labels[rows], rows, np.full(40, "fog"), severity)
    fog.save(tmp_path / "corrupted")
    random_images(6, "other").save(tmp_path / "other")
    parts = {"train": np.arange(10), "validation": np.arange(10, 14), "test": np.arange(14, 20)}
    write_split(tmp_path / "split.npz", parts)
    return tmp_path


def run(data, suites, weights="model", into="predictions", **options):
    """Predict suites; the manifest."""
    arguments = {
        "weights_file": data / f"{weights}.safetensors",
        "training_cost_file": data / "cost.json",
        "split_file": data / "split.npz",
        "dataset_folders": {suite.dataset: data / suite.dataset for suite in suites.values()},
        "suites": suites,
        "folder": data / into,
        "randomness": "none",
        "samples": [1],
        "profile": False,
        "seed": 0,
        "normalisation": NORMALISATION,
        "batch_size": 8,
        "about": {"experiment": "test", "backbone": "softmax", "method": "mle"},
        "compute": CPU,
    }
    predict_run(**arguments | options)
    return data / into / "manifest.json"


def test_test_part_of_the_clean_set(data):
    manifest = run(data, {"test": TEST})
    predictions = load_suite(manifest, "test")
    clean = Dataset.load(data / "clean")
    np.testing.assert_array_equal(predictions.example, np.arange(14, 20))
    np.testing.assert_array_equal(predictions.labels, clean.labels[14:])
    assert set(predictions.shift) == {"clean"}
    examples = ImageExamples(clean.select(np.arange(14, 20)), NORMALISATION)
    expected = predict(random_model(dropout=0.3), examples, batch_size=8).logits
    np.testing.assert_array_equal(predictions.logits, expected)
    about = predictions.about
    assert (about["method"], about["samples"], about["seed"], about["suite"]) == ("mle", 1, 0, "test")
    assert about["weights"] == file_digest(data / "model.safetensors")
    assert about["data"] == clean.about["fingerprint"]
    cost = read_cost(manifest.with_name("cost.json"))
    assert cost.pop("peak_memory_bytes") > 10**6
    suites = cost.pop("suites")
    assert suites["test"]["examples"] == 6 and suites["test"]["seconds"]["1"] > 0
    assert list(suites["test"]["seconds"]) == ["1"]
    assert cost == {
        "parameters": parameter_count(random_model()),
        "train_seconds": 12.5,
        "device": "cpu",
        "threads": 1,
    }


def test_other_parts_and_shifted_rows_follow_the_split(data):
    manifest = run(data, SUITES)
    np.testing.assert_array_equal(load_suite(manifest, "val").example, np.arange(10, 14))
    corrupted = load_suite(manifest, "corrupted")
    np.testing.assert_array_equal(corrupted.example, np.tile(np.arange(14, 20), 2))
    np.testing.assert_array_equal(corrupted.severity, np.repeat([1, 2], 6))
    assert set(corrupted.shift) == {"fog"}
    np.testing.assert_array_equal(corrupted.labels, np.tile(Dataset.load(data / "clean").labels[14:], 2))


def test_a_set_that_the_split_does_not_deal_gives_all_rows_and_no_labels(data):
    manifest = run(data, {"ood-other": FOREIGN})
    outside = load_suite(manifest, "ood-other")
    assert outside.labels is None
    assert outside.logits.shape == (1, 6, 3)
    assert read_cost(manifest.with_name("cost.json"))["suites"]["ood-other"]["examples"] == 6


@pytest.mark.parametrize(("randomness", "weights"), [("dropout", "model"), ("noise", "kep"), ("noise", "student")])
def test_stochastic_methods_keep_every_sample_and_repeat_to_the_byte(data, randomness, weights):
    options = {"randomness": randomness, "weights": weights, "samples": [5]}
    manifest = run(data, {"test": TEST}, **options)
    logits = load_suite(manifest, "test").logits
    assert logits.shape == (5, 6, 3)
    assert (logits.std(axis=0) > 0).any()
    assert list(read_cost(manifest.with_name("cost.json"))["suites"]["test"]["seconds"]) == ["5"]
    again, other = (run(data, {"test": TEST}, into=f"seed-{seed}", seed=seed, **options) for seed in (0, 1))
    first = manifest.with_name("test.npz").read_bytes()
    assert again.with_name("test.npz").read_bytes() == first
    assert again.read_bytes() == manifest.read_bytes()
    assert other.with_name("test.npz").read_bytes() != first


def test_only_test_is_timed_at_each_number_of_samples_and_the_largest_is_kept(data):
    manifest = run(data, SUITES, **DROPOUT | {"samples": [1, 5, 3]})
    suites = read_cost(manifest.with_name("cost.json"))["suites"]
    assert {name: list(suite["seconds"]) for name, suite in suites.items()} == {
        "val": ["5"],
        "test": ["1", "3", "5"],
        "corrupted": ["5"],
        "ood-other": ["5"],
    }
    assert all(seconds > 0 for suite in suites.values() for seconds in suite["seconds"].values())
    alone = run(data, SUITES, into="alone", **DROPOUT)
    for suite in SUITES:
        kept = load_suite(manifest, suite)
        assert kept.about["samples"] == 5
        np.testing.assert_array_equal(kept.logits, load_suite(alone, suite).logits)


class Killed(Exception):
    pass


@pytest.fixture
def predicted(monkeypatch):
    """Numbers of examples of all predictions so far; `kill_at` ends the job at that prediction."""

    class Predicted(list):
        kill_at = None

    counts = Predicted()

    def watched(model, examples, **options):
        if len(counts) + 1 == counts.kill_at:
            raise Killed
        counts.append(len(examples))
        return predict(model, examples, **options)

    monkeypatch.setattr(predict_run_module, "predict", watched)
    return counts


@pytest.mark.parametrize("options", [DROPOUT, STUDENT | {"samples": [5]}], ids=["dropout", "student"])
def test_suites_that_a_killed_job_finished_are_kept(data, predicted, options):
    whole = run(data, SUITES, into="whole", **options)
    assert predicted == [4, 6, 12, 6]
    predicted.clear()
    predicted.kill_at = 3
    with pytest.raises(Killed):
        run(data, SUITES, **options)
    assert not (data / "predictions/manifest.json").exists()
    finished = (data / "predictions/test.npz").stat()
    predicted.clear()
    predicted.kill_at = None
    manifest = run(data, SUITES, **options)
    assert predicted == [12, 6], "val and test are not predicted again"
    assert manifest.with_name("test.npz").stat() == finished
    assert manifest.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"samples": [4]},
        {"batch_size": 16},
        {"precision": "bfloat16"},
        {"weights": "other"},
        {"about": {"experiment": "test", "code": "abc"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_suites_made_from_something_else_are_made_again(data, predicted, changes):
    save_model(data / "other.safetensors", random_model(seed=1, dropout=0.3), {"seed": 1})
    run(data, {"val": VALIDATION, "test": TEST}, **DROPOUT)
    predicted.clear()
    run(data, {"val": VALIDATION, "test": TEST}, **DROPOUT)
    assert predicted == []
    manifest = run(data, {"val": VALIDATION, "test": TEST}, **DROPOUT | changes)
    assert predicted == [4, 6]
    assert load_suite(manifest, "test").logits.shape[0] == changes.get("samples", [5])[0]


def test_of_an_extended_job_only_the_new_suite_is_made(data, predicted):
    run(data, {"test": TEST}, **DROPOUT)
    predicted.clear()
    run(data, {"test": TEST, "corrupted": CORRUPTED}, **DROPOUT)
    assert predicted == [12]
    predicted.clear()
    few = CORRUPTED.model_copy(update={"at_most": 2})
    manifest = run(data, {"test": TEST, "corrupted": few}, **DROPOUT)
    assert predicted == [4] and load_suite(manifest, "corrupted").example.tolist() == [14, 19, 14, 19]


def depths(data, suite=TEST, **options):
    """Predictions of the student on a suite, the arrays beside them, and the file of these."""
    manifest = run(data, {"test": suite}, **STUDENT | options)
    path = suite_file(manifest, "test", "depth.npz")
    with np.load(path, allow_pickle=False) as file:
        return load_suite(manifest, "test"), {name: file[name] for name in file.files}, path


def test_a_students_uncertainty_lies_beside_its_predictions(data):
    predictions, arrays, path = depths(data, CORRUPTED, samples=[5])
    assert predictions.logits.shape == (5, 12, 3)
    corrupted = ImageExamples(Dataset.load(data / "corrupted").of_examples(np.arange(14, 20)), NORMALISATION)
    expected = predict(random_student(), corrupted, randomness="noise", samples=5, seed=0, batch_size=8)
    np.testing.assert_allclose(predictions.logits, expected.logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(arrays["variance"], expected.profile, rtol=1e-5)
    uncertainties = [predictive_entropy, expected_entropy, mutual_information]
    names = [uncertainty.__name__ for uncertainty in uncertainties]
    assert set(arrays) == {"variance", "example", "shift", "severity", "about", *names}
    for uncertainty in uncertainties:
        np.testing.assert_array_equal(arrays[uncertainty.__name__], uncertainty(predictions))
    assert arrays["mutual_information"].max() > 0
    for column in ("example", "shift", "severity"):
        np.testing.assert_array_equal(arrays[column], getattr(predictions, column))
    assert json.loads(str(arrays["about"])) == predictions.about
    assert depths(data, CORRUPTED, samples=[5], into="again")[2].read_bytes() == path.read_bytes()


def test_one_roll_out_has_no_disagreement_to_write(data):
    predictions, arrays, _ = depths(data)
    assert predictions.logits.shape == (1, 6, 3)
    assert arrays["variance"].shape == (6, 2) and (arrays["variance"] > 0).all()
    assert set(arrays) == {"variance", "example", "shift", "severity", "about"}


def test_without_a_profile_nothing_lies_beside(data):
    manifest = run(data, {"test": TEST}, **STUDENT | {"profile": False})
    assert list(read_json(manifest)["suites"]["test"]["files"]) == ["test.npz"]
    assert not manifest.with_name("test.depth.npz").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"randomness": "laplace"}, "randomness is 'laplace'; it must be one of none, dropout, noise"),
        ({"samples": [3]}, "samples is 3, but a pass without randomness is always the same"),
        ({"randomness": "noise", "samples": [2]}, "noise has no effect on the logits of ImageTransformer"),
        (
            {"randomness": "noise", "profile": True},
            "ImageTransformer .* has no path to roll out; give the weights of a student",
        ),
        (
            {"weights": "student", "profile": True},
            "StudentNetwork with randomness none has no path .* randomness noise",
        ),
    ],
)
def test_wrong_requests_are_named_and_write_nothing(data, options, message):
    with pytest.raises(InputError, match=message):
        run(data, {"test": TEST}, **options)
    assert not list(data.glob("predictions/*"))


def test_an_unknown_part_is_refused():
    with pytest.raises(ValidationError, match=r"part\n.*'validation' or 'test'"):
        Suite(dataset="clean", part="tests", labelled=True)


def test_a_split_of_another_data_set_is_refused(data):
    parts = {"train": np.arange(3), "validation": np.arange(3, 6), "test": np.arange(900, 903)}
    write_split(data / "far.npz", parts)
    with pytest.raises(InputError, match="grey has no example of the part test of the split; is it another set's"):
        run(data, {"test": TEST}, split_file=data / "far.npz")


def test_images_of_another_size_are_refused(data):
    random_images(6, "large", size=8).save(data / "large")
    with pytest.raises(InputError, match=r"images of shape \(1, 8, 8\)"):
        run(data, {"ood-large": Suite(dataset="large", part=None, labelled=False)})


# -- a noise scale that is fitted on the validation part ---------------------------------------------------------------


def test_a_fitted_noise_scale_is_that_of_every_suite(data):
    options = STUDENT | {"samples": [4], "batch_size": 64}
    fit = partial(fit_into_file, data / "noise_scale.json", {"method": "director_noise"})
    manifest = run(data, SUITES, fit_noise=fit, **options)
    fitted = read_noise_scale(data / "noise_scale.json")
    tried = {row["scale"]: row["nll"] for row in fitted["tried"]}
    assert fitted["samples"] == 4 and {0.0, 1.0} <= set(tried)
    assert tried[fitted["scale"]] == min(tried.values())
    for suite in SUITES:
        assert load_suite(manifest, suite).about["noise_scale"] == fitted["scale"]
    # the suites are roll-outs with that scale, and the validation NLL of the file is that of what was written
    assert nll(load_suite(manifest, "val")) == pytest.approx(tried[fitted["scale"]], abs=1e-6)
    plain = run(data, {"val": VALIDATION}, into="plain", **options)
    assert nll(load_suite(plain, "val")) == pytest.approx(tried[1.0], abs=1e-6)
    assert "noise_scale" not in load_suite(plain, "val").about
    again = run(
        data,
        SUITES,
        into="again",
        fit_noise=partial(fit_into_file, data / "again.json", {"method": "director_noise"}),
        **options,
    )
    assert (data / "again.json").read_bytes() == (data / "noise_scale.json").read_bytes()
    assert suite_file(again, "test").read_bytes() == suite_file(manifest, "test").read_bytes()


def test_the_predicted_variance_is_that_of_the_scaled_noise(data):
    options = STUDENT | {"samples": [2]}
    scaled = run(data, {"val": VALIDATION}, fit_noise=lambda predict: 3.0, **options)
    plain = run(data, {"val": VALIDATION}, into="plain", **options)
    first = [np.load(suite_file(manifest, "val", "depth.npz"))["variance"][:, 0] for manifest in (scaled, plain)]
    np.testing.assert_allclose(first[0], 9 * first[1], rtol=1e-6)


def test_no_noise_at_all_may_be_best(data):
    """Then the roll-outs agree, which is no fault."""
    manifest = run(data, {"val": VALIDATION}, fit_noise=lambda predict: 0.0, **STUDENT | {"samples": [2]})
    first, second = load_suite(manifest, "val").logits
    np.testing.assert_array_equal(first, second)


def test_a_laplace_row_is_fitted_on_the_training_part_and_says_with_what(data):
    pytest.importorskip("laplace", reason="laplace-torch is not installed (make laplace)")
    manifest = run(data, SUITES, laplace=True)
    predictions = load_suite(manifest, "test")
    np.testing.assert_allclose(np.exp(predictions.logits).sum(-1), 1, rtol=1e-5)
    assert predictions.about["prior_precision"] > 0 and "laplace-torch" in predictions.about["versions"]
    model = random_model(dropout=0.3)
    train = ImageExamples(Dataset.load(data / "clean").select(np.arange(10)), NORMALISATION)
    fitted = fit_last_layer(model, train, batch_size=8, device=torch.device("cpu"))
    assert fitted.prior_precision == predictions.about["prior_precision"]
    assert read_cost(manifest.with_name("cost.json"))["train_seconds"] > 12.5, "fitting is part of its training"
    assert len(load_suite(manifest, "ood-other").example) == 6

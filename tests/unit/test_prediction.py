"""Logits per sample, and the files of a suite."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from director.backbones import ImageTransformer, parameter_count, save_model
from director.data.dataset import Dataset, ImageExamples
from director.device import resolve_device
from director.files import InputError, file_digest, write_json
from director.noise import ExampleNoise, fold
from director.prediction import (
    dropout_rates,
    predict,
    predict_director,
    predict_dropout,
    predict_samples,
    predict_suite,
)
from director.predictions import Predictions, expected_entropy, mutual_information, predictive_entropy
from director.process import Director
from director.taps import path_of

NORMALISATION = {"scale": 255.0, "mean": [0.5], "std": [0.25]}
SHAPE = {"image_size": 4, "channels": 1, "patch": 2, "width": 8, "depth": 2, "heads": 2, "mlp_width": 8, "classes": 3}
KEP = {"kep_layers": 1, "kep_variant": "sum", "kep_rank": 2, "kep_multiplier": 2}


def model(seed=0, **settings):
    torch.manual_seed(seed)
    return ImageTransformer(**SHAPE | settings)


def student(**settings):
    """A student away from its start, where every step is the identity and every variance the same."""
    made = Director.from_teacher(path_of(model(**settings)))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.kernel.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def dataset(count=20, name="grey", size=4):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    return Dataset.clean(name, images, rng.integers(0, 3, count))


def examples(count=20):
    return ImageExamples(dataset(count), NORMALISATION)


def test_single_pass_is_the_model_in_evaluation_mode():
    network, data = model(dropout=0.5), examples()
    network.train()
    expected = network.eval()(torch.from_numpy(data.batch(np.arange(20))[0])).detach().numpy()
    network.train()
    for batch_size in (1, 7, 64):
        logits = predict(network, data, batch_size=batch_size)
        assert logits.shape == (1, 20, 3)
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits[0], expected, atol=1e-5)
    assert all(module.training for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_own_noise_gives_the_same_samples_in_any_batch():
    network, data = model(**KEP), examples()
    whole = predict_samples(network, data, samples=4, seed=1, batch_size=1000)
    assert whole.shape == (4, 20, 3)
    assert whole.std(axis=0).min() > 1e-6
    for batch_size in (1, 12):
        np.testing.assert_allclose(
            predict_samples(network, data, samples=4, seed=1, batch_size=batch_size), whole, rtol=1e-4, atol=1e-4
        )
    backwards = ImageExamples(data.dataset.select(np.arange(20)[::-1]), NORMALISATION)
    np.testing.assert_allclose(
        predict_samples(network, backwards, samples=4, seed=1, batch_size=8)[:, ::-1], whole, rtol=1e-4, atol=1e-4
    )
    assert np.abs(predict_samples(network, data, samples=4, seed=2, batch_size=1000) - whole).max() > 0.01


def test_own_noise_keeps_dropout_off():
    network, data = model(**KEP, dropout=0.0), examples(5)
    without = predict_samples(network, data, samples=3, seed=0, batch_size=50)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9
    network.train()
    np.testing.assert_array_equal(predict_samples(network, data, samples=3, seed=0, batch_size=50), without)


def test_models_without_noise_have_no_samples():
    with pytest.raises(InputError, match="ImageTransformer gives the same logits for every noise"):
        predict_samples(model(), examples(), samples=3, seed=0, batch_size=8)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(InputError, match="Sequential takes no noise"):
        predict_samples(plain, examples(), samples=3, seed=0, batch_size=8)


def test_dropout_depends_on_its_seed_only():
    network, data = model(dropout=0.3), examples()
    one, same, other = (predict_dropout(network, data, samples=3, seed=seed, batch_size=8) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize("samples", [1, 4])
def test_roll_outs_and_their_profile_are_those_of_the_student(samples):
    network, data = student(), examples(5)
    logits, profile = predict_director(network, data, samples=samples, seed=7, batch_size=1000)
    images = fold(torch.from_numpy(data.batch(np.arange(5))[0]), samples)
    with torch.no_grad():
        expected, variances = network.eval().forward_with_profile(images, ExampleNoise(7, range(5), samples))
    assert logits.dtype == profile.dtype == np.float32
    np.testing.assert_allclose(logits, expected.reshape(samples, 5, 3), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(profile, variances.reshape(samples, 5, 2).mean(0), rtol=1e-5)
    assert profile.shape == (5, 2) and profile.std(axis=0).min() > 0, "each input has its own"


def test_roll_outs_are_the_same_in_any_batch_and_order():
    network, data = student(), examples()
    options = {"samples": 3, "seed": 1}
    logits, profile = predict_director(network, data, **options, batch_size=1000)
    assert logits.shape == (3, 20, 3) and logits.std(axis=0).min() > 1e-6
    for batch_size in (1, 12, 21):
        other = predict_director(network, data, **options, batch_size=batch_size)
        np.testing.assert_allclose(other[0], logits, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other[1], profile, rtol=1e-4)
    backwards = ImageExamples(data.dataset.select(np.arange(20)[::-1]), NORMALISATION)
    other = predict_director(network, backwards, **options, batch_size=9)
    np.testing.assert_allclose(other[0][:, ::-1], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other[1][::-1], profile, rtol=1e-4)
    assert np.abs(predict_director(network, data, samples=3, seed=2, batch_size=1000)[0] - logits).max() > 0.01
    np.testing.assert_allclose(predict_samples(network, data, **options, batch_size=1000), logits, rtol=1e-5)


def test_roll_outs_keep_dropout_off_and_restore_modes():
    network, data = student(dropout=0.9), examples(5)
    network.train()
    logits, profile = predict_director(network, data, samples=3, seed=0, batch_size=50)
    assert all(module.training for module in network.modules())
    again = predict_director(network.eval(), data, samples=3, seed=0, batch_size=50)
    np.testing.assert_array_equal(again[0], logits)
    np.testing.assert_array_equal(again[1], profile)


def test_objects_with_logits_and_inputs_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, *, left, right):
            return SimpleNamespace(logits=self.dropout(left) + 10 * right)

    class Columns:
        def __len__(self):
            return 5

        def batch(self, rows, view=None):
            column = np.stack([rows, rows + 1], axis=1).astype(np.float32)
            return {"left": column, "right": 2 * column}, None

    expected = np.stack([np.arange(5), np.arange(5) + 1], axis=1)
    np.testing.assert_array_equal(predict(Named(), Columns(), batch_size=2)[0], 21 * expected)
    sampled = predict_dropout(Named(), Columns(), samples=4, seed=0, batch_size=8)
    # left is dropped to 0 or doubled, right stays with its input
    assert ((sampled == 20 * expected) | (sampled == 22 * expected)).all()


def test_rates_are_found_wherever_they_are_kept():
    network = nn.Sequential(
        nn.Dropout2d(0.1), nn.AlphaDropout(0.2), nn.MultiheadAttention(4, 2, dropout=0.3), nn.Linear(2, 2)
    )
    network[3].attention_dropout = 0.4
    network[3].dropout_module = nn.Identity()
    network[3].use_dropout = True  # a switch is no rate
    rates = dropout_rates(network)
    assert {key: rate for key, rate in rates.items() if rate} == {
        "0.p": 0.1,
        "1.p": 0.2,
        "2.dropout": 0.3,
        "3.attention_dropout": 0.4,
    }
    assert "3.use_dropout" not in rates


def test_logits_that_are_not_finite_name_the_row():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    data = examples()
    plain[1].weight.data.zero_()
    plain[1].bias.data[1] = float("nan")
    with pytest.raises(InputError, match="Sequential gives logits that are not finite, first for row 0 of 20"):
        predict(plain, data, batch_size=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"batch_size": 0}, "batch_size is 0"), ({"batch_size": 8, "precision": "half"}, "precision is 'half'")],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        predict(model(), examples(), **options)
    with pytest.raises(InputError, match="number of examples is 0"):
        predict(model(), ImageExamples(dataset().select(np.arange(0)), NORMALISATION), batch_size=8)


def test_bfloat16_is_close_to_float32():
    single, half = (predict(model(), examples(), batch_size=8, precision=p) for p in ("float32", "bfloat16"))
    assert half.dtype == np.float32
    assert (single != half).any()
    np.testing.assert_allclose(half, single, atol=0.05)


def test_devices():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="device is 'gpu'; it must be auto, cpu or cuda"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="finds no GPU here"):
            resolve_device("cuda")


# -- a suite -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """Folder with weights, their cost, a clean set of 20, its split, a corrupted copy, and another set of 6."""
    network = model(dropout=0.3)
    save_model(tmp_path / "model.safetensors", network, {"seed": 0})
    save_model(tmp_path / "kep.safetensors", model(**KEP), {"seed": 0})
    save_model(tmp_path / "student.safetensors", student(), {"seed": 0})
    write_json(tmp_path / "cost.json", {"parameters": parameter_count(network), "train_seconds": 12.5})
    clean = dataset()
    clean.save(tmp_path / "clean")
    rows = np.tile(np.arange(20), 2)
    corrupted = Dataset(
        "grey_c", clean.inputs[rows] // 2, clean.labels[rows], rows, np.full(40, "fog"), np.repeat([1, 2], 20)
    )
    corrupted.save(tmp_path / "corrupted")
    dataset(6, "other").save(tmp_path / "other")
    np.savez(tmp_path / "split.npz", train=np.arange(10), validation=np.arange(10, 14), test=np.arange(14, 20))
    return tmp_path


def suite(folder, name="suite", **options):
    arguments = {
        "weights_file": folder / "model.safetensors",
        "training_cost_file": folder / "cost.json",
        "dataset_folder": folder / "clean",
        "normalisation": NORMALISATION,
        "split_file": folder / "split.npz",
        "method": "mle",
        "samples": 1,
        "seed": 0,
        "batch_size": 8,
        "about": {"experiment": "test", "backbone": "softmax", "suite": name},
        "predictions_file": folder / f"{name}.npz",
        "cost_file": folder / f"{name}.cost.json",
        "device": "cpu",
    }
    predict_suite(**arguments | options)
    return Predictions.load(folder / f"{name}.npz"), json.loads((folder / f"{name}.cost.json").read_text())


def test_test_part_of_the_clean_set(run):
    predictions, cost = suite(run)
    clean = Dataset.load(run / "clean")
    np.testing.assert_array_equal(predictions.example, np.arange(14, 20))
    np.testing.assert_array_equal(predictions.labels, clean.labels[14:])
    assert set(predictions.shift) == {"clean"}
    expected = predict(model(dropout=0.3), ImageExamples(clean.select(np.arange(14, 20)), NORMALISATION), batch_size=8)
    np.testing.assert_array_equal(predictions.logits, expected)
    about = predictions.about
    assert (about["method"], about["samples"], about["seed"], about["suite"]) == ("mle", 1, 0, "suite")
    assert about["weights"] == file_digest(run / "model.safetensors")
    assert about["data"] == clean.about["fingerprint"]
    assert cost.pop("predict_seconds") > 0
    assert cost.pop("peak_memory_bytes") > 10**6
    parameters = parameter_count(model())
    expected_cost = {
        "parameters": parameters,
        "train_seconds": 12.5,
        "examples": 6,
        "samples": 1,
        "device": "cpu",
        "threads": 1,
    }
    assert cost == expected_cost


def test_other_parts_and_shifted_rows_follow_the_split(run):
    validation, _ = suite(run, part="validation")
    np.testing.assert_array_equal(validation.example, np.arange(10, 14))
    corrupted, _ = suite(run, dataset_folder=run / "corrupted")
    np.testing.assert_array_equal(corrupted.example, np.tile(np.arange(14, 20), 2))
    np.testing.assert_array_equal(corrupted.severity, np.repeat([1, 2], 6))
    assert set(corrupted.shift) == {"fog"}
    np.testing.assert_array_equal(corrupted.labels, np.tile(Dataset.load(run / "clean").labels[14:], 2))


def test_without_a_split_all_rows_and_no_labels(run):
    outside, cost = suite(run, dataset_folder=run / "other", split_file=None, labelled=False)
    assert outside.labels is None
    assert outside.logits.shape == (1, 6, 3)
    assert cost["examples"] == 6


@pytest.mark.parametrize(("method", "weights"), [("mc_dropout", "model"), ("kep_svgp", "kep")])
def test_stochastic_methods_keep_every_sample_and_repeat_to_the_byte(run, method, weights):
    options = {"method": method, "samples": 5, "weights_file": run / f"{weights}.safetensors"}
    predictions, cost = suite(run, **options)
    assert predictions.logits.shape == (5, 6, 3)
    assert (predictions.logits.std(axis=0) > 0).any()
    assert cost["samples"] == 5
    first = (run / "suite.npz").read_bytes()
    suite(run, **options)
    assert (run / "suite.npz").read_bytes() == first
    suite(run, **options | {"seed": 1})
    assert (run / "suite.npz").read_bytes() != first


def depths(folder, **options):
    """Predictions of the student, and the arrays beside them."""
    chosen = {"method": "director", "weights_file": folder / "student.safetensors", "depth_file": folder / "depth.npz"}
    predictions, _ = suite(folder, **chosen | options)
    with np.load(folder / "depth.npz", allow_pickle=False) as file:
        return predictions, {name: file[name] for name in file.files}


def test_a_students_uncertainty_lies_beside_its_predictions(run):
    predictions, arrays = depths(run, samples=5, dataset_folder=run / "corrupted")
    assert predictions.logits.shape == (5, 12, 3)
    corrupted = Dataset.load(run / "corrupted").of_examples(np.arange(14, 20))
    logits, profile = predict_director(
        student(), ImageExamples(corrupted, NORMALISATION), samples=5, seed=0, batch_size=8
    )
    np.testing.assert_allclose(predictions.logits, logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(arrays["variance"], profile, rtol=1e-5)
    uncertainties = [predictive_entropy, expected_entropy, mutual_information]
    names = [uncertainty.__name__ for uncertainty in uncertainties]
    assert set(arrays) == {"variance", "example", "shift", "severity", "about", *names}
    for uncertainty in uncertainties:
        np.testing.assert_array_equal(arrays[uncertainty.__name__], uncertainty(predictions))
    assert arrays["mutual_information"].max() > 0
    for column in ("example", "shift", "severity"):
        np.testing.assert_array_equal(arrays[column], getattr(predictions, column))
    assert json.loads(str(arrays["about"])) == predictions.about
    first = (run / "depth.npz").read_bytes()
    depths(run, samples=5, dataset_folder=run / "corrupted")
    assert (run / "depth.npz").read_bytes() == first


def test_one_roll_out_has_no_disagreement_to_write(run):
    predictions, arrays = depths(run)
    assert predictions.logits.shape == (1, 6, 3)
    assert arrays["variance"].shape == (6, 2) and (arrays["variance"] > 0).all()
    assert set(arrays) == {"variance", "example", "shift", "severity", "about"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "laplace"},
            "method is 'laplace'; a model predicts with one of mle, mc_dropout, kep_svgp, director",
        ),
        ({"samples": 3}, "samples is 3, but mle is a single pass"),
        ({"part": "tests"}, "part is 'tests'; .* has train, validation, test"),
        ({"method": "kep_svgp", "samples": 2}, "it has no random layer"),
        (
            {"method": "director", "depth_file": "depth.npz"},
            "ImageTransformer has no path to roll out; give the weights",
        ),
        ({"method": "director"}, "depth_file is None for method director; it is for director, which needs it"),
        ({"depth_file": "depth.npz"}, r"depth_file is depth\.npz for method mle; it is for director"),
    ],
)
def test_wrong_requests_are_named_and_write_nothing(run, options, message):
    with pytest.raises(InputError, match=message):
        suite(run, **options)
    assert not (run / "suite.npz").exists()


def test_a_split_of_another_data_set_is_refused(run):
    np.savez(run / "far.npz", train=np.arange(3), validation=np.arange(3), test=np.arange(900, 903))
    with pytest.raises(InputError, match=r"no example of part test of .*far\.npz"):
        suite(run, split_file=run / "far.npz")


def test_images_of_another_size_are_refused(run):
    dataset(6, "large", size=8).save(run / "large")
    with pytest.raises(InputError, match=r"images of shape \(1, 8, 8\)"):
        suite(run, dataset_folder=run / "large", split_file=None)

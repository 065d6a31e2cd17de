"""Logits per sample: of one pass, of dropout, and of a model's own noise."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import NORMALISATION, kep_attention
from builders import random_images as dataset
from builders import random_model as model
from builders import random_student as student
from torch import nn

from director.data.examples import ImageExamples
from director.device import resolve_device
from director.errors import InputError
from director.noise import ExampleNoise, fold
from director.training import predict as predict_module
from director.training.predict import dropout_rates, predict

KEP = {"attention": kep_attention("sum")}


def examples(count=20):
    return ImageExamples(dataset(count), NORMALISATION)


def dropout_logits(model, examples, **options):
    return predict(model, examples, randomness="dropout", **options).logits


def noise_logits(model, examples, **options):
    return predict(model, examples, randomness="noise", **options).logits


def roll_outs(model, examples, **options):
    """Logits and profile."""
    output = predict(model, examples, randomness="noise", **options)
    return output.logits, output.profile


def test_single_pass_is_the_model_in_evaluation_mode():
    network, data = model(dropout=0.5), examples()
    network.train()
    expected = network.eval()(torch.from_numpy(data.batch(np.arange(20))[0])).detach().numpy()
    network.train()
    for batch_size in (1, 7, 64):
        logits = predict(network, data, batch_size=batch_size).logits
        assert logits.shape == (1, 20, 3)
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits[0], expected, atol=1e-5)
    assert all(module.training for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_own_noise_gives_the_same_samples_in_any_batch():
    network, data = model(**KEP), examples()
    whole = noise_logits(network, data, samples=4, seed=1, batch_size=1000)
    assert whole.shape == (4, 20, 3)
    assert whole.std(axis=0).min() > 1e-6
    for batch_size in (1, 12):
        np.testing.assert_allclose(
            noise_logits(network, data, samples=4, seed=1, batch_size=batch_size), whole, rtol=1e-4, atol=1e-4
        )
    backwards = ImageExamples(data.dataset.select(np.arange(20)[::-1]), NORMALISATION)
    np.testing.assert_allclose(
        noise_logits(network, backwards, samples=4, seed=1, batch_size=8)[:, ::-1], whole, rtol=1e-4, atol=1e-4
    )
    assert np.abs(noise_logits(network, data, samples=4, seed=2, batch_size=1000) - whole).max() > 0.01


def test_own_noise_keeps_dropout_off():
    network, data = model(**KEP, dropout=0.0), examples(5)
    without = noise_logits(network, data, samples=3, seed=0, batch_size=50)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9
    network.train()
    np.testing.assert_array_equal(noise_logits(network, data, samples=3, seed=0, batch_size=50), without)


def test_models_without_noise_have_no_samples():
    with pytest.raises(InputError, match=r"all 3 .* identical: noise has no effect on the logits of ImageTransformer"):
        noise_logits(model(), examples(), samples=3, seed=0, batch_size=8)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(InputError, match="Sequential takes no noise"):
        noise_logits(plain, examples(), samples=3, seed=0, batch_size=8)


def test_dropout_depends_on_its_seed_only():
    network, data = model(dropout=0.3), examples()
    one, same, other = (dropout_logits(network, data, samples=3, seed=seed, batch_size=8) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize("samples", [1, 4])
def test_roll_outs_and_their_profile_are_those_of_the_student(samples):
    network, data = student(), examples(5)
    logits, profile = roll_outs(network, data, samples=samples, seed=7, batch_size=1000)
    images, variances = fold(torch.from_numpy(data.batch(np.arange(5))[0]), samples), []
    with torch.no_grad():
        expected = network.eval()(
            images, ExampleNoise(7, range(5), samples), lambda step, mask: variances.append(step.exp().mean((1, 2)))
        )
    variances = torch.stack(variances, dim=1)  # [S*B, L]
    assert logits.dtype == profile.dtype == np.float32
    np.testing.assert_allclose(logits, expected.reshape(samples, 5, 3), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(profile, variances.reshape(samples, 5, 2).mean(0), rtol=1e-5)
    assert profile.shape == (5, 2) and profile.std(axis=0).min() > 0, "each input has its own"


def test_roll_outs_are_the_same_in_any_batch_and_order():
    network, data = student(), examples()
    options = {"samples": 3, "seed": 1}
    logits, profile = roll_outs(network, data, **options, batch_size=1000)
    assert logits.shape == (3, 20, 3) and logits.std(axis=0).min() > 1e-6
    for batch_size in (1, 12, 21):
        other = roll_outs(network, data, **options, batch_size=batch_size)
        np.testing.assert_allclose(other[0], logits, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other[1], profile, rtol=1e-4)
    backwards = ImageExamples(data.dataset.select(np.arange(20)[::-1]), NORMALISATION)
    other = roll_outs(network, backwards, **options, batch_size=9)
    np.testing.assert_allclose(other[0][:, ::-1], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other[1][::-1], profile, rtol=1e-4)
    assert np.abs(roll_outs(network, data, samples=3, seed=2, batch_size=1000)[0] - logits).max() > 0.01
    np.testing.assert_allclose(noise_logits(network, data, **options, batch_size=1000), logits, rtol=1e-5)


def test_roll_outs_keep_dropout_off_and_restore_modes():
    network, data = student(dropout=0.9), examples(5)
    network.train()
    logits, profile = roll_outs(network, data, samples=3, seed=0, batch_size=50)
    assert all(module.training for module in network.modules())
    again = roll_outs(network.eval(), data, samples=3, seed=0, batch_size=50)
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
    np.testing.assert_array_equal(predict(Named(), Columns(), batch_size=2).logits[0], 21 * expected)
    sampled = dropout_logits(Named(), Columns(), samples=4, seed=0, batch_size=8)
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
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"batch_size": 8, "precision": "half"}, "precision is 'half'"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        predict(model(), examples(), **options)
    with pytest.raises(InputError, match="number of examples is 0"):
        predict(model(), ImageExamples(dataset().select(np.arange(0)), NORMALISATION), batch_size=8)


def test_bfloat16_is_close_to_float32():
    single, half = (predict(model(), examples(), batch_size=8, precision=p).logits for p in ("float32", "bfloat16"))
    assert half.dtype == np.float32
    assert (single != half).any()
    np.testing.assert_allclose(half, single, atol=0.05)


@pytest.mark.parametrize(("randomness", "samples"), [("none", 1), ("dropout", 3), ("noise", 3)])
def test_many_logits_lie_in_a_file_and_are_the_same(tmp_path, monkeypatch, randomness, samples):
    network, data = student(dropout=0.3), examples()
    options = {"randomness": randomness, "samples": samples, "batch_size": 8, "scratch": tmp_path}
    in_memory = predict(network, data, **options)
    assert not isinstance(in_memory.logits, np.memmap)
    monkeypatch.setattr(predict_module, "IN_MEMORY", 0)
    in_file = predict(network, data, **options)
    assert isinstance(in_file.logits, np.memmap) and list(tmp_path.iterdir()) == [], "a file without a name"
    assert in_file.logits.dtype == np.float32
    np.testing.assert_array_equal(in_file.logits, in_memory.logits)
    assert (in_file.profile is None) == (in_memory.profile is None) == (randomness != "noise")
    np.testing.assert_array_equal(in_file.profile, in_memory.profile)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 3}, "samples is 3, but a pass without randomness is always the same"),
        ({"randomness": "laplace"}, "randomness is 'laplace'; it must be one of none, dropout, noise"),
    ],
)
def test_requests_that_mean_nothing_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        predict(model(), examples(), **options)


def test_devices():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="device is 'gpu'; it must be auto, cpu or cuda"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="finds no GPU here"):
            resolve_device("cuda")

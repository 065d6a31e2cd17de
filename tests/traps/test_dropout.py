"""Traps 16 and 17: Monte Carlo dropout that drops nothing, or that moves what it should not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from director.errors import InputError
from director.models.transformers import ImageTransformer
from director.training.predict import predict


def predict_dropout(model, examples, **options):
    """Logits of Monte Carlo dropout."""
    return predict(model, examples, randomness="dropout", **options).logits


class Examples:
    """Inputs by name or as one array."""

    def __init__(self, inputs):
        self.inputs = inputs
        count = len(next(iter(inputs.values()))) if isinstance(inputs, dict) else len(inputs)
        self.dataset = SimpleNamespace(example=np.arange(count))

    def __len__(self):
        return len(self.dataset.example)

    def batch(self, rows, view=None):
        if isinstance(self.inputs, dict):
            return {name: column[rows] for name, column in self.inputs.items()}, None
        return self.inputs[rows], None


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def vit(**rates):
    timm = pytest.importorskip("timm")
    return timm.create_model("test_vit", num_classes=4, img_size=32, **rates), Examples(normal(6, 3, 32, 32))


def bert(**rates):
    """Scaled-dot-product attention: its dropout is no call of the nn.Dropout module that holds the rate."""
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
    zero = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**size, intermediate_size=16, attn_implementation="sdpa", **zero | rates)
    tokens = np.random.default_rng(0).integers(0, 30, (6, 5))
    return transformers.BertForSequenceClassification(config), Examples({"input_ids": tokens})


class TorchAttention(nn.Module):
    """torch's own attention layer keeps its rate as a number; BatchNorm keeps statistics that must not move."""

    def __init__(self, rate):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(x)
        return self.linear(self.attention(x, x, x, need_weights=False)[0].mean(dim=1))


def torch_attention(rate=0.0):
    return TorchAttention(rate), Examples(normal(6, 5, 8))


def image_transformer(dropout=0.0):
    model = ImageTransformer(
        image_size=8, channels=1, patch=4, width=16, depth=2, heads=2, mlp_width=16, classes=3, dropout=dropout
    )
    return model, Examples(normal(6, 1, 8, 8))


MODELS = {
    "timm, attention only": lambda: vit(attn_drop_rate=0.3),
    "timm, projection only": lambda: vit(proj_drop_rate=0.3),
    "timm, stochastic depth only": lambda: vit(drop_path_rate=0.3),
    "transformers, attention only": lambda: bert(attention_probs_dropout_prob=0.3),
    "transformers, hidden only": lambda: bert(hidden_dropout_prob=0.3),
    "torch, attention only": lambda: torch_attention(0.3),
    "ours": lambda: image_transformer(0.3),
}


@pytest.mark.parametrize("name", MODELS)
def test_samples_differ_and_nothing_else_moves(name):
    """Trap 16 (timm PR 1978, pytorch 124464): attention dropout inside fused attention is left off, or the running
    statistics move with the passes."""
    model, examples = MODELS[name]()
    list(model.modules())[-1].eval()  # a mode of its own, to be found again
    modes = [module.training for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.random.get_rng_state()

    logits = predict_dropout(model, examples, samples=8, seed=0, batch_size=24)
    assert logits.shape[:2] == (8, 6)
    assert (logits.std(axis=0).max(axis=1) > 1e-6).all()  # each input has different samples
    assert not (logits[:, :-1] == logits[:, 1:]).all(axis=(0, 2)).any()

    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_batch_norm_uses_its_running_statistics():
    """Trap 16: in training mode an input's prediction would depend on the other inputs of its batch."""
    model, examples = torch_attention(1e-9)  # a rate so small that nothing is dropped
    model.norm.running_mean += 3.0
    with pytest.raises(InputError, match="all 4 samples are identical"):
        predict_dropout(model, examples, samples=4, seed=0, batch_size=8)
    model.attention.dropout = 0.3
    alone = [
        predict_dropout(model, Examples(examples.inputs[[row]]), samples=500, seed=0, batch_size=500) for row in (0, 1)
    ]
    assert model.norm.running_mean.eq(3.0).all()
    together = predict_dropout(model, Examples(examples.inputs[:2]), samples=500, seed=1, batch_size=1000)
    for row in (0, 1):
        error = together[:, row].std(axis=0) / np.sqrt(500)
        assert (np.abs(together[:, row].mean(axis=0) - alone[row][:, 0].mean(axis=0)) < 7 * error).all()


@pytest.mark.parametrize("build", [vit, bert, torch_attention, image_transformer])
def test_all_rates_zero_is_an_error(build):
    """Trap 17 (UQ-PLM 1, SalsaNext 40): ten equal passes and no uncertainty; timm's rates are zero by default."""
    model, examples = build()
    modes = [module.training for module in model.modules()]
    with pytest.raises(InputError, match=r"\w+ has no dropout rate above 0 \(of [1-9]\d* found\)"):
        predict_dropout(model, examples, samples=3, seed=0, batch_size=8)
    assert [module.training for module in model.modules()] == modes


def test_a_rate_without_effect_is_an_error():
    """Trap 17: a dropout module that the forward pass never calls."""
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].dropout = nn.Dropout(0.5)
    with pytest.raises(
        InputError,
        match=r"all 4 samples are identical: dropout .* no effect on the logits of Sequential",
    ):
        predict_dropout(model, Examples(normal(5, 3)), samples=4, seed=0, batch_size=8)


@pytest.mark.parametrize(("randomness", "samples"), [("none", 1), ("dropout", 3), ("noise", 3)])
def test_modes_are_restored_after_an_error(randomness, samples):
    """Trap 16: a model that fails half-way is left as it was."""
    model, _ = image_transformer(0.3)
    model.eval()
    model.blocks[0].train()
    modes = [module.training for module in model.modules()]
    with pytest.raises(InputError, match="images of shape"):
        predict(model, Examples(normal(6, 1, 4, 4)), randomness=randomness, samples=samples, batch_size=8)
    assert [module.training for module in model.modules()] == modes


class Marked(nn.Module):
    """Logits that say which input they came from, with dropout on the rest."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return torch.stack([x[:, 0], self.dropout(x[:, 1])], dim=1)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 1000])
def test_folded_samples_do_not_mix_inputs(batch_size):
    """Trap 16: S copies of a batch share one axis; each logit must return to its input and its sample."""
    inputs = np.stack([np.arange(1, 12), np.arange(1, 12)], axis=1).astype(np.float32)
    logits = predict_dropout(Marked(), Examples(inputs), samples=5, seed=0, batch_size=batch_size)
    np.testing.assert_array_equal(logits[:, :, 0], np.broadcast_to(inputs[:, 0], (5, 11)))
    assert set(np.unique(logits[:, :, 1] / inputs[:, 1])) == {0.0, 2.0}
    assert len({tuple(sample) for sample in logits[:, :, 1]}) == 5


def test_mean_of_many_samples_is_the_single_pass_of_a_linear_model():
    inputs = normal(4, 2)
    logits = predict_dropout(Marked(), Examples(inputs), samples=4000, seed=0, batch_size=4000)
    single = predict(Marked(), Examples(inputs), batch_size=4).logits
    np.testing.assert_allclose(logits.mean(axis=0), single[0], atol=0.1)

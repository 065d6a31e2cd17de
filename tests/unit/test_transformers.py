"""The image transformer, and what all transformers share."""

import pytest
import torch

from director.errors import InputError
from director.models.transformers import BACKBONES, ImageTransformer, PathReadout, Readout, TextTransformer
from director.models.weights import parameter_count
from director.noise import ExampleNoise, fold, unfold

SMALL = {
    "image_size": 8,
    "channels": 2,
    "patch": 4,
    "width": 12,
    "depth": 3,
    "heads": 3,
    "mlp_width": 10,
    "classes": 5,
}


def kep(layers, **changes):
    """Kernel-eigenpair attention in the last layers."""
    return {"kind": "kep_svgp", "layers": layers, "variant": "concat", "rank": 10, "multiplier": 10} | changes


def sgpa(layers, **changes):
    """Sparse Gaussian process attention in the last layers."""
    return {"kind": "sgpa", "layers": layers, "kernel": "ard", "inducing": 2} | changes


def small(**changes):
    torch.manual_seed(1)
    return ImageTransformer(**SMALL | changes).eval()


def images(count=4):
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(2))


def test_parameter_counts_of_the_paper():
    model = ImageTransformer(
        image_size=32, channels=3, patch=4, width=384, depth=7, heads=12, mlp_width=384, classes=10
    )
    assert parameter_count(model) == 6_268_042  # 6.27 M
    assert parameter_count(model) - model.embedding.position.numel() == 6_243_466  # 6.24 M


def test_patches_are_read_in_rows_and_pixels_by_row_column_channel():
    model = small(width=32, heads=1)
    with torch.no_grad():
        model.embedding.linear.weight.copy_(torch.eye(32))
        model.embedding.linear.bias.zero_()
        model.embedding.position.zero_()
    batch = images(1)
    x, mask = model.embedding(batch)
    assert mask is None and x.shape == (1, 4, 32)
    # token 1 is the right upper patch; its values 2 * 5 + c are pixel (1, 1) of the patch
    assert torch.equal(x[0, 1, 10:12], batch[0, :, 1, 5])


@pytest.mark.parametrize("attention", [kep(1), sgpa(1)], ids=["kep_svgp", "sgpa"])
def test_dropout_is_after_both_linears_and_kernel_attention_and_off_in_evaluation(attention):
    model, batch = small(attention=attention, dropout=0.5), images()
    assert sum(isinstance(module, torch.nn.Dropout) and module.p == 0.5 for module in model.modules()) == 3 * 2 + 1
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.allclose(model(batch), model(batch))


def test_layers_before_the_first_random_one_run_once_for_all_samples():
    model = small(attention=kep(1, rank=2, multiplier=1))
    rows = []
    for block in model.blocks:
        block.attention_half.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    noise = ExampleNoise(0, [1, 2], 3)
    together = model(images(2), noise, samples=3)
    assert rows == [2, 2, 6]
    torch.testing.assert_close(together, model(fold(images(2), 3), noise))


def test_only_the_last_layers_are_random_and_give_penalties():
    noise = ExampleNoise(0, [1, 2], 3)
    batch = fold(images(2), 3)
    softmax, mixed = small(), small(attention=kep(2, rank=2, multiplier=1))
    assert torch.equal(softmax(batch, noise), softmax(batch))
    assert softmax.forward_with_penalties(batch)[1] == {}
    logits, penalties = mixed.forward_with_penalties(batch, noise)
    samples = unfold(logits, 3)
    assert not torch.isclose(samples[0], samples[1]).any()
    x = mixed.blocks[0].mlp_half(mixed.blocks[0].attention_half(mixed.embedding(batch)[0], None)[0])
    first = mixed.blocks[1].attention_half(x, None)[1]
    kl = [mixed.blocks[layer].attention_half.attention._divergence() for layer in (1, 2)]
    torch.testing.assert_close(penalties["kl"], kl[0] + kl[1])
    assert penalties["ksvd"] > first["ksvd"] > 0
    assert mixed.forward_with_penalties(batch)[1].keys() == {"ksvd", "kl"}


def test_penalties_of_sparse_gaussian_processes_are_summed_over_the_last_layers():
    model, batch = small(attention=sgpa(2)), images()
    x = model.blocks[0].mlp_half(model.blocks[0].attention_half(model.embedding(batch)[0])[0])
    x, first = model.blocks[1].attention_half(x)
    _, second = model.blocks[2].attention_half(model.blocks[1].mlp_half(x))
    penalties = model.forward_with_penalties(batch)[1]
    assert penalties.keys() == {"kl"} and first["kl"] > 0
    torch.testing.assert_close(penalties["kl"], first["kl"] + second["kl"])


@pytest.mark.parametrize("attention", [kep(2), sgpa(2), sgpa(2, kernel="exponential")], ids=str)
def test_samples_are_the_same_in_any_batch_and_for_each_layer_another(attention):
    model, batch = small(attention=attention), images(4)
    together = unfold(model(fold(batch, 2), ExampleNoise(7, [10, 11, 12, 13], 2)), 2)
    alone = unfold(model(fold(batch[2:3], 2), ExampleNoise(7, [12], 2)), 2)
    torch.testing.assert_close(together[:, 2:3], alone)


def test_readout_pools_real_tokens_only():
    readout, x = Readout(6, 3), torch.randn(2, 4, 6)
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    torch.testing.assert_close(readout(x, mask)[:1], readout(x[:1, :2]))
    torch.testing.assert_close(readout(x, mask)[1], readout(x)[1])
    assert readout(x, torch.zeros_like(mask)).isfinite().all()


@pytest.mark.parametrize(
    "changes, value",
    [
        ({"patch": 3}, "patches of 3 x 3"),
        ({"heads": 5}, "5 heads do not divide a width of 12"),
        ({"attention": kep(4)}, "layers 4"),
        ({"attention": kep(-1)}, "layers -1"),
        ({"depth": 0}, "depth 0"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"classes": 1}, "not 1"),
        ({"attention": kep(1, variant="max")}, "'max'"),
        ({"attention": sgpa(1, kernel="linear")}, "kernel 'linear' is unknown: choose one of ard, exponential"),
        ({"attention": sgpa(1, inducing=0)}, "inducing must be >= 1, not 4, 0"),
        ({"attention": kep(1, kind="linear")}, "'linear'.* needs `layers` and a kind, one of kep_svgp, sgpa"),
        ({"attention": {"kind": "kep_svgp"}}, "needs `layers` and a kind, one of kep_svgp, sgpa"),
    ],
)
def test_bad_sizes_are_named(changes, value):
    with pytest.raises(InputError, match=value):
        small(**changes)


def test_images_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"\(3, 8, 8\) were given to a model of \(2, 8, 8\)"):
        small()(torch.zeros(1, 3, 8, 8))


def test_the_table_of_backbones_names_them_by_their_kind():
    assert {"image_transformer": ImageTransformer, "text_transformer": TextTransformer} == BACKBONES


@pytest.mark.parametrize("attention", [None, kep(2), sgpa(2)], ids=["softmax", "kep_svgp", "sgpa"])
def test_the_ends_of_a_model_are_those_that_its_settings_make(attention):
    model = small(dropout=0.3, attention=attention)
    embedding, readout = ImageTransformer.ends_of(model.settings)
    embedding.load_state_dict(model.embedding.state_dict())
    whole = PathReadout(model.blocks[-1].mlp_half, model.readout)
    readout.load_state_dict(whole.state_dict())
    assert str(readout) == str(whole)  # dropout rates, too
    x, _ = embedding(images())
    assert torch.equal(x, model.embedding(images())[0])
    assert torch.equal(readout.eval()(x), whole(x))

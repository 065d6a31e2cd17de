"""The image transformer and its model files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from director.backbones import ImageTransformer, Readout, load_model, parameter_count, save_model
from director.files import InputError
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


def test_dropout_is_after_both_linears_and_kernel_attention_and_off_in_evaluation():
    model, batch = small(kep_layers=1, dropout=0.5), images()
    assert sum(isinstance(module, torch.nn.Dropout) and module.p == 0.5 for module in model.modules()) == 3 * 2 + 1
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.allclose(model(batch), model(batch))


def test_only_the_last_layers_are_random_and_give_penalties():
    noise = ExampleNoise(0, [1, 2], 3)
    batch = fold(images(2), 3)
    softmax, mixed = small(), small(kep_layers=2, kep_rank=2, kep_multiplier=1)
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


def test_samples_are_the_same_in_any_batch_and_for_each_layer_another():
    model, batch = small(kep_layers=2), images(4)
    together = unfold(model(fold(batch, 2), ExampleNoise(7, [10, 11, 12, 13], 2)), 2)
    alone = unfold(model(fold(batch[2:3], 2), ExampleNoise(7, [12], 2)), 2)
    torch.testing.assert_close(together[:, 2:3], alone)


def test_readout_pools_real_tokens_only():
    readout, x = Readout(6, 3), torch.randn(2, 4, 6)
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    torch.testing.assert_close(readout(x, mask)[:1], readout(x[:1, :2]))
    torch.testing.assert_close(readout(x, mask)[1], readout(x)[1])
    assert readout(x, torch.zeros_like(mask)).isfinite().all()


@pytest.mark.parametrize("changes", [{}, {"kep_layers": 2, "kep_variant": "sum"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_comes_back(tmp_path, changes, dtype):
    model = small(**changes).to(dtype)
    save_model(tmp_path / "a.safetensors", model, {"seed": 3})
    before = torch.random.get_rng_state()
    again, about = load_model(tmp_path / "a.safetensors")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert about == {"seed": 3} and again.settings == model.settings == SMALL | model.settings
    assert not again.training and all(parameter.requires_grad for parameter in again.parameters())
    assert torch.equal(again(images().to(dtype)), model(images().to(dtype)))
    save_model(tmp_path / "b.safetensors", again, {"seed": 3})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_unusable_model_files_are_named(tmp_path):
    good = tmp_path / "good.safetensors"
    save_model(good, small(), {})

    def refused(content, message, name="bad.safetensors"):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}.*{message}"):
            load_model(tmp_path / name)

    refused(None, "no such model file", "missing.safetensors")
    refused(good.read_bytes()[:-10], "not a whole safetensors file")
    refused(b"", "not a whole safetensors file")
    refused(b"PK" + bytes(100), "not a whole safetensors file")

    def rewritten(header):
        metadata = None if header is None else {"director": json.dumps(header)}
        save_file(load_file(good), tmp_path / "bad.safetensors", metadata=metadata)

    for header, message in [
        (None, "director did not write"),
        ([], "director did not write"),
        ({"kind": "image_transformer"}, "director did not write"),
        ({"kind": "resnet", "settings": {}, "about": {}}, "kind 'resnet'; this version knows image_transformer"),
        ({"kind": "image_transformer", "settings": SMALL | {"colour": 1}, "about": {}}, "do not fit.*colour"),
        ({"kind": "image_transformer", "settings": SMALL | {"depth": 2}, "about": {}}, "do not fit.*blocks.2"),
        (
            {"kind": "image_transformer", "settings": SMALL | {"classes": 6}, "about": {}},
            "do not fit.*size mismatch",
        ),
        ({"kind": "image_transformer", "settings": SMALL | {"patch": 3}, "about": {}}, "do not fit.*patches of 3"),
    ]:
        rewritten(header)
        refused(None, message)


def test_a_model_without_settings_cannot_be_saved(tmp_path):
    with pytest.raises(InputError, match="a Linear cannot be saved without a kind"):
        save_model(tmp_path / "a.safetensors", torch.nn.Linear(2, 2), {})


@pytest.mark.parametrize(
    "changes, value",
    [
        ({"patch": 3}, "patches of 3 x 3"),
        ({"heads": 5}, "5 heads do not divide a width of 12"),
        ({"kep_layers": 4}, "kep_layers 4"),
        ({"depth": 0}, "depth 0"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"classes": 1}, "not 1"),
        ({"kep_layers": 1, "kep_variant": "max"}, "'max'"),
    ],
)
def test_bad_sizes_are_named(changes, value):
    with pytest.raises(InputError, match=value):
        small(**changes)


def test_images_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"\(3, 8, 8\) were given to a model of \(2, 8, 8\)"):
        small()(torch.zeros(1, 3, 8, 8))

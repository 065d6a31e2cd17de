"""The paths of other people's models: exact for every architecture that is covered, refused by name for the rest."""

from functools import partial

import pytest
import timm.layers
import torch
import transformers
from timm.models import vision_transformer
from timm.models.deit import VisionTransformerDistilled
from torch import nn

from director.errors import InputError
from director.models.attention import softmax_mean, softmax_moments
from director.models.weights import save_model
from director.noise import BatchNoise
from director.path.residual import PathSizes, check_path, path_of, student_of
from director.path.trajectory import capture
from director.settings.training import Kernel, Losses

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LAYERS, WIDTH, HEADS, CLASSES = 3, 16, 4, 5


def timm_model(kind=vision_transformer.VisionTransformer, **changes):
    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS, "mlp_ratio": 2}
    return kind(**sizes | {"num_classes": CLASSES, "drop_path_rate": 0.3, "drop_rate": 0.2} | changes)


def bert(kind="Bert", **changes):
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 24}
    return of_transformers(kind, **sizes | {"max_position_embeddings": 20, "type_vocab_size": 2} | changes)


def distilbert(**changes):
    sizes = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 24, "max_position_embeddings": 20}
    return of_transformers("DistilBert", **sizes | changes)


def vit(**changes):
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 24}
    return of_transformers("ViT", "ForImageClassification", **sizes | {"image_size": 12, "patch_size": 4} | changes)


def decoder(kind="Llama", **changes):
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 24}
    return of_transformers(kind, **sizes | {"num_key_value_heads": 2, "max_position_embeddings": 20} | changes)


def of_transformers(kind, head="ForSequenceClassification", **config):
    config = getattr(transformers, f"{kind}Config")(**{"vocab_size": 30, "pad_token_id": 0} | config)
    config.num_labels = CLASSES
    return getattr(transformers, kind + head)(config)


IMAGES = {
    "class-token": timm_model,
    "average": partial(timm_model, global_pool="avg", class_token=False),
    "average-with-class-token": partial(timm_model, global_pool="avg", fc_norm=False),
    "maximum": partial(timm_model, global_pool="max"),
    "registers": partial(timm_model, reg_tokens=2, no_embed_class=True),
    "layer-scale": partial(timm_model, init_values=0.3),
    "qk-norm": partial(timm_model, qk_norm=True, qkv_bias=False),
    "pre-norm": partial(timm_model, pre_norm=True, norm_layer=partial(timm.layers.LayerNorm, eps=1e-5)),
    "rms-norm": partial(timm_model, norm_layer="rmsnorm", mlp_layer=timm.layers.SwiGLU, proj_bias=False),
    "any-size": partial(timm_model, img_size=8, dynamic_img_size=True),
    "patch-dropout": partial(timm_model, patch_drop_rate=0.5),
    "distilled": partial(timm_model, VisionTransformerDistilled),
    "vit": vit,
    "vit-wide-heads": partial(vit, head_dim=6, qkv_bias=False),
}
ENCODERS = {
    "bert": bert,
    "roberta": partial(bert, "Roberta", pad_token_id=1),
    "xlm-roberta": partial(bert, "XLMRoberta", pad_token_id=1),
    "distilbert": distilbert,
    "distilbert-sinusoidal": partial(distilbert, sinusoidal_pos_embds=True),
}
DECODERS = {
    "llama": decoder,
    "llama-scaled-positions": partial(
        decoder, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}, attention_bias=True
    ),
    "llama-wide-heads": partial(decoder, head_dim=6, num_key_value_heads=4),
    "qwen2": partial(decoder, "Qwen2"),
}
TEXTS = ENCODERS | DECODERS
FOREIGN = IMAGES | TEXTS
# where padding lies, by model
CASES = [(name, "right") for name in FOREIGN] + [(name, "left") for name in DECODERS]


def make(name, dtype=torch.float32):
    """A model whose weights are all random, so that none of its parts changes nothing."""
    torch.manual_seed(5)
    model = FOREIGN[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def batch(model, dtype=torch.float32, side="right"):
    """Four inputs as the model takes them; the texts differ in length."""
    generator = torch.Generator().manual_seed(6)
    if not hasattr(model, "config") or model.main_input_name == "pixel_values":
        return torch.randn(4, 3, 12, 12, generator=generator).to(dtype)
    tokens = torch.randint(3, 30, (4, 9), generator=generator)
    mask = torch.arange(9) < torch.tensor([9, 3, 5, 1])[:, None]
    mask = mask if side == "right" else mask.flip(1)
    return {
        "input_ids": torch.where(mask, tokens, model.config.pad_token_id),
        "attention_mask": mask.long(),
    }


def row(inputs, number):
    """One input alone, without its padding."""
    if isinstance(inputs, torch.Tensor):
        return inputs[number : number + 1]
    real = inputs["attention_mask"][number] == 1
    return {name: values[number : number + 1, real] for name, values in inputs.items()}


def own(model, inputs):
    """The untouched model's logits."""
    with torch.no_grad():
        output = model(inputs) if isinstance(inputs, torch.Tensor) else model(**inputs)
    return output if isinstance(output, torch.Tensor) else output.logits


# by the end of a class's name: the norm that a layer gives its sum after attention
NORM_AFTER_ATTENTION = {
    "SelfOutput": "LayerNorm",  # BERT, RoBERTa
    "TransformerBlock": "sa_layer_norm",  # DistilBERT
    "ViTLayer": "layernorm_after",
    "DecoderLayer": "post_attention_layernorm",
    "Block": "norm2",  # timm
}


def residuals(model, inputs):
    """The states after each attention residual, as the model's own forward pass has them: from its modules' hooks."""
    seen, hooks = [], []
    for module in model.modules():
        name = type(module).__name__
        norm = next((norm for ending, norm in NORM_AFTER_ATTENTION.items() if name.endswith(ending)), None)
        if norm is not None:
            listen = module.get_submodule(norm).register_forward_pre_hook
            hooks.append(listen(lambda module, inputs: seen.append(inputs[0])))
    own(model, inputs)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen)


def close(actual, expected, dtype):
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype] * expected.abs().max().item())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "side"), CASES, ids=["-".join(case) for case in CASES])
def test_the_path_is_that_of_the_models_own_forward_pass(name, side, dtype):
    """Traps 20 and 21: L+1 states, each segment gives the next, and the readout of the last gives the logits."""
    model = make(name, dtype)
    inputs = batch(model, dtype, side)
    path = path_of(model)
    states, mask = path.states(inputs)
    expected = own(model, inputs)
    assert len(states) == path.steps + 1 == LAYERS + 1
    real = torch.ones(states.shape[1:3], dtype=torch.bool) if mask is None else mask
    for step, seen in enumerate(residuals(model, inputs), 1):
        close(states[step][real], seen[real], dtype)
        close(path.segment(step, states[step - 1], mask)[real], seen[real], dtype)
        mean, variance = path.moments(step, states[step - 1], mask)
        close(mean[real], seen[real], dtype)
        assert (variance >= 0).all() and variance[real].max() > 0 and variance.dtype == dtype
    close(path.readout(states[-1], mask), expected, dtype)
    close(path.logits(inputs), expected, dtype)
    assert (path.readout(states[-2], mask) - expected).abs().max() > 1e-3
    # what padding holds is never read
    trajectory = capture(path, inputs)
    close(path.readout(trajectory.states[-1], mask), expected, dtype)
    for number in range(4):
        alone, own_mask = path.states(row(inputs, number))
        logits = path.readout(alone[-1], own_mask)
        close(logits, own(model, row(inputs, number)), dtype)
        # Padding on the left shifts positions, whose waves the library computes in float32, whatever the model's dtype.
        precision = torch.float32 if side == "left" else dtype
        close(logits, expected[number : number + 1], precision)
        close(alone[:, 0], states[:, number, real[number]], precision)
    sizes = PathSizes(LAYERS + 1, states.shape[2], WIDTH, mask is not None)
    assert check_path(path, inputs) == sizes and sizes.masked is (name in TEXTS)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_student_of_it_starts_as_its_two_ends_and_trains(name, tmp_path):
    model = make(name)
    inputs, path = batch(model), path_of(model)
    made = student_of(path, Kernel(dropout=0.0)).eval()
    start, mask = path.embed(inputs)
    torch.testing.assert_close(made(inputs), path.readout(start, mask))
    teacher = {parameter.data_ptr() for parameter in model.parameters()}
    assert not teacher & {parameter.data_ptr() for parameter in made.parameters()}
    made.train()
    trajectory = capture(path, inputs)
    loss = made.path_loss(trajectory.states, trajectory.variances, trajectory.mask, Losses())
    noise = BatchNoise(torch.Generator().manual_seed(7))
    (loss + made.task_loss(inputs, torch.tensor([0, 1, 2, 3]), noise)).backward()
    unused = {
        name
        for name, parameter in made.named_parameters()
        if parameter.grad is None or not parameter.requires_grad or not parameter.grad.isfinite().all()
    }
    assert not unused
    with pytest.raises(InputError, match=r"a Director cannot be saved without a kind .* and settings"):
        save_model(tmp_path / "student.safetensors", made, {})


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_of_the_model_changes(name):
    model = make(name)
    model.train()
    next(model.children()).eval()
    modes = [module.training for module in model.modules()]
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    names = [key for key, _ in model.named_modules()]
    path = path_of(model)
    first, second = capture(path, batch(model)), capture(path, batch(model))
    assert torch.equal(first.states, second.states)  # dropout is off
    student_of(path, Kernel())
    check_path(path, batch(model))
    assert [module.training for module in model.modules()] == modes
    assert [key for key, _ in model.named_modules()] == names
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", TEXTS)
def test_the_states_do_not_depend_on_how_transformers_computes_attention(name):
    model = make(name)
    logits = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        logits[implementation] = own(model, batch(model))
        states, mask = path_of(model).states(batch(model))
        close(path_of(model).readout(states[-1], mask), logits[implementation], torch.float32)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["class-token", "qk-norm"])
def test_the_states_do_not_depend_on_how_timm_computes_attention(name, fused):
    model = make(name)
    for block in model.blocks:
        block.attn.fused_attn = fused
    check_path(path_of(model), batch(model))


def test_the_moments_are_those_of_values_drawn_with_the_attentions_probabilities():
    generator = torch.Generator().manual_seed(8)
    queries, keys, values = torch.randn(3, 1, 2, 5, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, True])
    torch.manual_seed(9)
    output = nn.Linear(6, 4).double()
    with torch.no_grad():
        mean, variance = softmax_moments(queries, keys, values, mask[None], 0.7, output)
        assert torch.equal(softmax_mean(queries, keys, values, mask[None], 0.7, output), mean)
        scores = (0.7 * queries @ keys.mT).masked_fill(~mask, -torch.inf).softmax(-1)[0]  # [H, N, N]
        # Each channel of each head has a marginal law of its own: all its draws are independent.
        draws = 40_000
        picks = torch.multinomial(scores.flatten(0, 1), draws * 3, replacement=True, generator=generator)
        picks = picks.unflatten(0, (2, 5)).unflatten(-1, (draws, 3))  # [H, N, draws, dh]
        drawn = values[0].transpose(1, 2)[:, None, None].expand(-1, 5, draws, -1, -1)  # [H, N, draws, dh, N]
        drawn = drawn.gather(-1, picks[..., None])[..., 0]  # [H, N, draws, dh]
        samples = output(drawn.permute(2, 1, 0, 3).flatten(2))  # [draws, N, d]
    assert ((samples.mean(0) - mean[0]).abs() < 5 * (variance[0] / draws).sqrt()).all()
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.05, atol=0)

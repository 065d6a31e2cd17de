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
from director.path.cache import TrajectoryCache, write_cache
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


def dinov2(**changes):
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "mlp_ratio": 2}
    sizes |= {"image_size": 12, "patch_size": 4, "layerscale_value": 0.7, "drop_path_rate": 0.3}
    return of_transformers("Dinov2", "ForImageClassification", **sizes | changes)


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
    "attention-pool": partial(timm_model, global_pool="map", class_token=False),
    "attention-pool-prr": partial(timm_model, global_pool="prr"),
    "dinov2": dinov2,
    "dinov2-swiglu": partial(dinov2, use_swiglu_ffn=True, drop_path_rate=0.0),
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
# models, and on which side their texts are padded
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
    "Dinov2Layer": "norm2",
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
    sizes = PathSizes(LAYERS + 1, states.shape[2], WIDTH, mask is not None, CLASSES)
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
    with pytest.raises(InputError, match=r"a StudentNetwork cannot be saved without a kind .* and settings"):
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


@pytest.mark.parametrize("name", [*TEXTS, "vit"])
def test_the_states_do_not_depend_on_how_transformers_computes_attention(name):
    model = make(name)
    inputs, states = batch(model), {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        check_path(path_of(model), inputs)
        states[implementation] = path_of(model).states(inputs)[0]
    assert torch.equal(states["eager"], states["sdpa"])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["class-token", "qk-norm"])
def test_the_states_do_not_depend_on_how_timm_computes_attention(name, fused):
    model = make(name)
    for block in model.blocks:
        block.attn.fused_attn = fused
    check_path(path_of(model), batch(model))


DRAWS = 20_000


def sampled(probabilities, values, output):
    """Attention that draws a value, not their mean: [H, N, N], [H, N, dh] -> [draws, N, d].

    Each channel draws for itself, as the variances are those of each channel alone.
    """
    heads, tokens, channels = values.shape
    generator = torch.Generator().manual_seed(9)
    picks = torch.multinomial(probabilities.flatten(0, 1), DRAWS * channels, replacement=True, generator=generator)
    picks = picks.unflatten(0, (heads, tokens)).unflatten(-1, (DRAWS, channels))  # [H, N, draws, dh]
    drawn = values.mT[:, None, None].expand(-1, tokens, DRAWS, -1, -1).gather(-1, picks[..., None])[..., 0]
    return output(drawn.permute(2, 1, 0, 3).flatten(2))


def test_the_moments_are_those_of_values_drawn_with_the_attentions_probabilities():
    generator = torch.Generator().manual_seed(8)
    queries, keys, values = torch.randn(3, 1, 2, 5, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True, True]])
    torch.manual_seed(9)
    output = nn.Linear(6, 4).double()
    with torch.no_grad():
        mean, variance = softmax_moments(queries, keys, values, mask, 0.7, output)
        assert torch.equal(softmax_mean(queries, keys, values, mask, 0.7, output), mean)
        probabilities = (0.7 * queries @ keys.mT).masked_fill(~mask, -torch.inf).softmax(-1)
        samples = sampled(probabilities[0], values[0], output)
    assert ((samples.mean(0) - mean[0]).abs() < 5 * (variance[0] / DRAWS).sqrt()).all()
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.08, atol=0)


DISTILBERT = "distilbert.transformer.layer.2.attention"
# of the last layer: the module whose output ends with the values, and the output map
VALUES_AND_OUTPUT = {
    "layer-scale": ("blocks.2.attn.qkv", "blocks.2.attn.proj"),
    "bert": ("bert.encoder.layer.2.attention.self.value", "bert.encoder.layer.2.attention.output.dense"),
    "distilbert": (
        "distilbert.transformer.layer.2.attention.v_lin",
        "distilbert.transformer.layer.2.attention.out_lin",
    ),
    "vit": ("vit.layers.2.attention.v_proj", "vit.layers.2.attention.o_proj"),
    "llama": ("model.layers.2.self_attn.v_proj", "model.layers.2.self_attn.o_proj"),
}


@pytest.mark.parametrize("name", VALUES_AND_OUTPUT)
def test_the_variance_of_a_step_is_that_of_its_samples(name):
    """Probabilities and values as the model's own modules have them; Llama's groups of heads share their values."""
    model = make(name, torch.float64)
    inputs = row(batch(model, torch.float64), 2)
    seen, (values, output) = {}, (model.get_submodule(part) for part in VALUES_AND_OUTPUT[name])
    hooks = [values.register_forward_hook(lambda module, inputs, output: seen.update(values=output[0]))]
    gain = 1.0
    if name == "layer-scale":  # timm: values are the last third
        block = model.blocks[2]
        block.attn.fused_attn, gain = False, block.ls1.gamma.detach()
        hooks.append(block.attn.attn_drop.register_forward_pre_hook(lambda _, inputs: seen.update(law=inputs[0])))
        own(model, inputs)
        seen["values"] = seen["values"].chunk(3, -1)[-1]
    else:
        model.set_attn_implementation("eager")
        inputs = {"pixel_values": inputs} if name == "vit" else inputs
        with torch.no_grad():
            seen["law"] = model(**inputs, output_attentions=True).attentions[2]
    for hook in hooks:
        hook.remove()
    heads = seen["values"].unflatten(-1, (-1, WIDTH // HEADS)).transpose(0, 1)
    heads = heads.repeat_interleave(HEADS // len(heads), 0)
    path = path_of(model)
    states, mask = path.states(inputs)
    _, variance = path.moments(3, states[2], mask)
    with torch.no_grad():
        samples = gain * sampled(seen["law"][0].double(), heads, output)
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.1, atol=1e-12)


REFUSED = {
    "no pooling": (partial(timm_model, global_pool=""), r"is no classifier: global_pool is ''"),
    "no head": (partial(timm_model, num_classes=0), r"num_classes 0; make it with a pooling and a head"),
    "post-norm": (partial(timm_model, block_fn=vision_transformer.ResPostBlock), r"has blocks timm\..*\.ResPostBlock"),
    "parallel": (partial(timm_model, block_fn=vision_transformer.ParallelThingsBlock), r"ParallelThingsBlock"),
    "scaling": (
        partial(timm_model, block_fn=vision_transformer.ParallelScalingBlock),
        r"ParallelScalingBlock",
    ),
    "differential": (partial(timm_model, attn_layer="diff"), r"has attention timm\..*\.DiffAttention"),
    "normed heads": (partial(timm_model, scale_attn_norm=True), r"norms or gates the heads before the output map"),
    "no blocks": (partial(timm_model, depth=0), r"has no blocks, so no path"),
    "BERT as a decoder": (partial(bert, is_decoder=True), r"BertForSequenceClassification is made as a decoder"),
    "sliding": (
        partial(decoder, "Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
        r"Qwen2ForSequenceClassification has layers of sliding attention",
    ),
    "dynamic positions": (
        partial(decoder, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        r"LlamaForSequenceClassification has dynamic positions",
    ),
    "another head": (
        partial(of_transformers, "Bert", "ForTokenClassification", hidden_size=8, num_attention_heads=2),
        r"BertForTokenClassification has no residual path here; known, the nearest first: .*path=",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_covered_is_refused_by_name(case):
    build, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        path_of(build())


def test_a_model_that_computes_something_else_than_its_class_is_found_out():
    class Louder(vision_transformer.VisionTransformer):
        def forward(self, x):
            return 1.01 * super().forward(x)

    class Wider(vision_transformer.VisionTransformer):
        def forward(self, x):
            return self.forward_features(x)

    for kind, message in (
        (Louder, r"Louder gives logits that differ from the model's own by 0\.009.* more than 1e-05 in torch.float32"),
        (Wider, r"Wider gives logits \(4, 5\), the model \(4, 10, 16\)"),
    ):
        model = timm_model(kind)
        with pytest.raises(InputError, match=message):
            check_path(path_of(model), batch(model))
    model = make("bert")
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    with pytest.raises(InputError, match=r"differ from the model's own by nan"):
        check_path(path_of(model), batch(model))


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_reads_its_first_token_so_padding_there_is_refused(name):
    model = make(name)
    with pytest.raises(InputError, match=r"padded on the left, but this model reads its first token out; pad on the"):
        path_of(model).embed(batch(model, side="left"))


@pytest.mark.parametrize("name", TEXTS)
def test_inputs_are_what_the_model_takes_itself_and_nothing_else(name):
    model, path = make(name), path_of(make(name))
    inputs = batch(model)
    tokens = inputs["input_ids"][:1]  # without padding
    for given in (tokens, {"input_ids": tokens}, {"input_ids": tokens, "attention_mask": None}):
        states, mask = path.states(given)
        close(path.readout(states[-1], mask), own(model, {"input_ids": tokens}), torch.float32)
    check_path(path, {"input_ids": inputs["input_ids"]})  # padding taken for real tokens, as the model does
    for wrong, message in (
        (
            inputs | {"labels": torch.zeros(4)},
            r"the inputs are input_ids, attention_mask, labels; this path takes",
        ),
        ({"tokens": tokens}, r"the inputs are tokens; this path takes input_ids"),
        ([tokens], r"the inputs are of type list"),
        (inputs | {"attention_mask": torch.ones(4, 1, 9, 9)}, r"attention_mask has shape \(4, 1, 9, 9\)"),
    ):
        with pytest.raises(InputError, match=message):
            path.embed(wrong)


def test_sentence_pairs_have_types_and_positions_of_their_own():
    model = make("bert", torch.float64)
    inputs = batch(model)
    inputs["token_type_ids"] = (torch.arange(9) > 2).long().expand(4, -1)
    inputs["position_ids"] = torch.arange(9).flip(0)[None]
    check_path(path_of(model), inputs)
    assert (own(model, inputs) - own(model, batch(model))).abs().max() > 1e-3


def test_images_may_have_their_name():
    path = path_of(make("vit"))
    images = batch(path.model)
    assert torch.equal(path.states({"pixel_values": images})[0], path.states(images)[0])
    with pytest.raises(InputError, match=r"the inputs are images; this path takes pixel_values"):
        path.embed({"images": images})


def test_a_decoder_reads_the_last_token_that_is_not_its_padding_token():
    """As the library does: an end mark that is the padding token is not it, whether or not it is masked."""
    model = make("llama", torch.float64)
    inputs = batch(model)
    inputs["attention_mask"][1, 3] = 1  # an end mark, which is the padding token
    path = path_of(model)
    check_path(path, inputs)
    assert torch.equal(path.embed(inputs)[1], batch(model)["attention_mask"] == 1)
    inputs["attention_mask"][1] = 0
    with pytest.raises(InputError, match="is masked, but this model reads it out"):
        path.embed(inputs)
    inputs = batch(model)
    model.config.pad_token_id = None
    check_path(path_of(model), row(inputs, 1))
    with pytest.raises(InputError, match="has no padding token, so it reads one text at a time"):
        path_of(model).embed(inputs)


def test_a_student_of_a_distilled_transformer_has_one_prediction_in_training_too():
    model = make("distilled").train()
    model.set_distilled_training()
    path = path_of(model)
    _, readout = path.student_parts()
    assert readout.train()(path.states(batch(model))[0][-1]).shape == (4, CLASSES)
    assert isinstance(model(batch(model)), tuple)  # the teacher's own switch stays


def test_trajectories_of_texts_go_through_the_cache(tmp_path):
    model = make("roberta")
    inputs, path = batch(model), path_of(model)
    rows = {"identity": {"weights": "random"}, "shard_size": 3}
    write_cache(tmp_path, path, lambda rows: {name: part[rows] for name, part in inputs.items()}, 4, **rows)
    read, live = TrajectoryCache(tmp_path, rows["identity"]).batch(range(4)), capture(path, inputs)
    torch.testing.assert_close(read.states, live.states)
    torch.testing.assert_close(read.variances, live.variances)
    assert torch.equal(read.mask, live.mask)

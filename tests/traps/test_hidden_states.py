"""Traps 20 and 21: off-by-one in the hidden states of a model, and states that do not lead to its logits."""

import pytest
import torch

from director.data.tokenizer import train_tokenizer
from director.models.transformers import ImageTransformer, TextTransformer
from director.path.residual import path_of

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


SIZES = {"width": 16, "depth": 4, "heads": 4, "mlp_width": 24, "classes": 5}


KEP = {"kind": "kep_svgp", "rank": 2, "multiplier": 2}
SGPA = {"kind": "sgpa", "inducing": 3}
# what differs between a model of images and one of texts
OF_INPUTS = {
    "kep_svgp": {"image": {"variant": "concat"}, "text": {"variant": "sum"}},
    "sgpa": {"image": {"kernel": "ard"}, "text": {"kernel": "exponential"}},
}


@pytest.fixture(
    params=[None, KEP | {"layers": 1}, KEP | {"layers": 4}, SGPA | {"layers": 1}, SGPA | {"layers": 4}],
    ids=["softmax", "mixed", "kep_svgp", "mixed-sgpa", "sgpa"],
)
def of_images_or_texts(request):
    """Attention, by what the model reads."""
    return lambda reads: request.param and request.param | OF_INPUTS[request.param["kind"]][reads]


@pytest.fixture(params=["image", "text"])
def teacher(request, of_images_or_texts):
    torch.manual_seed(7)
    attention = of_images_or_texts(request.param)
    if request.param == "image":
        return ImageTransformer(image_size=12, channels=3, patch=4, attention=attention, **SIZES).eval()
    tokenizer = train_tokenizer(["a b c d e f g h"], 30)
    return TextTransformer(tokenizer=tokenizer, max_length=9, attention=attention, **SIZES).eval()


def batch(model, dtype):
    """Six inputs; the texts differ in length and are padded."""
    generator = torch.Generator().manual_seed(8)
    if isinstance(model, ImageTransformer):
        return torch.randn(6, 3, 12, 12, generator=generator).to(dtype)
    mask = torch.arange(9) < torch.tensor([9, 2, 4, 1, 7, 9])[:, None]
    return {"tokens": torch.randint(10, (6, 9), generator=generator), "mask": mask}


def third(inputs):
    """The third input alone, without padding."""
    if not isinstance(inputs, dict):
        return inputs[2:3]
    return {name: values[2:3, : inputs["mask"][2].sum()] for name, values in inputs.items()}


def untouched(model, inputs):
    """Logits of the model, and its states after each attention residual as its own forward pass has them."""
    seen, hooks = [], []
    for block in model.blocks:
        hooks.append(block.attention_half.register_forward_hook(lambda module, inputs, output: seen.append(output[0])))
    with torch.no_grad():
        logits = model(inputs)
    for hook in hooks:
        hook.remove()
    return logits, seen


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_readout_of_the_last_state_is_the_models_logits(teacher, dtype):
    """Trap 20 (transformers 13461, PR 26142, PR 40994): readout(X[L]) == the untouched model's logits."""
    teacher = teacher.to(dtype)
    path, inputs = path_of(teacher), batch(teacher, dtype)
    states, mask = path.states(inputs)
    tolerance = {"rtol": 0, "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(path.readout(states[-1], mask), untouched(teacher, inputs)[0], **tolerance)
    alone, own_mask = path.states(third(inputs))
    torch.testing.assert_close(path.readout(alone[-1], own_mask), untouched(teacher, inputs)[0][2:3], **tolerance)
    before_last = path.readout(states[-2], mask)
    assert (before_last - untouched(teacher, inputs)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_there_are_depth_plus_one_states_and_each_segment_gives_the_next(teacher, dtype):
    """Trap 21 (transformers 2461, timm PR 2483): L+1 states, state 0 the embedding, replay gives each of them."""
    teacher = teacher.to(dtype)
    path, inputs = path_of(teacher), batch(teacher, dtype)
    states, mask = path.states(inputs)
    seen = untouched(teacher, inputs)[1]
    assert len(states) == len(seen) + 1 == path.steps + 1 == 5
    with torch.no_grad():
        assert torch.equal(states[0], teacher.embedding(inputs)[0])
    for step in range(1, path.steps + 1):
        torch.testing.assert_close(states[step], seen[step - 1], rtol=0, atol=TOLERANCE[dtype])
        replayed = path.segment(step, states[step - 1], mask)
        torch.testing.assert_close(replayed, states[step], rtol=0, atol=TOLERANCE[dtype])

"""Traps 20 and 21: off-by-one in the hidden states of a model, and states that do not lead to its logits."""

import pytest
import torch

from director.backbones import ImageTransformer
from director.taps import path_of

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(params=[0, 1, 4], ids=["softmax", "mixed", "kep_svgp"])
def teacher(request):
    torch.manual_seed(7)
    return ImageTransformer(
        image_size=12,
        channels=3,
        patch=4,
        width=16,
        depth=4,
        heads=4,
        mlp_width=24,
        classes=5,
        kep_layers=request.param,
        kep_rank=2,
        kep_multiplier=2,
    ).eval()


def batch(dtype):
    return torch.randn(6, 3, 12, 12, generator=torch.Generator().manual_seed(8)).to(dtype)


def untouched(model, images):
    """Logits of the model, and its states after each attention residual as its own forward pass has them."""
    seen, hooks = [], []
    for block in model.blocks:
        hooks.append(block.attention_half.register_forward_hook(lambda module, inputs, output: seen.append(output[0])))
    with torch.no_grad():
        logits = model(images)
    for hook in hooks:
        hook.remove()
    return logits, seen


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_readout_of_the_last_state_is_the_models_logits(teacher, dtype):
    """Trap 20 (transformers 13461, PR 26142, PR 40994): readout(X[L]) == the untouched model's logits."""
    teacher, images = teacher.to(dtype), batch(dtype)
    path = path_of(teacher)
    states, mask = path.states(images)
    tolerance = {"rtol": 0, "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(path.readout(states[-1], mask), untouched(teacher, images)[0], **tolerance)
    alone = path.states(images[2:3])[0][-1]
    torch.testing.assert_close(path.readout(alone), untouched(teacher, images)[0][2:3], **tolerance)
    before_last = path.readout(states[-2], mask)
    assert (before_last - untouched(teacher, images)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_there_are_depth_plus_one_states_and_each_segment_gives_the_next(teacher, dtype):
    """Trap 21 (transformers 2461, timm PR 2483): L+1 states, state 0 the embedding, replay gives each of them."""
    teacher, images = teacher.to(dtype), batch(dtype)
    path = path_of(teacher)
    states, mask = path.states(images)
    seen = untouched(teacher, images)[1]
    assert len(states) == len(seen) + 1 == path.steps + 1 == 5
    with torch.no_grad():
        assert torch.equal(states[0], teacher.embedding(images)[0])
    for step in range(1, path.steps + 1):
        torch.testing.assert_close(states[step], seen[step - 1], rtol=0, atol=TOLERANCE[dtype])
        replayed = path.segment(step, states[step - 1], mask)
        torch.testing.assert_close(replayed, states[step], rtol=0, atol=TOLERANCE[dtype])

"""The path of a model: what a view of it may and may not do."""

from functools import partial

import pytest
import torch

from director.errors import InputError
from director.models.transformers import ImageTransformer, PathReadout, Transformer
from director.noise import BatchNoise
from director.path import view
from director.path.residual import PATHS, TransformerPath, path_of
from director.path.view import class_name, frozen


def kep(layers):
    return {"kind": "kep_svgp", "layers": layers, "variant": "concat", "rank": 2, "multiplier": 1}


def sgpa(layers):
    return {"kind": "sgpa", "layers": layers, "kernel": "ard", "inducing": 2}


def model(**changes):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "channels": 1, "patch": 4, "width": 12, "depth": 3, "heads": 3, "mlp_width": 8}
    return ImageTransformer(**sizes | {"classes": 4, "dropout": 0.5} | changes)


def images(count=3):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", [kep(2), sgpa(2)], ids=["kep_svgp", "sgpa"])
def test_the_means_of_the_moments_are_the_states(attention):
    path = path_of(model(attention=attention))
    states, mask = path.states(images())
    for step in (1, 2, 3):
        mean, variance = path.moments(step, states[step - 1], mask)
        torch.testing.assert_close(mean, states[step])
        assert variance.shape == mean.shape and variance.min() >= 0 and variance.max() > 0


@pytest.mark.parametrize("attention", [kep(2), sgpa(2)], ids=["kep_svgp", "sgpa"])
def test_the_moments_of_a_step_are_those_of_its_samples(attention):
    """The teacher's transition is what its own layer draws, residual included."""
    network = model(attention=attention).double().eval()
    path = path_of(network)
    states, _ = path.states(images(1).double())
    draws, generator = 20_000, torch.Generator().manual_seed(2)
    with torch.no_grad():
        x = network.blocks[1].mlp_half(states[2]).expand(draws, -1, -1)
        samples, _ = network.blocks[2].attention_half(x, noise=partial(BatchNoise(generator), 2))
    mean, variance = path.moments(3, states[2])
    assert ((samples.mean(0) - mean[0]).abs() < 5 * (variance[0] / draws).sqrt()).all()
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.08, atol=0)


def test_the_dropout_variance_of_a_step_is_that_of_its_own_masks(monkeypatch):
    """The only randomness of a segment here is the dropout of the MLP that it begins with; the first has none."""
    monkeypatch.setattr(view, "DROPOUT_PASSES", 4000)
    network = model().double()
    path = path_of(network)
    states, _ = path.states(images(1).double())
    mean, variance = path.moments(3, states[2], softmax_variance="dropout_moments")
    torch.testing.assert_close(mean, states[3])
    network.train()
    with torch.no_grad():
        torch.manual_seed(1)
        x = network.blocks[1].mlp_half(states[2].expand(4000, -1, -1))
        samples, _ = network.blocks[2].attention_half(x)
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.2, atol=0)
    assert not path.moments(1, states[0], softmax_variance="dropout_moments")[1].any()


def test_the_dropout_variance_is_a_function_of_the_state_and_leaves_no_trace():
    network = model()
    network.blocks[1].eval()  # modes are the caller's
    modes = [module.training for module in network.modules()]
    path, generator = path_of(network), torch.get_rng_state()
    states, _ = path.states(images())
    first, second = (path.moments(2, states[1], softmax_variance="dropout_moments")[1] for _ in range(2))
    assert torch.equal(first, second) and first.min() > 0
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in network.modules()] == modes
    assert not torch.equal(first, path.moments(2, states[1])[1])


@pytest.mark.parametrize("attention", [kep(2), sgpa(2)], ids=["kep_svgp", "sgpa"])
def test_zero_variance_is_for_softmax_layers_only(attention):
    path = path_of(model(attention=attention))
    states, _ = path.states(images())
    mean, variance = path.moments(1, states[0], softmax_variance="zero")
    assert torch.equal(mean, states[1]) and (variance == 0).all()
    for choice in ("zero", "attention_moments"):
        assert (path.moments(2, states[1], softmax_variance=choice)[1] > 0).any()
    with pytest.raises(InputError, match="'none'; choose one of attention_moments, dropout_moments, zero"):
        path.moments(1, states[0], softmax_variance="none")


def test_a_view_leaves_the_model_as_it_was():
    network = model(attention=kep(1))
    network.train()
    network.blocks[1].eval()
    modes = {name: module.training for name, module in network.named_modules()}
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    path = path_of(network)
    states, mask = path.states(images())
    logits = path.readout(states[-1], mask)
    assert torch.equal(path.states(images())[0], states)  # dropout is off
    assert not states.requires_grad and not logits.requires_grad
    assert {name: module.training for name, module in network.named_modules()} == modes
    assert all(torch.equal(weights[name], tensor) for name, tensor in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("attention", [kep(1), sgpa(1)], ids=["kep_svgp", "sgpa"])
def test_the_teacher_keeps_its_precision_where_the_student_trains_with_less(attention):
    path = path_of(model(attention=attention))
    states, _ = path.states(images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(path.states(images())[0], states)
        assert path.moments(1, states[0])[1].dtype == torch.float32


def test_modes_are_restored_after_an_error():
    network = model().train()
    with pytest.raises(RuntimeError), frozen(network):
        assert not network.training and not torch.is_grad_enabled()
        raise RuntimeError
    assert network.training and torch.is_grad_enabled()


def test_what_the_student_keeps_is_a_trainable_copy():
    network = model().requires_grad_(False)
    path = path_of(network)
    embedding, readout = path.student_parts()
    states, mask = path.states(images())
    assert isinstance(readout, PathReadout)
    torch.testing.assert_close(embedding.eval()(images())[0], states[0])
    torch.testing.assert_close(readout.eval()(states[-1], mask), path.readout(states[-1], mask))
    teacher = {parameter.data_ptr() for parameter in network.parameters()}
    for part in (embedding, readout):
        assert all(parameter.requires_grad for parameter in part.parameters())
        assert not teacher & {parameter.data_ptr() for parameter in part.parameters()}


@pytest.mark.parametrize("step", [0, 4])
def test_steps_count_from_one_to_the_depth(step):
    path = path_of(model())
    x, _ = path.embed(images())
    for method in (path.segment, path.moments):
        with pytest.raises(InputError, match=f"no step {step}: .* steps 1 to 3"):
            method(step, x)


def test_an_unknown_architecture_is_named_with_the_known_ones():
    with pytest.raises(
        InputError,
        match=r"torch\.nn\.modules\.linear\.Linear .* known, .*director\.models\.transformers\.Transformer.* path=",
    ):
        path_of(torch.nn.Linear(2, 2))


def test_a_path_is_found_by_the_class_of_the_model_or_of_its_parents():
    class Narrower(ImageTransformer):
        pass

    assert PATHS[class_name(Transformer)] is TransformerPath
    network = Narrower(**model().settings)
    assert type(path_of(network)) is TransformerPath and path_of(network).model is network


def test_a_new_family_is_one_entry_of_the_table(monkeypatch):
    class Narrower(ImageTransformer):
        pass

    class NarrowerPath(TransformerPath):
        pass

    monkeypatch.setitem(PATHS, class_name(Narrower), NarrowerPath)
    assert type(path_of(Narrower(**model().settings))) is NarrowerPath
    assert type(path_of(model())) is TransformerPath

"""What models run on: batches as tensors, and the modes of modules."""

import numpy as np
import pytest
import torch
from torch import nn

from director.device import module_modes, to_device

CPU = torch.device("cpu")


def network():
    """Some modules in training mode, some not."""
    made = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2)), nn.Dropout(0.5))
    made.train()
    made[1].training = False
    made[1][0].training = False
    return made


def modes(model):
    return [module.training for module in model.modules()]


def test_modules_evaluate_inside_and_have_their_own_modes_again_afterwards():
    made = network()
    before = modes(made)
    assert before == [True, True, False, False, True, True]
    with module_modes(made):
        assert not any(modes(made))
    assert modes(made) == before


def test_a_rule_says_which_modules_train():
    made = network()
    before = modes(made)
    with module_modes(made, lambda module: isinstance(module, nn.Dropout)):
        assert modes(made) == [False, False, False, True, False, True]
    assert modes(made) == before


def test_modes_are_restored_after_an_error_inside():
    made = network()
    before = modes(made)
    with pytest.raises(RuntimeError), module_modes(made, lambda module: True):
        assert all(modes(made))
        raise RuntimeError
    assert modes(made) == before


def test_modes_are_restored_after_an_error_of_the_rule():
    made = network()
    before = modes(made)

    def fails_half_way(module):
        if isinstance(module, nn.BatchNorm1d):
            raise RuntimeError
        return not module.training

    with pytest.raises(RuntimeError), module_modes(made, fails_half_way):
        raise AssertionError("not reached")
    assert modes(made) == before


def test_batches_of_arrays_tensors_and_nested_mappings_become_tensors():
    half = torch.ones(2, dtype=torch.bfloat16)
    batch = {"inputs": {"tokens": np.arange(3), "mask": np.ones(3, bool)}, "states": half}
    moved = to_device(batch, CPU)
    assert torch.equal(moved["inputs"]["tokens"], torch.arange(3)) and moved["inputs"]["tokens"].dtype == torch.int64
    assert moved["inputs"]["mask"].dtype == torch.bool
    assert moved["states"].dtype == torch.bfloat16 and torch.equal(moved["states"], half)
    assert torch.equal(to_device(np.float32([1, 2]), CPU), torch.tensor([1.0, 2.0]))
    assert to_device(half, CPU) is half


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_batches_move_to_a_gpu_from_wherever_they_are():
    gpu = torch.device("cuda")
    once = to_device({"a": np.arange(3), "b": torch.ones(2)}, gpu)
    twice = to_device(once, gpu)
    assert all(part.is_cuda for part in [*once.values(), *twice.values()])
    assert to_device(once["b"], CPU).device == CPU

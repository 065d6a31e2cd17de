"""Noise belongs to examples, not to batches."""

import pytest
import torch

from director.errors import InputError
from director.noise import BatchNoise, ExampleNoise, fold, unfold


def draw(examples, samples=3, seed=5, step=2, shape=(7, 4), mask=None):
    noise = ExampleNoise(seed, examples, samples)
    if mask is not None:
        mask = fold(mask, samples)
    return unfold(noise(step, (samples * len(examples), *shape), mask), samples)  # [S, B, ...]


def test_fold_is_sample_major_and_unfold_inverts_it():
    batch = torch.arange(6.0).reshape(2, 3)
    folded = fold(batch, 4)
    assert folded.shape == (8, 3)
    assert torch.equal(folded[2 * 2 + 1], batch[1])
    assert torch.equal(unfold(folded, 4), batch.expand(4, 2, 3))
    assert fold(batch, 1) is batch


def test_an_example_draws_the_same_in_any_batch():
    together = draw([11, 12, 13, 2**40])
    assert torch.equal(together[:, 2:3], draw([13]))
    assert torch.equal(together[:, [3, 0]], draw([2**40, 11]))


def test_seed_step_example_and_sample_all_matter():
    reference = draw([1])
    others = [draw([1], seed=6), draw([1], step=3), draw([2]), draw([1]).roll(1, 0)]
    assert all(not torch.isclose(reference, other).any() for other in others)
    # neighbouring seeds and steps do not shift into one another
    assert not torch.isclose(draw([1], seed=2, step=5), draw([1], seed=5, step=2)).any()


def test_noise_is_standard_normal_and_independent_over_examples():
    noise = draw(range(400), samples=5, shape=(50,))  # 100,000 numbers
    assert abs(noise.mean()) < 0.015 and abs(noise.std() - 1) < 0.015
    correlation = (noise[:, 1:] * noise[:, :-1]).mean()
    assert abs(correlation) < 0.015


def test_padding_gets_zeros_and_does_not_change_real_tokens():
    short = torch.tensor([[True, True, True], [True, False, False]])
    long = torch.zeros(2, 6, dtype=torch.bool)
    long[:, :3] = short
    left = long.flip(1)  # real tokens need not come first
    noise = draw([3, 4], shape=(3, 8), mask=short)
    padded = draw([3, 4], shape=(6, 8), mask=long)
    assert torch.equal(padded[:, :, :3], noise)
    assert (padded[:, ~long] == 0).all() and (padded[:, long] != 0).all()
    assert torch.equal(draw([3, 4], shape=(6, 8), mask=left)[:, left], padded[:, long])
    assert torch.equal(draw([4], shape=(1, 8), mask=short[1:, :1])[:, 0], noise[:, 1, :1])


def test_batch_noise_is_one_stream():
    noise = BatchNoise(torch.Generator().manual_seed(1))
    again = torch.Generator().manual_seed(1)
    for step in (0, 0):
        assert torch.equal(noise(step, (2, 3)), torch.randn(2, 3, generator=again))


@pytest.mark.parametrize(
    "arguments, value",
    [((-1, [0], 1), "seed -1"), ((0, [0], 0), "samples 0"), ((0, [3, -4], 1), "example -4")],
)
def test_unusable_arguments_are_named(arguments, value):
    with pytest.raises(InputError, match=value):
        ExampleNoise(*arguments)


def test_noise_for_another_batch_is_refused():
    with pytest.raises(InputError, match="2 samples of 3 examples was asked for 3 rows"):
        ExampleNoise(0, [1, 2, 3], 2)(0, (3, 4))

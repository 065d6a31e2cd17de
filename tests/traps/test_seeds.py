"""Traps 33 and 34: what a model sees of the data depends on the seed, not on how the data were loaded."""

import numpy as np

from director.data.augment import crop_and_flip, epoch_order
from director.data.dataset import Dataset
from director.data.examples import TextExamples
from director.data.texts import Texts
from director.data.tokenizer import train_tokenizer


def augmented(images, examples, **keys):
    return crop_and_flip(images, examples, **({"seed": 7, "view": 3, "padding": 4, "flip": True} | keys))


def test_augmentation_depends_on_seed_view_and_example_only():
    """Trap 33 (pytorch 5059): workers that share numpy's state repeat each other's augmentation."""
    images = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)
    examples = np.random.default_rng(1).choice(50_000, 300, replace=False)
    whole = augmented(images, examples)

    # in any order, in batches of any size, and after anything that happens to the global state
    order = np.random.default_rng(2).permutation(300)
    np.testing.assert_array_equal(augmented(images[order], examples[order]), whole[order])
    for size in (1, 7, 128):
        parts = [augmented(images[i : i + size], examples[i : i + size]) for i in range(0, 300, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.random.seed(0)
    np.testing.assert_array_equal(augmented(images, examples), whole)

    # and on each of the three: about 1 in 162 images keeps its crop and flip by chance
    for other in (
        augmented(images, examples, seed=8),
        augmented(images, examples, view=4),
        augmented(images, examples + 1),
    ):
        assert (other == whole).all(axis=(1, 2, 3)).mean() < 0.05


def test_order_depends_on_seed_and_epoch_only():
    """Trap 34 (accelerate 2574): a shuffling sampler restarts from a different order after a resume."""
    expected = epoch_order(500, seed=0, epoch=9)
    for epoch in range(3):  # what was drawn before does not matter
        epoch_order(500, seed=0, epoch=epoch)
    np.random.seed(1)
    np.testing.assert_array_equal(epoch_order(500, seed=0, epoch=9), expected)
    # a seed of more than 32 bits does not run into the epoch
    orders = {tuple(epoch_order(500, seed, epoch)) for seed in (0, 1, 2**32, 2**32 + 1) for epoch in (0, 1, 2)}
    assert len(orders) == 12


def test_batches_of_texts_depend_on_seed_and_epoch_only():
    """Trap 34 again: texts of like length share a batch, and still no batch depends on what was drawn before."""
    texts = Texts.of("word " * (1 + number % 17) for number in range(500))
    tokenizer = train_tokenizer(texts, 20)

    def batches(seed, epoch):
        examples = TextExamples(Dataset.clean("words", texts, None), tokenizer, max_length=20)
        return [tuple(rows) for rows in examples.epoch_batches(8, seed, epoch)]

    expected = batches(0, 9)
    batches(0, 8)
    np.random.seed(1)
    assert batches(0, 9) == expected
    assert len({tuple(batches(seed, epoch)) for seed in (0, 1, 2**32) for epoch in (0, 1, 2)}) == 9

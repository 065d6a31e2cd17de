"""Crop, flip and the random numbers behind them."""

import numpy as np
import pytest

from director.data.augment import crop_and_flip, epoch_order, random_words
from director.errors import InputError


def numbered_images(count=64, height=5, width=7):
    """Images whose pixels are all different and none is zero, so that a crop can be read off."""
    pixels = np.arange(1, height * width * 3 + 1, dtype=np.uint8).reshape(height, width, 3)
    return np.broadcast_to(pixels, (count, height, width, 3)).copy()


def shifted(image, top, left, mirror):
    """The crop written out pixel by pixel; a shift of 0 is the image as it was."""
    out = np.zeros_like(image)
    height, width, _ = image.shape
    for row in range(height):
        for column in range(width):
            source = (row + top, (width - 1 - column if mirror else column) + left)
            if 0 <= source[0] < height and 0 <= source[1] < width:
                out[row, column] = image[source]
    return out


def test_every_crop_is_a_shift_of_the_image_and_all_shifts_occur():
    images = numbered_images(400)
    crops = crop_and_flip(images, np.arange(400), seed=3, view=1, padding=1, flip=True)
    shifts = [(t, left, m) for t in (-1, 0, 1) for left in (-1, 0, 1) for m in (False, True)]
    references = np.stack([shifted(images[0], *shift) for shift in shifts])  # [18, H, W, C]
    matches = (crops[:, None] == references).all(axis=(2, 3, 4))  # [B, 18]
    assert (matches.sum(axis=1) == 1).all()
    assert matches.any(axis=0).all()


def test_without_padding_and_flip_nothing_changes():
    images = numbered_images(8)
    np.testing.assert_array_equal(crop_and_flip(images, np.arange(8), seed=0, view=0, padding=0, flip=False), images)
    mirrored = crop_and_flip(images, np.arange(8), seed=0, view=0, padding=0, flip=True)
    assert all((m == i).all() or (m == i[:, ::-1]).all() for m, i in zip(mirrored, images, strict=True))


def test_the_input_is_left_alone_and_the_type_kept():
    images = numbered_images(8)
    before = images.copy()
    crops = crop_and_flip(images, np.arange(8), seed=0, view=0, padding=2, flip=True)
    np.testing.assert_array_equal(images, before)
    assert crops.dtype == np.uint8
    assert crops.shape == images.shape


def test_negative_numbers_are_named():
    with pytest.raises(InputError, match="padding is -1"):
        crop_and_flip(numbered_images(2), np.arange(2), seed=0, view=0, padding=-1, flip=True)
    with pytest.raises(InputError, match="example is -5"):
        crop_and_flip(numbered_images(2), np.array([3, -5]), seed=0, view=0, padding=1, flip=True)
    with pytest.raises(InputError, match="epoch is -1"):
        epoch_order(3, 0, -1)


def test_the_finaliser_is_the_published_one():
    # seed, view and example 0 and the sequence from there, computed by Python's own integers
    mask = 2**64 - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    golden, state = 0x9E3779B97F4A7C15, 0
    # the first output of SplitMix64 seeded with 0, as published with the generator
    assert mix(golden) == 0xE220A8397B1DCDAF
    for key in (11, 5, 123456789):
        state = mix((state ^ key) + golden & mask)
    expected = [mix((state + k * golden) & mask) for k in (1, 2)]
    assert random_words(11, 5, np.array([123456789]), draws=2)[:, 0].tolist() == expected


@pytest.mark.parametrize("axis", ["example", "view", "seed"])
def test_words_are_uniform_and_uncorrelated_along_every_key(axis):
    count = 20_000
    if axis == "example":
        words = random_words(0, 0, np.arange(count), draws=2)
    else:
        keys = [(0, k) if axis == "view" else (k, 0) for k in range(count // 10)]
        words = np.concatenate([random_words(*key, np.arange(10), draws=2) for key in keys], axis=1)
    # every bit is set half of the time: 5 standard deviations of a fair coin
    bits = (words[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=1) - 0.5).max() < 5 * 0.5 / np.sqrt(count)
    # 81 crop cells as drawn for padding 4: chi-square with 80 degrees of freedom, mean 80 and standard deviation 12.6
    unit = words / 2.0**64
    cells = np.bincount((unit[0] * 9).astype(int) * 9 + (unit[1] * 9).astype(int), minlength=81)
    assert ((cells - count / 81) ** 2 / (count / 81)).sum() < 80 + 5 * 12.6
    # neighbours and the two draws are uncorrelated
    assert abs(np.corrcoef(unit[0, :-1], unit[0, 1:])[0, 1]) < 5 / np.sqrt(count)
    assert abs(np.corrcoef(unit[0], unit[1])[0, 1]) < 5 / np.sqrt(count)


def test_keys_cannot_stand_in_for_each_other():
    # sums and exclusive-ors of the keys agree between many of these; the words must not
    keys = [(s, v, e) for s in range(8) for v in range(8) for e in range(8)]
    words = {int(random_words(s, v, np.array([e]), draws=1)[0, 0]) for s, v, e in keys}
    assert len(words) == len(keys)


def test_order_visits_each_example_once():
    order = epoch_order(1000, seed=1, epoch=2)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(1000))

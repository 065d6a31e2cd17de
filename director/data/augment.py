"""Order and augmentation of training images as pure functions of the seed.

No generator carries a state from batch to batch, so neither the number of workers, nor the order of the batches, nor
an interruption can change what a model sees of an example.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from director.errors import InputError
from director.random_words import random_words


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """int64 [count]: the order in which epoch `epoch` visits 0..count-1, a function of (count, seed, epoch) alone."""
    _refuse_negative(seed=seed, epoch=epoch)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,))).permutation(count)


def crop_and_flip(
    images: np.ndarray, examples: np.ndarray, *, seed: int, view: int, padding: int, flip: bool
) -> np.ndarray:
    """Shift each image by up to `padding` pixels either way, filling with zeros; if `flip`, mirror half of them.

    images: uint8 [B, H, W, C]. examples: int64 [B], the numbers of the images: shift and flip depend on
    (seed, view, example) alone. Returns uint8 [B, H, W, C]. Raises InputError for a negative number.
    """
    _refuse_negative(seed=seed, view=view, padding=padding, example=min(examples, default=0))
    words = random_words(seed, view, examples, draws=3)  # [3, B]
    top, left = (_uniform(word, 2 * padding + 1) for word in words[:2])  # [B], each in 0..2*padding
    frame = (padding, padding)
    padded = np.pad(images, ((0, 0), frame, frame, (0, 0)))  # [B, H + 2 padding, W + 2 padding, C]
    # every crop as a view of the padded images: [B, 2 padding + 1, 2 padding + 1, H, W, C]
    windows = sliding_window_view(padded, images.shape[1:], axis=(1, 2, 3))[:, :, :, 0]
    crops = windows[np.arange(len(images)), top, left]  # [B, H, W, C]
    if flip:
        mirrored = _uniform(words[2], 2) == 1
        crops[mirrored] = crops[mirrored, :, ::-1]
    return crops


def _uniform(words: np.ndarray, count: int) -> np.ndarray:
    """Integers in 0..count-1 from the upper half of each word; the bias is below count / 2**32."""
    return ((words >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def _refuse_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise InputError(f"{name} is {number}; it must be 0 or more")

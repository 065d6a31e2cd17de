"""Handwritten digits, bundled with scikit-learn: 1,797 grey images of 8x8 pixels in 17 levels (0..16), ten classes.

Source: UCI "Optical Recognition of Handwritten Digits", test part (Alpaydin and Kaynak, 1998), CC BY 4.0.
"""

from pathlib import Path

import numpy as np

from director.data.dataset import Dataset, Description
from director.errors import InputError

COUNT = 1797
LEVELS = 16  # the value of full ink


def fetch(made_from: dict[str, Path]) -> Dataset:
    """The digits as `Dataset`: images uint8 [1797, 8, 8, 1] in 0..16, labels 0..9."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    if bunch.images.shape != (COUNT, 8, 8):
        raise InputError(f"scikit-learn's digits have shape {bunch.images.shape}, not {(COUNT, 8, 8)}; reinstall it")
    images = bunch.images.astype(np.uint8)[..., None]
    return Dataset.clean("digits", images, bunch.target.astype(np.int64), source="scikit-learn", licence="CC BY 4.0")


DATASET = Description("digits", "images", fetch)

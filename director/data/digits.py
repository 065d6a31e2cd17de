"""Handwritten digits, bundled with scikit-learn: 1,797 grey images of 8x8 pixels in 17 levels (0..16), ten classes.

Source: UCI "Optical Recognition of Handwritten Digits", test part (Alpaydin and Kaynak, 1998), CC BY 4.0.
"""

from pathlib import Path

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.sources import verify_content
from director.errors import InputError

COUNT = 1797
SHA256 = "496358ed18917636a463273dd1db257f5aa267697f49b798a16e183d2b85ee5a"  # of images and labels: `verify_content`
LEVELS = 16  # the value of full ink


def fetch(made_from: dict[str, Path]) -> Dataset:
    """The digits as `Dataset`: images uint8 [1797, 8, 8, 1] in 0..16, labels 0..9."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    if bunch.images.shape != (COUNT, 8, 8):
        raise InputError(f"scikit-learn's digits have shape {bunch.images.shape}, not {(COUNT, 8, 8)}; reinstall it")
    images, labels = bunch.images.astype(np.uint8)[..., None], bunch.target.astype(np.int64)
    rows = (image.tobytes() for image in images)
    verify_content("scikit-learn's digits", labels, rows, SHA256, remedy="reinstall it")
    return Dataset.clean("digits", images, labels, source="scikit-learn", licence="CC BY 4.0")


DATASET = Description("digits", "images", fetch)

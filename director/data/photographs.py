"""Out-of-distribution images for the digits: 8x8 grey patches of the two photographs bundled with scikit-learn.

Source: `china.jpg` and `flower.jpg` (CC BY), as shipped by scikit-learn.
No checksum is compared, since decoders of JPEG round differently.
"""

from pathlib import Path

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.digits import LEVELS

PATCH, STRIDE = 8, 28  # pixels; the stride keeps neighbours from being near-copies, and the set small
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def fetch(made_from: dict[str, Path]) -> Dataset:
    """Patches on a regular grid, in the digits' own 17 levels: images uint8 [690, 8, 8, 1], no labels."""
    from sklearn.datasets import load_sample_images

    patches = []
    for photograph in load_sample_images().images:
        grey = np.rint(photograph @ np.array(LUMA) / 255 * LEVELS).astype(np.uint8)  # [427, 640]
        windows = np.lib.stride_tricks.sliding_window_view(grey, (PATCH, PATCH))[::STRIDE, ::STRIDE]
        patches.append(windows.reshape(-1, PATCH, PATCH, 1))
    return Dataset.clean("photographs", np.concatenate(patches), None, source="scikit-learn", licence="CC BY")


DATASET = Description("photographs", "images", fetch)

"""Corrupted digits: eight of CIFAR-10-C's kinds, five severities, at 8x8 pixels.

The kinds and the idea of five severities are those of Hendrycks and Dietterich (ICLR 2019, arXiv 1903.12261); the
parameters are ours, since theirs are for larger images: severity 1 leaves a digit easy to read, severity 5 hard.
Two kinds of each of their four groups: noise, blur, weather, digital.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy  # its parts are loaded where they are first used

from director.data.dataset import Dataset, Description
from director.data.digits import LEVELS

SEVERITIES = (1, 2, 3, 4, 5)


def gaussian_noise(x: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
    return x + rng.normal(0, std, x.shape)


def impulse_noise(x: np.ndarray, amount: float, rng: np.random.Generator) -> np.ndarray:
    """Salt and pepper: a share `amount` of the pixels becomes black or white."""
    return np.where(rng.random(x.shape) < amount, rng.integers(0, 2, x.shape), x)


def defocus_blur(x: np.ndarray, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Convolution with a disc of `radius` pixels, its edge anti-aliased by 9x9 points per pixel."""
    points = (np.arange(5 * 9) - 22) / 9
    disc = (points[:, None] ** 2 + points**2 <= radius**2).reshape(5, 9, 5, 9).mean((1, 3))  # [5, 5]
    return scipy.ndimage.convolve(x, disc[None] / disc.sum(), mode="nearest")


def motion_blur(x: np.ndarray, length: float, rng: np.random.Generator) -> np.ndarray:
    """Mean along a line of `length` pixels, at an angle of -45 to 45 degrees drawn per image."""
    angle = rng.uniform(-np.pi / 4, np.pi / 4, (len(x), 1, 1))
    image, row, column = np.indices(x.shape, dtype=float)
    steps = [
        scipy.ndimage.map_coordinates(
            x, [image, row + s * np.sin(angle), column + s * np.cos(angle)], order=1, mode="nearest"
        )
        for s in np.linspace(-length / 2, length / 2, 9)
    ]
    return np.mean(steps, 0)


def fog(x: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Smooth cloud of three octaves added, then rescaled so that the brightest pixel keeps its value."""
    cloud = sum(
        0.5**octave * scipy.ndimage.zoom(rng.random((len(x), size, size)), (1, 8 / size, 8 / size), order=1)
        for octave, size in enumerate((2, 4, 8))
    )
    top = x.max((1, 2), keepdims=True)
    return (x + strength * cloud) * top / (top + strength)


def snow(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Bright flakes on a share of the pixels, each with a fainter trail one pixel down."""
    flakes = (rng.random(x.shape) < share) * rng.uniform(0.6, 1, x.shape)
    trail = np.roll(flakes, 1, axis=1)
    trail[:, 0] = 0
    return np.maximum(x, flakes) + 0.4 * trail


def contrast(x: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    mean = x.mean((1, 2), keepdims=True)
    return (x - mean) * factor + mean


def jpeg_compression(x: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    """A digit is one block of JPEG: its cosine transform, quantised at `quality` (1..49) and transformed back."""
    steps = LUMINANCE * (5000 // quality) / 100  # of 8-bit grey levels
    coefficients = scipy.fft.dctn(255 * x - 128, axes=(1, 2), norm="ortho")
    return (scipy.fft.idctn(np.rint(coefficients / steps) * steps, axes=(1, 2), norm="ortho") + 128) / 255


# quantisation steps of luminance at quality 50 (ITU-T T.81, table K.1)
LUMINANCE = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
CORRUPTIONS: dict[str, tuple[Callable[..., np.ndarray], tuple[float, ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "impulse_noise": (impulse_noise, (0.03, 0.06, 0.1, 0.15, 0.2)),
    "defocus_blur": (defocus_blur, (0.7, 0.9, 1.1, 1.3, 1.5)),
    "motion_blur": (motion_blur, (1.5, 2.0, 2.5, 3.0, 3.5)),
    "fog": (fog, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "snow": (snow, (0.03, 0.06, 0.1, 0.15, 0.2)),
    "contrast": (contrast, (0.8, 0.65, 0.55, 0.45, 0.35)),
    "jpeg_compression": (jpeg_compression, (20, 12, 8, 6, 4)),
}


def corrupt(images: np.ndarray, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    """Corrupt images uint8 [N, 8, 8, 1] in 0..16; the random draws depend on (seed, kind, severity) alone."""
    function, parameters = CORRUPTIONS[kind]
    rng = np.random.default_rng((seed, list(CORRUPTIONS).index(kind), severity))
    corrupted = function(images[..., 0] / LEVELS, parameters[severity - 1], rng)
    return np.rint(np.clip(corrupted, 0, 1) * LEVELS).astype(np.uint8)[..., None]


def fetch(made_from: dict[str, Path]) -> Dataset:
    """All digits under every corruption and severity: 8 x 5 x 1,797 rows, kind by kind, severity by severity."""
    digits = Dataset.load(made_from["digits"])
    cells = [(kind, severity) for kind in CORRUPTIONS for severity in SEVERITIES]
    count = len(digits)
    return Dataset(
        name="digits_c",
        inputs=np.concatenate([corrupt(digits.inputs, *cell) for cell in cells]),
        labels=np.tile(digits.labels, len(cells)),
        example=np.tile(digits.example, len(cells)),
        shift=np.repeat([kind for kind, _ in cells], count),
        severity=np.repeat([severity for _, severity in cells], count).astype(np.int64),
        about={"source": "generated from digits, seed 0", "generated": True, "of": digits.about["fingerprint"]},
    )


DATASET = Description("digits_c", "images", fetch, made_from=("digits",))

"""The 19 corruptions of CIFAR-10-C, at 32x32 pixels and five severities.

Definitions and parameters: Hendrycks and Dietterich (ICLR 2019, arXiv 1903.12261), CIFAR-10-C, which is milder than
ImageNet-C. Eight of the corruptions draw nothing; seven of those give the published files bit for bit, so the order
of the arithmetic and the float32 of some are part of the definition. JPEG depends on the codec: libjpeg-turbo, which
Pillow carries today, interpolates colour differently from the authors' libjpeg.

Each corruption is a function `(images, parameters, generators)`: images uint8 [N, 32, 32, 3], one random generator
per image, so that what is drawn for an image does not depend on its neighbours. It returns grey levels as floats
[N, 32, 32, 3]; `corrupt` clips them to 0..255 and cuts off the fraction, as the published files do.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import scipy  # its parts are loaded where they are first used
from PIL import Image

from director.data.filters import (
    SIZE,
    Generators,
    blurred,
    distance_to,
    edges,
    enlarged,
    equalised,
    from_hsv,
    mean_of_nine,
    moved,
    plasma,
    sampled,
    soft_disc,
    to_hsv,
)
from director.data.images import decode_image
from director.errors import InputError

SHAPE = (SIZE, SIZE, 3)
SEVERITIES = (1, 2, 3, 4, 5)
CHUNK = 100  # images at a time, so that memory stays bounded whatever N
FROST = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the sixth is never drawn


def gaussian_noise(images: np.ndarray, std: float, generators: Generators) -> np.ndarray:
    return (images / 255 + np.stack([rng.normal(0, std, SHAPE) for rng in generators])) * 255


def shot_noise(images: np.ndarray, photons: float, generators: Generators) -> np.ndarray:
    """Poisson noise of a sensor for which white is `photons` photons."""
    counts = [rng.poisson(image * photons) for image, rng in zip(images / 255, generators, strict=True)]
    return np.stack(counts) / photons * 255


def impulse_noise(images: np.ndarray, amount: float, generators: Generators) -> np.ndarray:
    """Salt and pepper: a share `amount` of the values becomes 0 or 255, with equal chance."""
    hit, white = np.stack([rng.random((2, *SHAPE)) for rng in generators], axis=1)
    return np.where(hit <= amount, np.where(white <= 0.5, 255.0, 0.0), images)


def speckle_noise(images: np.ndarray, std: float, generators: Generators) -> np.ndarray:
    """Noise in proportion to the value."""
    x = images / 255
    return (x + x * np.stack([rng.normal(0, std, SHAPE) for rng in generators])) * 255


def gaussian_blur(images: np.ndarray, sigma: float, generators: Generators) -> np.ndarray:
    return blurred(images / 255, sigma) * 255


def glass_blur(images: np.ndarray, parameters: tuple[float, int, int], generators: Generators) -> np.ndarray:
    """Blur, let every pixel take the value of one near by, in place and from the lower right, and blur again."""
    sigma, shift, iterations = parameters
    x = (blurred(images / 255, sigma) * 255).astype(np.uint8)
    positions = np.arange(SIZE - shift, shift, -1)  # of rows and of columns
    size = (iterations, len(positions), len(positions), 2)
    moves = np.stack([rng.integers(-shift, shift, size) for rng in generators])  # in -shift..shift-1, as published
    every = np.arange(len(x))
    for iteration in range(iterations):
        for i, row in enumerate(positions):
            for j, column in enumerate(positions):
                right, down = moves[:, iteration, i, j].T  # [N]
                # The published exchange of two pixels copies one way only: its right-hand side is a view.
                x[:, row, column] = x[every, row + down, column + right]
    return blurred(x / 255, sigma) * 255


def defocus_blur(images: np.ndarray, parameters: tuple[float, float], generators: Generators) -> np.ndarray:
    """Correlation with a disc of some radius whose edge is softened by a Gaussian of some sigma."""
    disc = soft_disc(*parameters).astype(float)
    return scipy.ndimage.correlate(images / 255, disc[None, ..., None], mode="mirror") * 255


def motion_blur(images: np.ndarray, parameters: tuple[int, float], generators: Generators) -> np.ndarray:
    radius, sigma = parameters
    degrees = np.array([rng.uniform(-45, 45) for rng in generators])
    return moved(images, radius, sigma, degrees)


def zoom_blur(images: np.ndarray, factors: Sequence[float], generators: Generators) -> np.ndarray:
    """Mean of the image and its enlargements by `factors`."""
    x = np.ascontiguousarray(np.moveaxis(images / 255, 0, -1), np.float32)  # [32, 32, 3, N]
    total = np.zeros_like(x)
    for factor in factors:
        total += enlarged(x, factor)
    return np.moveaxis((x + total) / (len(factors) + 1), -1, 0) * 255


def fog(images: np.ndarray, parameters: tuple[float, float], generators: Generators) -> np.ndarray:
    """A cloud of `strength` added, then rescaled so that the brightest value stays."""
    strength, decay = parameters
    x = images / 255
    top = x.max((1, 2, 3), keepdims=True)
    return (x + strength * plasma(decay, generators)[..., None]) * top / (top + strength) * 255


def frost(
    images: np.ndarray, weights: tuple[float, float], generators: Generators, photographs: Sequence[np.ndarray]
) -> np.ndarray:
    """A random crop of one of the `photographs` (uint8 [H, W, 3]) on top."""
    crops = []
    for rng in generators:
        photograph = photographs[rng.integers(len(photographs))]
        top, left = (rng.integers(length - SIZE) for length in photograph.shape[:2])
        crops.append(photograph[top : top + SIZE, left : left + SIZE])
    return weights[0] * images + weights[1] * np.stack(crops)


def snow(images: np.ndarray, parameters: tuple[float, ...], generators: Generators) -> np.ndarray:
    """Bright spots of noise, enlarged and blurred as they fall, over a whiter image; and the same turned around."""
    mean, std, zoom, threshold, radius, sigma, mixing = parameters
    noise = np.stack([rng.normal(mean, std, (SIZE, SIZE)) for rng in generators], axis=-1)  # [32, 32, N]
    flakes = np.moveaxis(enlarged(noise, zoom), -1, 0)[..., None]
    flakes = (np.clip(np.where(flakes < threshold, 0, flakes), 0, 1) * 255).astype(np.uint8)
    degrees = np.array([rng.uniform(-135, -45) for rng in generators])
    flakes = moved(flakes, radius, sigma, degrees) / 255
    x = (images / 255).astype(np.float32)
    grey = x @ np.array([0.299, 0.587, 0.114], np.float32)  # luma of ITU-R BT.601
    x = mixing * x + (1 - mixing) * np.maximum(x, grey[..., None] * 1.5 + 0.5)
    return (x + flakes + flakes[:, ::-1, ::-1]) * 255


def spatter(images: np.ndarray, parameters: tuple[float, ...], generators: Generators) -> np.ndarray:
    """Drops of water or mud where blurred noise is above a threshold; the light makes a relief of the water."""
    mean, std, sigma, threshold, strength, mud = parameters
    x = (images / 255).astype(np.float32)
    noise = np.stack([rng.normal(mean, std, (SIZE, SIZE)) for rng in generators])[..., None]
    liquid = blurred(noise, sigma)
    liquid = np.where(liquid < threshold, 0, liquid)
    if mud:
        cover = blurred((liquid > threshold).astype(np.float32), strength)
        cover = np.where(cover < 0.8, 0, cover)
        return (x * (1 - cover) + np.array([63, 42, 20], np.float32) / 255 * cover) * 255
    drops = (liquid[..., 0] * 255).astype(np.uint8)  # [N, 32, 32]
    depth = equalised(mean_of_nine(distance_to(edges(drops))).astype(np.uint8)).astype(int)
    light = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = np.clip(scipy.ndimage.correlate(depth, light[None], mode="mirror"), 0, 255)
    shine = drops * np.rint(mean_of_nine(relief)).astype(np.float32)
    shine /= np.maximum(shine.max((1, 2), keepdims=True), 1)  # an image without a drop stays as it is
    return (x + strength * shine[..., None] * np.array([175, 238, 238], np.float32) / 255) * 255


def contrast(images: np.ndarray, factor: float, generators: Generators) -> np.ndarray:
    """Differences from the mean of each channel of the image, times `factor`."""
    x = images / 255
    mean = x.mean((1, 2), keepdims=True)
    return ((x - mean) * factor + mean) * 255


def brightness(images: np.ndarray, added: float, generators: Generators) -> np.ndarray:
    hue, saturation, value = to_hsv(images / 255)
    return from_hsv(hue, saturation, np.clip(value + added, 0, 1)) * 255


def saturate(images: np.ndarray, parameters: tuple[float, float], generators: Generators) -> np.ndarray:
    hue, saturation, value = to_hsv(images / 255)
    return from_hsv(hue, np.clip(saturation * parameters[0] + parameters[1], 0, 1), value) * 255


def jpeg_compression(images: np.ndarray, quality: int, generators: Generators) -> np.ndarray:
    def compressed(image: np.ndarray) -> np.ndarray:
        Image.fromarray(image).save(file := io.BytesIO(), "JPEG", quality=quality)
        return np.asarray(Image.open(file))

    return np.stack([compressed(image) for image in images])


def pixelate(images: np.ndarray, factor: float, generators: Generators) -> np.ndarray:
    small, large = (int(SIZE * factor),) * 2, (SIZE, SIZE)
    box = Image.Resampling.BOX
    return np.stack([Image.fromarray(image).resize(small, box).resize(large, box) for image in images])


def elastic_transform(images: np.ndarray, parameters: tuple[float, ...], generators: Generators) -> np.ndarray:
    """An affine map that moves three points by up to some jitter, then a smooth random displacement of each pixel."""
    alpha, sigma, jitter = (SIZE * parameter for parameter in parameters)
    x = (images / 255).astype(np.float32)
    points = np.array([[26, 26], [26, 6], [6, 6]], float)  # (column, row): a third of the side around the centre
    jitters = np.stack([rng.uniform(-jitter, jitter, (3, 2)) for rng in generators])  # [N, 3, 2]
    ones = np.ones((len(x), 3, 1))
    # [N, 3, 2]: (column, row, 1) of a pixel of the result times this is where its value comes from
    maps = np.linalg.solve(np.concatenate([points + jitters, ones], axis=2), np.broadcast_to(points, jitters.shape))
    row, column = np.mgrid[:SIZE, :SIZE].astype(float)
    origins = np.stack([column, row, np.ones_like(row)], axis=-1) @ maps[:, None]  # [N, 32, 32, 2]
    x = sampled(x, origins[..., 1], origins[..., 0], mode="mirror")
    displacement = np.stack([rng.uniform(-1, 1, (2, SIZE, SIZE)) for rng in generators], axis=1)  # [2, N, 32, 32]
    right, down = scipy.ndimage.gaussian_filter(displacement, (0, 0, sigma, sigma), mode="reflect", truncate=3) * alpha
    return sampled(x, row + down, column + right, mode="reflect") * 255


CORRUPTIONS: dict[str, tuple[Callable[..., np.ndarray], tuple]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (zoom_blur, tuple(np.arange(1, end, 0.01) for end in (1.06, 1.11, 1.16, 1.21, 1.26))),
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": (speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    "spatter": (
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
STANDARD = tuple(CORRUPTIONS)[:15]  # those that CIFAR-10-C is scored on; the other four are extra


def corrupt(
    images: np.ndarray,
    kind: str,
    severity: int,
    *,
    seed: int = 0,
    examples: np.ndarray | None = None,
    frost: str | Path | None = None,
) -> np.ndarray:
    """Corrupt `images` uint8 [N, 32, 32, 3] with `kind` at `severity` 1..5; returns the same shape and type.

    examples: int [N], the numbers of the images, 0..N-1 if not given. Random draws depend on (seed, kind, severity,
    example) alone, so a subset gets the values that it has in the whole set. frost: the folder of the photographs
    that the corruption `frost` lays over the images. Raises InputError for anything else.
    """
    if kind not in CORRUPTIONS:
        raise InputError(f"{kind} is no corruption; choose one of {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise InputError(f"{kind}: severity {severity} is not one of 1, 2, 3, 4, 5")
    if images.dtype != np.uint8 or images.shape[1:] != SHAPE:
        raise InputError(f"{kind}: images must be uint8 [N, 32, 32, 3], not {images.dtype} {images.shape}")
    examples = np.arange(len(images)) if examples is None else np.asarray(examples)
    if examples.shape != images.shape[:1] or min(seed, *examples.tolist(), 0) < 0:
        raise InputError(f"{kind}: give one number, 0 or more, for each of the {len(images)} images, and such a seed")
    function, parameters = CORRUPTIONS[kind]
    key = (seed, list(CORRUPTIONS).index(kind), severity)
    further = {"photographs": read_photographs(frost)} if kind == "frost" else {}
    corrupted = np.empty_like(images)
    for start in range(0, len(images), CHUNK):
        part = slice(start, start + CHUNK)
        generators = [np.random.default_rng((*key, example)) for example in examples[part].tolist()]
        levels = function(images[part], parameters[severity - 1], generators, **further)
        corrupted[part] = np.clip(levels, 0, 255)  # the assignment cuts off the fraction
    return corrupted


def read_photographs(folder: str | Path | None) -> list[np.ndarray]:
    """The five photographs for `frost` in `folder`, at a fifth of their size: uint8 [H, W, 3] each."""
    source = f"name a folder with {', '.join(FROST)} (hendrycks/robustness, ImageNet-C/create_c)"
    if folder is None:
        raise InputError(f"frost needs photographs that are not part of this package; {source}")
    photographs = []
    for path in (Path(folder) / name for name in FROST):
        if not path.is_file():
            raise InputError(f"frost: {path} is missing; {source}")
        photograph = decode_image(path, f"frost: {path}", source)[2::5, 2::5]  # what bilinear scaling by 0.2 comes to
        if min(photograph.shape[:2]) <= SIZE:
            raise InputError(f"frost: {path} has fewer than {5 * (SIZE + 1)} pixels on a side; {source}")
        photographs.append(photograph)
    return photographs

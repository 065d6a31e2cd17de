"""The image filters that the corruptions are made of: blurs, enlargement, displacement, clouds, colours, edges.

Images are [N, 32, 32, C] or [N, 32, 32], floats in 0..1 unless said otherwise. Where the published corruptions use
OpenCV, ImageMagick, SciPy or scikit-image, the arithmetic here gives the same numbers.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np
import scipy  # its parts are loaded where they are first used

SIZE = 32
Generators = Sequence[np.random.Generator]


def blurred(x: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian blur of x [N, 32, 32, C] along both sides, out to 4 sigma; pixels outside repeat the edge."""
    return scipy.ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest", truncate=4)


def mean_of_nine(x: np.ndarray) -> np.ndarray:
    """x [N, 32, 32], the mean of the 3x3 pixels around each; the image is mirrored at its outermost pixels."""
    return scipy.ndimage.correlate(x.astype(float), np.ones((1, 3, 3)), mode="mirror") / 9


def soft_disc(radius: float, sigma: float) -> np.ndarray:
    """float32 [7, 7]: a disc of `radius` up to 2 pixels that sums to 1, its edge softened by a 3x3 Gaussian."""
    row, column = np.mgrid[-3:4, -3:4]
    disc = (row**2 + column**2 <= radius**2).astype(np.float32)
    near = np.exp(-0.5 / sigma**2)
    weights = (np.array([near, 1, near]) / (1 + 2 * near)).astype(np.float32)
    disc = scipy.ndimage.correlate1d(disc / disc.sum(), weights, axis=1, mode="constant")
    return scipy.ndimage.correlate1d(disc, weights, axis=0, mode="constant")


def moved(images: np.ndarray, radius: int, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Motion blur of uint8 [N, 32, 32, C]: whole grey levels as floats of the same shape.

    A mean of 2 radius + 1 pixels with Gaussian weights, which starts at each pixel and goes one way, `degrees` [N]
    clockwise from the row (ImageMagick's motion blur). Pixels outside repeat the edge.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    angle = np.deg2rad(degrees)[:, None]
    right = np.ceil(steps * np.cos(angle) - 0.5).astype(int).T[..., None, None]  # [steps, N, 1, 1]
    down = np.ceil(steps * np.sin(angle) - 0.5).astype(int).T[..., None, None]
    number = np.arange(len(images))[:, None, None]
    row, column = np.mgrid[:SIZE, :SIZE]
    total = np.zeros(images.shape)
    for weight, x, y in zip(weights / weights.sum(), right, down, strict=True):
        total += weight * images[number, np.clip(row + y, 0, SIZE - 1), np.clip(column + x, 0, SIZE - 1)]
    return np.rint(total * 257) // 257  # it rounds to 16 bits, and those are cut to 8


def enlarged(x: np.ndarray, factor: float) -> np.ndarray:
    """The middle of x [32, 32, ...], enlarged by `factor` to the same shape by linear interpolation.

    Rows and columns come first, so that whole stacks of images are copied at once.
    """
    size = ceil(SIZE / factor)
    length = round(size * factor)
    position = (np.arange(length) * ((size - 1) / (length - 1)))[(length - SIZE) // 2 :][:SIZE]
    before = position.astype(int)
    share = (position - before).reshape(SIZE, *[1] * (x.ndim - 1))  # of the pixel after the position
    first = (SIZE - size) // 2
    sides = [(first + before, 1 - share), (first + np.minimum(before + 1, size - 1), share)]
    total = np.zeros(x.shape)
    for rows, row_weight in sides:
        part = x[rows] * row_weight
        for columns, column_weight in sides:
            total += part[:, columns] * column_weight[:, 0]
    return total.astype(x.dtype)


def sampled(x: np.ndarray, row: np.ndarray, column: np.ndarray, mode: str) -> np.ndarray:
    """The values of x [N, 32, 32, C] at the positions `row`, `column` [N, 32, 32], by linear interpolation.

    mode: how `scipy.ndimage` continues the image beyond its edge.
    """
    number = np.broadcast_to(np.arange(len(x))[:, None, None], row.shape)
    channels = np.moveaxis(x, -1, 0)
    values = [scipy.ndimage.map_coordinates(channel, [number, row, column], order=1, mode=mode) for channel in channels]
    return np.stack(values, axis=-1)


def plasma(decay: float, generators: Generators) -> np.ndarray:
    """Clouds [N, 32, 32] from 0 to 1 by the diamond-square algorithm on a torus; `decay` divides each next noise."""
    cloud = np.zeros((len(generators), SIZE, SIZE))
    step, amplitude = SIZE, 100.0

    def midpoints(*corners: np.ndarray) -> np.ndarray:
        noise = np.stack([rng.uniform(-amplitude, amplitude, corners[0].shape[1:]) for rng in generators])
        return sum(corners) / 4 + amplitude * noise  # the amplitude counts twice in the published code

    while step >= 2:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        below, right = np.roll(corner, -1, 1), np.roll(corner, -1, 2)
        centre = midpoints(corner, below, right, np.roll(below, -1, 2))
        cloud[:, half::step, half::step] = centre
        cloud[:, ::step, half::step] = midpoints(centre, np.roll(centre, 1, 1), corner, right)
        cloud[:, half::step, ::step] = midpoints(centre, np.roll(centre, 1, 2), corner, below)
        step, amplitude = half, amplitude / decay
    cloud -= cloud.min((1, 2), keepdims=True)
    return cloud / cloud.max((1, 2), keepdims=True)


def to_hsv(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hue in 0..1, saturation and value, each [N, 32, 32], of colours [N, 32, 32, 3]."""
    red, green, blue = np.moveaxis(rgb, -1, 0)
    value = rgb.max(-1)
    spread = value - rgb.min(-1)
    divisor = np.where(spread == 0, 1, spread)  # grey: hue and saturation 0
    sector = np.select(
        [value == blue, value == green],
        [4 + (red - green) / divisor, 2 + (blue - red) / divisor],
        (green - blue) / divisor,
    )
    return np.where(spread == 0, 0, sector / 6 % 1), spread / np.where(value == 0, 1, value), value


def from_hsv(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Colours [N, 32, 32, 3]; the inverse of `to_hsv`."""
    sector = np.floor(hue * 6)
    into = hue * 6 - sector
    low = value * (1 - saturation)
    falling = value * (1 - into * saturation)
    rising = value * (1 - (1 - into) * saturation)
    red = [value, falling, low, low, rising, value]
    green = [rising, value, value, falling, low, low]
    blue = [low, low, rising, value, value, falling]
    sector = sector.astype(int) % 6
    return np.stack([np.choose(sector, channel) for channel in (red, green, blue)], axis=-1)


def edges(images: np.ndarray, low: int = 50, high: int = 150) -> np.ndarray:
    """bool [N, H, W]: edges of uint8 [N, H, W] by Canny (1986), with 3x3 Sobel gradients and the sum of their sizes.

    Of the pixels above `low` that are the largest across their edge, those connected with one above `high`.
    """
    x = images.astype(int)
    across, along = (_gradient(x, axis) for axis in (2, 1))
    size = np.abs(across) + np.abs(along)
    framed = np.pad(size, ((0, 0), (1, 1), (1, 1)))

    def beside(down: int, right: int) -> np.ndarray:
        rows, columns = (slice(1 + by, 1 + by + length) for by, length in zip((down, right), x.shape[1:], strict=True))
        return framed[:, rows, columns]

    # OpenCV's tangents of 22.5 and 67.5 degrees, in 15 bits
    slope, low_slope = np.abs(along) << 15, 13573 * np.abs(across)
    high_slope = low_slope + (np.abs(across) << 16)
    largest = np.select(
        [slope < low_slope, slope > high_slope, (across ^ along) < 0],
        [
            (size > beside(0, -1)) & (size >= beside(0, 1)),
            (size > beside(-1, 0)) & (size >= beside(1, 0)),
            (size > beside(-1, 1)) & (size > beside(1, -1)),
        ],
        (size > beside(-1, -1)) & (size > beside(1, 1)),
    )
    candidates = largest & (size > low)
    within_image = np.stack([np.zeros((3, 3)), np.ones((3, 3)), np.zeros((3, 3))])
    groups, count = scipy.ndimage.label(candidates, within_image)
    is_edge = np.zeros(count + 1, bool)  # of each group of candidates
    is_edge[groups[candidates & (size > high)]] = True
    return is_edge[groups]


def distance_to(points: np.ndarray, at_most: int = 20) -> np.ndarray:
    """Distance in pixels to the nearest of `points` bool [N, H, W], at most `at_most` (even), float [N, H, W].

    Borgefors (1986): a way of straight moves (1), diagonal ones (1.4) and knight's moves (2.1969).
    """
    straight, diagonal, knight = 1, 1.4, 2.1969
    moves = np.array([[0, straight, 2 * straight], [straight, diagonal, knight], [2 * straight, knight, 2 * diagonal]])
    moves = np.pad(moves, ((2, 0), (2, 0)), mode="reflect")  # [5, 5]: lengths by difference of row and column
    distance = np.where(points, 0.0, at_most)
    for _ in range(at_most // 2):  # each time two pixels further
        distance = scipy.ndimage.grey_erosion(distance, structure=-moves[None], mode="constant", cval=at_most)
    return distance


def equalised(images: np.ndarray) -> np.ndarray:
    """uint8 [N, H, W], grey levels spread so that those of an image are about equally frequent in 0..255."""
    flat = images.reshape(len(images), -1).astype(int)
    counts = np.stack([np.bincount(image, minlength=256) for image in flat])  # [N, 256]
    darkest = np.take_along_axis(counts, flat.min(1)[:, None], 1)  # [N, 1], which become 0
    others = flat.shape[1] - darkest
    above = (counts.cumsum(1) - darkest).astype(np.float32)
    levels = np.clip(np.rint(above * (255 / np.maximum(others, 1)).astype(np.float32)), 0, 255)
    levels = np.where(others == 0, np.arange(256), levels)  # an image of one level stays
    return np.take_along_axis(levels, flat, 1).astype(np.uint8).reshape(images.shape)


def _gradient(x: np.ndarray, axis: int) -> np.ndarray:
    """Sobel's 3x3 gradient of x [N, H, W] along `axis`, 1 or 2."""
    smooth = scipy.ndimage.correlate1d(x, [1, 2, 1], 3 - axis, mode="nearest")
    return scipy.ndimage.correlate1d(smooth, [-1, 0, 1], axis, mode="nearest")

"""Readers of colour images: any encoded image, and strips of WebP and Parquet files of images of 32x32 pixels.

The latter give images uint8 [N, 32, 32, 3] and labels int64 [N]. All raise InputError naming the file, and the row
where one is at fault.
"""

import io
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from director.data.sources import PUBLISHED
from director.errors import InputError
from director.files import reading

if TYPE_CHECKING:
    import pyarrow

SHAPE = (32, 32, 3)


def read_strips(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of an .npz with `webp`, `offsets` and `labels`.

    webp: uint8, lossless WebP files end to end; offsets: int64, where each begins and the last ends. Each is a strip
    of images one below the other, which a reshape takes apart.
    """
    with reading(path, "a whole file of image strips", PUBLISHED):
        with np.load(path, allow_pickle=False) as file:
            content, offsets, labels = (file[key] for key in ("webp", "offsets", "labels"))
        strips = [
            decode_image(io.BytesIO(content[start:end].tobytes()), f"{path}, strip {number}")
            for number, (start, end) in enumerate(itertools.pairwise(offsets))
        ]
        images = np.concatenate([strip.reshape(-1, *SHAPE) for strip in strips])
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {labels.dtype} {labels.shape} for {len(images)} images; {PUBLISHED}")
    return images, labels.astype(np.int64)


def read_parquet(paths: Sequence[Path]) -> "pyarrow.Table":
    """The rows of some Parquet files, one after the other."""
    import pyarrow
    import pyarrow.parquet

    tables = []
    for path in paths:
        with reading(path, "a whole Parquet file", PUBLISHED):
            tables.append(pyarrow.parquet.read_table(path))
    try:
        return pyarrow.concat_tables(tables)
    except pyarrow.ArrowInvalid as error:
        where = ", ".join(map(str, paths))
        raise InputError(f"{where}: the files differ in their columns; {PUBLISHED}") from error


def decode_table(where: str, table: "pyarrow.Table", image: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a table of the hub's layout: a column of structs with `bytes`, an encoded image, and an
    integer column."""
    import pyarrow

    for column in (image, label):
        if column not in table.column_names:
            raise InputError(f"{where}: no column {column} among {', '.join(table.column_names)}; {PUBLISHED}")
    if not pyarrow.types.is_integer(table[label].type) or table[label].null_count:
        raise InputError(f"{where}: column {label} is {table[label].type}, or has gaps; {PUBLISHED}")
    images = np.empty((len(table), *SHAPE), np.uint8)
    for row, value in enumerate(table[image]):
        here = f"{where}: row {row} of column {image}"
        with reading(here, "an image in `bytes`", PUBLISHED):
            content = io.BytesIO(value["bytes"].as_py())
        decoded = decode_image(content, here)
        if decoded.shape != SHAPE:
            size = f"{decoded.shape[1]}x{decoded.shape[0]}"
            raise InputError(f"{where}: the image in row {row} has {size} pixels, not 32x32; {PUBLISHED}")
        images[row] = decoded
    return images, table[label].to_numpy().astype(np.int64)


def check_labels(where: str, labels: np.ndarray, classes: int) -> None:
    """Raise InputError for a label outside 0..classes-1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(f"{where}: label {labels[wrong[0]]} in row {wrong[0]} is not in 0..{classes - 1}; {PUBLISHED}")


def decode_image(file: Path | IO[bytes], where: str, remedy: str = PUBLISHED) -> np.ndarray:
    """uint8 [H, W, 3] of an encoded image; of several in one file, the first.

    Grey levels are taken for each colour, palettes are looked up, other colour spaces are converted. Transparency is
    left out: the colours are those that are stored, whatever shines through. 16-bit colours lose their lower byte.
    Raises InputError for grey levels beyond 8 bits, which no rule says how to scale, and for more pixels than
    `PIL.Image.MAX_IMAGE_PIXELS` lets be opened.
    """
    from PIL import Image

    try:
        with reading(where, "a whole image", remedy, SyntaxError, struct.error), Image.open(file) as image:
            if image.mode in ("I", "F") or image.mode.startswith("I;"):
                levels = {"F": "floating-point", "I": "32-bit"}.get(image.mode, "16-bit")
                raise InputError(f"{where}: {levels} grey levels, which have no known range; save it with 8 bits")
            return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise InputError(f"{where}: too large ({error}); save it with fewer pixels") from error

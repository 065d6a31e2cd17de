"""Readers of colour images of 32x32 pixels: strips of WebP, Parquet files of encoded images.

Each reader gives images uint8 [N, 32, 32, 3] and labels int64 [N], or raises InputError naming the file, and the row
where one is at fault.
"""

import io
import itertools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from director.errors import InputError

if TYPE_CHECKING:
    import pyarrow

SHAPE = (32, 32, 3)
REMEDY = "delete it and provide it again"


def read_strips(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of an .npz with `webp`, `offsets` and `labels`.

    webp: uint8, lossless WebP files end to end; offsets: int64, where each begins and the last ends. Each is a strip
    of images one below the other, which a reshape takes apart.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            content, offsets, labels = (file[key] for key in ("webp", "offsets", "labels"))
        strips = [_decode(content[start:end].tobytes()) for start, end in itertools.pairwise(offsets)]
        images = np.concatenate([strip.reshape(-1, *SHAPE) for strip in strips])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a whole file of image strips ({error}); {REMEDY}") from error
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {labels.dtype} {labels.shape} for {len(images)} images; {REMEDY}")
    return images, labels.astype(np.int64)


def read_parquet(paths: Sequence[Path]) -> "pyarrow.Table":
    """The rows of some Parquet files, one after the other."""
    import pyarrow
    import pyarrow.parquet

    tables = []
    for path in paths:
        try:
            tables.append(pyarrow.parquet.read_table(path))
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise InputError(f"{path}: not a whole Parquet file ({error}); {REMEDY}") from error
    try:
        return pyarrow.concat_tables(tables)
    except pyarrow.ArrowInvalid as error:
        where = ", ".join(map(str, paths))
        raise InputError(f"{where}: the files differ in their columns; {REMEDY}") from error


def decode_table(where: str, table: "pyarrow.Table", image: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a table of the hub's layout: a column of structs with `bytes`, an encoded image, and an
    integer column."""
    import pyarrow

    for column in (image, label):
        if column not in table.column_names:
            raise InputError(f"{where}: no column {column} among {', '.join(table.column_names)}; {REMEDY}")
    if not pyarrow.types.is_integer(table[label].type) or table[label].null_count:
        raise InputError(f"{where}: column {label} is {table[label].type}, or has gaps; {REMEDY}")
    images = np.empty((len(table), *SHAPE), np.uint8)
    for row, value in enumerate(table[image]):
        try:
            decoded = _decode(value["bytes"].as_py())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{where}: row {row} of column {image} is no image ({error}); {REMEDY}") from error
        if decoded.shape != SHAPE:
            size = f"{decoded.shape[1]}x{decoded.shape[0]}"
            raise InputError(f"{where}: the image in row {row} has {size} pixels, not 32x32; {REMEDY}")
        images[row] = decoded
    return images, table[label].to_numpy().astype(np.int64)


def check_labels(where: str, labels: np.ndarray, classes: int) -> None:
    """Raise InputError for a label outside 0..classes-1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(f"{where}: label {labels[wrong[0]]} in row {wrong[0]} is not in 0..{classes - 1}; {REMEDY}")


def _decode(content: bytes) -> np.ndarray:
    """uint8 [H, W, 3] of an encoded image."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))

"""CIFAR-10-C: the test images of CIFAR-10 under the fifteen standard corruptions at five severities.

The published files are taken where a local folder has them, else the same is generated: seven corruptions give the
published images exactly, jpeg_compression all but the codec's rounding of colour, the others the same distribution,
since the published draws had no seed. Source: Hendrycks and Dietterich (ICLR 2019), https://zenodo.org/records/2535967.

A folder of DIRECTOR_DATA, or its sub-folder `cifar10_c` (`CIFAR-10-C`, `cifar10c`), may hold `<corruption>.npy` with
`labels.npy`, or `CIFAR-10-C.tar`; and `frost/`, the photographs without which `frost` cannot be generated.
"""

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from director.data.corruptions import SEVERITIES, SHAPE, STANDARD, corrupt
from director.data.dataset import Dataset, Description
from director.data.sources import (
    DOWNLOADS,
    Unavailable,
    archive_in,
    from_folders,
    local_folders,
    unpacked,
    verify,
)
from director.errors import InputError
from director.files import accessing, reading

NAME, FOLDER = "cifar10_c", "CIFAR-10-C"  # the set, and the folder in its archive
TRAIN, TEST = 50_000, 10_000  # images of CIFAR-10; those of the test come last
ARCHIVE, ARCHIVE_MD5 = "CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499"
MD5 = {
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "glass_blur": "7361fb4019269e02dbf6925f083e8629",
    "motion_blur": "fffa5f852ff7ad299cfe8a7643f090f4",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
    "snow": "bb238de8555123da9c282dea23bd6e55",
    "frost": "31f6ab3bce1d9934abfb0cc13656f141",
    "fog": "7b397314b5670f825465fbcd1f6e9ccd",
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "elastic_transform": "9421657c6cd452429cf6ce96cc412b5f",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "labels": "c439b113295ed5254878798ffe28fd54",
}
Corrupted = tuple[list[str], np.ndarray, dict[str, Any]]  # kinds, images uint8 [kinds * 5 * N, 32, 32, 3], about
logger = logging.getLogger(__name__)


def fetch(made_from: dict[str, Path]) -> Dataset:
    """All 10,000 test images: 15 x 5 x 10,000 rows, kind by kind, severity by severity."""
    return fetch_every(1, "cifar10_c", made_from)


def fetch_every(step: int, name: str, made_from: dict[str, Path]) -> Dataset:
    """Every `step`-th test image under every corruption and severity; `example` is the row in the set `cifar10`.

    The images lie in a file without a name, so that memory stays bounded. about: `generated`, and which corruptions
    are `missing`.
    """
    clean = Dataset.load(made_from["cifar10"])
    if len(clean) != TRAIN + TEST:
        raise InputError(f"{made_from['cifar10']}: {len(clean):,} images, not the {TRAIN + TEST:,} of CIFAR-10")
    example = np.arange(TRAIN, TRAIN + TEST, step)
    try:
        kinds, images, about = from_folders(NAME, lambda folder: _published(folder, clean, example))
    except Unavailable as error:
        logger.info("%s: generated from cifar10, since the published files are %s", name, error)
        kinds, images, about = _generated(clean, example)
    count = len(example)
    return Dataset(
        name=name,
        inputs=images,
        labels=np.tile(clean.labels[example], len(kinds) * len(SEVERITIES)),
        example=np.tile(example, len(kinds) * len(SEVERITIES)),
        shift=np.repeat(kinds, len(SEVERITIES) * count),
        severity=np.tile(np.repeat(np.array(SEVERITIES, np.int64), count), len(kinds)),
        about={
            "citation": "hendrycks2019benchmarking",
            "of": clean.about["fingerprint"],
            "missing": [kind for kind in STANDARD if kind not in kinds],
            **about,
        },
    )


def _generated(clean: Dataset, example: np.ndarray) -> Corrupted:
    frost = next((path for folder in local_folders(NAME) if (path := folder / "frost").is_dir()), None)
    kinds = [kind for kind in STANDARD if frost or kind != "frost"]
    if frost is None:
        logger.warning(
            "CIFAR-10-C is generated without frost, since its photographs are not here: put them into a folder "
            "%s/frost and name the folder above %s in DIRECTOR_DATA",
            NAME,
            NAME,
        )
    else:
        logger.info("photographs of frost from %s", frost)
    originals = clean.inputs[example]

    def corrupted(kind: str, severity: int) -> np.ndarray:
        return corrupt(originals, kind, severity, examples=example, frost=frost)

    about = {"source": "generated from cifar10, seed 0", "licence": "that of cifar10", "generated": True}
    return kinds, _stacked(kinds, len(example), corrupted), about


def _published(folder: Path, clean: Dataset, example: np.ndarray) -> Corrupted | None:
    """The rows of `example` in the publisher's files in `folder`; None if it has none of them."""
    for parent in (folder / FOLDER, folder):
        if any((parent / f"{kind}.npy").is_file() for kind in STANDARD):
            return _read(parent, clean, example)
    if archive := archive_in(folder, ARCHIVE):
        verify(archive, md5=ARCHIVE_MD5)
        with accessing(DOWNLOADS):
            DOWNLOADS.mkdir(parents=True, exist_ok=True)
        with unpacked(archive, NAME, DOWNLOADS) as content:
            return _read(content / FOLDER, clean, example)
    return None


def _read(folder: Path, clean: Dataset, example: np.ndarray) -> Corrupted:
    stems = ("labels", *STANDARD)
    if missing := [path for stem in stems if not (path := folder / f"{stem}.npy").is_file()]:
        raise InputError(f"{missing[0]} is missing beside the other files; take all of {ARCHIVE}")
    labels = _opened(folder, "labels", ())
    if differ := np.flatnonzero(labels != np.tile(clean.labels[TRAIN:], len(SEVERITIES))).tolist():
        row = differ[0]
        raise InputError(
            f"{folder / 'labels.npy'}: label {labels[row]} in row {row}, where image {row % TEST} of the test set of "
            f"CIFAR-10 has {clean.labels[TRAIN + row % TEST]}; take the file of {ARCHIVE}"
        )
    files = {kind: _opened(folder, kind, SHAPE) for kind in STANDARD}
    for stem in stems:
        verify(folder / f"{stem}.npy", md5=MD5[stem])
    about = {"source": "published files", "licence": "CC BY 4.0", "generated": False, "md5": MD5}

    def chosen(kind: str, severity: int) -> np.ndarray:
        return files[kind][(severity - 1) * TEST + example - TRAIN]

    return list(STANDARD), _stacked(list(STANDARD), len(example), chosen), about


def _opened(folder: Path, stem: str, shape: tuple[int, ...]) -> np.ndarray:
    """The published array `stem`, 5 x 10,000 rows of `shape` in the order of severity, as a memory map."""
    path = folder / f"{stem}.npy"
    remedy = f"take the file of {ARCHIVE}"
    with reading(path, "a whole .npy file", remedy):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    expected = (len(SEVERITIES) * TEST, *shape)
    if array.dtype != np.uint8 or array.shape != expected:
        raise InputError(f"{path}: {array.dtype} {array.shape}, not uint8 {expected}; {remedy}")
    return array


def _stacked(kinds: list[str], count: int, images: Callable[[str, int], np.ndarray]) -> np.ndarray:
    """`images(kind, severity)`, uint8 [count, 32, 32, 3] each, one after the other in a file without a name."""
    shape = (len(kinds), len(SEVERITIES), count, *SHAPE)
    with accessing(DOWNLOADS):
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=DOWNLOADS) as file:
            if hasattr(os, "posix_fallocate"):  # a mapped file that finds the disk full kills the process
                os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)))
            stack = np.memmap(file, np.uint8, "w+", shape=shape)
    for number, kind in enumerate(kinds):
        logger.info("%s, corruption %d of %d", kind, number + 1, len(kinds))
        for severity in SEVERITIES:
            stack[number, severity - 1] = images(kind, severity)
    return stack.reshape(-1, *SHAPE)


DATASET = Description("cifar10_c", "images", fetch, made_from=("cifar10",))

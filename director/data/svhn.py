"""SVHN, cropped digits: out-of-distribution images for CIFAR-10, the first 1,000 test images of each digit.

Source: Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", NIPS workshop 2011
(docs/datasets.md).
"""

from pathlib import Path

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.images import check_labels, decode_table, read_parquet, read_strips
from director.data.sources import (
    DOWNLOADS,
    PUBLISHED,
    download,
    first_of,
    from_folders,
    from_hub,
    in_folder,
    named,
    verify,
)
from director.errors import InputError
from director.files import reading

COUNT = 26_032  # test images
OF_EACH = 1000  # of each digit taken
REPOSITORY, CONFIG = "ufldl-stanford/svhn", "cropped_digits"
MAT, MD5 = "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"
URL = f"http://ufldl.stanford.edu/housenumbers/{MAT}"
FIXTURE = "subset50.npz"
# No whole copy was at hand to take a checksum of the images from, so Parquet files are compared by their numbers alone.
NOT_COMPARED = "content not compared: no checksum of this form is known"


def fetch(made_from: dict[str, Path]) -> Dataset:
    """Images uint8 [10000, 32, 32, 3] in the publisher's order, labels 0..9; [50, ...] where only the fixture is."""
    files = (MAT, f"{CONFIG}/test-*.parquet", f"{FIXTURE} (50 images, for tests)")
    return first_of(
        "svhn",
        {
            in_folder("svhn", *files): lambda: from_folders("svhn", read_folder, CONFIG),
            f"let the hub be reached, or its cache have {REPOSITORY}": _from_hub,
            f"let the publisher be reached, {URL}": lambda: _read_mat(download(URL, DOWNLOADS / "svhn" / MAT, md5=MD5)),
        },
    )


def read_folder(folder: Path) -> Dataset | None:
    """The set from the publisher's file in `folder`, else Parquet files, else the fixture; None without any."""
    if (path := folder / MAT).is_file():
        return _read_mat(path)
    if not named(folder, "svhn", CONFIG):  # the other files' names do not say what they hold
        return None
    if paths := sorted((folder / CONFIG).glob("test-*.parquet")) or sorted(folder.glob("test-*.parquet")):
        where = ", ".join(map(str, paths))
        images, labels = decode_table(where, read_parquet(paths), "image", "label")
        return _selected(where, "Parquet files of the hub", images, labels, note=NOT_COMPARED)
    if (path := folder / FIXTURE).is_file():
        images, labels = read_strips(path)
        check_labels(str(path), labels, 10)
        return _dataset("fixture", images, labels, note=f"a fixture of {len(labels)} images: too few for any AUROC")
    return None


def _from_hub() -> Dataset:
    where = f"{REPOSITORY}, test"
    table = from_hub(REPOSITORY, "test", CONFIG)
    return _selected(where, f"hub {REPOSITORY}", *decode_table(where, table, "image", "label"), note=NOT_COMPARED)


def _read_mat(path: Path) -> Dataset:
    from scipy.io import loadmat

    verify(path, md5=MD5)
    with reading(path, "a whole .mat file", PUBLISHED):
        content = loadmat(path)
        images = content["X"].transpose(3, 0, 1, 2)  # [32, 32, 3, N] in the file
        labels = content["y"].ravel().astype(np.int64) % 10  # 10 stands for digit 0
    return _selected(str(path), "publisher", images, labels)


def _selected(where: str, source: str, images: np.ndarray, labels: np.ndarray, **note: str) -> Dataset:
    """The first 1,000 of each digit, in the order of the file."""
    if len(labels) != COUNT:
        raise InputError(f"{where}: {len(labels):,} images, not {COUNT:,}; {PUBLISHED}")
    check_labels(where, labels, 10)
    rows = np.sort(np.concatenate([np.flatnonzero(labels == digit)[:OF_EACH] for digit in range(10)]))
    return _dataset(source, images[rows], labels[rows], **note)


def _dataset(source: str, images: np.ndarray, labels: np.ndarray, **note: str) -> Dataset:
    return Dataset.clean(
        "svhn",
        np.ascontiguousarray(images),
        labels,
        source=source,
        licence="non-commercial use only",
        citation="netzer2011svhn",
        parts={"test": len(labels)},
        generated=False,
        **note,
    )


DATASET = Description("svhn", "images", fetch)

"""Which examples train, select and test: integer indices, fixed before any model exists."""

import zipfile
from pathlib import Path

import numpy as np

from director.data.dataset import Dataset
from director.files import InputError, replacing

PARTS = ("train", "validation", "test")


def random_split(count: int, train: int, validation: int, seed: int) -> dict[str, np.ndarray]:
    """Indices of the three parts, each sorted: the test part is the same for every seed, the rest is dealt by seed.

    One test part for all seeds is what lets the members of an ensemble be pooled and seeds be compared on the same
    examples: were it drawn by seed, a member would be tested on images that another member was trained on.
    Raises InputError if nothing would be left to test on.
    """
    if train + validation >= count:
        raise InputError(f"split: train {train} + validation {validation} leave no test example of {count}; take fewer")
    pool = np.random.default_rng(0).permutation(count)
    test, rest = pool[train + validation :], pool[: train + validation]
    rest = np.random.default_rng((1, seed)).permutation(rest)
    return {"train": np.sort(rest[:train]), "validation": np.sort(rest[train:]), "test": np.sort(test)}


def split_dataset(folder: str | Path, out_file: str | Path, *, train: int, validation: int, seed: int) -> None:
    """Write the split of the data set in `folder` for one seed: .npz of int64 indices train, validation, test."""
    parts = random_split(len(Dataset.load(folder)), train, validation, seed)
    with replacing(out_file) as temporary:
        np.savez(temporary, **parts, allow_pickle=False)


def load_split(path: str | Path) -> dict[str, np.ndarray]:
    """Read a split file; InputError names a missing, truncated or foreign one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {part: file[part] for part in PARTS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a split file ({error}); delete it and run the pipeline again") from error

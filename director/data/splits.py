"""Which examples train, select and test: integer indices, fixed before any model exists."""

import importlib
import inspect
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


def balanced_split(dataset: Dataset, train: int, validation: int) -> dict[str, np.ndarray]:
    """Indices of the three parts of a set with an official test part, equally many of each class, without a draw.

    Per class, in order of appearance in the official train part, the validation examples are those at the positions
    linspace(1, n, k) (counted from 1, rounded down) of its n; the train examples are taken from the rest in the same
    way, all of it if `train` asks for all (protocols.md, section 1: k = n/10). test: the official test part.
    Raises InputError if the train part is missing or too small, or a number cannot be shared by the classes equally.
    """
    parts = dataset.about["parts"]
    if "train" not in parts:
        raise InputError(f"{dataset.name}: its train part is missing, only the test part was provided; provide both")
    labels = np.asarray(dataset.labels[: parts["train"]])
    classes = np.unique(labels)
    for name, number in (("train", train), ("validation", validation)):
        if number % len(classes):
            raise InputError(f"split: {name} {number} is not a multiple of the {len(classes)} classes; round it")
    chosen = {"train": [], "validation": []}
    for label in classes:
        positions = np.flatnonzero(labels == label)
        if (train + validation) // len(classes) > len(positions):
            raise InputError(
                f"split: train {train} + validation {validation} are more than the train part of {dataset.name} has, "
                f"{len(positions) * len(classes)}; take fewer"
            )
        selected = _evenly(positions, validation // len(classes))
        chosen["validation"].append(selected)
        chosen["train"].append(_evenly(np.setdiff1d(positions, selected), train // len(classes)))
    test = np.arange(parts["train"], parts["train"] + parts["test"])
    return {name: np.sort(np.concatenate(rows)) for name, rows in chosen.items()} | {"test": test}


def _evenly(positions: np.ndarray, count: int) -> np.ndarray:
    return positions[np.linspace(1, len(positions), count).astype(np.int64) - 1]


def split_dataset(
    folder: str | Path, out_file: str | Path, *, train: int, validation: int, seed: int, protocol: str = "held_out"
) -> None:
    """Write the split of the data set in `folder` for one seed: .npz of int64 indices train, validation, test.

    The data set's module deals them where it has a function `split`; other sets are dealt at random. protocol:
    `held_out`, or another one that the module's `split` knows. Raises InputError for one that it does not know.
    """
    dataset = Dataset.load(folder)
    split = getattr(importlib.import_module(f"director.data.{dataset.name}"), "split", None)
    choice = {} if protocol == "held_out" else {"protocol": protocol}
    if choice and (split is None or "protocol" not in inspect.signature(split).parameters):
        raise InputError(f"split: {dataset.name} has no protocol {protocol}, only held_out")
    if split is None:
        parts = random_split(len(dataset), train, validation, seed)
    else:
        parts = split(dataset, train, validation, seed, **choice)
    with replacing(out_file) as temporary:
        np.savez(temporary, **parts, allow_pickle=False)


def load_split(path: str | Path) -> dict[str, np.ndarray]:
    """Read a split file; InputError names a missing, truncated or foreign one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {part: file[part] for part in PARTS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a split file ({error}); delete it and run the pipeline again") from error

"""Which examples train, select and test: integer indices, fixed before any model exists.

A function that splits takes (dataset, train, validation, seed, protocol): numbers of examples, a seed 0 or more, and
one of the protocols that the data set's `Description` names. It gives the row numbers of each part, int64, sorted.
`director.data.catalogue.split_of` calls the one of a data set.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from director.data.dataset import Dataset
from director.errors import InputError
from director.files import reading, replacing

PARTS = ("train", "validation", "test")
REMEDY = "delete it and run the pipeline again"


def random_split(
    dataset: Dataset, train: int, validation: int, seed: int, protocol: str = "held_out"
) -> dict[str, np.ndarray]:
    """Dealt at random: the test part is the same for every seed, train and validation are dealt by seed.

    One test part for all seeds is what lets the members of an ensemble be pooled and seeds be compared on the same
    examples: were it drawn by seed, a member would be tested on images that another member was trained on.
    Raises InputError if nothing would be left to test on.
    """
    count = len(dataset)
    if train + validation >= count:
        raise InputError(f"split: train {train} + validation {validation} leave no test example of {count}; take fewer")
    pool = np.random.default_rng(0).permutation(count)
    test, rest = pool[train + validation :], pool[: train + validation]
    rest = np.random.default_rng((1, seed)).permutation(rest)
    return {"train": np.sort(rest[:train]), "validation": np.sort(rest[train:]), "test": np.sort(test)}


def balanced_split(
    dataset: Dataset, train: int, validation: int, seed: int = 0, protocol: str = "held_out"
) -> dict[str, np.ndarray]:
    """Of a set with an official test part: equally many of each class, without a draw, so the same for every seed.

    Per class, in order of appearance in the official train part, the validation examples are those at the positions
    linspace(1, n, k) (counted from 1, rounded down) of its n; the train examples are taken from the rest in the same
    way, all of it if `train` asks for all (arXiv 2602.08920 takes k = n/10). test: the official test part.
    Raises InputError if a part is missing or too small, or a number cannot be shared by the classes equally.
    """
    parts = dataset.about.get("parts", {})
    if missing := [part for part in ("train", "test") if part not in parts]:
        raise InputError(f"{dataset.name}: its {missing[0]} part is missing; provide both parts, train and test")
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


def write_split(path: str | Path, parts: Mapping[str, np.ndarray]) -> None:
    """Write the indices of train, validation and test as .npz; InputError as `load_split`."""
    _check(path, parts)
    with replacing(path) as temporary:
        np.savez(temporary, **{part: np.asarray(parts[part], np.int64) for part in PARTS})


def load_split(path: str | Path) -> dict[str, np.ndarray]:
    """Read a split file; InputError names a missing, truncated or foreign one, and one whose parts overlap.

    Validation may be the test part, as the protocol `paper` of `cola` has it.
    """
    with reading(path, "a split file", REMEDY), np.load(path, allow_pickle=False) as file:
        parts = {part: file[part] for part in PARTS}
    _check(path, parts)
    return parts


def _check(path: str | Path, parts: Mapping[str, np.ndarray]) -> None:
    for part, rows in ((part, parts[part]) for part in PARTS):
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows) or rows.min() < 0:
            raise InputError(
                f"{path}: {part} is {rows.dtype} {rows.shape}, not one list of row numbers from 0; {REMEDY}"
            )
        if len(np.unique(rows)) < len(rows):
            raise InputError(f"{path}: {part} names a row twice; {REMEDY}")
    train, validation, test = (parts[part] for part in PARTS)
    pairs = [(train, validation), (train, test)]
    if not np.array_equal(validation, test):  # the protocol `paper` selects on the test part
        pairs.append((validation, test))
    for one, other in pairs:
        if len(shared := np.intersect1d(one, other)):
            raise InputError(f"{path}: row {shared[0]} is in two parts; {REMEDY}")

"""Every data set there is: a new one is a module with a DATASET, and a line here."""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from director.data import (
    agreement,
    agreement_shifted,
    cifar10,
    cifar10_c,
    cifar10_c_200,
    cifar100,
    cola,
    cola_ood,
    digits,
    digits_c,
    imdb,
    lsun,
    photographs,
    svhn,
)
from director.data.dataset import Dataset, Description
from director.data.splits import random_split
from director.errors import InputError

log = logging.getLogger(__name__)

DATASETS: dict[str, Description] = {
    description.name: description
    for description in (
        digits.DATASET,
        digits_c.DATASET,
        photographs.DATASET,
        cifar10.DATASET,
        cifar10_c.DATASET,
        cifar10_c_200.DATASET,
        cifar100.DATASET,
        svhn.DATASET,
        lsun.DATASET,
        cola.DATASET,
        cola_ood.DATASET,
        imdb.DATASET,
        agreement.DATASET,
        agreement_shifted.DATASET,
    )
}


def origins(name: str) -> frozenset[str]:
    """The sets that a set goes back to, itself if it is made from none; those that share one are copies."""
    made_from = DATASETS[name].made_from
    return frozenset().union(*map(origins, made_from)) if made_from else frozenset({name})


def fetch_dataset(name: str, folder: str | Path, made_from: Iterable[str | Path] = ()) -> None:
    """Fetch or generate the data set `name` into `folder`; `made_from` are the folders of the sets it is made from.

    Each of these folders has its set's name. Raises InputError for an unknown name, and if such a folder is not given.
    """
    description, folders = _described(name), {Path(path).name: Path(path) for path in made_from}
    if missing := [source for source in description.made_from if source not in folders]:
        raise InputError(f"{name} is made from {missing[0]}; give the folder in which {missing[0]} is")
    dataset = description.fetch(folders)
    log.info("%s: %d examples, source: %s", name, len(dataset), dataset.about["source"])
    if "note" in dataset.about:
        log.warning("%s: %s", name, dataset.about["note"])
    dataset.save(folder)


def split_of(
    dataset: Dataset, train: int, validation: int, seed: int, protocol: str = "held_out"
) -> dict[str, np.ndarray]:
    """Row numbers of the parts train, validation and test, int64, sorted; the test part is the same for every seed.

    train, validation: numbers of examples. Raises InputError for numbers that the data set does not have, and for a
    protocol that it does not know.
    """
    description = _described(dataset.name)
    if protocol not in description.protocols:
        raise InputError(
            f"split: {dataset.name} has no protocol {protocol}, only {' and '.join(description.protocols)}"
        )
    split = description.split or random_split
    return split(dataset, train, validation, seed, protocol)


def _described(name: str) -> Description:
    if name not in DATASETS:
        raise InputError(f"{name} is no data set of the catalogue; choose one of {', '.join(DATASETS)}")
    return DATASETS[name]

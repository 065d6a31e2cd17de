"""CIFAR-10-C of every fiftieth test image, 200 in all: small enough for experiments on a CPU."""

from pathlib import Path

from director.data.cifar10_c import fetch_every
from director.data.dataset import Dataset, Description


def fetch(made_from: dict[str, Path]) -> Dataset:
    """200 test images: 15 x 5 x 200 rows, kind by kind, severity by severity."""
    return fetch_every(50, "cifar10_c_200", made_from)


DATASET = Description("cifar10_c_200", "images", fetch, made_from=("cifar10",))

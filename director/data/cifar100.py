"""CIFAR-100: 50,000 train and 10,000 test colour images of 32x32 pixels, a hundred classes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009 (docs/datasets.md).
"""

from pathlib import Path

from director.data.cifar import Batch, Cifar, fetch_cifar
from director.data.dataset import Dataset, Description
from director.data.splits import balanced_split

CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    parts={
        "train": (Batch("train", 50_000, None, "16019d7e3df5f24257cddd939b257f8d"),),
        "test": (Batch("test", 10_000, None, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    },
    label_bytes=2,  # the coarse label, then the fine one
    label_key="fine_labels",
    label_column="fine_label",
    binary="cifar-100-binary",
    python="cifar-100-python",
    archives={
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    },
    repository="uoft-cs/cifar100",
    config="cifar100",
    test_alone=True,  # out of distribution for a model of CIFAR-10
    # Taken from a copy sorted by class; its sums of values and of squares are those of the publisher's, channel by
    # channel. No copy of the train part was at hand.
    unordered={"test": "d3cd5d87a1b9317a0982c8ef5535fe3b86da8da90b13ce5e9b23ea06400dd5eb"},
)


def fetch(made_from: dict[str, Path]) -> Dataset:
    """Images uint8 [60000, 32, 32, 3], the 50,000 for training first; fine labels 0..99.

    From a folder that holds the test part alone: its 10,000 images, enough for an out-of-distribution suite.
    """
    return fetch_cifar(CIFAR100)


DATASET = Description("cifar100", "images", fetch, balanced_split)

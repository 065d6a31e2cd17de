"""CIFAR-10: 50,000 train and 10,000 test colour images of 32x32 pixels, ten classes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009 (docs/datasets.md).
"""

from pathlib import Path

from director.data.cifar import Batch, Cifar, fetch_cifar
from director.data.dataset import Dataset, Description
from director.data.splits import balanced_split

CIFAR10 = Cifar(
    name="cifar10",
    classes=10,
    parts={
        "train": (
            Batch("data_batch_1", 10_000, "5dd7e06a14cb22eb9f671a540d1b7c25", "c99cafc152244af753f735de768cd75f"),
            Batch("data_batch_2", 10_000, "5ea93a67294ea407fff1d09f752e9692", "d4bba439e000b95fd0a9bffe97cbabec"),
            Batch("data_batch_3", 10_000, "942cd6a4bcdd0dd3c604fbe906cb4421", "54ebc095f3ab1f0389bbae665268c751"),
            Batch("data_batch_4", 10_000, "ae636b3ba5c66a11e91e8cb52e771fcb", "634d18415352ddfa80567beed471001a"),
            Batch("data_batch_5", 10_000, "53f37980c15c3d472c316c40844f3f0d", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        "test": (Batch("test_batch", 10_000, "803d5f7f4d78ea53de84dbe85f74fb6d", "40351d587109b95175f43aff81a1287e"),),
    },
    label_bytes=1,
    label_key="labels",
    label_column="label",
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    archives={
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    },
    repository="uoft-cs/cifar10",
    config="plain_text",
    test_alone=False,
)


def fetch(made_from: dict[str, Path]) -> Dataset:
    """Images uint8 [60000, 32, 32, 3], the 50,000 for training first, in the publisher's order; labels 0..9."""
    return fetch_cifar(CIFAR10)


DATASET = Description("cifar10", "images", fetch, balanced_split)

"""Which examples train, select and test."""

from pathlib import Path

import numpy as np
import pytest

from director.configuration import load_experiment
from director.data.dataset import Dataset
from director.data.fetch import fetch_dataset
from director.data.splits import PARTS, balanced_split, load_split, random_split, split_dataset
from director.files import InputError


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "digits"
    fetch_dataset("digits", folder)
    return folder


def labelled(labels, train, name="cifar10"):
    """A set whose first `train` rows are the train part; of its images only the number matters."""
    parts = {"train": train, "test": len(labels) - train}
    return Dataset.clean(name, np.zeros((len(labels), 1, 1, 1), np.uint8), np.asarray(labels, np.int64), parts=parts)


def test_split_parts_are_disjoint_and_cover():
    parts = random_split(1797, 900, 200, seed=3)
    assert [len(parts[part]) for part in PARTS] == [900, 200, 697]
    assert len(np.unique(np.concatenate(list(parts.values())))) == 1797


def test_no_seed_trains_on_another_seeds_test():
    """Members of an ensemble are pooled on one test set: it must be unseen by all of them."""
    splits = [random_split(1797, 900, 200, seed) for seed in range(5)]
    seen = np.concatenate([np.concatenate([s["train"], s["validation"]]) for s in splits])
    assert not np.intersect1d(seen, splits[0]["test"]).size
    assert all((s["test"] == splits[0]["test"]).all() for s in splits)
    assert (splits[0]["train"] != splits[1]["train"]).any()


def test_the_shipped_normalisation_is_that_of_the_pool_that_never_tests(digits):
    data = load_experiment(Path(__file__).parents[2] / "config/experiments/digits.yaml").data
    parts = random_split(1797, data.train, data.validation, seed=0)
    pool = Dataset.load(digits).inputs[np.concatenate([parts["train"], parts["validation"]])] / 16
    assert [pool.mean(), pool.std()] == pytest.approx([data.normalisation.mean[0], data.normalisation.std[0]], abs=5e-5)


def test_split_that_leaves_nothing_is_refused(digits, tmp_path):
    with pytest.raises(InputError, match="leave no test example of 1797"):
        split_dataset(digits, tmp_path / "s.npz", train=1700, validation=97, seed=0)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"text"])
def test_a_broken_split_is_named(tmp_path, content):
    (tmp_path / "seed-0.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"seed-0\.npz"):
        load_split(tmp_path / "seed-0.npz")


def test_a_foreign_split_is_named(tmp_path):
    np.savez(tmp_path / "seed-0.npz", other=np.arange(3))
    with pytest.raises(InputError, match=r"seed-0\.npz.*not a split"):
        load_split(tmp_path / "seed-0.npz")


def test_balanced_split_by_hand():
    """Per class: of ten, validation at positions linspace(1, 10, 3) = 1, 5.5, 10, that is 1, 5, 10."""
    labels = np.array([0, 1] * 10 + [0, 1, 1])
    parts = balanced_split(labelled(labels, train=20), train=14, validation=6)
    assert parts["validation"].tolist() == [0, 1, 8, 9, 18, 19]
    assert parts["train"].tolist() == [2, 3, 4, 5, 6, 7, *range(10, 18)]
    assert parts["test"].tolist() == [20, 21, 22]


@pytest.mark.parametrize(("train", "validation"), [(90, 10), (30, 60), (10, 10), (50, 40), (10, 90), (20, 70)])
def test_balanced_parts_are_disjoint_equal_and_spread(train, validation):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 10))
    parts = balanced_split(labelled([*labels, *range(10)], train=100), train, validation)
    for part, count in (("train", train), ("validation", validation)):
        assert np.bincount(labels[parts[part]]).tolist() == [count // 10] * 10
        assert (np.diff(parts[part]) > 0).all()
    assert not np.intersect1d(parts["train"], parts["validation"]).size and parts["test"].tolist() == [*range(100, 110)]


def test_cifar10_as_in_the_paper(shared):
    with np.load(shared / "data/cifar10/train.npz") as train, np.load(shared / "data/cifar10/test.npz") as test:
        labels = np.concatenate([train["labels"], test["labels"]])
    parts = balanced_split(labelled(labels, train=50_000), train=45_000, validation=5_000)
    assert [len(parts[part]) for part in PARTS] == [45_000, 5_000, 10_000]
    for label in range(10):
        positions = np.flatnonzero(labels[:50_000] == label)
        chosen = np.searchsorted(positions, parts["validation"][labels[parts["validation"]] == label]) + 1
        assert chosen.tolist() == [int(1 + step * 4999 / 499) for step in range(500)]
    assert len(np.union1d(parts["train"], parts["validation"])) == 50_000


@pytest.mark.parametrize(
    ("train", "validation", "words"),
    [
        (85, 10, "train 85 is not a multiple of the 10 classes"),
        (80, 19, "validation 19 is not a multiple of the 10 classes"),
        (90, 20, r"train 90 \+ validation 20 are more than the train part of cifar10 has, 100; take fewer"),
    ],
)
def test_numbers_that_cannot_be_shared_are_refused(train, validation, words):
    with pytest.raises(InputError, match=words):
        balanced_split(labelled([*np.repeat(np.arange(10), 10), 0], train=100), train, validation)


def test_the_sets_own_split_is_used_and_no_seed_moves_it(tmp_path):
    labelled([*np.repeat(np.arange(10), 10), 0, 1], train=100).save(tmp_path / "cifar10")
    for seed in (0, 1):
        split_dataset(tmp_path / "cifar10", tmp_path / f"{seed}.npz", train=50, validation=30, seed=seed)
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "1.npz").read_bytes()
    expected = balanced_split(Dataset.load(tmp_path / "cifar10"), 50, 30)
    for part, rows in load_split(tmp_path / "0.npz").items():
        np.testing.assert_array_equal(rows, expected[part])


def test_a_protocol_that_a_set_does_not_have_is_refused(digits, tmp_path):
    labelled([*np.repeat(np.arange(10), 10), 0], train=100).save(tmp_path / "cifar10")
    for folder in (digits, tmp_path / "cifar10"):
        with pytest.raises(InputError, match=f"{folder.name} has no protocol paper"):
            split_dataset(folder, tmp_path / "s.npz", train=50, validation=30, seed=0, protocol="paper")

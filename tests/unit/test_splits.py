"""Which examples train, select and test."""

from pathlib import Path

import numpy as np
import pytest

from director.data.catalogue import fetch_dataset, split_of
from director.data.dataset import Dataset
from director.data.splits import PARTS, balanced_split, load_split, random_split, write_split
from director.errors import InputError
from director.settings.reading import load_experiment


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "digits"
    fetch_dataset("digits", folder)
    return Dataset.load(folder)


def labelled(labels, train, name="cifar10"):
    """A set whose first `train` rows are the train part; of its images only the number matters."""
    parts = {"train": train, "test": len(labels) - train}
    return Dataset.clean(name, np.zeros((len(labels), 1, 1, 1), np.uint8), np.asarray(labels, np.int64), parts=parts)


def test_split_parts_are_disjoint_and_cover(digits):
    parts = random_split(digits, 900, 200, seed=3)
    assert [len(parts[part]) for part in PARTS] == [900, 200, 697]
    assert len(np.unique(np.concatenate(list(parts.values())))) == 1797


def test_no_seed_trains_on_another_seeds_test(digits):
    """Members of an ensemble are pooled on one test set: it must be unseen by all of them."""
    splits = [random_split(digits, 900, 200, seed) for seed in range(5)]
    seen = np.concatenate([np.concatenate([s["train"], s["validation"]]) for s in splits])
    assert not np.intersect1d(seen, splits[0]["test"]).size
    assert all((s["test"] == splits[0]["test"]).all() for s in splits)
    assert (splits[0]["train"] != splits[1]["train"]).any()


def test_the_shipped_normalisation_is_that_of_the_pool_that_never_tests(digits):
    data = load_experiment(Path(__file__).parents[2] / "config/experiments/digits.yaml").data
    parts = random_split(digits, data.train, data.validation, seed=0)
    pool = digits.inputs[np.concatenate([parts["train"], parts["validation"]])] / 16
    assert [pool.mean(), pool.std()] == pytest.approx([data.normalisation.mean[0], data.normalisation.std[0]], abs=5e-5)


def test_split_that_leaves_nothing_is_refused(digits):
    with pytest.raises(InputError, match="leave no test example of 1797"):
        split_of(digits, train=1700, validation=97, seed=0)


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
    cifar10 = labelled([*np.repeat(np.arange(10), 10), 0, 1], train=100)
    for seed in (0, 1):
        write_split(tmp_path / f"{seed}.npz", split_of(cifar10, train=50, validation=30, seed=seed))
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "1.npz").read_bytes()
    expected = balanced_split(cifar10, 50, 30)
    for part, rows in load_split(tmp_path / "0.npz").items():
        np.testing.assert_array_equal(rows, expected[part])


def test_a_protocol_that_a_set_does_not_have_is_refused(digits):
    cifar10 = labelled([*np.repeat(np.arange(10), 10), 0], train=100)
    for dataset in (digits, cifar10):
        with pytest.raises(InputError, match=f"{dataset.name} has no protocol paper, only held_out"):
            split_of(dataset, train=50, validation=30, seed=0, protocol="paper")


def test_a_set_that_the_catalogue_does_not_know_is_named():
    with pytest.raises(InputError, match="mine is no data set of the catalogue; choose one of digits"):
        split_of(labelled([0, 1, 0], train=2, name="mine"), train=1, validation=1, seed=0)


PARTS_OF_TEN = {"train": np.arange(5), "validation": np.arange(5, 7), "test": np.arange(7, 10)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": np.arange(5.0)}, r"train is float64 \(5,\), not one list of row numbers"),
        ({"train": np.arange(4).reshape(2, 2)}, r"train is int64 \(2, 2\), not one list"),
        ({"train": np.arange(4) < 2}, r"train is bool \(4,\), not one list"),
        ({"train": np.arange(0)}, r"train is int64 \(0,\), not one list"),
        ({"test": np.array([-1, 8])}, r"test is int64 \(2,\), not one list of row numbers from 0"),
        ({"test": np.array([8, 8])}, "test names a row twice"),
        ({"validation": np.array([4, 5])}, "row 4 is in two parts"),
        ({"validation": np.array([6, 7])}, "row 7 is in two parts"),
        ({"test": np.array([0, 8])}, "row 0 is in two parts"),
        ({"test": np.arange(5), "validation": np.arange(5)}, "row 0 is in two parts"),
    ],
)
def test_parts_that_are_no_split_are_neither_read_nor_written(tmp_path, changes, words):
    parts = PARTS_OF_TEN | changes
    np.savez(tmp_path / "seed-0.npz", **parts)
    with pytest.raises(InputError, match=rf"seed-0\.npz: {words}.*; delete it"):
        load_split(tmp_path / "seed-0.npz")
    with pytest.raises(InputError, match=rf"seed-1\.npz: {words}"):
        write_split(tmp_path / "seed-1.npz", parts)
    assert not (tmp_path / "seed-1.npz").exists()


def test_a_split_comes_back_as_it_was_written(tmp_path):
    """Selecting on the test part, as the protocol `paper` does, is no overlap that is refused."""
    for parts in (PARTS_OF_TEN, PARTS_OF_TEN | {"validation": PARTS_OF_TEN["test"]}):
        write_split(tmp_path / "seed-0.npz", parts)
        loaded = load_split(tmp_path / "seed-0.npz")
        for part, rows in parts.items():
            np.testing.assert_array_equal(loaded[part], rows)
            assert loaded[part].dtype == np.int64

"""Trap 35: what the rows of published data files are."""

import hashlib
import tarfile

import numpy as np
import pytest

from director.data import cifar10_c
from director.data.corruptions import SEVERITIES, STANDARD
from director.data.dataset import Dataset
from director.errors import InputError

TRAIN, TEST = 3, 4


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A CIFAR-10 of seven images: the folder that holds it, for `fetch`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path))
    monkeypatch.setattr(cifar10_c, "TRAIN", TRAIN)
    monkeypatch.setattr(cifar10_c, "TEST", TEST)
    Dataset.clean("cifar10", np.zeros((7, 32, 32, 3), np.uint8), np.array([0, 1, 2, 9, 8, 7, 6])).save("cifar10")
    return {"cifar10": tmp_path / "cifar10"}


@pytest.fixture
def published(cifar10, tmp_path, monkeypatch):
    """A folder CIFAR-10-C in which every image is of one value: ten for each corruption, one for each severity."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for number, kind in enumerate(STANDARD):
        values = np.repeat([10 * number + severity for severity in SEVERITIES], TEST).astype(np.uint8)
        np.save(folder / f"{kind}.npy", np.tile(values[:, None, None, None], (1, 32, 32, 3)))
    np.save(folder / "labels.npy", np.tile(np.array([9, 8, 7, 6], np.uint8), 5))
    monkeypatch.setattr(cifar10_c, "MD5", {path.stem: md5(path) for path in folder.iterdir()})
    return folder


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_cifar10_c_has_the_clean_labels_five_times_in_order_of_severity(cifar10, published):
    """Trap 35 (hendrycks/robustness 57, augmix 4)."""
    found = cifar10_c.fetch(cifar10)
    assert found.about["generated"] is False and found.about["missing"] == []
    values = [10 * STANDARD.index(kind) + s for kind, s in zip(found.shift, found.severity, strict=True)]
    assert (found.inputs == np.array(values)[:, None, None, None]).all() and len(found) == 15 * 5 * TEST
    np.testing.assert_array_equal(found.example, np.tile([3, 4, 5, 6], 75))
    np.testing.assert_array_equal(found.labels, np.tile([9, 8, 7, 6], 75))


def test_cifar10_c_in_its_archive(cifar10, published, tmp_path, monkeypatch):
    expected = cifar10_c.fetch(cifar10)
    with tarfile.open(tmp_path / "CIFAR-10-C.tar", "w") as tar:
        tar.add(published, "CIFAR-10-C")
    published.rename(tmp_path / "elsewhere")
    monkeypatch.setattr(cifar10_c, "ARCHIVE_MD5", md5(tmp_path / "CIFAR-10-C.tar"))
    np.testing.assert_array_equal(cifar10_c.fetch(cifar10).inputs, expected.inputs)
    monkeypatch.setattr(cifar10_c, "ARCHIVE_MD5", "0" * 32)
    with pytest.raises(InputError, match=r"CIFAR-10-C\.tar: MD5"):
        cifar10_c.fetch(cifar10)


def swap_labels(folder):
    np.save(folder / "labels.npy", np.load(folder / "labels.npy")[::-1])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (swap_labels, r"labels\.npy: label 6 in row 0, where image 0 of the test set of CIFAR-10 has 9"),
        (lambda folder: (folder / "labels.npy").unlink(), r"labels\.npy: not a whole \.npy file"),
        (lambda folder: (folder / "snow.npy").unlink(), r"snow\.npy: not a whole \.npy file"),
        (lambda folder: (folder / "snow.npy").write_bytes(b""), r"snow\.npy: not a whole \.npy file"),
        (lambda folder: (folder / "snow.npy").write_bytes((folder / "fog.npy").read_bytes()), r"snow\.npy: MD5"),
        (
            lambda folder: (folder / "snow.npy").write_bytes((folder / "fog.npy").read_bytes()[:-100]),
            r"snow\.npy: not a whole \.npy file",
        ),
        (lambda folder: np.save(folder / "snow.npy", np.load(folder / "fog.npy")[:-1]), r"snow\.npy: uint8 \(19, 32"),
        (lambda folder: np.save(folder / "snow.npy", np.load(folder / "fog.npy") / 2), r"snow\.npy: float64 \(20, 32"),
        (lambda folder: np.save(folder / "snow.npy", np.array([{}])), r"snow\.npy: not a whole \.npy file"),
    ],
)
def test_damaged_files_of_cifar10_c_are_named_and_not_replaced(cifar10, published, harm, message):
    """A copy whose order or labels differ would be scored against the wrong images without a word."""
    harm(published)
    with pytest.raises(InputError, match=message):
        cifar10_c.fetch(cifar10)

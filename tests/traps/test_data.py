"""Trap 35: what the rows of published data files are."""

import errno
import hashlib
import logging
import os
import tarfile

import numpy as np
import pytest

from director.data import cifar10_c
from director.data.corruptions import SEVERITIES, STANDARD
from director.data.dataset import Dataset
from director.errors import AccessError, InputError

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
        (lambda folder: (folder / "labels.npy").unlink(), r"labels\.npy is missing beside the other files"),
        (lambda folder: (folder / "snow.npy").unlink(), r"snow\.npy is missing beside the other files"),
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


@pytest.mark.parametrize(
    "name", ["cifar10_c", "cifar10c", "CIFAR-10-C", "cifar-10-c", "Cifar10-C", "cifar10_c/CIFAR-10-C"]
)
def test_published_images_are_found_under_every_name_of_their_folder(cifar10, published, tmp_path, monkeypatch, name):
    """The folder cifar10_c, which the documentation names, was passed over in silence, and images were generated."""
    (tmp_path / "data" / name).parent.mkdir(parents=True)
    published.rename(tmp_path / "data" / name)
    for below in ("data", f"data/{name}"):
        monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path / below))
        assert cifar10_c.fetch(cifar10).about["generated"] is False


@pytest.mark.parametrize("name", ["CIFAR-10-C.tar?download=1", "CIFAR-10-C.tar@download=1"])
def test_the_archive_is_found_as_its_download_named_it(cifar10, published, tmp_path, monkeypatch, name):
    archive = tmp_path / "cifar10_c" / name
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(published, "CIFAR-10-C")
    published.rename(tmp_path / "elsewhere")
    monkeypatch.setattr(cifar10_c, "ARCHIVE_MD5", md5(archive))
    assert cifar10_c.fetch(cifar10).about["generated"] is False


@pytest.fixture
def blank(monkeypatch):
    """One corruption that changes nothing, so that a set is generated at once."""
    monkeypatch.setattr(cifar10_c, "STANDARD", ("fog",))
    monkeypatch.setattr(cifar10_c, "corrupt", lambda images, *words, **options: images)


def test_that_images_are_generated_is_said_and_so_is_the_folder_that_was_passed_over(cifar10, blank, tmp_path, caplog):
    (tmp_path / "cifar10_c").mkdir()
    (tmp_path / "cifar10_c" / "gaussian.npy").touch()
    with caplog.at_level(logging.INFO):
        assert cifar10_c.fetch(cifar10).about["generated"] is True
    assert "cifar10_c: generated from cifar10, since the published files are not in" in caplog.text
    assert f"{tmp_path / 'cifar10_c'} is not used: it has no form of cifar10_c that is read" in caplog.text


def test_a_disk_that_is_full_ends_in_one_line_not_in_a_signal(cifar10, blank, monkeypatch):
    """The images lie in a mapped file, and a process that writes where no room is left is killed."""

    def full(*words):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(AccessError, match=r"data/downloads: no space left on device; make room"):
        cifar10_c.fetch(cifar10)

"""Data sets on disk, the digits and what corrupts them."""

import errno
import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from director.data.augment import epoch_order
from director.data.catalogue import fetch_dataset
from director.data.dataset import Dataset
from director.data.digits import fetch
from director.data.digits_c import CORRUPTIONS, SEVERITIES, corrupt
from director.data.examples import Augmentation, ImageExamples, Normalisation
from director.data.texts import Texts
from director.errors import AccessError, InputError
from director.files import write_json
from director.provenance import fingerprint

NORMALISATION = Normalisation(scale=16, mean=[0.3053], std=[0.376])


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    for name, made_from in {"digits": [], "digits_c": ["digits"], "photographs": []}.items():
        fetch_dataset(name, folder / name, [folder / source for source in made_from])
    return folder


def test_digits_are_complete(raw):
    digits = Dataset.load(raw / "digits")
    assert digits.inputs.shape == (1797, 8, 8, 1) and digits.inputs.max() == 16
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (digits.shift == "clean").all() and (digits.example == np.arange(1797)).all()


def test_corrupted_digits_keep_label_and_example(raw):
    """Five severities of every kind, each over the whole set in its own order (as CIFAR-10-C; trap 35's kind)."""
    digits, corrupted = Dataset.load(raw / "digits"), Dataset.load(raw / "digits_c")
    assert len(corrupted) == len(CORRUPTIONS) * 5 * 1797 and len(CORRUPTIONS) >= 8
    np.testing.assert_array_equal(corrupted.labels, np.asarray(digits.labels)[corrupted.example])
    cells = list(zip(corrupted.shift[::1797].tolist(), corrupted.severity[::1797].tolist(), strict=True))
    assert cells == [(kind, severity) for kind in CORRUPTIONS for severity in SEVERITIES]
    assert corrupted.about["generated"] is True


def test_corruption_is_a_function_of_its_seed(raw):
    images = np.asarray(Dataset.load(raw / "digits").inputs[:50])
    for kind in CORRUPTIONS:
        first = corrupt(images, kind, 3)
        np.testing.assert_array_equal(first, corrupt(images, kind, 3))
        assert first.dtype == np.uint8 and first.shape == images.shape and first.max() <= 16
    assert (corrupt(images, "snow", 3) != corrupt(images, "snow", 3, seed=1)).any()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_severity_grows(raw, kind):
    """Each severity takes a digit further from itself than the one before."""
    images = np.asarray(Dataset.load(raw / "digits").inputs).astype(float)
    distances = [((corrupt(images, kind, severity) - images) ** 2).mean() for severity in SEVERITIES]
    assert distances[0] > 0 and distances == sorted(distances)


def test_photographs_are_patches_without_labels(raw):
    photographs = Dataset.load(raw / "photographs")
    assert photographs.labels is None and photographs.inputs.shape[1:] == (8, 8, 1)
    assert len(photographs) == 690 and photographs.inputs.max() == 16


def test_fetching_twice_gives_the_same_fingerprint(raw, tmp_path):
    fetch_dataset("digits_c", tmp_path / "again", [raw / "digits"])
    assert Dataset.load(tmp_path / "again").about["fingerprint"] == Dataset.load(raw / "digits_c").about["fingerprint"]


@pytest.mark.parametrize("harm", ["truncate", "change", "remove"])
def test_a_damaged_data_file_is_named_and_not_used(raw, tmp_path, harm):
    fetch_dataset("digits", tmp_path / "digits")
    path = tmp_path / "digits" / "images.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-10] if harm == "truncate" else content[:-1] + b"\x01")
    if harm == "remove":
        path.unlink()
    with pytest.raises(InputError, match=r"images\.npy.*delete the folder"):
        Dataset.load(tmp_path / "digits")


@pytest.fixture
def damaged(raw, tmp_path):
    """A copy of the photographs, whose manifest and arrays may be changed; an array changes with its checksum."""
    folder = shutil.copytree(raw / "photographs", tmp_path / "photographs")

    def change(manifest=None, **arrays):
        about = json.loads((folder / "manifest.json").read_text())
        for key, array in arrays.items():
            np.save(folder / f"{key}.npy", array)
            about["files"][f"{key}.npy"] = hashlib.sha256((folder / f"{key}.npy").read_bytes()).hexdigest()
        about["fingerprint"] = fingerprint(about["files"])
        write_json(folder / "manifest.json", manifest(about) if manifest else about)
        return folder

    return change


def without(key):
    return lambda about: {name: value for name, value in about.items() if name != key}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        *((lambda about, manifest=manifest: manifest, "it names no files") for manifest in ({}, [], "text", None, 3)),
        (without("files"), "it names no files"),
        *((without(key), f"no '{key}'") for key in ("name", "count", "fingerprint")),
        (lambda about: about | {"fingerprint": "0" * 16}, "its fingerprint is not that of its files"),
        (lambda about: changed_files(about, {}), "it lists "),
        (lambda about: changed_files(about, about["files"] | {"../secret.npy": "0"}), r"it lists .*\.\./secret\.npy"),
        (lambda about: changed_files(about, without("shift.npy")(about["files"])), "it lists images"),
        (lambda about: changed_files(about, about["files"] | {"text.npy": "0"}), "it lists images"),
        (lambda about: changed_files(about, list(about["files"])), "it names no files"),
        (lambda about: about | {"parts": {"train": 3}}, r"its parts \{'train': 3\} are not 690 in all"),
        (lambda about: about | {"parts": {"train": "3"}}, "unsupported operand"),
        (lambda about: about | {"parts": 3}, "int"),
    ],
)
def test_a_manifest_that_is_none_is_named_with_the_remedy(damaged, manifest, words):
    folder = damaged(manifest)
    with pytest.raises(
        InputError, match=rf"manifest\.json: not the manifest of a data set \(.*{words}.*delete the folder"
    ):
        Dataset.load(folder)


def changed_files(about, files):
    return about | {"files": files, "fingerprint": fingerprint(files)}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.zeros((690, 8, 8, 1))}, r"images must be uint8 \[N, H, W, C\], not float64"),
        ({"images": np.zeros((690, 64), np.uint8)}, r"images must be uint8 \[N, H, W, C\], not uint8 \(690, 64\)"),
        ({"images": np.zeros((689, 8, 8, 1), np.uint8)}, "holds 689 inputs, its manifest says 690"),
        ({"example": np.arange(690.0)}, "example is float64, not int64"),
        ({"example": np.arange(690, dtype=np.int32)}, "example is int32, not int64"),
        ({"example": np.arange(689)}, r"example has shape \(689,\) for 690 inputs"),
        ({"severity": np.zeros((690, 1), np.int64)}, r"severity has shape \(690, 1\)"),
        ({"shift": np.zeros(690)}, "shift is float64, not str_"),
        ({"labels": np.zeros(690, np.uint8)}, "labels is uint8, not int64"),
        ({"labels": np.zeros(3, np.int64)}, r"labels has shape \(3,\) for 690 inputs"),
        ({"probability": np.full((690, 2), 1)}, "probability is int64, not float64"),
        ({"probability": np.full((3, 2), 0.5)}, r"probability \(3, 2\) must have a row"),
    ],
)
def test_arrays_of_another_type_or_length_are_named_with_the_remedy(damaged, arrays, words):
    folder = damaged(**arrays)
    with pytest.raises(InputError, match=rf"{folder}: photographs: {words}.*; delete the folder"):
        Dataset.load(folder)


@pytest.mark.parametrize(
    ("key", "array"),
    [("text", np.zeros((5, 2), np.uint8)), ("offsets", np.array([[0, 1]])), ("offsets", np.array([0.0, 1.0]))],
)
def test_texts_of_another_type_are_named_with_the_remedy(tmp_path, key, array):
    Dataset.clean("words", Texts.of(["a"]), None).save(tmp_path)
    about = json.loads((tmp_path / "manifest.json").read_text())
    np.save(tmp_path / f"{key}.npy", array)
    about["files"][f"{key}.npy"] = hashlib.sha256((tmp_path / f"{key}.npy").read_bytes()).hexdigest()
    write_json(tmp_path / "manifest.json", changed_files(about, about["files"]))
    with pytest.raises(InputError, match=r"texts need uint8 bytes and int64 offsets.*; delete the folder"):
        Dataset.load(tmp_path)


def test_an_array_that_is_none_is_named_even_without_its_checksum(damaged):
    folder = damaged()
    (folder / "example.npy").write_bytes(b"text")
    with pytest.raises(InputError, match=r"example\.npy: not a whole \.npy file.*delete the folder"):
        Dataset.load(folder, verify=False)


def test_a_disk_that_fails_or_is_full_is_no_damaged_set(damaged, monkeypatch, tmp_path):
    folder = damaged()
    loaded = Dataset.load(folder)

    def failing(number):
        def fail(*words, **options):
            raise OSError(number, os.strerror(number))

        return fail

    monkeypatch.setattr(np, "load", failing(errno.EIO))
    with pytest.raises(AccessError, match=r"images\.npy: input/output error; check the disk") as error:
        Dataset.load(folder)
    assert "delete" not in str(error.value)
    monkeypatch.setattr(np, "save", failing(errno.ENOSPC))
    with pytest.raises(AccessError, match=r"images\.npy: no space left on device; make room"):
        loaded.save(tmp_path / "again")
    (tmp_path / "file").touch()
    with pytest.raises(AccessError, match="file/set: not a directory"):
        loaded.save(tmp_path / "file/set")


def test_rows_that_the_set_does_not_have_are_named(raw):
    """As of a split that was made for another set: numpy counts a negative row from the end, and knows no name."""
    digits = Dataset.load(raw / "digits")
    for rows, named in (([0, 1797], 1797), ([5, 2000, 1900], 2000), ([-1], -1)):
        with pytest.raises(InputError, match=rf"digits: row {named} is not among its 1,797 rows; is the split another"):
            digits.select(np.array(rows))
    assert len(digits.select(np.arange(0))) == 0 and len(digits.select(np.arange(1797) < 3)) == 3


def test_examples_that_a_set_without_shift_does_not_have_are_named(raw):
    """Left out in silence, they made a test suite of a few images from the split of a larger set."""
    digits, corrupted = Dataset.load(raw / "digits"), Dataset.load(raw / "digits_c")
    with pytest.raises(InputError, match="digits: example 1797 is not among its 1,797; is the split another set's"):
        digits.of_examples(np.arange(1700, 1800))
    assert set(corrupted.of_examples(np.arange(1700, 1800)).example) == set(range(1700, 1797))  # may be thinned


def test_digits_that_are_not_the_published_are_refused(monkeypatch):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    bunch.images[7, 3, 3] += 1
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: bunch)
    with pytest.raises(InputError, match=r"scikit-learn's digits: not the published content.*reinstall it"):
        fetch({})


def test_every_fetch_says_which_source_was_taken(raw, tmp_path, caplog):
    caplog.set_level("INFO")
    fetch_dataset("digits", tmp_path / "digits")
    fetch_dataset("digits_c", tmp_path / "digits_c", [raw / "digits"])
    assert "digits: 1797 examples, source: scikit-learn" in caplog.text
    assert "digits_c: 71880 examples, source: generated from digits, seed 0" in caplog.text


def test_interrupted_fetch_leaves_no_manifest(tmp_path, monkeypatch):
    fetch_dataset("digits", tmp_path / "digits")
    monkeypatch.setattr(np, "save", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fetch_dataset("digits", tmp_path / "digits")
    with pytest.raises(InputError, match=r"manifest\.json"):
        Dataset.load(tmp_path / "digits")


def test_a_set_without_the_one_it_is_made_from_is_refused(raw, tmp_path):
    with pytest.raises(InputError, match="digits_c is made from digits; give the folder"):
        fetch_dataset("digits_c", tmp_path / "digits_c", [raw / "photographs"])
    with pytest.raises(InputError, match="mnist is no data set of the catalogue; choose one of digits"):
        fetch_dataset("mnist", tmp_path / "mnist")
    assert not list(tmp_path.iterdir())


def suite_of_every_fiftieth():
    """As `cifar10_c_200`: two kinds of every fiftieth of 1,000 examples, the second half of which are for testing."""
    example = np.tile(np.arange(0, 1000, 50), 2)
    shift, severity = np.repeat(["fog", "snow"], 20), np.ones(40, np.int64)
    images = np.zeros((40, 1, 1, 1), np.uint8)
    return Dataset("x_c", images, example % 10, example, shift, severity), np.arange(500, 1000)


def test_a_thinned_suite_has_as_many_examples_as_were_asked_for():
    """Thinned before it was intersected with the examples of the suite, a suite of 200 had 2 where 100 were wanted."""
    suite, test = suite_of_every_fiftieth()
    assert set(suite.of_examples(test).example) == set(range(500, 1000, 50))
    thinned = suite.of_examples(test, at_most=4)
    assert thinned.example.tolist() == [500, 650, 800, 950] * 2  # evenly spaced, both ends among them
    assert thinned.shift.tolist() == ["fog"] * 4 + ["snow"] * 4
    for at_most in (10, 11, 500):
        np.testing.assert_array_equal(suite.of_examples(test, at_most).example, suite.of_examples(test).example)


def test_a_thinned_suite_is_in_the_suites_own_order():
    backwards = suite_of_every_fiftieth()[0].select(np.arange(40)[::-1])
    assert backwards.of_examples(np.arange(500, 1000), at_most=2).example.tolist() == [950, 500] * 2
    assert len(backwards.of_examples(np.arange(1, 50), at_most=2)) == 0


def test_wrong_shapes_are_refused():
    images = np.zeros((3, 8, 8, 1), np.uint8)
    with pytest.raises(InputError, match="labels has shape"):
        Dataset.clean("x", images, np.zeros(2, np.int64))
    with pytest.raises(InputError, match="uint8"):
        Dataset.clean("x", images.astype(float), None)


def test_batches_are_normalised_channels_first(raw):
    digits = Dataset.load(raw / "digits")
    inputs, labels = ImageExamples(digits, NORMALISATION).batch(np.array([5, 0, 5]))
    assert inputs.shape == (3, 1, 8, 8) and inputs.dtype == np.float32
    np.testing.assert_array_equal(labels, digits.labels[[5, 0, 5]])
    np.testing.assert_allclose(inputs[1, 0], (digits.inputs[0, ..., 0] / 16 - 0.3053) / 0.376, rtol=1e-5)
    np.testing.assert_array_equal(inputs[0], inputs[2])


def test_only_a_view_is_augmented(raw):
    examples = ImageExamples(Dataset.load(raw / "digits"), NORMALISATION, Augmentation(padding=2, flip=True), seed=1)
    rows = np.arange(40)
    plain = examples.batch(rows)[0]
    assert (examples.batch(rows, view=0)[0] != plain).any()
    np.testing.assert_array_equal(examples.batch(rows[::-1], view=3)[0][::-1], examples.batch(rows, view=3)[0])


def test_batches_of_an_epoch_are_slices_of_its_order(raw):
    batches = ImageExamples(Dataset.load(raw / "digits"), NORMALISATION).epoch_batches(500, seed=1, epoch=2)
    assert [len(batch) for batch in batches] == [500, 500, 500, 297]
    np.testing.assert_array_equal(np.concatenate(batches), epoch_order(1797, seed=1, epoch=2))


def test_known_probabilities_are_kept_with_the_labels(tmp_path):
    images, labels, truth = np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, 1]), np.array([[0.9, 0.1]] * 2 + [[0, 1]])
    Dataset.clean("x", images, labels, truth).save(tmp_path)
    np.testing.assert_array_equal(Dataset.load(tmp_path).select(np.array([2, 0])).probability, truth[[2, 0]])
    for wrong in (truth[:2], truth * 2, truth[:, 0]):
        with pytest.raises(InputError, match=r"probability .* sums to 1"):
            Dataset.clean("x", images, labels, wrong)


def test_manifest_says_where_the_data_come_from(raw):
    about = json.loads((raw / "digits" / "manifest.json").read_text())
    assert about["source"] == "scikit-learn" and about["count"] == 1797 and about["licence"]

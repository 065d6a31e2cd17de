"""Data sets on disk, the digits and what corrupts them."""

import json

import numpy as np
import pytest

from director.data.augment import epoch_order
from director.data.catalogue import fetch_dataset
from director.data.dataset import Dataset
from director.data.digits_c import CORRUPTIONS, SEVERITIES, corrupt
from director.data.examples import Augmentation, ImageExamples, Normalisation
from director.errors import InputError

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

"""The corruptions of CIFAR-10-C: what a corruption depends on, what it refuses; and the set made of them."""

import logging
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from director.data import cifar10_c, corruptions
from director.data.cifar10_c import fetch, fetch_every
from director.data.corruptions import CORRUPTIONS, FROST, SEVERITIES, STANDARD, corrupt
from director.data.dataset import Dataset
from director.errors import InputError

KINDS = ("fog", "frost", "snow", "contrast")  # enough for the rows of the set
DRAW_NOTHING = {
    *("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"),
    *("gaussian_blur", "saturate"),
}


def scenes(count: int) -> np.ndarray:
    """uint8 [count, 32, 32, 3]: smooth colours, dark to bright, none flat."""
    coarse = np.random.default_rng(0).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BICUBIC)) for image in coarse])


@pytest.fixture(scope="module")
def images():
    return scenes(12)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder as DIRECTOR_DATA names it, with photographs of frost."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "cifar10c/frost").mkdir(parents=True)
    for number, name in enumerate(FROST):
        noise = np.random.default_rng(number).integers(0, 256, (300 + 5 * number, 400, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "cifar10c/frost" / name)
    return folder


@pytest.fixture
def corrupted(images, data):
    def call(kind, severity, rows=slice(None), **keys):
        return corrupt(images[rows], kind, severity, frost=data / "cifar10c/frost", **keys)

    return call


def test_names():
    assert len(STANDARD) == 15 and set(CORRUPTIONS) - set(STANDARD) == {
        "speckle_noise",
        "gaussian_blur",
        "spatter",
        "saturate",
    }
    assert all(len(parameters) == len(SEVERITIES) for _, parameters in CORRUPTIONS.values())


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_subset_has_the_values_of_the_whole(corrupted, images, kind, monkeypatch):
    """Draws belong to the example: neither the order, nor the neighbours, nor the chunks matter."""
    whole = corrupted(kind, 3)
    assert whole.dtype == np.uint8 and whole.shape == images.shape and (whole != images).any()
    rows = np.array([7, 2, 11])
    np.testing.assert_array_equal(corrupted(kind, 3, rows, examples=rows), whole[rows])
    monkeypatch.setattr(corruptions, "CHUNK", 5)
    np.testing.assert_array_equal(corrupted(kind, 3), whole)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_draws_depend_on_seed_and_example(corrupted, kind):
    one = corrupted(kind, 5)
    assert (corrupted(kind, 5, seed=1) == one).all() == (kind in DRAW_NOTHING)
    assert (corrupted(kind, 5, examples=np.arange(12) + 1) == one).all() == (kind in DRAW_NOTHING)


def test_two_images_alike_are_corrupted_differently(data):
    pair = np.repeat(scenes(1), 2, axis=0)
    for kind in set(CORRUPTIONS) - DRAW_NOTHING:
        first, second = corrupt(pair, kind, 5, frost=data / "cifar10c/frost")
        assert (first != second).any(), kind


def test_each_severity_draws_anew(corrupted):
    """Were the draws of two severities the same numbers, their errors would not be independent."""
    draws = [
        corrupted("gaussian_noise", severity).astype(float) - corrupted("gaussian_noise", severity, seed=3)
        for severity in (1, 2)
    ]  # the image cancels out
    assert abs(np.corrcoef(draws[0].ravel(), draws[1].ravel())[0, 1]) < 0.05


def test_severity_changes_the_image(corrupted, images):
    """Most grow; motion blur 3 and 4 differ by weights below a grey level, given the same angle."""
    for kind in ("gaussian_noise", "contrast", "zoom_blur", "brightness", "gaussian_blur"):
        distances = [np.abs(corrupted(kind, severity).astype(int) - images).mean() for severity in SEVERITIES]
        assert distances == sorted(distances) and distances[0] > 0, kind
    function, parameters = CORRUPTIONS["motion_blur"]
    third, fourth, fifth = (
        function(images, parameters[severity - 1], [np.random.default_rng(0)] * len(images)) for severity in (3, 4, 5)
    )
    np.testing.assert_array_equal(third, fourth)
    assert (fourth != fifth).any()


def test_levels_are_clipped_and_the_fraction_is_cut_off(images, monkeypatch):
    monkeypatch.setitem(
        CORRUPTIONS, "contrast", (lambda x, level, rngs: np.full(x.shape, level), (-3, 0.99, 7.99, 255.7, 300))
    )
    assert [int(corrupt(images, "contrast", severity).max()) for severity in SEVERITIES] == [0, 0, 7, 255, 255]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "rain"}, "rain is no corruption; choose one of gaussian_noise"),
        ({"severity": 0}, "fog: severity 0 is not one of"),
        ({"severity": 6}, "fog: severity 6 is not one of"),
        ({"images": np.zeros((2, 32, 32, 3))}, r"fog: images must be uint8 \[N, 32, 32, 3\], not float64"),
        ({"images": np.zeros((2, 28, 28, 3), np.uint8)}, r"not uint8 \(2, 28, 28, 3\)"),
        ({"images": np.zeros((32, 32, 3), np.uint8)}, r"not uint8 \(32, 32, 3\)"),
        ({"examples": np.arange(3)}, "one number, 0 or more, for each of the 2 images"),
        ({"examples": np.array([0, -1])}, "one number, 0 or more"),
        ({"seed": -1}, "one number, 0 or more"),
        ({"kind": "frost"}, r"frost needs photographs.*name a folder with frost1\.png"),
    ],
)
def test_what_is_refused(change, message):
    keys = {"images": np.zeros((2, 32, 32, 3), np.uint8), "kind": "fog", "severity": 1} | change
    with pytest.raises(InputError, match=message):
        corrupt(keys.pop("images"), keys.pop("kind"), keys.pop("severity"), **keys)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), r"frost4\.jpg is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), r"frost4\.jpg: not a whole image"),
        (lambda path: Image.new("RGB", (160, 400)).save(path), r"frost4\.jpg has fewer than 165 pixels"),
    ],
)
def test_a_photograph_that_cannot_be_used_is_named(data, tmp_path, images, harm, message):
    for name in FROST:
        (tmp_path / name).write_bytes((data / "cifar10c/frost" / name).read_bytes())
    harm(tmp_path / "frost4.jpg")
    with pytest.raises(InputError, match=message):
        corrupt(images, "frost", 1, frost=tmp_path)


def test_memory_does_not_grow_with_the_number_of_images(monkeypatch):
    monkeypatch.setattr(corruptions, "CHUNK", 10)
    peaks = []
    for count in (20, 200):
        images = np.zeros((count, 32, 32, 3), np.uint8)
        tracemalloc.start()
        corrupt(images, "gaussian_noise", 1)
        peaks.append(tracemalloc.get_traced_memory()[1] - images.nbytes)  # less the result
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """A CIFAR-10 of four images for training and six for testing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIRECTOR_DATA", raising=False)
    monkeypatch.setattr(cifar10_c, "TRAIN", 4)
    monkeypatch.setattr(cifar10_c, "TEST", 6)
    monkeypatch.setattr(cifar10_c, "STANDARD", KINDS)
    clean = Dataset.clean("cifar10", scenes(10), np.arange(10))
    clean.save("cifar10")
    return {"cifar10": tmp_path / "cifar10"}


def test_without_photographs_all_other_kinds_and_a_warning(clean, caplog):
    with caplog.at_level(logging.WARNING):
        generated = fetch(clean)
    assert "frost" in caplog.text and "DIRECTOR_DATA" in caplog.text
    assert generated.about["missing"] == ["frost"] and generated.about["generated"] is True
    assert len(generated) == 3 * 5 * 6 and "frost" not in generated.shift


def test_rows_of_the_generated_set(clean, data, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", str(data))
    generated = fetch(clean)
    assert generated.name == "cifar10_c" and generated.about["missing"] == []
    cells = list(zip(generated.shift[::6].tolist(), generated.severity[::6].tolist(), strict=True))
    assert cells == [(kind, severity) for kind in KINDS for severity in SEVERITIES]
    np.testing.assert_array_equal(generated.example, np.tile(np.arange(4, 10), 20))
    np.testing.assert_array_equal(generated.labels, generated.example)  # labels are row numbers here
    row = KINDS.index("snow") * 30 + 2 * 6 + 5
    expected = corrupt(scenes(10)[9:], "snow", 3, examples=np.array([9]))
    np.testing.assert_array_equal(generated.inputs[row], expected[0])


def test_every_few_images_are_those_rows_of_the_whole_set(clean):
    whole, some = fetch(clean), fetch_every(2, "cifar10_c_3", clean)
    assert some.name == "cifar10_c_3" and set(some.example) == {4, 6, 8}
    np.testing.assert_array_equal(some.inputs, whole.of_examples(some.example).inputs)
    some.save("some")
    np.testing.assert_array_equal(Dataset.load("some").inputs, some.inputs)


def test_another_set_than_cifar10_is_refused(clean, monkeypatch):
    monkeypatch.setattr(cifar10_c, "TEST", 10_000)
    with pytest.raises(InputError, match=r"10 images, not the 10,004 of CIFAR-10"):
        fetch(clean)

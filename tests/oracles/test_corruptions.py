"""The generated CIFAR-10-C against the published files, and against the authors' own functions under one seed."""

import csv
import hashlib
import io
import itertools

import numpy as np
import pytest
from PIL import Image

from director.data.cifar10_c import MD5
from director.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, read_photographs

EXACT = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "gaussian_blur", "saturate")
RANDOM = tuple(kind for kind in CORRUPTIONS if kind not in (*EXACT, "jpeg_compression"))
PUBLISHED = MD5 | {
    "gaussian_blur": "c33370155bc9b055fb4a89113d3c559d",
    "saturate": "1cfae0964219c5102abbb883e538cc56",
    "jpeg_compression": "b59326bf95455417c259800e78412012",  # with libjpeg-turbo; published with the IJG's libjpeg
}


def read_strips(path, first: int | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The images of the `first` strips (None: of all), and the other arrays of the file."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    content, ends = arrays["webp"].tobytes(), arrays["offsets"][: first and first + 1]
    strips = [Image.open(io.BytesIO(content[i:j])).convert("RGB") for i, j in itertools.pairwise(ends)]
    return np.concatenate([np.asarray(strip).reshape(-1, 32, 32, 3) for strip in strips]), arrays


@pytest.fixture(scope="module")
def clean(shared):
    """The first 500 test images."""
    return read_strips(shared / "data/cifar10/test.npz", first=1)[0]


@pytest.fixture(scope="module")
def whole(shared):
    """All test images, and their labels."""
    images, arrays = read_strips(shared / "data/cifar10/test.npz")
    return images, arrays["labels"]


@pytest.fixture(scope="module")
def theirs(shared):
    """Corruption -> uint8 [5, 20, 32, 32, 3], the first 20 test images by the authors' functions."""
    images, arrays = read_strips(shared / "data/cifar10c/fixture.npz")
    kinds = [kind.decode() for kind in arrays["corruptions"]]
    return dict(zip(kinds, images.reshape(19, 5, 20, 32, 32, 3), strict=True))


@pytest.fixture(scope="module")
def statistics(shared):
    """(corruption, severity) -> what `measured` gives, for the first 500 test images by the authors' functions."""
    keys = ("mean_abs_diff", "mean", "std", "fraction_unchanged")
    with (shared / "data/cifar10c/stats.csv").open() as file:
        return {
            (row["corruption"], int(row["severity"])): [float(row[k]) for k in keys] for row in csv.DictReader(file)
        }


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("kind", EXACT)
def test_what_draws_nothing_is_exact(clean, theirs, kind, severity):
    np.testing.assert_array_equal(corrupt(clean[:20], kind, severity), theirs[kind][severity - 1])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_differs_by_the_codec_alone(clean, theirs, severity):
    images, published = clean[:20], theirs["jpeg_compression"].astype(int)
    found = corrupt(images, "jpeg_compression", severity).astype(int)
    distances = np.abs(published - found).mean((1, 2, 3, 4))
    assert distances[severity - 1] < 1.5 and distances.argmin() == severity - 1


class AuthorsDraws:
    """The authors' generator under the names of today's: numpy's global one, here with the fixture's seed 0."""

    def __init__(self) -> None:
        self.state = np.random.RandomState(0)
        self.normal, self.uniform, self.poisson = self.state.normal, self.state.uniform, self.state.poisson

    def integers(self, *arguments):
        return self.state.randint(*arguments)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("kind", [kind for kind in RANDOM if kind != "impulse_noise"])  # drawn by a newer generator
def test_with_the_authors_draws_the_random_ones_are_exact_too(clean, theirs, shared, kind, severity):
    function, parameters = CORRUPTIONS[kind]
    more = {"photographs": read_photographs(shared / "data/cifar10c/frost")} if kind == "frost" else {}
    count = 4 if kind == "glass_blur" else 20  # up to 1,568 steps for each image
    draws = AuthorsDraws()
    levels = [function(image[None], parameters[severity - 1], [draws], **more) for image in clean[:count]]
    found = np.clip(np.concatenate(levels), 0, 255).astype(np.uint8)
    differences = np.abs(found.astype(int) - theirs[kind][severity - 1, :count])
    if kind == "elastic_transform":  # OpenCV's affine map rounds to float32 on the way
        assert differences.max() <= 1 and (differences > 0).mean() < 1e-4
    else:
        assert differences.max() == 0


def measured(found: np.ndarray, clean: np.ndarray) -> list[float]:
    difference = found.astype(float) - clean
    return [np.abs(difference).mean(), found.mean(), found.std(), (difference == 0).mean()]


def alike(one: list[float], other: list[float]) -> bool:
    """Mean difference to the clean image within 5%, mean and spread within 2 grey levels, share unchanged in 0.005."""
    tolerance = [0.05 * other[0], 2, 2, 0.005]
    return bool((np.abs(np.subtract(one, other)) <= tolerance).all())


@pytest.mark.parametrize("severity", [pytest.param(s, marks=[] if s == 5 else pytest.mark.slow) for s in SEVERITIES])
@pytest.mark.parametrize("kind", RANDOM)
def test_our_own_draws_have_the_published_statistics(clean, statistics, shared, kind, severity):
    found = measured(corrupt(clean, kind, severity, frost=shared / "data/cifar10c/frost"), clean)
    assert alike(found, statistics[kind, severity])
    for other in {severity - 1, severity + 1} & set(SEVERITIES):
        same = kind == "motion_blur" and {severity, other} == {3, 4}  # the same images by their definition
        assert alike(found, statistics[kind, other]) == same


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*EXACT, "jpeg_compression", "labels"])
def test_the_published_file_comes_out_bit_for_bit(whole, kind):
    images, labels = whole
    file = io.BytesIO()
    if kind == "labels":
        np.save(file, np.tile(labels, 5))
    else:
        np.save(file, np.concatenate([corrupt(images, kind, severity) for severity in SEVERITIES]))
    assert hashlib.md5(file.getbuffer()).hexdigest() == PUBLISHED[kind]

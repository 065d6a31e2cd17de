"""The catalogue: every data set is in it, and is what it says of itself; what the settings do with that."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from director.data.catalogue import DATASETS, fetch_dataset, origins
from director.data.dataset import Dataset
from director.data.texts import Texts
from director.settings.data import Data

FOLDER = Path(__file__).parents[2] / "director/data"
EMBEDDED = ("digits", "digits_c", "photographs", "agreement", "agreement_shifted")  # no source is needed for these
PIXELS = {"normalisation": {"mean": [0.5], "std": [0.5]}}


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    for name in EMBEDDED:
        fetch_dataset(name, folder / name, [folder / source for source in DATASETS[name].made_from])
    return {name: Dataset.load(folder / name) for name in EMBEDDED}


def test_every_module_of_a_data_set_is_in_the_catalogue():
    described = {path.stem for path in FOLDER.glob("*.py") if "\nDATASET = " in path.read_text(encoding="utf-8")}
    assert described == set(DATASETS)
    for name, description in DATASETS.items():
        assert description.name == name == description.fetch.__module__.split(".")[-1]


def test_what_a_description_names_exists_and_is_of_its_kind():
    for name, description in DATASETS.items():
        for other in (*description.made_from, *([description.shift_of] if description.shift_of else [])):
            assert other != name and DATASETS[other].kind == description.kind
        assert description.kind in ("images", "texts") and "held_out" in description.protocols


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_set_is_what_it_says_of_itself(fetched, name):
    dataset, description = fetched[name], DATASETS[name]
    assert dataset.name == name
    assert isinstance(dataset.inputs, Texts) == (description.kind == "texts")
    assert (dataset.probability is not None) == description.has_probability
    assert (dataset.about.get("of") is not None) == bool(description.made_from)


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_set_that_is_made_from_another_has_its_examples(fetched, name):
    for source in DATASETS[name].made_from:
        assert np.isin(fetched[name].example, fetched[source].example).all()
        assert fetched[name].about["of"] == fetched[source].about["fingerprint"]


def test_origins():
    assert origins("digits") == {"digits"} and origins("digits_c") == {"digits"}
    assert origins("cifar10_c_200") & origins("cifar10_c") == {"cifar10"}
    assert not origins("cola") & origins("cola_ood")


def test_the_catalogue_is_light():
    """Every job and every dry run imports it."""
    code = "import sys, director.data.catalogue; print(*{name.split('.')[0] for name in sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(shown.stdout.split()) & {
        "torch",
        "pandas",
        "pyarrow",
        "datasets",
        "sklearn",
        "pydantic",
        "tokenizers",
    }
    code = "import sys, director.data.catalogue; print('scipy.ndimage' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "foreign", "words"),
    [
        ("digits", ["digits"], "names digits, the experiment's own data set; drop it"),
        ("digits", ["photographs", "digits_c"], "names digits_c, a copy of the images of digits; drop it"),
        ("cifar10", ["cifar10_c_200"], "names cifar10_c_200, a copy of the images of cifar10; drop it"),
        ("digits_c", ["digits"], "names digits, a copy of the images of digits_c; drop it"),
        ("cifar10", ["svhn", "lsun", "svhn"], "names svhn twice; keep it once"),
    ],
)
def test_what_is_not_foreign_is_no_out_of_distribution_set(name, foreign, words):
    with pytest.raises(ValidationError, match=f"out_of_distribution {words}"):
        Data(name=name, train=10, validation=10, out_of_distribution=foreign, **PIXELS)


def test_foreign_sets_are_accepted():
    assert Data(name="cifar10", train=10, validation=10, out_of_distribution=["cifar100", "svhn"], **PIXELS)
    assert Data(name="cola", train=10, validation=10, out_of_distribution=["imdb"], protocol="paper")

"""The command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from director import numbers
from director.__main__ import main
from director.numbers.metrics import METRICS, ood_summary, records
from director.numbers.predictions import Predictions


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=40)
    logits = generator.normal(size=(3, 40, 3)) + np.eye(3)[labels]
    Predictions(logits, labels).save(tmp_path / "test.npz")
    Predictions(logits / 2, None).save(tmp_path / "ood.npz")
    Predictions(logits, labels, shift=np.repeat(["fog", "snow"], 20)).save(tmp_path / "shifted.npz")
    return tmp_path / "test.npz"


def test_measure_prints_every_metric(file, capsys):
    assert main(["measure", str(file)]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines["n"] == "40"
    assert lines["ece_binary_15"] == "-"
    assert set(METRICS) < set(lines)
    assert float(lines["nll"]) == pytest.approx(METRICS["nll"](Predictions.load(file)), abs=1e-4)


def test_measure_prints_a_row_per_cell(file, capsys):
    assert main(["measure", str(file.with_name("shifted.npz"))]) == 0
    how, names, *rows = capsys.readouterr().out.splitlines()
    assert how == "samples 3, pooling softmax"
    assert "ece_15" in names.split()
    assert "ece_binary_15" not in names.split()
    assert [row.split()[0] for row in rows] == ["fog", "snow", "overall"]


def test_measure_as_json(file, capsys):
    assert main(["measure", str(file), "--json", "--pooling", "logits", "--samples", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == records(Predictions.load(file), "logits", 2)


def test_measure_out_of_distribution(file, capsys):
    outside = str(file.with_name("ood.npz"))
    assert main(["measure", str(file), "--ood", outside]) == 0
    assert "negative_mutual_information" in capsys.readouterr().out
    assert main(["measure", str(file), "--ood", outside, "--samples", "1"]) == 0
    assert "negative_mutual_information" not in capsys.readouterr().out
    assert main(["measure", str(file), "--ood", outside, "--json"]) == 0
    inside = Predictions.load(file)
    expected = {"records": records(inside), "ood": ood_summary(inside, Predictions.load(outside))}
    assert json.loads(capsys.readouterr().out) == expected


def test_check(file, capsys):
    assert main(["check", str(file)]) == 0
    assert "S = 3, N = 40, C = 3, labelled, shift clean" in capsys.readouterr().out
    assert main(["check", str(file.with_name("ood.npz"))]) == 0
    assert "no labels" in capsys.readouterr().out
    assert main(["check", str(file.with_name("shifted.npz"))]) == 0
    assert "shifts fog, snow" in capsys.readouterr().out


def test_a_file_of_numpy_and_no_more(file, capsys):
    predictions = Predictions.load(file)
    own = file.with_name("own.npz")
    np.savez(own, logits=predictions.logits[0], labels=predictions.labels)
    assert main(["check", str(own)]) == 0
    assert "S = 1, N = 40, C = 3, labelled, shift clean" in capsys.readouterr().out
    assert main(["measure", str(own), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == records(predictions.first(1))


@pytest.mark.parametrize("array", ["probabilities", "logits"])
def test_probabilities(file, capsys, array):
    predictions = Predictions.load(file)
    own, outside = (str(file.with_name(f"{name}-own.npz")) for name in ("in", "out"))
    np.savez(own, **{array: predictions.probabilities}, labels=predictions.labels)
    np.savez(outside, **{array: predictions.probabilities})
    for verb in ("check", "measure"):
        assert main([verb, own]) == 2
        assert "--probabilities" in capsys.readouterr().err
        assert main([verb, str(file), "--probabilities"]) == 2
        assert "without --probabilities" in capsys.readouterr().err
        assert main([verb, own, "--probabilities"]) == 0
        capsys.readouterr()
    assert main(["measure", own, "--probabilities", "--json", "--ood", outside]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["records"][0]["nll"] == pytest.approx(METRICS["nll"](predictions))
    assert measured["ood"]["max_softmax"]["auroc"] == 0.5


@pytest.mark.parametrize(("samples", "words"), [("0", "0 samples asked for"), ("4", "4 samples"), ("-1", "-1 samples")])
def test_a_number_of_samples_that_there_is_not(file, capsys, samples, words):
    assert main(["measure", str(file), "--samples", samples]) == 2
    assert f"error: {words}" in capsys.readouterr().err


@pytest.mark.parametrize("samples", ["all", "1.5", ""])
def test_a_number_of_samples_that_is_none(file, capsys, samples):
    with pytest.raises(SystemExit, match="2"):
        main(["measure", str(file), "--samples", samples])
    assert f"argument --samples: invalid int value: {samples!r}" in capsys.readouterr().err


@pytest.mark.parametrize(("console", "shift"), [("ascii", "décalé"), ("latin-1", "雨"), ("utf-8", "\udcff")])
def test_a_console_of_another_character_set_prints_every_shift(tmp_path, console, shift):
    Predictions(np.zeros((4, 2)), [0, 1, 0, 1], shift=[shift, "fog"] * 2).save(tmp_path / "a.npz")
    for verb in ("check", "measure"):
        words = [sys.executable, "-m", "director", verb, str(tmp_path / "a.npz")]
        ran = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": console})
        assert ran.returncode == 0, ran.stderr
        assert shift.encode(console, "backslashreplace") in ran.stdout


@pytest.mark.parametrize("verb", ["measure", "check"])
def test_bad_input_is_one_line_and_status_2(file, capsys, verb):
    assert main([verb, str(file.with_name("none.npz"))]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.startswith("error: ")
    assert "none.npz" in caught.err
    assert len(caught.err.splitlines()) == 1


def test_measuring_needs_labels(file, capsys):
    assert main(["measure", str(file.with_name("ood.npz"))]) == 2
    assert "no labels" in capsys.readouterr().err


MODULES = sorted(path.stem for path in Path(numbers.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("module", MODULES)
def test_numbers_load_no_large_library(module):
    """A user who measures predictions of their own needs numpy alone, and a job of numbers starts at once."""
    code = f"import sys\nimport director.numbers.{module}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    large = {"scipy", "torch", "pandas", "matplotlib", "seaborn", "sklearn", "pydantic", "yaml"}
    assert large.isdisjoint(ran.stdout.split())


@pytest.mark.parametrize("verb", ["measure", "check"])
def test_measuring_loads_no_large_library(file, verb):
    code = (
        "import sys\nfrom director.__main__ import main\n"
        f"main([{verb!r}, {str(file)!r}])\n"
        "print(*sorted({'scipy', 'torch', 'pandas', 'pydantic'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == ""


def test_a_wrong_file_from_the_shell_has_no_traceback(tmp_path):
    words = [sys.executable, "-m", "director", "measure", str(tmp_path / "none.npz")]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr

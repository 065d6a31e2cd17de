"""The command line."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from director import numbers
from director.__main__ import main
from director.numbers import comparison
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
    assert f"error: {file}: {words}" in capsys.readouterr().err


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


LARGE = ("scipy", "torch", "pandas", "pydantic", "pyarrow", "matplotlib", "seaborn")


@pytest.mark.parametrize(
    ("words", "loads"),
    [
        (["measure", "test.npz"], ""),
        (["check", "test.npz"], ""),
        (["compare", "test.npz", "test.npz", "--replicates", "9"], ""),
        (["measure", "test.csv"], "pyarrow"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_measuring_loads_no_large_library(file, words, loads):
    file.with_name("test.csv").write_text("a,b,label\n1.5,0.5,a\n0.5,1.5,b\n")
    code = (
        f"import sys\nfrom director.__main__ import main\nstatus = main({words})\n"
        f"print(status, *sorted({{*{LARGE}}} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=file.parent)
    assert ran.stdout.splitlines()[-1].split() == ["0", *loads.split()]


# -- several files, and files of other programs


def run(capsys, *words):
    """What a verb says; it has to succeed."""
    status = main([str(word) for word in words])
    caught = capsys.readouterr()
    assert status == 0, caught.err
    return caught.out


def fails(capsys, *words):
    """What a verb that ends with status 2 says, which is one line."""
    assert main([str(word) for word in words]) == 2
    caught = capsys.readouterr()
    assert caught.err.startswith("error: ") and len(caught.err.splitlines()) == 1
    return caught.err


@pytest.fixture
def others(file):
    """The first sample of `file` as files of other programs, and its labels; and a worse model."""
    predictions = Predictions.load(file)
    logits, names = predictions.logits[0], ["cat", "dog", "fox"]
    rows = [[*map(repr, row), names[label]] for row, label in zip(logits.tolist(), predictions.labels, strict=True)]
    file.with_name("a.csv").write_text("\n".join(map(",".join, [[*names, "label"], *rows])))
    np.save(file.with_name("a.npy"), logits)
    np.save(file.with_name("y.npy"), predictions.labels)
    noise = np.random.default_rng(1).normal(size=logits.shape)
    Predictions(np.stack([noise] * 3), predictions.labels).save(file.with_name("worse.npz"))
    return file.parent


def test_every_kind_of_file_gives_the_same_numbers(others, capsys):
    expected = records(Predictions.load(others / "test.npz").first(1))
    for words in (["a.csv"], ["a.npy", "--labels", others / "y.npy"]):
        measured = json.loads(run(capsys, "measure", others / words[0], *words[1:], "--json"))
        assert measured == [{**expected[0], **{name: pytest.approx(measured[0][name]) for name in METRICS}}]
        for name in METRICS:
            assert measured[0][name] == pytest.approx(expected[0][name])


def test_measure_several_files_prints_one_line_each(others, capsys):
    """Of shifted inputs their mean."""
    files = [others / name for name in ("test.npz", "a.csv", "shifted.npz")]
    heading, names, *lines = run(capsys, "measure", *files).splitlines()
    assert heading == "pooling softmax, severity 0"
    assert names.split()[:6] == ["file", "samples", "shift", "n", "accuracy", "mcc"] and "ece_binary_15" not in names
    assert [line.split()[:4] for line in lines] == [
        [str(files[0]), "3", "clean", "40"],
        [str(files[1]), "1", "clean", "40"],
        [str(files[2]), "3", "overall", "40"],
    ]
    of_json = json.loads(run(capsys, "measure", *files, "--json"))
    assert [(record["file"], record["shift"]) for record in of_json] == [
        (str(files[0]), "clean"),
        (str(files[1]), "clean"),
        *((str(files[2]), shift) for shift in ("fog", "snow", "overall")),
    ]


def test_check_several_files(others, capsys):
    files = [others / name for name in ("a.csv", "shifted.npz", "ood.npz")]
    lines = run(capsys, "check", *files).splitlines()
    assert lines[0] == f"{files[0]}: S = 1, N = 40, C = 3 (cat, dog, fox), labelled, shift clean"
    assert [line.split(":")[0] for line in lines] == [str(file) for file in files]
    found = json.loads(run(capsys, "check", *files, "--json"))
    assert found[1] == {
        "file": str(files[1]),
        "samples": 3,
        "rows": 40,
        "classes": 3,
        "labelled": True,
        "shifts": ["fog", "snow"],
        "class_names": [],
    }


def test_options_choose_columns(others, capsys):
    table = others / "own.csv"
    table.write_text("id,p_a,p_b,truth\n7,0.9,0.1,a\n8,0.2,0.8,b\n")
    assert "--classes" in fails(capsys, "check", table)
    words = ["check", table, "--probabilities", "--label", "truth", "--classes"]
    assert "C = 2 (a, b), labelled" in run(capsys, *words, "p_*")
    assert "C = 2 (b, a), labelled" in run(capsys, *words, 'p_b, "p_a"')
    with pytest.raises(SystemExit, match="2"):
        main([str(word) for word in (*words, "p_a,,p_b")])
    assert "--classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure", "a.npy"], "a.npy: no labels; give those of its rows with --labels FILE.npy"),
        (["measure", "test.npz", "ood.npz"], "ood.npz: no labels; add an array labels"),
        (["measure", "test.npz", "--labels", "y.npy"], "--labels is for .npy"),
        (["measure", "test.npz", "--label", "y"], "--label is for .csv, .tsv, .parquet"),
        (["check", "a.npy", "--classes", "a,b"], "--classes is for .csv, .tsv, .parquet"),
        (["measure", "test.npz", "a.csv", "--ood", "ood.npz"], "--ood ood.npz: belongs to one file, there are 2"),
        (["compare", "a.csv", "ood.npz"], "ood.npz: no labels"),
        (["plot", "ood.npz", "--out", "a.svg"], "ood.npz: no labels"),
        (["plot", "test.npz", "--out", "a.pdf"], "--out a.pdf: a figure is an .svg or a .png"),
        (["compare", "a.csv", "test.npz", "--level", "95"], "level 95"),
        (["compare", "a.csv", "test.npz", "--replicates", "0"], "0 replicates"),
        (["compare", "a.csv", "test.npz", "--seed", "-1"], "seed -1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_verbs_refuse(others, capsys, monkeypatch, words, says):
    monkeypatch.chdir(others)
    assert says in fails(capsys, *words)


def test_foreign_files_as_inputs_from_elsewhere(others, capsys):
    """The labels of a table or of --labels are not theirs."""
    (others / "out.csv").write_text("cat,dog,fox,label\n" + "0.1,0.2,0.4,bird\n" * 9)
    for words in (
        ["a.csv", "--ood", others / "out.csv"],
        ["a.npy", "--labels", others / "y.npy", "--ood", others / "a.csv"],
    ):
        assert "max_softmax" in run(capsys, "measure", others / words[0], *words[1:])


# -- compare


def test_compare_prints_differences_with_intervals(others, capsys):
    files = [others / "test.npz", others / "worse.npz"]
    sides = [Predictions.load(file) for file in files]
    a, b, how, names, *lines = run(capsys, "compare", *files).splitlines()
    assert (a, b) == (f"A is {files[0]}", f"B is {files[1]}")
    assert how == "40 examples, intervals at level 0.95 from 1000 replicates"
    assert names.split() == ["metric", "A", "B", "A", "-", "B", "lower", "upper"]
    assert [line.split()[0] for line in lines] == [*comparison.METRICS]
    for name, *shown in map(str.split, lines):
        expected = [METRICS[name](side) for side in sides]
        expected += comparison.paired_bootstrap(name, sides[:1], sides[1:]).values()
        # a draw without a wrong prediction has no AUROC, so that its interval is undefined
        assert shown == ["-" if value is None else f"{value:.4f}" for value in expected]


def test_compare_as_json(others, capsys):
    files = [str(others / "test.npz"), str(others / "worse.npz")]
    words = ["compare", *files, "--json", "--replicates", "50", "--level", "0.9", "--seed", "7"]
    found = json.loads(run(capsys, *words))
    lines = found.pop("metrics")
    expected = {"first": files[0], "second": files[1], "examples": 40, "replicates": 50, "level": 0.9, "seed": 7}
    assert found == expected
    sides = [[Predictions.load(file)] for file in files]
    nll = next(line for line in lines if line["metric"] == "nll")
    assert nll.items() >= comparison.paired_bootstrap("nll", *sides, 50, 7, 0.9).items()


def test_a_file_does_not_differ_from_itself(others, capsys):
    """Nor from itself as another kind of file, of other columns, or with its rows in another order."""
    table = (others / "a.csv").read_text().splitlines()
    rows = [f"{number},{row}" for number, row in enumerate(table[1:])]
    (others / "b.csv").write_text("\n".join([f"example,p_{table[0].replace(',', ',p_', 2)}", *rows[::-1]]))
    for pair in (["a.csv", "a.csv"], ["a.csv", "a.npy"], ["a.csv", "b.csv"], ["b.csv", "a.npy"]):
        labels = ["--labels", others / "y.npy"] if "a.npy" in pair else []
        found = json.loads(run(capsys, "compare", *(others / name for name in pair), *labels, "--json"))
        for line in found["metrics"]:
            assert [line[name] for name in ("difference", "lower", "upper")] == pytest.approx([0, 0, 0], abs=1e-12)


def test_files_of_other_examples_are_not_compared(others, capsys):
    predictions = Predictions.load(others / "worse.npz")
    logits, labels = predictions.logits[0], predictions.labels.copy()
    other = others / "other.npz"

    def difference(**arrays):
        np.savez(other, **arrays)
        told = fails(capsys, "compare", others / "worse.npz", other)
        assert "worse.npz" in told and "other.npz" in told
        return told

    assert "(39, 'clean', 0) and nothing" in difference(logits=logits[:39], labels=labels[:39])
    labels[5] = (labels[5] + 1) % 3
    assert f"labels {predictions.labels[5]} and {labels[5]} for example 5" in difference(logits=logits, labels=labels)
    wide = np.concatenate([logits, logits[:, :1]], axis=1)
    assert "3 classes" in difference(logits=wide, labels=predictions.labels)


def test_tables_of_other_classes_are_not_compared(others, capsys):
    text = (others / "a.csv").read_text()
    (others / "b.csv").write_text(text.replace("cat", "cow"))
    assert "cat and cow at the first that differs" in fails(capsys, "compare", others / "a.csv", others / "b.csv")
    rest = text.partition("\n")[2]
    (others / "b.csv").write_text(f"dog,cat,fox,label\n{rest}")
    assert "cat and dog at the first" in fails(capsys, "compare", others / "a.csv", others / "b.csv")
    named = ["--classes", "cat,dog,fox"]
    run(capsys, "compare", others / "a.csv", others / "b.csv", *named)


# -- plot


def test_plot_draws_every_file_once(others, capsys):
    (others / "b").mkdir()
    out = others / "figure.svg"
    files = [others / name for name in ("test.npz", "a.csv", "_own$x$.npy")]
    np.save(files[2], np.load(others / "a.npy"))
    assert run(capsys, "plot", *files, "--labels", others / "y.npy", "--out", out) == f"{out}\n"
    drawn = [text.text.strip() for text in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}text")]
    for file in files:
        assert drawn.count(file.name) == 1, "a title"
        assert sum(text.startswith(f"{file.name}:") for text in drawn) == 1, "an entry of the legend"
    assert "accuracy, %" in drawn and "coverage: share of inputs kept, most confident first, %" in drawn


def test_plot_names_files_of_one_name_by_their_folders(others, capsys, monkeypatch):
    monkeypatch.chdir(others)
    Path("b").mkdir()
    Path("b/test.npz").write_bytes(Path("test.npz").read_bytes())
    run(capsys, "plot", "test.npz", "b/test.npz", "--out", "figure.svg")
    drawn = [text.text for text in ElementTree.parse("figure.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert drawn.count("test.npz") == drawn.count("b/test.npz") == 1


def test_plot_writes_a_png(others, capsys):
    run(capsys, "plot", others / "a.csv", "--out", others / "figure.PNG")
    assert (others / "figure.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_figure_that_cannot_be_written(others, capsys):
    (others / "file").write_text("")
    assert f"{others}/file" in fails(capsys, "plot", others / "a.csv", "--out", others / "file/figure.svg")


# -- as a command


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"director {version('director')}\n"


def test_the_script_is_this_command_line(file):
    (script,) = entry_points(group="console_scripts", name="director")
    assert script.load() is main


def test_a_wrong_file_from_the_shell_has_no_traceback(tmp_path):
    words = [sys.executable, "-m", "director", "measure", str(tmp_path / "none.npz")]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr

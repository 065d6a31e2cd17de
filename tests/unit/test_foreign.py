"""Files of other programs are read as they are meant, or refused with the file, the place and the remedy."""

import re

import numpy as np
import pandas as pd
import pytest

from director.errors import AccessError, InputError
from director.foreign import class_names, read
from director.numbers.predictions import Predictions

NAMES = ["cat", "dog", "fox"]


@pytest.fixture
def logits():
    return np.random.default_rng(0).normal(size=(12, 3))


LABELS = np.arange(12) % 3


def frame(logits, names=NAMES, **columns):
    return pd.DataFrame(logits, columns=names).assign(**columns)


def write(table, path, **how):
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, **{"index": False, **how})
    return path


# -- arrays


@pytest.mark.parametrize("samples", [None, 4])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f4"])
def test_an_npy_with_the_labels_of_another(tmp_path, logits, samples, kind):
    values = (logits if samples is None else np.stack([logits + k for k in range(samples)])).astype(kind)
    np.save(tmp_path / "a.npy", values)
    np.save(tmp_path / "y.npy", LABELS)
    found = read(tmp_path / "a.npy", labels=tmp_path / "y.npy")
    assert np.array_equal(found.logits, values.reshape(-1, 12, 3)) and np.array_equal(found.labels, LABELS)
    assert read(tmp_path / "a.npy").labels is None
    assert read(tmp_path / "a.npy", labels=tmp_path / "none.npy", labelled=False).labels is None


def test_an_npz_is_what_predictions_load(tmp_path, logits):
    Predictions(logits, LABELS, about={"classes": 3}).save(tmp_path / "a.npz")
    found = read(tmp_path / "a.npz")
    assert np.array_equal(found.labels, LABELS) and class_names(found) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(np.array([{}], object), "not a readable .npy file"), (np.zeros(3), "(3,): give [S, N, C]"), (b"no", "readable")],
)
def test_an_npy_that_holds_something_else(tmp_path, content, words):
    if isinstance(content, bytes):
        (tmp_path / "a.npy").write_bytes(content)
    else:
        np.save(tmp_path / "a.npy", content)
    refused(tmp_path / "a.npy", "a.npy", words)


@pytest.mark.parametrize(
    ("labels", "words"),
    [(LABELS[:5], "labels has shape (5,)"), (LABELS + 0.5, "of type float64"), (LABELS + 1, "label 3 in row 2")],
)
def test_labels_that_do_not_fit_name_both_files(tmp_path, logits, labels, words):
    np.save(tmp_path / "a.npy", logits)
    np.save(tmp_path / "y.npy", labels)
    refused(tmp_path / "a.npy", f"a.npy with the labels of {tmp_path}/y.npy: ", words, labels=tmp_path / "y.npy")


def refused(path, *words, **how):
    with pytest.raises(InputError) as caught:
        read(path, **how)
    message = str(caught.value)
    assert message.startswith(str(path)) and len(message.splitlines()) == 1
    for part in words:
        assert part in message
    assert not re.search(r"damaged|delete|whole [a-z]* file", message)


@pytest.mark.parametrize("name", ["a.pt", "a.xlsx", "a.csv.gz", "a", "a.pkl"])
def test_a_suffix_that_says_nothing(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refused(tmp_path / name, ".npz, .npy, .csv, .tsv, .parquet", "numpy.savez")


@pytest.mark.parametrize("name", ["a.npy", "a.csv", "a.tsv", "a.parquet", "a.npz"])
def test_a_file_that_is_not_there_or_a_folder(tmp_path, name):
    with pytest.raises(AccessError, match=re.escape(f"{name}: no such file")):
        read(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(AccessError, match=name):
        read(tmp_path / name)


# -- tables as people have them


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("column", ["label", "labels", "y"])
@pytest.mark.parametrize("labels", [LABELS, np.array(NAMES)[LABELS]], ids=["positions", "names"])
def test_a_table_with_a_column_per_class(tmp_path, logits, suffix, column, labels):
    table = frame(logits, **{column: labels}, text='an "é", \n and more', correct=True, day=pd.Timestamp("2026-01-02"))
    sep = "\t" if suffix == "tsv" else ","
    found = read(write(table, tmp_path / f"a.{suffix}", sep=sep))
    assert np.array_equal(found.logits[0], logits) and np.array_equal(found.labels, LABELS)
    assert class_names(found) == NAMES


@pytest.mark.parametrize(
    "how",
    [
        {"sep": ";"},
        {"sep": "\t"},
        {"index": True},
        {"index": True, "index_label": "Unnamed: 0"},
        {"encoding": "utf-8-sig"},
        {"lineterminator": "\r\n"},
        {"quoting": 1},
        {"header": ["cat ", " dog", "fox", "label"]},
    ],
    ids=str,
)
def test_dialects_of_csv(tmp_path, logits, how):
    found = read(write(frame(logits, label=np.array(NAMES)[LABELS]), tmp_path / "a.csv", **how))
    assert np.array_equal(found.logits[0], logits) and np.array_equal(found.labels, LABELS)
    assert class_names(found) == NAMES


def test_types_of_parquet(tmp_path, logits):
    """Categories, an index with a name, floats of other widths, labels that had a gap."""
    table = frame(logits, label=pd.Categorical(np.array(NAMES)[LABELS])).astype({"cat": "float32", "dog": "float16"})
    found = read(write(table.set_index(pd.Index(np.arange(12) * 0.5, name="id")), tmp_path / "a.parquet"))
    assert np.array_equal(found.logits[0], table[NAMES].to_numpy(float)) and np.array_equal(found.labels, LABELS)
    assert np.array_equal(read(write(frame(logits, y=LABELS * 1.0), tmp_path / "b.parquet")).labels, LABELS)


@pytest.mark.parametrize("beginning", ["", "p", "p_", "prob class "])
@pytest.mark.parametrize("spelt", ["numbers", "names"])
def test_numbered_columns_are_in_the_order_of_their_numbers(tmp_path, beginning, spelt):
    """A table sorted by name has p_10 before p_2: a label 2 is p_2, at position 2."""
    names = [f"{beginning}{k}" for k in range(11)]
    logits, labels = np.random.default_rng(0).normal(size=(22, 11)), np.arange(22) % 11
    table = frame(logits, names)[sorted(names)]
    table["label"] = labels if spelt == "numbers" else np.array(names)[labels]
    found = read(write(table, tmp_path / "a.csv"))
    assert np.array_equal(found.logits[0], logits) and np.array_equal(found.labels, labels)
    assert class_names(found) == [str(k) for k in range(11)]


def test_classes_numbered_from_1_have_labels_from_1(tmp_path, logits):
    table = frame(logits, ["class_1", "class_2", "class_3"])
    assert np.array_equal(read(write(table.assign(y=LABELS + 1), tmp_path / "a.csv")).labels, LABELS)
    refused(write(table.assign(y=LABELS), tmp_path / "a.csv"), "label '0' of column y in row 0", "class_1, class_2")


@pytest.mark.parametrize("beginning", ["prob_", "logits.", "my model: "])
def test_a_label_may_leave_out_what_all_columns_begin_with(tmp_path, logits, beginning):
    table = frame(logits, [beginning + name for name in NAMES], label=np.array(NAMES)[LABELS])
    found = read(write(table, tmp_path / "a.csv"))
    assert np.array_equal(found.labels, LABELS) and class_names(found) == NAMES


def test_names_that_begin_with_the_same_letters_are_whole(tmp_path, logits):
    table = frame(logits, ["cat", "car", "cap"], label=np.array(["cat", "car", "cap"])[LABELS])
    assert class_names(read(write(table, tmp_path / "a.csv"))) == ["cat", "car", "cap"]


@pytest.mark.parametrize("name", ["NA", "null", "nan", "None", "True"])
def test_a_class_may_be_called_like_a_missing_value(tmp_path, logits, name):
    names = ["cat", name, "fox"]
    found = read(write(frame(logits, names, label=np.array(names)[LABELS]), tmp_path / "a.csv"))
    assert np.array_equal(found.labels, LABELS) and class_names(found) == names


def test_probabilities_in_a_table(tmp_path, logits):
    path = write(frame(Predictions(logits, LABELS).probabilities, label=LABELS), tmp_path / "a.csv")
    found = read(path, probabilities=True)
    assert found.probabilities == pytest.approx(Predictions(logits, LABELS).probabilities)
    refused(write(frame(logits, label=LABELS), path), "classes cat, dog, fox: ", "sum to", probabilities=True)


def test_example_shift_and_severity_are_those_of_predictions(tmp_path, logits):
    given = {"example": np.arange(12)[::-1], "shift": ["fog", "snow"] * 6, "severity": [1, 2] * 6}
    for suffix in ("csv", "parquet"):
        found = read(write(frame(logits, label=LABELS, **given), tmp_path / f"a.{suffix}"))
        for name, values in given.items():
            assert getattr(found, name).tolist() == list(values)
    refused(write(frame(logits, example="a text"), tmp_path / "a.csv"), "column example holds text", "rename it")
    refused(write(frame(logits, severity=0.5), tmp_path / "a.csv"), "column severity holds fractions")


def test_classes_by_name_and_pattern(tmp_path, logits):
    table = frame(logits, ["p_cat", "p_dog", "p_fox"], label=LABELS, id=range(12), confidence=0.5)
    path = write(table, tmp_path / "a.csv")
    assert class_names(read(path, classes=["p_*"])) == NAMES
    assert class_names(read(path, classes=["p_fox", "p_cat", "p_dog"])) == ["fox", "cat", "dog"]
    refused(path, "no column p_cow for --classes", "p_cat, p_dog, p_fox", classes=["p_cat", "p_cow"])
    refused(path, "p_cat is named twice", classes=["p_*", "p_cat"])
    refused(path, "column label is named both", classes=["p_cat", "label"], label="label")
    refused(path, "p_cat is the only class column", "1 - p", classes=["p_cat"])


def test_a_class_called_as_labels_are_by_default(tmp_path, logits):
    table = frame(logits, ["n", "y", "label"], target=np.array(["n", "y", "label"])[LABELS])
    path = write(table, tmp_path / "a.csv")
    found = read(path, label="target", classes=["n", "y", "label"])
    assert np.array_equal(found.labels, LABELS) and found.logits.shape == (1, 12, 3)


def test_the_label_column_by_name(tmp_path, logits):
    path = write(frame(logits, target=LABELS), tmp_path / "a.csv")
    assert np.array_equal(read(path, label="target").labels, LABELS)
    refused(path, "no column truth for --label", "cat, dog, fox, target", label="truth")
    refused(path, "column target holds whole numbers", "--label target")
    path = write(frame(logits, label=LABELS, y=LABELS), path)
    refused(path, "columns label and y may both be the labels", "--label label")
    refused(path, "column y holds whole numbers", label="label")


def test_labels_of_inputs_from_elsewhere_mean_nothing(tmp_path, logits):
    path = write(frame(logits, label="bird"), tmp_path / "a.csv")
    assert read(path, labelled=False).labels is None
    assert read(path, label="target", labelled=False).logits.shape == (1, 12, 3)


# -- tables that could be misunderstood


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.assign(id=range(12)), ["column id holds whole numbers", "--classes"]),
        (lambda t: t.assign(id=np.arange(12.0)), ["column id holds whole numbers", "--classes"]),
        (lambda t: t.assign(right=[0, 1] * 6), ["column right holds whole numbers", "--classes"]),
        (lambda t: t.assign(notes=np.nan), ["column notes is empty in row 0", "--classes"]),
        (lambda t: t.assign(dog=t["dog"].where(t.index != 4)), ["column dog is empty in row 4"]),
        (
            lambda t: t.assign(dog=t["dog"].astype(object).where(t.index != 4, "1.0.3")),
            ["column dog", "'1.0.3' in row 4"],
        ),
        (lambda t: t.assign(dog=t["dog"].where(t.index != 4, np.inf)), ["row 4", "not finite"]),
        (lambda t: t.rename(columns={"dog": "cat"}), ["two columns are called cat"]),
        (lambda t: t.rename(columns={"dog": ""}), ["column 1 (from 0) has numbers but no name"]),
        (lambda t: t[["label"]].assign(text="a"), ["no column of numbers", "text"]),
        (lambda t: t[["cat", "label"]], ["cat is the only class column"]),
        (lambda t: t.iloc[:0], ["holds no rows"]),
        (lambda t: t.assign(label=t["label"].where(t.index != 4)), ["column label is empty in row 4"]),
        (lambda t: t.assign(label=t["label"] + 0.5), ["label '0.5' of column label in row 0"]),
        (lambda t: t.assign(label=t["label"] + 1), ["label 3 in row 2"]),
        (lambda t: t.assign(label=t["label"] - 1), ["label -1 in row 0"]),
        (
            lambda t: t.assign(label=["cat"] * 11 + ["bird"]),
            ["label 'bird' of column label in row 11", "cat, dog, fox"],
        ),
        (lambda t: t.assign(label=t["label"] == 1), ["label 'False' of column label in row 0"]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_is_not_clear_is_refused(tmp_path, logits, change, words, suffix):
    table = change(frame(logits, label=LABELS))
    if suffix == "parquet" and (not table.columns.is_unique or {*map(type, table.get("dog", []))} == {float, str}):
        pytest.skip("pandas writes no such Parquet file")
    refused(write(table, tmp_path / f"a.{suffix}"), *words)


def test_columns_beside_numbered_ones(tmp_path, logits):
    table = frame(logits, ["p_0", "p_1", "p_2"], label=LABELS)
    refused(write(table.assign(entropy=0.3), tmp_path / "a.csv"), "column entropy beside those numbered as p_0, p_1")
    both = table.assign(**{f"logit_{k}": logits[:, k] for k in range(3)})
    refused(write(both, tmp_path / "a.csv"), "column logit_0 beside", "--classes")
    assert read(tmp_path / "a.csv", classes=["logit_*"]).logits.shape == (1, 12, 3)


def test_numbers_as_text(tmp_path, logits):
    """A decimal comma, and a Parquet file of texts."""
    table = frame(logits.round(3), label=LABELS)
    refused(write(table, tmp_path / "a.csv", sep=";", decimal=","), "column cat", "in row 0", "with a decimal point")
    refused(write(table.astype(str), tmp_path / "a.parquet"), "column cat", "is text", "in row 0")
    path = write(table.assign(dog="x"), tmp_path / "a.csv")
    refused(path, "class column dog holds text, such as 'x' in row 0", classes=["cat", "dog"])


def test_lists_in_parquet(tmp_path, logits):
    path = write(pd.DataFrame({"logits": list(logits), "label": LABELS}), tmp_path / "a.parquet")
    refused(path, "column logits holds lists: make a column of each class")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Empty CSV file"),
        (b"a,b,label\n", "holds no rows"),
        (b"a,b,label\n.1,.2,0\n.1,.2\n", "Row #3: Expected 3 columns, got 2"),
        (b"0.1,0.9,1\n0.2,0.8,1\n", "the first line holds numbers such as 0.1"),
        ("a,b,label\n.1,.2,é\n".encode("latin-1"), "UTF-8"),
        ("a,b,label\n.1,.2,0\n".encode("utf-16"), "UTF-8"),
    ],
    ids=["empty", "no rows", "a short row", "no header", "latin-1", "utf-16"],
)
def test_a_csv_that_is_none(tmp_path, content, words):
    (tmp_path / "a.csv").write_bytes(content)
    refused(tmp_path / "a.csv", words)


def test_a_parquet_file_that_is_none(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"a,b,label\n")
    refused(tmp_path / "a.parquet", "not a table that can be read", "check the path")


def test_types_are_those_of_all_rows_and_not_of_the_first_block(tmp_path):
    """pyarrow infers from a first megabyte by itself."""
    rows = 120_000
    path = tmp_path / "a.csv"
    path.write_text("a,b,label\n" + "0.25,1.5,0\n" * rows + "0.5,2.5,1\n" + "0.5,x,1\n")
    refused(path, "column b", f"'x' in row {rows + 1}")
    path.write_text("a,b,label\n" + "0,3,0\n" * 2 * rows + "0.5,2.5,1\n")
    assert read(path).logits.shape == (1, 2 * rows + 1, 2)

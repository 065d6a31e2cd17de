"""Predictions of any other program, as people have them: .npy files of numpy, tables in CSV or Parquet.

It lies above `director.numbers`, which need numpy alone: pyarrow reads the tables, and is loaded when there is one.
What a table means is clear or refused, never guessed: a column too many would be a class too many in every metric.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from director.errors import InputError, listed
from director.files import reading
from director.numbers.predictions import Predictions

TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".npz", ".npy", *TABLES)
LABELS = ("label", "labels", "y")  # what a column of labels may be called
FIELDS = {"example": "whole", "shift": "text", "severity": "whole"}  # columns with the meaning of `Predictions`
UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # how pandas writes an index, and reads what has no name
NAME_THEM = "name the class columns: --classes a,b,c, or --classes 'p_*' for all that begin so"

Columns = dict[str, Any]  # name -> pyarrow.ChunkedArray


def read(
    path: str | Path,
    probabilities: bool = False,
    *,
    labels: str | Path | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
) -> Predictions:
    """Read an .npz, an .npy of logits [N, C] or [S, N, C], or a CSV (.csv, .tsv) or Parquet table of one row per input.

    probabilities: what is read are probabilities. labels: the .npy file of labels that belongs to an .npy of logits.
    labelled: False for out-of-distribution inputs, whose labels mean nothing.

    A table has a column per class: `classes` (names, or patterns such as "p_*"), or else all columns of numbers but the
    label's, `label`, or else the one called label, labels or y. Columns example, shift and severity are those of
    `Predictions`; text, and the index that pandas writes, are left out. Classes are in the order of their columns or,
    where these are numbered (0, 1, ... or p_0, p_1, ...), of these numbers. A label is the name of a class column, with
    or without what all of them begin with (cat for p_cat), its number, or where they have none a position 0..C-1.

    `InputError` names the file, the column or row, and the remedy.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        return Predictions.load(path, probabilities)
    if suffix == ".npy":
        values = _array(path)
        fields = {"labels": None if labels is None or not labelled else _array(labels)}
        source = f"{path}" if fields["labels"] is None else f"{path} with the labels of {labels}"
    elif suffix in TABLES:
        names, values, fields = _from_table(path, label, classes, labelled)
        source = f"{path}, classes {listed(names)}"
    else:
        raise InputError(
            f"{path}: files are told by their suffix, one of {', '.join(SUFFIXES)}; write one of these, for example "
            "with numpy.savez(path, logits=logits, labels=labels)"
        )
    make = Predictions.from_probabilities if probabilities else Predictions
    try:
        return make(values, **fields)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def class_names(predictions: Predictions) -> list[str]:
    """What the classes of a table are called, without what all of them begin with; [] where nothing says so."""
    names = predictions.about.get("classes")  # of a file that is not ours, it may be anything
    known = isinstance(names, list) and len(names) == predictions.logits.shape[2]
    return names if known and all(isinstance(name, str) for name in names) else []


def _array(path: str | Path) -> NDArray[Any]:
    with reading(path, "a readable .npy file", "check the path, or write it with numpy.save(path, array)"):
        return np.lib.format.open_memmap(path, mode="r")


# -- tables


def _from_table(
    path: str | Path, label: str | None, classes: Sequence[str] | None, labelled: bool
) -> tuple[list[str], NDArray[np.float64], dict[str, Any]]:
    """The class columns of a table, what is in them [N, C], and the other arguments of `Predictions`."""
    columns = read_table(path)
    asked = [name for name in classes or () if name in columns]  # called a class: neither label nor field
    label = _label_column(path, columns, label, asked, labelled)
    rest = {name: column for name, column in columns.items() if name != label}
    fields = {name: rest.pop(name) for name in FIELDS if name in rest and name not in asked}
    names = _chosen(path, rest, classes) if classes else _found(path, rest)
    if len(names) < 2:
        raise InputError(
            f"{path}: {names[0]} is the only class column: give one for each class, with two classes also 1 - p"
        )
    if numbers := _numbers(names):
        names = [name for _, name in sorted(zip(numbers, names, strict=True))]
    values = np.empty((len(rest[names[0]]), len(names)))
    for position, name in enumerate(names):
        values[:, position] = _values(path, name, rest[name])
    given = {name: _field(path, name, column) for name, column in fields.items()}
    targets = _targets(path, label, columns[label].to_pylist(), names) if label and labelled else None
    return names, values, {"labels": targets, **given, "about": {"classes": _short(names)}}


def read_table(path: str | Path) -> Columns:
    with reading(path, "a table that can be read", "check the path, or write it as CSV in UTF-8 or as Parquet"):
        table, index = _parquet(path) if Path(path).suffix.lower() == ".parquet" else (_csv(path), ())
    columns: Columns = {}
    for position, (name, column) in enumerate(zip(map(str.strip, table.column_names), table.columns, strict=True)):
        if name in index and name not in FIELDS:
            continue
        if UNNAMED.fullmatch(name):
            if _kind(column) == "fractions":
                raise InputError(f"{path}: column {position} (from 0) has numbers but no name: give it one")
        elif name in columns:
            raise InputError(f"{path}: two columns are called {name}: rename one, or take it out")
        else:
            columns[name] = column
    if not len(table):
        raise InputError(f"{path}: holds no rows; add one for each input")
    return columns


def _csv(path: str | Path) -> Any:
    from pyarrow import csv

    with Path(path).open("rb") as file:
        header = file.readline().decode("utf-8-sig")
    return csv.read_csv(
        path,
        # In one block, from which pyarrow takes the types: a text far below tells that a column has not only numbers.
        csv.ReadOptions(use_threads=False, block_size=min(Path(path).stat().st_size + 1, 2**31 - 1)),
        csv.ParseOptions(delimiter=max(",;\t", key=header.count), newlines_in_values=True),
        csv.ConvertOptions(strings_can_be_null=False, true_values=[], false_values=[]),  # names of classes stay words
    )


def _parquet(path: str | Path) -> tuple[Any, list[str]]:
    """A table, and the names of those columns that are an index of pandas."""
    from pyarrow import parquet

    with Path(path).open("rb") as file:  # so that the system says what is wrong, as of any other file
        table = parquet.ParquetFile(file).read()
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    return table, [name for name in index if isinstance(name, str)]  # one that only counts is described, not stored


def _kind(column: Any) -> str:
    """What a column holds: fractions, whole (numbers), nothing, text, or the name of any other type."""
    from pyarrow import types

    if types.is_floating(column.type) or types.is_decimal(column.type):
        values = _doubles(column.drop_null())
        beyond = ((values < 0) | (values > 1)).any()  # 0.0 and 1.0 alone are probabilities, too
        return "whole" if beyond and (values == np.rint(values)).all() else "fractions"
    if types.is_integer(column.type):
        return "whole"
    if types.is_null(column.type):
        return "nothing"
    text = types.is_string(column.type) or types.is_large_string(column.type) or types.is_dictionary(column.type)
    return "text" if text else str(column.type)


def _label_column(
    path: str | Path, columns: Columns, label: str | None, asked: Sequence[str], labelled: bool
) -> str | None:
    if label is None:
        found = [name for name in LABELS if name in columns and name not in asked]
        if len(found) > 1:
            raise InputError(f"{path}: columns {' and '.join(found)} may both be the labels: say --label {found[0]}")
        return found[0] if found else None
    if label in asked:
        raise InputError(f"{path}: column {label} is named both by --label and by --classes: take it out of one")
    if label not in columns and labelled:
        raise InputError(f"{path}: no column {label} for --label; the columns are {listed([*columns])}")
    return label if label in columns else None


def _chosen(path: str | Path, columns: Columns, classes: Sequence[str]) -> list[str]:
    """The columns of these names and patterns."""
    names = []
    for pattern in classes:
        matching = [pattern] if pattern in columns else [name for name in columns if fnmatchcase(name, pattern)]
        if not matching:
            raise InputError(f"{path}: no column {pattern} for --classes; the columns are {listed([*columns])}")
        names += matching
    if twice := [name for position, name in enumerate(names) if name in names[:position]]:
        raise InputError(f"{path}: column {twice[0]} is named twice by --classes: name each class once")
    return names


def _found(path: str | Path, columns: Columns) -> list[str]:
    """All columns of numbers, if nothing speaks against their being the classes."""
    kinds = {name: _kind(column) for name, column in columns.items()}
    for name, column in columns.items():
        if _is_number(name) and re.search(r"\d", name) and not name.isdigit():
            raise InputError(f"{path}: the first line holds numbers such as {name}, not the names of columns: add them")
        if kinds[name] == "text" and (word := _word_among_numbers(column)):
            raise InputError(
                f"{path}: column {name} seems to be of numbers, but is text, such as {word[1]!r} in row {word[0]} "
                f"(from 0): write numbers, with a decimal point; if it is no class, {NAME_THEM}"
            )
        if kinds[name].startswith(("list", "large_list", "fixed_size_list")):
            raise InputError(f"{path}: column {name} holds lists: make a column of each class, or {NAME_THEM}")
    names = [name for name, kind in kinds.items() if kind in ("fractions", "whole", "nothing")]
    if not names:
        raise InputError(f"{path}: no column of numbers for each class; the columns are {listed([*columns]) or 'none'}")
    if whole := [name for name in names if kinds[name] == "whole"]:
        raise InputError(
            f"{path}: column {whole[0]} holds whole numbers alone, so it may be no class: {NAME_THEM}; if it holds the "
            f"labels, say --label {whole[0]}"
        )
    beginnings = [name.rstrip("0123456789") if name[-1].isdigit() else None for name in names]
    for beginning in beginnings:
        others = [name for name, other in zip(names, beginnings, strict=True) if other != beginning]
        if beginning is not None and others and beginnings.count(beginning) > 1:
            raise InputError(
                f"{path}: column {others[0]} beside those numbered as {beginning}0, {beginning}1, ... may be no class: "
                f"{NAME_THEM}"
            )
    return names


def _word_among_numbers(column: Any) -> tuple[int, str] | None:
    """The first row of text that is no number, and this text, if half the rows are: a typing error, a decimal comma."""
    texts = [str(text or "") for text in column.to_pylist()]
    if 2 * sum(_is_number(text.replace(",", ".")) for text in texts) < len(texts):
        return None
    return next(((row, text) for row, text in enumerate(texts) if not _is_number(text)), (0, texts[0]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _values(path: str | Path, name: str, column: Any) -> NDArray[np.float64]:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise InputError(
            f"{path}: column {name} is empty in row {row} (from 0): fill it or leave the row out; if it is no class, "
            f"{NAME_THEM}"
        )
    if (kind := _kind(column)) not in ("fractions", "whole"):
        texts = column.to_pylist()
        row = next((row for row, text in enumerate(texts) if not _is_number(str(text))), 0)
        raise InputError(
            f"{path}: class column {name} holds {kind}, such as {texts[row]!r} in row {row} (from 0): write numbers, "
            "with a decimal point, or leave the column out of --classes"
        )
    return _doubles(column)


def _doubles(column: Any) -> NDArray[np.float64]:
    """Numbers without gaps; `to_numpy` of pyarrow would load pandas, which takes a second."""
    return np.from_dlpack(column.cast("double", safe=False).combine_chunks())  # of large integers the nearest


def _field(path: str | Path, name: str, column: Any) -> NDArray[Any]:
    kind = _kind(column)
    if column.null_count or kind != FIELDS[name]:
        wanted = {"whole": "whole numbers", "text": "names"}[FIELDS[name]]
        held = "gaps" if column.null_count else kind
        raise InputError(f"{path}: column {name} holds {held}: give {wanted} as Predictions has them, or rename it")
    return np.array(column.to_pylist())


# -- labels


def _numbers(names: Sequence[str]) -> list[int] | None:
    """The numbers at the end of all names, where these begin alike: 0, 1, ... or p_0, p_1, ..."""
    parts = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    if not all(parts) or len({part[1] for part in parts}) > 1:
        return None
    numbers = [int(part[2]) for part in parts]
    return numbers if len({*numbers}) == len(numbers) else None


def _short(names: Sequence[str]) -> list[str]:
    """Names without what all of them begin with: their numbers, or the rest behind a separator, cat of p_cat."""
    if numbers := _numbers(names):
        return [str(number) for number in numbers]
    starts = [names[0][: separator.end()] for separator in re.finditer(r"[\W_]", names[0])]
    shared = max((len(start) for start in starts if all(name.startswith(start) for name in names)), default=0)
    return [name[shared:] for name in names]


def _targets(path: str | Path, label: str, labels: Sequence[Any], names: Sequence[str]) -> NDArray[np.int64]:
    """The class of each label."""
    with reading(path, f"UTF-8 in column {label}", "write the file in UTF-8"):
        texts = [_text(value) for value in labels]
    if "" in texts:
        raise InputError(f"{path}: column {label} is empty in row {texts.index('')} (from 0): leave such rows out")
    classes = {name: position for spelt in (_short(names), names) for position, name in enumerate(spelt)}
    unknown = next((row for row, text in enumerate(texts) if text not in classes), None)
    if unknown is None:
        return np.array([classes[text] for text in texts], np.int64)
    if _numbers(names) is None and all(re.fullmatch(r"-?\d{1,18}", text) for text in texts):
        return np.array(texts).astype(np.int64)
    raise InputError(
        f"{path}: label {texts[unknown]!r} of column {label} in row {unknown} (from 0) is none of the class columns "
        f"{listed(names)}: give a label as one of these names, or name columns as the labels are"
    )


def _text(value: Any) -> str:
    """A label as it is written: the number 3 of 3.0, too, which pandas makes where a column has had gaps."""
    if value is None:
        return ""
    if isinstance(value, bytes):  # text of old writers
        return value.decode()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()

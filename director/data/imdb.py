"""IMDB: 25,000 train and 25,000 test film reviews, negative (0) or positive (1), equally many of each.

Source: Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011 (docs/datasets.md).
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.images import check_labels, read_parquet
from director.data.sources import DOWNLOADS, download, first_of, from_folders, from_hub, in_folder, unpack, verify
from director.data.splits import balanced_split
from director.data.texts import Texts, decode
from director.errors import InputError

if TYPE_CHECKING:
    import pyarrow

PARTS = ("train", "test")
OF_EACH = 12_500  # reviews of each class in either part
CLASSES = ("neg", "pos")  # folders of the publisher's; labels 0 and 1
TREE, ARCHIVE = "aclImdb", "aclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
URL = f"https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE}"
REPOSITORY, CONFIG = "stanfordnlp/imdb", "plain_text"
REMEDY = "delete it and provide it again"

# texts and labels int64 [N] of one part
Part = tuple[list[str], np.ndarray]


def fetch(made_from: dict[str, Path]) -> Dataset:
    """50,000 reviews, the train part first; within a part by label, then by text, whatever order the source has."""
    files = (f"{TREE}/", "train.parquet and test.parquet", f"{CONFIG}/*.parquet", ARCHIVE)
    return first_of(
        "imdb",
        {
            in_folder("imdb", *files): lambda: from_folders("imdb", read_folder),
            f"let the hub be reached, or its cache have {REPOSITORY}": _from_hub,
            f"let the publisher be reached, {URL}": lambda: _unpacked(
                download(URL, DOWNLOADS / "imdb" / ARCHIVE, md5=MD5)
            ),
        },
    )


def read_folder(folder: Path) -> Dataset | None:
    """The set from the publisher's tree in `folder`, else its Parquet files, else its archive; None without any."""
    if (tree := folder / TREE).is_dir():
        return _dataset("publisher's files", {part: read_tree(tree / part) for part in PARTS})
    for parent in (folder, folder / CONFIG) if folder.name == "imdb" else ():
        paths = {part: sorted([*parent.glob(f"{part}.parquet"), *parent.glob(f"{part}-*.parquet")]) for part in PARTS}
        if all(paths.values()):
            tables = {part: (", ".join(map(str, paths[part])), read_parquet(paths[part])) for part in PARTS}
            return _dataset("Parquet files", {part: read_table(*table) for part, table in tables.items()})
        if any(paths.values()):
            raise InputError(f"{parent}: has the Parquet file of one part only; provide both, train and test")
    if (archive := folder / ARCHIVE).is_file():
        verify(archive, md5=MD5)
        return _unpacked(archive)
    return None


def read_tree(folder: Path) -> Part:
    """Texts and labels of one part as the publisher has it: a file per review, in folders `neg` and `pos`."""
    texts, labels = [], []
    for label, name in enumerate(CLASSES):
        paths = sorted((folder / name).glob("*.txt"))
        texts += [decode(path.read_bytes(), str(path)) for path in paths]
        labels += [label] * len(paths)
    return texts, np.array(labels, np.int64)


def read_table(where: str, table: "pyarrow.Table") -> Part:
    """Texts and labels of a table with columns `text` and `label`; others are ignored."""
    import pyarrow

    for column in ("text", "label"):
        if column not in table.column_names:
            raise InputError(f"{where}: no column {column} among {', '.join(table.column_names)}; {REMEDY}")
        if table[column].null_count:
            raise InputError(f"{where}: column {column} has gaps; {REMEDY}")
    kind = table["label"].type
    if not pyarrow.types.is_integer(kind):
        raise InputError(f"{where}: column label is {kind}, not whole numbers; {REMEDY}")
    labels = table["label"].to_numpy().astype(np.int64)
    check_labels(where, labels, len(CLASSES))
    contents = table["text"].cast(pyarrow.large_binary()).to_pylist()
    return [decode(content, f"{where}, row {row}") for row, content in enumerate(contents)], labels


def _from_hub() -> Dataset:
    tables = {part: (f"{REPOSITORY}, {part}", from_hub(REPOSITORY, part, CONFIG)) for part in PARTS}
    return _dataset(f"hub {REPOSITORY}", {part: read_table(*table) for part, table in tables.items()})


def _unpacked(archive: Path) -> Dataset:
    with tempfile.TemporaryDirectory() as folder:
        dataset = read_folder(unpack(archive, Path(folder) / "imdb"))
    if dataset is None:
        raise InputError(f"{archive}: holds no {TREE}; take the publisher's archive")
    return dataset


def _dataset(source: str, parts: dict[str, Part]) -> Dataset:
    texts, labels = [], []
    for part, (part_texts, classes) in parts.items():
        of_each = np.bincount(classes, minlength=2)
        if tuple(of_each) != (OF_EACH, OF_EACH):
            raise InputError(
                f"imdb, {source}: {of_each[0]:,} negative and {of_each[1]:,} positive reviews in the {part} part, not "
                f"{OF_EACH:,} of each; provide it again"
            )
        reviews = sorted(zip(classes.tolist(), part_texts, strict=True))
        labels += [label for label, _ in reviews]
        texts += [text for _, text in reviews]
    return Dataset.clean(
        "imdb",
        Texts.of(texts),
        np.array(labels, np.int64),
        source=source,
        licence="none given; research use, cite the paper; the reviews are their writers' and IMDb's",
        citation="maas2011learning",
        parts={part: len(classes) for part, (_, classes) in parts.items()},
        generated=False,
    )


# The paper takes train 20,000 and validation 5,000, stratified too.
DATASET = Description("imdb", "texts", fetch, balanced_split)

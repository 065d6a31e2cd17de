"""IMDB: 25,000 train and 25,000 test film reviews, negative (0) or positive (1), equally many of each.

Source: Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011 (docs/datasets.md).
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.images import check_labels, read_parquet
from director.data.sources import (
    DOWNLOADS,
    PUBLISHED,
    archive_in,
    download,
    first_of,
    from_folders,
    from_hub,
    in_folder,
    named,
    unpacked,
    verify,
    verify_content,
)
from director.data.splits import balanced_split
from director.data.texts import Texts, decode, read_text
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
# of the reviews and labels of each part, by label, then by text, see `verify_content`
SHA256 = {
    "train": "a8247968eb12296b450fa0b8ef07715fe5c6276c3d551664396ac340a2680700",
    "test": "2754b4e0586435aa9452b5f7cccce6046f3c5d6a652d89bf0e1a70d85e39f111",
}


class Part(NamedTuple):
    """Texts and labels int64 [N] of one part, as they are in `where`."""

    where: str
    texts: list[str]
    labels: np.ndarray


def fetch(made_from: dict[str, Path]) -> Dataset:
    """50,000 reviews, the train part first; within a part by label, then by text, whatever order the source has."""
    files = (f"{TREE}/", "train.parquet and test.parquet", f"{CONFIG}/*.parquet", ARCHIVE)
    return first_of(
        "imdb",
        {
            in_folder("imdb", *files): lambda: from_folders("imdb", read_folder, TREE),
            f"let the hub be reached, or its cache have {REPOSITORY}": _from_hub,
            f"let the publisher be reached, {URL}": lambda: _unpacked(
                download(URL, DOWNLOADS / "imdb" / ARCHIVE, md5=MD5)
            ),
        },
    )


def read_folder(folder: Path, proven: bool = False) -> Dataset | None:
    """The set from the publisher's tree in `folder`, else its Parquet files, else its archive; None without any.

    proven: the folder is the content of an archive with the publisher's checksum, so that its content needs none.
    """
    for tree in (folder / TREE, folder):
        if named(tree, TREE, "imdb") and any((tree / part / name).is_dir() for part in PARTS for name in CLASSES):
            return _dataset("publisher's files", {part: read_tree(tree / part) for part in PARTS}, proven)
    for parent in (folder, folder / CONFIG) if named(folder, "imdb") else ():
        paths = {part: sorted([*parent.glob(f"{part}.parquet"), *parent.glob(f"{part}-*.parquet")]) for part in PARTS}
        if all(paths.values()):
            tables = {part: (", ".join(map(str, paths[part])), read_parquet(paths[part])) for part in PARTS}
            return _dataset("Parquet files", {part: read_table(*table) for part, table in tables.items()})
        if any(paths.values()):
            raise InputError(f"{parent}: has the Parquet file of one part only; provide both, train and test")
    if archive := archive_in(folder, ARCHIVE):
        verify(archive, md5=MD5)
        return _unpacked(archive)
    return None


def read_tree(folder: Path) -> Part:
    """One part as the publisher has it: a file per review, in folders `neg` and `pos`."""
    texts, labels = [], []
    for label, name in enumerate(CLASSES):
        paths = sorted((folder / name).glob("*.txt"))
        texts += [decode(read_text(path), str(path)) for path in paths]
        labels += [label] * len(paths)
    return Part(str(folder), texts, np.array(labels, np.int64))


def read_table(where: str, table: "pyarrow.Table") -> Part:
    """One part, of a table with columns `text` and `label`; others are ignored."""
    import pyarrow

    for column in ("text", "label"):
        if column not in table.column_names:
            raise InputError(f"{where}: no column {column} among {', '.join(table.column_names)}; {PUBLISHED}")
        if table[column].null_count:
            raise InputError(f"{where}: column {column} has gaps; {PUBLISHED}")
    kind = table["label"].type
    if not pyarrow.types.is_integer(kind):
        raise InputError(f"{where}: column label is {kind}, not whole numbers; {PUBLISHED}")
    labels = table["label"].to_numpy().astype(np.int64)
    check_labels(where, labels, len(CLASSES))
    contents = table["text"].cast(pyarrow.large_binary()).to_pylist()
    return Part(where, [decode(content, f"{where}, row {row}") for row, content in enumerate(contents)], labels)


def _from_hub() -> Dataset:
    tables = {part: (f"{REPOSITORY}, {part}", from_hub(REPOSITORY, part, CONFIG)) for part in PARTS}
    return _dataset(f"hub {REPOSITORY}", {part: read_table(*table) for part, table in tables.items()})


def _unpacked(archive: Path) -> Dataset:
    with unpacked(archive, "imdb") as folder:
        dataset = read_folder(folder, proven=True)
    if dataset is None:
        raise InputError(f"{archive}: holds no {TREE}; {PUBLISHED}")
    return dataset


def _dataset(source: str, parts: dict[str, Part], proven: bool = False) -> Dataset:
    texts, labels = [], []
    for name, part in parts.items():
        of_each = np.bincount(part.labels, minlength=2)
        if tuple(of_each) != (OF_EACH, OF_EACH):
            raise InputError(
                f"{part.where}: {of_each[0]:,} negative and {of_each[1]:,} positive reviews in the {name} part, not "
                f"{OF_EACH:,} of each; {PUBLISHED}"
            )
        in_order = sorted(zip(part.labels.tolist(), part.texts, strict=True))
        part_labels, part_texts = zip(*in_order, strict=True)
        if not proven:
            verify_content(part.where, part_labels, map(str.encode, part_texts), SHA256[name], remedy=PUBLISHED)
        labels += part_labels
        texts += part_texts
    return Dataset.clean(
        "imdb",
        Texts.of(texts),
        np.array(labels, np.int64),
        source=source,
        licence="none given; research use, cite the paper; the reviews are their writers' and IMDb's",
        citation="maas2011learning",
        parts={name: len(part.labels) for name, part in parts.items()},
        generated=False,
    )


# The paper takes train 20,000 and validation 5,000, stratified too.
DATASET = Description("imdb", "texts", fetch, balanced_split)

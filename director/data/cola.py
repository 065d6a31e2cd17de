"""CoLA, in-domain part: 9,078 English sentences, acceptable (1) or not (0), from 17 linguistics publications.

Source: Warstadt, Singh and Bowman, "Neural Network Acceptability Judgments", TACL 2019 (docs/datasets.md).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.sources import (
    DOWNLOADS,
    PUBLISHED,
    archive_in,
    download,
    first_of,
    from_folders,
    in_folder,
    unpacked,
    verify,
    verify_content,
)
from director.data.splits import random_split
from director.data.texts import Texts, decode, read_text
from director.errors import InputError

ARCHIVE, MD5 = "cola_public_1.1.zip", "9f6d88c3558ec424cd9d66ea03589aba"
URL = f"https://nyu-mll.github.io/CoLA/{ARCHIVE}"
RAW = "cola_public/raw"  # in the archive
REMEDY = f"{PUBLISHED}, not GLUE's, whose test labels are hidden"
COUNTS = {"in_domain_train.tsv": (2528, 6023), "in_domain_dev.tsv": (162, 365)}  # unacceptable, acceptable
# of the sentences and labels of each file, see `verify_content`
SHA256 = {
    "in_domain_train.tsv": "d36e4ed94ac3aee8d6a2b0667bda254b14405bf10de568f28ba54a3f427565d4",
    "in_domain_dev.tsv": "331e63393b518d6ea6fb83e59e4ad61233b1bbcf434ee471b18fccf8cbbf5445",
    "out_of_domain_dev.tsv": "396368d6ca749275055a076b242f65878c148ba713457cd0c780ba52feaed317",
}


def fetch(made_from: dict[str, Path]) -> Dataset:
    """The pool that is split: in_domain_train.tsv (8,551 sentences), then in_domain_dev.tsv (527)."""
    return fetch_files("cola", COUNTS)


def split(dataset: Dataset, train: int, validation: int, seed: int, protocol: str) -> dict[str, np.ndarray]:
    """Dealt at random; the paper takes 70 %, 10 % and 20 % of the pool: train 6,355, validation 907, test 1,816.

    One test part for all seeds (see `random_split`): a shuffle of the whole pool by seed would test a member of an
    ensemble on what another was trained on. protocol: `held_out`, or `paper`, where validation is the test part, as the
    authors choose epoch and temperature on it: for comparison with their numbers only.
    """
    parts = random_split(dataset, train, validation, seed)
    return parts | {"validation": parts["test"]} if protocol == "paper" else parts


def fetch_files(name: str, counts: Mapping[str, tuple[int, int]]) -> Dataset:
    """Some files of CoLA, one after the other. counts: file -> how many sentences it has of class 0 and of class 1."""

    def published() -> Dataset:
        archive = download(URL, DOWNLOADS / "cola" / ARCHIVE, md5=MD5)
        return _unpacked(name, archive, counts)

    return first_of(
        name,
        {
            in_folder("cola", " and ".join(counts), ARCHIVE): lambda: from_folders(
                name, lambda folder: read_folder(name, folder, counts), "cola", "cola_public"
            ),
            f"let the publisher be reached, {URL}": published,
        },
    )


def read_folder(name: str, folder: Path, counts: Mapping[str, tuple[int, int]], proven: bool = False) -> Dataset | None:
    """The files from `folder`, from the archive's folders in it, or from the archive itself; None if in none.

    proven: the folder is the content of an archive with the publisher's checksum, so that its content needs none.
    """
    for parent in (folder, folder / "raw", folder / RAW):
        paths = [parent / file for file in counts]
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            return _dataset(name, paths, counts, proven)
        if len(missing) < len(paths):
            raise InputError(f"{missing[0]} is missing beside the other files; provide all of {', '.join(counts)}")
    if archive := archive_in(folder, ARCHIVE):
        verify(archive, md5=MD5)
        return _unpacked(name, archive, counts)
    return None


def read_tsv(path: Path) -> tuple[list[str], np.ndarray]:
    """Sentences and labels int64 [N] of a file of lines `source <tab> label <tab> author's mark <tab> sentence`.

    Quotes are part of the sentences. Raises InputError naming the line that has another form.
    """
    sentences, labels = [], []
    for number, line in enumerate(read_text(path).removesuffix(b"\n").split(b"\n"), start=1):
        where = f"{path}, line {number}"
        columns = decode(line, where).split("\t")
        if len(columns) != 4:
            raise InputError(f"{where}: {len(columns)} columns, not 4; {REMEDY}")
        if columns[1] not in ("0", "1"):
            raise InputError(f"{where}: label {columns[1]!r} is neither 0 nor 1; {REMEDY}")
        labels.append(int(columns[1]))
        sentences.append(columns[3])
    return sentences, np.array(labels, np.int64)


def _unpacked(name: str, archive: Path, counts: Mapping[str, tuple[int, int]]) -> Dataset:
    with unpacked(archive, "cola") as folder:
        dataset = read_folder(name, folder, counts, proven=True)
    if dataset is None:
        raise InputError(f"{archive}: holds no {RAW}; {PUBLISHED}")
    return dataset


def _dataset(name: str, paths: list[Path], counts: Mapping[str, tuple[int, int]], proven: bool) -> Dataset:
    sentences, labels = [], []
    for path in paths:
        part, classes = read_tsv(path)
        expected, of_each = counts[path.name], np.bincount(classes, minlength=2)
        if tuple(of_each) != expected:
            raise InputError(
                f"{path}: {of_each[0]:,} unacceptable and {of_each[1]:,} acceptable sentences, not {expected[0]:,} "
                f"and {expected[1]:,}; {REMEDY}"
            )
        if not proven:
            remedy = f"an editor or a spreadsheet may have changed it: {PUBLISHED}"
            verify_content(str(path), classes, map(str.encode, part), SHA256[path.name], remedy=remedy)
        sentences += part
        labels.append(classes)
    return Dataset.clean(
        name,
        Texts.of(sentences),
        np.concatenate(labels),
        source="CoLA public 1.1",
        licence="excerpts of published works, copyright with their authors or publishers; research use",
        citation="warstadt2019neural",
        generated=False,
    )


DATASET = Description("cola", "texts", fetch, split, protocols=("held_out", "paper"))

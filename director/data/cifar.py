"""What CIFAR-10 and CIFAR-100 have in common: their publisher's files, and the formats in which others publish them.

Whatever the format, the same arrays come out: images in the publisher's order, train then test.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from director.data.cifar_pickles import read_batch
from director.data.dataset import Dataset
from director.data.images import check_labels, decode_table, read_parquet, read_strips
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
from director.errors import InputError
from director.files import reading

PUBLISHER = "https://www.cs.toronto.edu/~kriz"
PIXELS = 3072  # bytes of an image: 32x32 red, then green, then blue


@dataclass(frozen=True)
class Batch:
    """One of the publisher's files: `<name>.bin` in the binary archive, `<name>` in the Python one."""

    name: str
    count: int  # images
    binary_md5: str | None  # None where no second source confirms it
    python_md5: str


@dataclass(frozen=True)
class Cifar:
    """One of the two sets, as its publisher made it and as the hub has it."""

    name: str
    classes: int  # equally many images of each in either part
    parts: dict[str, tuple[Batch, ...]]  # train, test: batches in the publisher's order
    label_bytes: int  # in front of each image in the binary files; the last is the label
    label_key: str  # of the labels in the Python batches
    label_column: str  # of the labels on the hub
    binary: str  # folder of the binary archive
    python: str  # folder of the Python archive
    archives: dict[str, str]  # file -> MD5; the first is the one that is downloaded
    repository: str
    config: str
    test_alone: bool  # whether the test part without the train part is of use
    # part -> SHA-256 of its images and labels in any order (`verify_content`), where no MD5 of its batches is known
    unordered: Mapping[str, str] = field(default_factory=dict)

    def count(self, part: str) -> int:
        return sum(batch.count for batch in self.parts[part])


@dataclass(frozen=True)
class Part:
    """Images uint8 [N, 32, 32, 3] and labels int64 [N] as they are in the file `where`, not yet checked."""

    where: str
    images: np.ndarray
    labels: np.ndarray


def fetch_cifar(cifar: Cifar) -> Dataset:
    """The set from the first source that has it: images uint8 [N, 32, 32, 3], labels int64 [N], train then test."""
    archive, md5 = next(iter(cifar.archives.items()))
    url = f"{PUBLISHER}/{archive}"

    def published() -> Dataset:
        path = download(url, DOWNLOADS / cifar.name / archive, md5=md5)
        return _unpacked(cifar, path)

    forms = (f"{cifar.binary}/", f"{cifar.python}/", *cifar.archives, f"{cifar.config}/*.parquet", "{train,test}.npz")
    return first_of(
        cifar.name,
        {
            in_folder(cifar.name, *forms): lambda: from_folders(
                cifar.name, lambda folder: read_folder(cifar, folder), cifar.binary, cifar.python
            ),
            f"let the hub be reached, or its cache have {cifar.repository}": lambda: _from_hub(cifar),
            f"let the publisher be reached, {url}": published,
        },
    )


def read_folder(cifar: Cifar, folder: Path, proven: bool = False) -> Dataset | None:
    """The set in the first of FORMS that `folder` has, else from an archive; None if there is neither.

    proven: the folder is the content of an archive with the publisher's checksum, so that its content needs none.
    """
    for form, read in FORMS.items():
        parts = {name: part for name in cifar.parts if (part := read(cifar, folder, name)) is not None}
        if parts:
            return _dataset(cifar, parts, form, proven or read is _python)
    for archive, md5 in cifar.archives.items():
        if path := archive_in(folder, archive):
            verify(path, md5=md5)
            return _unpacked(cifar, path)
    return None


def _unpacked(cifar: Cifar, archive: Path) -> Dataset:
    with unpacked(archive, cifar.name) as folder:
        dataset = read_folder(cifar, folder, proven=True)
    if dataset is None:
        raise InputError(f"{archive}: holds neither {cifar.binary} nor {cifar.python}; {PUBLISHED}")
    return dataset


def _from_hub(cifar: Cifar) -> Dataset:
    def read(name: str) -> Part:
        table = from_hub(cifar.repository, name, cifar.config)
        where = f"{cifar.repository}, {name}"
        return Part(where, *decode_table(where, table, "img", cifar.label_column))

    return _dataset(cifar, {name: read(name) for name in cifar.parts}, f"hub {cifar.repository}")


def _binary(cifar: Cifar, folder: Path, part: str) -> Part | None:
    batches = cifar.parts[part]
    paths = _files(cifar, folder, cifar.binary, [f"{batch.name}.bin" for batch in batches])
    if paths is None:
        return None
    record = cifar.label_bytes + PIXELS
    for path, batch in zip(paths, batches, strict=True):
        verify(path, size=record * batch.count)
    with reading(paths[0].parent, "a folder of whole batches", PUBLISHED):
        records = np.concatenate([np.fromfile(path, np.uint8) for path in paths]).reshape(-1, record)
    labels = records[:, cifar.label_bytes - 1].astype(np.int64)
    return Part(_where(paths), _interleaved(records[:, cifar.label_bytes :]), labels)


def _python(cifar: Cifar, folder: Path, part: str) -> Part | None:
    batches = cifar.parts[part]
    paths = _files(cifar, folder, cifar.python, [batch.name for batch in batches])
    if paths is None:
        return None
    read = [read_batch(path, b.python_md5, cifar.label_key) for path, b in zip(paths, batches, strict=True)]
    pixels, labels = (np.concatenate(column) for column in zip(*read, strict=True))
    return Part(_where(paths), _interleaved(pixels), labels)


def _parquet(cifar: Cifar, folder: Path, part: str) -> Part | None:
    if not named(folder, cifar.name):
        return None
    name = f"{part}-*.parquet"
    paths = sorted((folder / cifar.config).glob(name)) or sorted(folder.glob(name))
    if not paths:
        return None
    where = ", ".join(map(str, paths))
    return Part(where, *decode_table(where, read_parquet(paths), "img", cifar.label_column))


def _strips(cifar: Cifar, folder: Path, part: str) -> Part | None:
    path = folder / f"{part}.npz"
    if not named(folder, cifar.name) or not path.is_file():
        return None
    return Part(str(path), *read_strips(path))


FORMS: dict[str, Callable[[Cifar, Path, str], Part | None]] = {
    "publisher's binary batches": _binary,
    "publisher's Python batches": _python,
    "Parquet files of the hub": _parquet,
    "WebP strips": _strips,
}


def _files(cifar: Cifar, folder: Path, inner: str, names: list[str]) -> list[Path] | None:
    """The files `names` in the folder `inner` of `folder`, or in `folder` itself if its name says what it holds."""
    for parent in [folder / inner] + [folder] * named(folder, cifar.name, inner):
        paths = [parent / name for name in names]
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            return paths
        if len(missing) < len(paths):
            raise InputError(f"{missing[0]} is missing beside the other batches; provide all of {', '.join(names)}")
    return None


def _where(paths: list[Path]) -> str:
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


def _interleaved(pixels: np.ndarray) -> np.ndarray:
    """uint8 [N, 3072] in planes of colour -> [N, 32, 32, 3]."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _dataset(cifar: Cifar, parts: dict[str, Part], form: str, proven: bool = False) -> Dataset:
    missing = [name for name in cifar.parts if name not in parts]
    if missing and not (cifar.test_alone and missing == ["train"]):
        present = ", ".join(part.where for part in parts.values())
        raise InputError(f"{cifar.name}: the {missing[0]} part is missing beside {present}; provide both parts")
    checked = [_checked(cifar, name, part, proven) for name, part in parts.items()]
    notes = ["test part only"] if missing else []
    for name in parts:
        if not proven and name not in cifar.unordered and any(batch.binary_md5 is None for batch in cifar.parts[name]):
            notes.append(f"content of the {name} part not compared: no checksum of this form is known")
    return Dataset.clean(
        cifar.name,
        np.concatenate([part.images for part in checked]),
        np.concatenate([part.labels for part in checked]),
        source=form,
        licence="none given; research use, cite the report",
        citation="krizhevsky2009learning",
        parts={name: len(part.labels) for name, part in parts.items()},
        generated=False,
        **({"note": "; ".join(notes)} if notes else {}),
    )


def _checked(cifar: Cifar, name: str, part: Part, proven: bool) -> Part:
    """The part in the publisher's order (where that is known), if its numbers and its content are the publisher's."""
    count = cifar.count(name)
    if len(part.labels) != count or len(part.images) != count:
        raise InputError(
            f"{part.where}: {len(part.labels):,} images, not the {count:,} of the {name} part; {PUBLISHED}"
        )
    check_labels(part.where, part.labels, cifar.classes)
    of_each = np.bincount(part.labels, minlength=cifar.classes)
    if (of_each != count // cifar.classes).any():
        wrong = np.flatnonzero(of_each != count // cifar.classes)[0]
        raise InputError(
            f"{part.where}: {of_each[wrong]} images of class {wrong}, not {count // cifar.classes}; {PUBLISHED}"
        )
    if name in cifar.unordered and not proven:
        images = (image.tobytes() for image in part.images)
        verify_content(part.where, part.labels, images, cifar.unordered[name], ordered=False, remedy=PUBLISHED)
    return _in_official_order(cifar.parts[name], part)


def _in_official_order(batches: tuple[Batch, ...], part: Part) -> Part:
    """The batches in the publisher's order, each recognised by the MD5 of its binary file.

    The hub's CIFAR-10 was made by walking through the publisher's archive, where batch 4 comes first; without this
    an image would have another number there than in every other form.
    """
    number_of = {batch.binary_md5: number for number, batch in enumerate(batches)}
    if None in number_of:
        return part
    blocks = np.arange(len(part.labels)).reshape(len(batches), -1)  # rows of each batch, all of one size
    numbers = []  # of the batches, in the order of this copy
    for rows in blocks:
        planes = part.images[rows].transpose(0, 3, 1, 2).reshape(len(rows), PIXELS)
        content = np.column_stack([part.labels[rows].astype(np.uint8), planes])
        digest = hashlib.md5(content.tobytes(), usedforsecurity=False).hexdigest()
        if digest not in number_of:
            raise InputError(
                f"{part.where}: images {rows[0]:,} to {rows[-1]:,} are not one of the publisher's batches; {PUBLISHED}"
            )
        numbers.append(number_of[digest])
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{part.where}: holds a batch twice; {PUBLISHED}")
    order = blocks[np.argsort(numbers)].ravel()
    return part if numbers == sorted(numbers) else Part(part.where, part.images[order], part.labels[order])

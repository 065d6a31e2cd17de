"""Texts of uneven length in two arrays, so that they are saved and opened as memory maps like images are."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from director.data.sources import PUBLISHED
from director.errors import InputError
from director.files import accessing


@dataclass(frozen=True)
class Texts:
    """N texts, one after the other.

    content: uint8 [total], their UTF-8 bytes. offsets: int64 [N + 1]; text i is content[offsets[i] : offsets[i + 1]].
    Raises InputError if the offsets do not cut the content into pieces.
    """

    content: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, strings: Iterable[str]) -> "Texts":
        """Texts of `strings`; InputError names the first that UTF-8 cannot hold (a lone surrogate)."""
        pieces = []
        for row, string in enumerate(strings):
            try:
                pieces.append(string.encode())
            except UnicodeEncodeError as error:
                raise InputError(f"text {row} cannot be written as UTF-8 ({error}); correct it") from error
        offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(pieces), np.uint8), offsets)

    def __post_init__(self) -> None:
        content, offsets = self.content, self.offsets
        if content.dtype != np.uint8 or offsets.dtype != np.int64 or (content.ndim, offsets.ndim) != (1, 1):
            raise InputError(
                f"texts need uint8 bytes and int64 offsets in a row each, not {content.dtype} {content.shape} and "
                f"{offsets.dtype} {offsets.shape}"
            )
        cuts = self.offsets
        if not len(cuts) or cuts[0] != 0 or cuts[-1] != len(self.content) or (np.diff(cuts) < 0).any():
            raise InputError(f"offsets do not cut {len(self.content)} bytes into texts; they must rise from 0 to that")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        """(N,), as of a column."""
        return (len(self),)

    def __getitem__(self, rows: int | slice | np.ndarray) -> "str | Texts":
        """One text for an integer; `Texts` in the order given for indices, a slice or a boolean mask."""
        if isinstance(rows, int | np.integer):
            row = range(len(self))[rows]  # as of a list: negative from the end, IndexError beyond it
            return self.content[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()
        rows = np.arange(len(self))[rows]
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        pieces = [self.content[start:end] for start, end in zip(starts, ends, strict=True)]
        content = np.concatenate([np.zeros(0, np.uint8), *pieces])
        return Texts(content, np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64))

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))


def read_text(path: Path) -> bytes:
    """The bytes of a file without what editors add or change: no byte-order mark, and lines end in a line feed."""
    with accessing(path):
        return path.read_bytes().removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def decode(content: bytes, where: str) -> str:
    """The text of UTF-8 bytes; InputError names `where` (file, and line or row) if they are not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 ({error}); {PUBLISHED}") from error

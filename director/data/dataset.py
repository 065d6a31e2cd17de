"""A data set on disk and in memory, and what a data set says of itself.

Every data set, whatever its publisher's format, is fetched once into one folder of .npy arrays (opened as memory
maps) beside a manifest that names source, counts and checksums. Everything after fetching reads this one format.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from director.data.texts import Texts
from director.errors import InputError
from director.files import accessing, file_digest, read_json, reading, replacing, write_json
from director.provenance import fingerprint

MANIFEST = "manifest.json"
# column -> its type; each is a file beside those of the inputs
COLUMNS = {"labels": np.int64, "example": np.int64, "shift": np.str_, "severity": np.int64, "probability": np.float64}
OPTIONAL = ("labels", "probability")


@dataclass(frozen=True)
class Dataset:
    """Examples of one data set.

    inputs: images uint8 [N, H, W, C], or `Texts` [N]. labels: int64 [N] in 0..classes-1, or None where the set has
    none for this task (out-of-distribution). example: int64 [N], the position in the clean set, so that a corrupted
    image finds its original. shift: str [N], the corruption, `clean` for none. severity: int64 [N], 0 for clean, else
    1..5. about: source, publisher's licence and other notes, written to the manifest. probability: float64 [N, C],
    the true p(class | input) of a set whose labels were drawn from it, None for any other set.
    """

    name: str
    inputs: np.ndarray | Texts
    labels: np.ndarray | None
    example: np.ndarray
    shift: np.ndarray
    severity: np.ndarray
    about: Mapping[str, Any] = field(default_factory=dict)
    probability: np.ndarray | None = None

    @classmethod
    def clean(
        cls,
        name: str,
        inputs: np.ndarray | Texts,
        labels: np.ndarray | None,
        probability: np.ndarray | None = None,
        **about: Any,
    ) -> "Dataset":
        """A data set as published: example i at position i, no shift."""
        count = len(inputs)
        zeros = np.zeros(count, np.int64)
        return cls(name, inputs, labels, np.arange(count), np.full(count, "clean"), zeros, about, probability)

    def __post_init__(self) -> None:
        images = self.inputs
        if not isinstance(images, Texts) and (images.dtype != np.uint8 or images.ndim != 4):
            raise InputError(f"{self.name}: images must be uint8 [N, H, W, C], not {images.dtype} {images.shape}")
        for key, kind in COLUMNS.items():
            column = getattr(self, key)
            if column is None and key in OPTIONAL:
                continue
            if not np.issubdtype(column.dtype, kind):
                raise InputError(f"{self.name}: {key} is {column.dtype}, not {kind.__name__}")
            if key != "probability" and column.shape != (len(self),):
                raise InputError(f"{self.name}: {key} has shape {column.shape} for {len(self)} inputs")
        truth = self.probability
        if truth is not None and (truth.ndim != 2 or len(truth) != len(self) or not np.allclose(truth.sum(1), 1)):
            raise InputError(f"{self.name}: probability {truth.shape} must have a row that sums to 1 for each input")

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, rows: np.ndarray) -> "Dataset":
        """The rows (indices or a boolean mask), in the order given; InputError names one that is not among its rows."""
        rows = np.asarray(rows)
        if rows.dtype != bool and len(beyond := rows[(rows < 0) | (rows >= len(self))]):
            raise InputError(
                f"{self.name}: row {beyond[0]} is not among its {len(self):,} rows; is the split another set's?"
            )
        columns = {key: getattr(self, key) for key in ("inputs", *COLUMNS)}
        return replace(self, **{key: column[rows] for key, column in columns.items() if column is not None})

    def of_examples(self, examples: np.ndarray, at_most: int | None = None) -> "Dataset":
        """The rows whose original is among `examples`, in this set's order.

        at_most: of those that this set has, as many, evenly spaced. Raises InputError if a set without shift, which is
        its own original, has some of them and lacks others.
        """
        present = np.intersect1d(self.example, examples)
        missing = np.setdiff1d(examples, present)
        if len(present) and len(missing) and (self.shift == "clean").all():
            raise InputError(
                f"{self.name}: example {missing[0]} is not among its {len(self):,}; is the split another set's?"
            )
        if at_most is not None and at_most < len(present):
            present = present[np.linspace(0, len(present) - 1, at_most).astype(int)]
        return self.select(np.flatnonzero(np.isin(self.example, present)))

    def save(self, folder: str | Path) -> None:
        """Write arrays, then the manifest: the manifest is there only when all of it is.

        Raises AccessError if the folder cannot be written.
        """
        folder = Path(folder)
        with accessing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MANIFEST).unlink(missing_ok=True)
        if isinstance(self.inputs, Texts):
            arrays = {"text": self.inputs.content, "offsets": self.inputs.offsets}
        else:
            arrays = {"images": self.inputs}
        arrays |= {key: column for key in COLUMNS if (column := getattr(self, key)) is not None}
        files = {}
        for key, array in arrays.items():
            with replacing(folder / f"{key}.npy") as temporary:
                np.save(temporary, array, allow_pickle=False)
            files[f"{key}.npy"] = file_digest(folder / f"{key}.npy")
        about = {"name": self.name, "count": len(self), **self.about, "files": files}
        write_json(folder / MANIFEST, about | {"fingerprint": fingerprint(files)})

    @classmethod
    def load(cls, folder: str | Path, verify: bool = True) -> "Dataset":
        """Open a fetched data set as memory maps; with `verify` every file is compared with its checksum.

        Raises InputError naming the file that is missing, truncated or changed, or the array that is not of its type
        or length.
        """
        folder = Path(folder)
        about = read_json(folder / MANIFEST)
        remedy = f"delete the folder {folder} and run the pipeline again to fetch it anew"
        with reading(folder / MANIFEST, "the manifest of a data set", remedy):
            if not isinstance(about, dict) or not isinstance(about.get("files"), dict):
                raise ValueError("it names no files")
            name, count, files = (about[key] for key in ("name", "count", "files"))
            if about["fingerprint"] != fingerprint(files):
                raise ValueError("its fingerprint is not that of its files")
            keys = {file.removesuffix(".npy") for file in files}
            inputs = {"text", "offsets"} if "text" in keys else {"images"}
            needed = inputs | (set(COLUMNS) - set(OPTIONAL))
            if not needed <= keys <= needed | set(OPTIONAL):
                raise ValueError(f"it lists {', '.join(files)}")
            if "parts" in about and sum(about["parts"].values()) != count:
                raise ValueError(f"its parts {about['parts']} are not {count} in all")
        arrays: dict[str, np.ndarray | None] = {"labels": None}
        for file, digest in files.items():
            path = folder / file
            with reading(path, "a whole .npy file", remedy):
                if not path.is_file() or (verify and file_digest(path) != digest):
                    fault = "differs from its checksum" if path.is_file() else "is missing"
                    raise InputError(f"{path}: {fault}; {remedy}")
                arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        try:
            inputs = Texts(arrays.pop("text"), arrays.pop("offsets")) if "text" in arrays else arrays.pop("images")
            if len(inputs) != count:
                raise InputError(f"{name}: holds {len(inputs)} inputs, its manifest says {count}")
            return cls(name=name, inputs=inputs, about=about, **arrays)
        except InputError as error:
            raise InputError(f"{folder}: {error}; {remedy}") from error


@dataclass(frozen=True)
class Description:
    """What a data set says of itself; director.data.catalogue lists those of all.

    fetch: gets or generates it, from the folders of the sets it is made from, by name. split: deals train, validation
    and test, see `director.data.splits`; None for a draw at random. made_from: the sets that it is generated from.
    shift_of: the set whose task it shares, on other examples. has_probability: its labels were drawn from a known
    distribution. protocols: ways to split it.
    """

    name: str
    kind: Literal["images", "texts"]
    fetch: Callable[[dict[str, Path]], Dataset]
    split: Callable[..., dict[str, np.ndarray]] | None = None
    made_from: tuple[str, ...] = ()
    shift_of: str | None = None
    has_probability: bool = False
    protocols: tuple[str, ...] = ("held_out",)

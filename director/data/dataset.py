"""A data set on disk and in memory, and the batches that a model sees of it.

Every data set, whatever its publisher's format, is fetched once into one folder of .npy arrays (opened as memory
maps) beside a manifest that names source, counts and checksums. Everything after fetching reads this one format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from director.data.augment import crop_and_flip
from director.files import InputError, file_digest, read_json, replacing, write_json
from director.provenance import fingerprint

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Dataset:
    """Examples of one data set.

    images: uint8 [N, H, W, C]. labels: int64 [N] in 0..classes-1, or None where the set has none for this task
    (out-of-distribution). example: int64 [N], the position in the clean set, so that a corrupted image finds its
    original. shift: str [N], the corruption, `clean` for none. severity: int64 [N], 0 for clean, else 1..5.
    about: source, publisher's licence and other notes, written to the manifest.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    example: np.ndarray
    shift: np.ndarray
    severity: np.ndarray
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def clean(cls, name: str, images: np.ndarray, labels: np.ndarray | None, **about: Any) -> "Dataset":
        """A data set as published: example i at position i, no shift."""
        count = len(images)
        zeros = np.zeros(count, np.int64)
        return cls(name, images, labels, np.arange(count), np.full(count, "clean"), zeros, about)

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise InputError(
                f"{self.name}: images must be uint8 [N, H, W, C], not {self.images.dtype} {self.images.shape}"
            )
        for key in ("labels", "example", "shift", "severity"):
            column = getattr(self, key)
            if column is not None and column.shape != (len(self.images),):
                raise InputError(f"{self.name}: {key} has shape {column.shape} for {len(self.images)} images")

    def __len__(self) -> int:
        return len(self.images)

    def select(self, rows: np.ndarray) -> "Dataset":
        """The rows (indices or a boolean mask), in the order given."""
        labels = None if self.labels is None else self.labels[rows]
        columns = {key: getattr(self, key)[rows] for key in ("images", "example", "shift", "severity")}
        return replace(self, labels=labels, **columns)

    def of_examples(self, examples: np.ndarray, at_most: int | None = None) -> "Dataset":
        """The rows whose original is among `examples`, or among `at_most` evenly spaced ones; in this set's order."""
        if at_most is not None and at_most < len(examples):
            examples = examples[np.linspace(0, len(examples) - 1, at_most).astype(int)]
        return self.select(np.flatnonzero(np.isin(self.example, examples)))

    def save(self, folder: str | Path) -> None:
        """Write arrays, then the manifest: the manifest is there only when all of it is."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        files = {}
        for key in ("images", "labels", "example", "shift", "severity"):
            if (column := getattr(self, key)) is not None:
                with replacing(folder / f"{key}.npy") as temporary:
                    np.save(temporary, column, allow_pickle=False)
                files[f"{key}.npy"] = file_digest(folder / f"{key}.npy")
        about = {"name": self.name, "count": len(self), **self.about, "files": files}
        write_json(folder / MANIFEST, about | {"fingerprint": fingerprint(files)})

    @classmethod
    def load(cls, folder: str | Path, verify: bool = True) -> "Dataset":
        """Open a fetched data set as memory maps; with `verify` every file is compared with its checksum.

        Raises InputError naming the file that is missing, truncated or changed.
        """
        folder = Path(folder)
        about = read_json(folder / MANIFEST)
        remedy = f"delete the folder {folder} and run the pipeline again to fetch it anew"
        columns: dict[str, np.ndarray | None] = {"labels": None}
        for name, digest in about["files"].items():
            path = folder / name
            if not path.is_file() or (verify and file_digest(path) != digest):
                raise InputError(f"{path}: {'differs from its checksum' if path.is_file() else 'is missing'}; {remedy}")
            columns[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        return cls(name=about["name"], about=about, **columns)


@dataclass(frozen=True)
class ImageExamples:
    """What a model sees of an image data set: normalised, and in training augmented.

    normalisation: `scale` (the value that counts as 1), `mean` and `std` per channel of the scaled values; the one of
    the training set, for every set that meets the same model. augmentation: `padding` (pixels of zero padding a crop
    may shift into) and `flip` (mirror with probability 1/2), or None.
    """

    dataset: Dataset
    normalisation: Mapping[str, Any]
    augmentation: Mapping[str, Any] | None = None
    seed: int = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, rows: np.ndarray, view: int | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Inputs float32 [B, C, H, W] and labels int64 [B] (None if unlabelled) of `rows`.

        view: None for the plain images, else the number of the augmented view: with one fresh view per epoch, the
        view is the epoch. The augmentation of an example depends on (seed, view, example) alone.
        """
        rows = np.asarray(rows)
        images = self.dataset.images[rows]
        if view is not None and self.augmentation is not None:
            images = crop_and_flip(images, self.dataset.example[rows], seed=self.seed, view=view, **self.augmentation)
        scale, mean, std = (np.asarray(self.normalisation[key], np.float32) for key in ("scale", "mean", "std"))
        inputs = (images.astype(np.float32) / scale - mean) / std  # [B, H, W, C]
        labels = None if self.dataset.labels is None else np.asarray(self.dataset.labels[rows])
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)), labels  # [B, C, H, W]

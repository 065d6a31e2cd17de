"""A data set on disk and in memory, and the batches that a model sees of it.

Every data set, whatever its publisher's format, is fetched once into one folder of .npy arrays (opened as memory
maps) beside a manifest that names source, counts and checksums. Everything after fetching reads this one format.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from director.data.augment import crop_and_flip, epoch_order
from director.data.texts import Texts
from director.data.tokenizer import encode, pad_id
from director.files import InputError, file_digest, read_json, replacing, write_json
from director.provenance import fingerprint

MANIFEST = "manifest.json"
COLUMNS = ("labels", "example", "shift", "severity", "probability")  # one file each, beside those of the inputs

POOL = 32  # batches in which texts are sorted by length: large enough for like lengths, small enough to stay mixed

log = logging.getLogger(__name__)


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
        for key in ("labels", "example", "shift", "severity"):
            column = getattr(self, key)
            if column is not None and column.shape != (len(self),):
                raise InputError(f"{self.name}: {key} has shape {column.shape} for {len(self)} inputs")
        truth = self.probability
        if truth is not None and (truth.ndim != 2 or len(truth) != len(self) or not np.allclose(truth.sum(1), 1)):
            raise InputError(f"{self.name}: probability {truth.shape} must have a row that sums to 1 for each input")

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, rows: np.ndarray) -> "Dataset":
        """The rows (indices or a boolean mask), in the order given."""
        columns = {key: getattr(self, key) for key in ("inputs", *COLUMNS)}
        return replace(self, **{key: column[rows] for key, column in columns.items() if column is not None})

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

        Raises InputError naming the file that is missing, truncated or changed.
        """
        folder = Path(folder)
        about = read_json(folder / MANIFEST)
        remedy = f"delete the folder {folder} and run the pipeline again to fetch it anew"
        arrays: dict[str, np.ndarray | None] = {"labels": None}
        for name, digest in about["files"].items():
            path = folder / name
            if not path.is_file() or (verify and file_digest(path) != digest):
                raise InputError(f"{path}: {'differs from its checksum' if path.is_file() else 'is missing'}; {remedy}")
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        inputs = Texts(arrays.pop("text"), arrays.pop("offsets")) if "text" in arrays else arrays.pop("images")
        return cls(name=about["name"], inputs=inputs, about=about, **arrays)


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
        images = self.dataset.inputs[rows]
        if view is not None and self.augmentation is not None:
            images = crop_and_flip(images, self.dataset.example[rows], seed=self.seed, view=view, **self.augmentation)
        scale, mean, std = (np.asarray(self.normalisation[key], np.float32) for key in ("scale", "mean", "std"))
        inputs = (images.astype(np.float32) / scale - mean) / std  # [B, H, W, C]
        labels = None if self.dataset.labels is None else np.asarray(self.dataset.labels[rows])
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)), labels  # [B, C, H, W]

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Rows of each batch of an epoch, every example once: a function of (count, batch_size, seed, epoch) alone."""
        return _cut(epoch_order(len(self), seed, epoch), batch_size)


@dataclass(frozen=True)
class TextExamples:
    """What a model sees of a data set of texts: tokens, each text cut to the first `max_length` of them.

    tokenizer_json: see `director.data.tokenizer`. A text without tokens is one unknown token, so that every text has
    something to be read; how many are cut is logged once.
    """

    dataset: Dataset
    tokenizer_json: str
    max_length: int

    def __post_init__(self) -> None:
        if not isinstance(self.dataset.inputs, Texts):
            raise InputError(f"{self.dataset.name} holds images, not texts; use an image model with it")
        if self.max_length < 1:
            raise InputError(f"max_length is {self.max_length}; it must be 1 or more")

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: tokens of each text after cutting, those that the tokenizer adds included."""
        return np.diff(self._encoded[1])

    def batch(self, rows: np.ndarray, view: int | None = None) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Inputs {"tokens": int64 [B, T], "mask": bool [B, T]} and labels int64 [B] (None if unlabelled) of `rows`.

        T is the longest text of the batch; shorter ones are padded on the right, where the mask is False. view: there
        for the sake of `ImageExamples`; a text has one view.
        """
        rows = np.asarray(rows)
        tokens, offsets = self._encoded
        lengths = self.lengths[rows]
        mask = np.arange(max(lengths, default=0)) < lengths[:, None]  # [B, T]
        padded = np.full(mask.shape, self._padding, np.int64)
        padded[mask] = np.concatenate([tokens[:0], *(tokens[offsets[row] : offsets[row + 1]] for row in rows)])
        labels = None if self.dataset.labels is None else np.asarray(self.dataset.labels[rows])
        return {"tokens": padded, "mask": mask}, labels

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Rows of each batch of an epoch, every example once: a function of (texts, batch_size, seed, epoch) alone.

        Texts of like length share a batch, so that little is padded: the epoch's order is sorted by length within
        pools of `POOL` batches, and the batches are visited in an order of their own.
        """
        lengths = self.lengths
        pools = _cut(epoch_order(len(self), seed, epoch), POOL * batch_size)
        sorted_pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
        batches = [batch for pool in sorted_pools for batch in _cut(pool, batch_size)]
        return [batches[place] for place in epoch_order(len(batches), seed, epoch)]

    @cached_property
    def _padding(self) -> int:
        return pad_id(self.tokenizer_json)

    @cached_property
    def _encoded(self) -> tuple[np.ndarray, np.ndarray]:
        tokens, lengths, cut = encode(self.tokenizer_json, self.dataset.inputs, self.max_length)
        if cut:
            log.info("%s: %d of %d texts cut to %d tokens", self.dataset.name, cut, len(self), self.max_length)
        return tokens, np.concatenate([[0], np.cumsum(lengths)])


def _cut(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[start : start + size] for start in range(0, len(order), size)]

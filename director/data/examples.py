"""What a model sees of a data set: batches of normalised images, augmented in training, or of tokens."""

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field

from director.data.augment import crop_and_flip, epoch_order
from director.data.dataset import Dataset
from director.data.texts import Texts
from director.data.tokenizer import check_length, encode, pad_id
from director.errors import InputError
from director.schema import Schema

POOL = 32  # batches in which texts are sorted by length: large enough for like lengths, small enough to stay mixed

log = logging.getLogger(__name__)


class Normalisation(Schema):
    """What makes pixels numbers of order one: (pixel / scale - mean) / std, for every image that meets the model."""

    scale: float = Field(255.0, gt=0, description="pixel value that counts as 1")
    mean: list[float] = Field(description="mean per channel of the scaled pixels of the training set")
    std: list[Annotated[float, Field(gt=0)]] = Field(description="standard deviation per channel of the same")


class Augmentation(Schema):
    """Training images are cropped at random after zero padding, and mirrored."""

    padding: int = Field(0, ge=0, description="pixels of zero padding a random crop may shift into; paper: 4")
    flip: bool = Field(False, description="mirror left to right with probability 1/2; paper: true")


@dataclass(frozen=True)
class ImageExamples:
    """What a model sees of an image data set: normalised, and in training augmented.

    normalisation: the one of the training set, for every set that meets the same model. augmentation: of training
    images, None for none.
    """

    dataset: Dataset
    normalisation: Normalisation
    augmentation: Augmentation | None = None
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
            images = crop_and_flip(
                images,
                self.dataset.example[rows],
                seed=self.seed,
                view=view,
                padding=self.augmentation.padding,
                flip=self.augmentation.flip,
            )
        normal = self.normalisation
        scale, mean, std = (np.asarray(value, np.float32) for value in (normal.scale, normal.mean, normal.std))
        inputs = (images.astype(np.float32) / scale - mean) / std  # [B, H, W, C]
        labels = None if self.dataset.labels is None else np.asarray(self.dataset.labels[rows])
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)), labels  # [B, C, H, W]

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Rows of each batch of an epoch, every example once: a function of (count, batch_size, seed, epoch) alone."""
        return cut(epoch_order(len(self), seed, epoch), batch_size)


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
        check_length(self.tokenizer_json, self.max_length)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: tokens of each text after cutting, those that the tokenizer adds included."""
        return np.diff(self._encoded[1])

    def batch(self, rows: np.ndarray, view: int | None = None) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Inputs {"tokens": int64 [B, T], "mask": bool [B, T]} and labels int64 [B] (None if unlabelled) of `rows`.

        T is the longest text of the batch; shorter ones are padded on the right, where the mask is False. view: not
        used, as a text has one view; it is here because `ImageExamples.batch` has it.
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
        pools = cut(epoch_order(len(self), seed, epoch), POOL * batch_size)
        sorted_pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
        batches = [batch for pool in sorted_pools for batch in cut(pool, batch_size)]
        return [batches[number] for number in epoch_order(len(batches), seed, epoch)]

    @cached_property
    def _padding(self) -> int:
        return pad_id(self.tokenizer_json)

    @cached_property
    def _encoded(self) -> tuple[np.ndarray, np.ndarray]:
        tokens, lengths, cut = encode(self.tokenizer_json, self.dataset.inputs, self.max_length)
        if cut:
            log.info("%s: %d of %d texts cut to %d tokens", self.dataset.name, cut, len(self), self.max_length)
        return tokens, np.concatenate([[0], np.cumsum(lengths)])


def cut(order: np.ndarray, size: int) -> list[np.ndarray]:
    """An order of rows in batches of `size`, the last of what is left."""
    return [order[start : start + size] for start in range(0, len(order), size)]

"""What a model of this project is trained on and predicts: a data set as its inputs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from director.data.dataset import Dataset
from director.data.examples import Augmentation, ImageExamples, Normalisation, TextExamples
from director.data.texts import Texts
from director.errors import InputError
from director.path.cache import TrajectoryCache


def examples_for(
    model: nn.Module,
    dataset: Dataset,
    normalisation: Normalisation | None = None,
    augmentation: Augmentation | None = None,
    seed: int = 0,
) -> ImageExamples | TextExamples:
    """What a backbone, or a student, sees of a data set: texts as its own tokens, or images.

    normalisation, augmentation, seed: of `ImageExamples`; without a normalisation that of a pretrained model. Raises
    InputError if the model reads the other kind.
    """
    settings = model.settings["backbone"]["settings"] if "backbone" in model.settings else model.settings
    if "tokenizer" in settings:
        return TextExamples(dataset, settings["tokenizer"], settings["max_length"])
    if isinstance(dataset.inputs, Texts):
        raise InputError(f"{dataset.name} holds texts, not images; use a text model with it")
    if normalisation is None and (own := settings.get("normalisation")):
        normalisation = Normalisation(**own)
    return ImageExamples(dataset, normalisation, augmentation, seed)


@dataclass(frozen=True)
class DistilExamples:
    """Training examples with the teacher's trajectory beside them, from a cache or left to be captured live.

    views: how many augmented views an example has, one after the other over the epochs; None for a fresh one in each.
    A cache holds each of its views in a folder of its own.
    """

    examples: ImageExamples | TextExamples
    views: int | None = None
    caches: tuple[TrajectoryCache, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Those of the examples."""
        return self.examples.epoch_batches(batch_size, seed, epoch)

    def batch(self, rows: np.ndarray, view: int) -> tuple[dict[str, Any], np.ndarray]:
        """{"inputs"}, from a cache also "states", "variances" and of texts "mask", and labels, in epoch `view`.

        What comes from a cache are tensors in its precision.
        """
        view = view if self.views is None else view % self.views
        inputs, labels = self.examples.batch(rows, view)
        if not self.caches:
            return {"inputs": inputs}, labels
        trajectory = vars(self.caches[view].batch(rows))
        return {"inputs": inputs, **{name: part for name, part in trajectory.items() if part is not None}}, labels

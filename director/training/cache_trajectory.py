"""The capture of a frozen teacher's path over its training part."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from director.data.dataset import Dataset
from director.data.examples import Augmentation, ImageExamples, Normalisation, TextExamples
from director.data.splits import load_split
from director.device import resolve_device, set_threads, to_device
from director.files import file_digest, read_json, reading, write_json
from director.models.weights import load_model
from director.path.cache import write_cache
from director.path.residual import path_of
from director.provenance import fingerprint
from director.settings.training import Compute
from director.training.examples import examples_for


def cache_trajectory(
    *,
    teacher_file: str | Path,
    dataset_folder: str | Path,
    split_file: str | Path,
    folders: Sequence[str | Path],
    cost_file: str | Path,
    seed: int,
    softmax_variance: str,
    dtype: str,
    normalisation: Normalisation | None = None,
    augmentation: Augmentation | None = None,
    compute: Compute,
) -> None:
    """Write the teacher's trajectories of the training part, view v of the augmentation into folders[v], and the cost.

    cost_file: receives `train_seconds`, since capturing is part of training the student.
    """
    set_threads(compute.threads)
    device = resolve_device(compute.device)
    teacher, _ = load_model(teacher_file, device)
    path = path_of(teacher)
    dataset = Dataset.load(dataset_folder).select(load_split(split_file)["train"])
    examples = examples_for(teacher, dataset, normalisation, augmentation, seed)
    identity = cache_identity(teacher_file, examples)
    start = time.monotonic()
    for view, folder in enumerate(folders):

        def inputs(rows: np.ndarray, view: int = view) -> Any:
            return to_device(examples.batch(rows, view)[0], device)

        about = {"identity": identity | {"view": view}, "softmax_variance": softmax_variance, "dtype": dtype}
        write_cache(folder, path, inputs, len(examples), **about)
    write_json(cost_file, {"train_seconds": time.monotonic() - start})


def read_complete(complete_file: str | Path) -> list[str]:
    """Folders of the views that a whole capture has made, in order; InputError for a file that is not that."""
    folders = read_json(complete_file)
    remedy = "delete the folder that it lies in and run the same command again"
    with reading(complete_file, "a list of captured views", remedy):
        if not folders or not all(isinstance(digest, str) for digest in folders.values()):
            raise ValueError(f"it holds {folders!r}")
        return list(folders)


def cache_identity(teacher_file: str | Path, examples: ImageExamples | TextExamples) -> dict[str, Any]:
    """All that a cached trajectory depends on but its view: the teacher, with its tokenizer, data and rows.

    Of images also normalisation, augmentation and seed.
    """
    identity = {
        "weights": file_digest(teacher_file),
        "data": examples.dataset.about["fingerprint"],
        "examples": fingerprint(examples.dataset.example.tolist()),
    }
    if isinstance(examples, TextExamples):
        return identity
    return identity | {
        "normalisation": examples.normalisation.model_dump(),
        "augmentation": examples.augmentation and examples.augmentation.model_dump(),
        "seed": examples.seed,
    }

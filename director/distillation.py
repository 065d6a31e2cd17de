"""Distillation of a frozen teacher's path into one transition kernel: its training examples, losses and cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from director.backbones import load_model
from director.data.dataset import Dataset, ImageExamples, TextExamples
from director.data.splits import load_split
from director.device import resolve_device, seeded, set_threads, to_device
from director.files import file_digest, read_json
from director.noise import BatchNoise
from director.prediction import examples_for, predict_samples
from director.process import Director
from director.provenance import fingerprint
from director.recipes import Job
from director.taps import path_of
from director.trajectory import MANIFEST, Trajectory, TrajectoryCache, capture, write_cache


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
        """{"inputs"}, from a cache also "states", "variances" and of texts "mask", and labels, in epoch `view`."""
        view = view if self.views is None else view % self.views
        inputs, labels = self.examples.batch(rows, view)
        if not self.caches:
            return {"inputs": inputs}, labels
        trajectory = vars(self.caches[view].batch(rows))
        cached = {name: tensor.numpy() for name, tensor in trajectory.items() if tensor is not None}
        return {"inputs": inputs, **cached}, labels


def train_director(
    *,
    teacher_file: str | Path,
    teacher_cost_file: str | Path,
    kernel: Mapping[str, Any],
    losses: Mapping[str, Any],
    training: Mapping[str, Any],
    samples: int,
    views: int | None = None,
    cache_folders: Sequence[str | Path] = (),
    **job: Any,
) -> None:
    """Distil a frozen teacher's path into one transition kernel (DIRECTOR, arXiv 2602.08920; method.md, section 4).

    kernel: mlp_ratio, mlp_first and dropout of `TransitionKernel`. losses: path (`kl`, `mse` or `none`), path_weight,
    std_weight (of mse), task_weight, variance_floor, softmax_variance; loss = path_weight L1 + task_weight L2.
    training: those of `fit`. samples: S of the validation roll-outs that select the epoch. views, cache_folders: see
    `DistilExamples`; with a cache the teacher does not run. job: see `Job`.
    """
    job = Job(**job)
    set_threads(job.threads)
    device = resolve_device(job.device)
    teacher, _ = load_model(teacher_file, device)
    teacher.requires_grad_(False)
    examples, validation = job.examples(teacher)
    path = path_of(teacher)
    with seeded(torch.device("cpu"), job.seed):
        student = Director.from_teacher(path, **kernel)
    identity = cache_identity(teacher_file, examples) | {"softmax_variance": losses["softmax_variance"]}
    caches = tuple(TrajectoryCache(folder, identity | {"view": view}) for view, folder in enumerate(cache_folders))
    train = DistilExamples(examples, views, caches)

    def loss(inputs: Mapping[str, Any], labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        terms = {"loss": labels.new_zeros((), dtype=torch.float32)}
        if losses["path"] != "none":
            if caches:
                trajectory = Trajectory(inputs["states"], inputs["variances"], inputs.get("mask"))
            else:
                trajectory = capture(path, inputs["inputs"], losses["softmax_variance"])
            terms["path"] = student.path_loss(
                trajectory, losses["path"], losses["variance_floor"], losses["std_weight"]
            )
            terms["loss"] = terms["loss"] + losses["path_weight"] * terms["path"]
        if losses["task_weight"] > 0:
            terms["task"] = student.task_loss(inputs["inputs"], labels, BatchNoise(generator))
            terms["loss"] = terms["loss"] + losses["task_weight"] * terms["task"]
        return terms

    def evaluate() -> np.ndarray:
        return predict_samples(
            student, validation, samples=samples, seed=job.seed, batch_size=1024, device=device, precision=job.precision
        )

    origin = {
        "teacher": file_digest(teacher_file),
        "kernel": dict(kernel),
        "losses": dict(losses),
        "selection_samples": samples,
        "views": views,
        "caches": [file_digest(Path(folder, MANIFEST)) for folder in cache_folders],  # empty: captured live
    }
    before = read_json(teacher_cost_file)["train_seconds"]
    job.train(student, loss, evaluate, train, validation, training, origin, before)


def cache_trajectory(
    *,
    teacher_file: str | Path,
    dataset_folder: str | Path,
    split_file: str | Path,
    normalisation: Mapping[str, Any] | None,
    augmentation: Mapping[str, Any] | None,
    seed: int,
    softmax_variance: str,
    dtype: str,
    folders: list[str | Path],
    device: str = "auto",
    threads: int = 1,
) -> None:
    """Write the teacher's trajectories of the training part, view v of the augmentation into folders[v]."""
    set_threads(threads)
    device = resolve_device(device)
    teacher, _ = load_model(teacher_file, device)
    path = path_of(teacher)
    dataset = Dataset.load(dataset_folder).select(load_split(split_file)["train"])
    examples = examples_for(teacher, dataset, normalisation, augmentation, seed)
    identity = cache_identity(teacher_file, examples)
    for view, folder in enumerate(folders):

        def inputs(rows: np.ndarray, view: int = view) -> Any:
            return to_device(examples.batch(rows, view)[0], device)

        about = {"identity": identity | {"view": view}, "softmax_variance": softmax_variance, "dtype": dtype}
        write_cache(folder, path, inputs, len(examples), **about)


def cache_identity(teacher_file: str | Path, examples: ImageExamples | TextExamples) -> dict[str, Any]:
    """All that a cached trajectory depends on but its view: teacher (with its tokenizer), data, rows; of images also
    normalisation, augmentation, seed.
    """
    identity = {
        "weights": file_digest(teacher_file),
        "data": examples.dataset.about["fingerprint"],
        "examples": fingerprint(examples.dataset.example.tolist()),
    }
    if isinstance(examples, TextExamples):
        return identity
    return identity | {
        "normalisation": dict(examples.normalisation),
        "augmentation": examples.augmentation and dict(examples.augmentation),
        "seed": examples.seed,
    }

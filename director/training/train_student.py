"""Distillation of a frozen teacher's path into one transition kernel (DIRECTOR, arXiv 2602.08920)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from director.device import seeded, set_threads
from director.files import file_digest
from director.models.student import StudentNetwork
from director.models.weights import load_model
from director.noise import BatchNoise
from director.path.cache import MANIFEST, TrajectoryCache
from director.path.partial import FrozenPrefix
from director.path.residual import path_of, student_of
from director.path.trajectory import Trajectory, capture
from director.path.view import ResidualPath
from director.settings.training import Student
from director.training.cache_trajectory import cache_identity
from director.training.examples import DistilExamples
from director.training.job import TrainingJob, read_train_seconds


def train_student(
    job: TrainingJob,
    student: Student,
    teacher_file: str | Path,
    cost_files: Sequence[str | Path],
    cache_folders: Sequence[str | Path] = (),
) -> None:
    """Distil a frozen teacher's path into one transition kernel and write the student into the job's folder.

    loss = path_weight L1 + task_weight L2 + logit_weight L3 (docs/method.md, "One training step"). cost_files: of what
    the student builds on, the teacher's training and the capture of its path; their seconds are its own, too.
    cache_folders: the teacher's trajectories, one folder for each augmented view (`DistilExamples`); with them the
    teacher does not run.
    """
    set_threads(job.compute.threads)
    teacher, _ = load_model(teacher_file, job.device)
    teacher.requires_grad_(False)
    examples, validation = job.examples(teacher)
    path = path_of(teacher)
    losses = student.losses
    with seeded(torch.device("cpu"), job.seed):
        network = student_of(path, student.kernel)
    parts = {"embedding": network.embedding, "readout": network.readout}
    for name in student.freeze:
        parts[name].requires_grad_(False)
    identity = cache_identity(teacher_file, examples) | {"softmax_variance": losses.softmax_variance}
    caches = tuple(TrajectoryCache(folder, identity | {"view": view}) for view, folder in enumerate(cache_folders))
    train = DistilExamples(examples, student.trajectory.views, caches)

    def loss(batch: Mapping[str, Any], labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        return distillation_terms(network, path, student, batch, labels, generator)

    origin = {
        "teacher": file_digest(teacher_file),
        "kernel": student.kernel.model_dump(),
        "losses": losses.model_dump(),
        "noise": student.noise,
        "freeze": sorted(student.freeze),
        "selection_samples": student.selection_samples,
        "views": student.trajectory.views,
        "caches": [file_digest(Path(folder, MANIFEST)) for folder in cache_folders],  # empty: captured live
    }
    job.run(
        network,
        loss,
        train,
        validation,
        student.training,
        origin,
        randomness="noise" if student.noise else "none",
        samples=student.selection_samples,
        seconds_before=sum(map(read_train_seconds, cost_files)),
    )


def distillation_terms(
    network: StudentNetwork,
    path: ResidualPath,
    student: Student,
    batch: Mapping[str, Any],
    labels: Tensor,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The terms by which `network` learns a teacher's path from one batch, and their weighted sum `loss`.

    batch: `inputs`, or what was captured of them: `states`, `variances` and, of texts, `mask`, as in
    `director.path.trajectory.Trajectory`. With these the teacher does not run, and behind a frozen prefix the inputs
    are not needed. labels: int64 [B]. generator: of the noise.
    """
    losses, inputs, trajectory = student.losses, batch.get("inputs"), None
    if "states" in batch:
        trajectory = Trajectory(batch["states"], batch["variances"], batch.get("mask"))
    elif losses.path != "none":
        trajectory = capture(path, inputs, losses.softmax_variance)
    if trajectory is not None:
        trajectory = trajectory.to(network.kernel.modulation.weight.dtype)
    if isinstance(network.embedding, FrozenPrefix) and trajectory is not None:
        inputs = {"start": trajectory.states[0], "mask": trajectory.mask}
    noise = BatchNoise(generator) if student.noise else None
    terms = {"loss": labels.new_zeros((), dtype=torch.float32)}
    if losses.path != "none":
        terms["path"] = network.path_loss(trajectory.states, trajectory.variances, trajectory.mask, losses)
        terms["loss"] = terms["loss"] + losses.path_weight * terms["path"]
    if losses.task_weight > 0:
        terms["task"] = network.task_loss(inputs, labels, noise)
        terms["loss"] = terms["loss"] + losses.task_weight * terms["task"]
    if losses.logit_weight > 0:
        # the readout of X[L] is the teacher's own prediction
        own = trajectory is None
        target = path.logits(inputs) if own else path.readout(trajectory.states[-1], trajectory.mask)
        terms["logit"] = network.logit_loss(inputs, target, noise)
        terms["loss"] = terms["loss"] + losses.logit_weight * terms["logit"]
    return terms

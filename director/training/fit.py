"""One plain training loop, for backbone and student.

A training is a function of its settings: order and augmentation come from (seed, epoch), dropout and noise from
(seed, step), the learning rate from the step. Nothing is carried in a generator's state, so a training that is
killed and resumed ends where an uninterrupted one does.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from director.device import (
    autocast,
    deterministic,
    peak_memory_bytes,
    reset_peak_memory,
    seeded,
    to_device,
)
from director.errors import InputError
from director.settings.training import Training
from director.training.resume import Progress, Tensors, load_state, save_state

log = logging.getLogger(__name__)

# What may choose the epoch: a number of it, and the sign that makes the chosen one's the smallest.
SELECTIONS = {
    "val_accuracy": ("val_accuracy", -1),
    "val_mcc": ("val_mcc", -1),
    "val_nll": ("val_nll", 1),
    "last": ("epoch", -1),
}
CHECK_EVERY = 16  # steps between checks that the loss is finite, as a check makes the CPU wait for the GPU
DIVERGED = 10  # times the first epoch's loss: a training whose loss is larger, though finite, is lost, too


@dataclass(frozen=True)
class Fit:
    """What a training was.

    history: per epoch a row of epoch (from 1), learning_rate (of its last step), train_<term> (mean of each loss term
    over the examples) and the validation numbers. best_epoch: from 1. early_epoch: that of the lowest val_nll, at which
    a training that watches it would have stopped; best_epoch where there is no val_nll. kept: the model's state at
    these epochs. seconds: over all starts. peak_memory_bytes: of this process.
    """

    history: list[dict[str, float]]
    best_epoch: int
    early_epoch: int
    kept: dict[int, Tensors]
    seconds: float
    peak_memory_bytes: int


def fit(
    model: nn.Module,
    loss: Callable[[Any, Tensor, torch.Generator], dict[str, Tensor]],
    evaluate: Callable[[], dict[str, float]],
    train: Any,
    training: Training,
    *,
    seed: int,
    state_file: str | Path,
    identity: Mapping[str, Any],
    device: str | torch.device = "cpu",
    precision: str = "float32",
    compile: bool = False,
    penalties: Mapping[str, float] | None = None,
    annealing: float = 0.0,
    state_seconds: float = 30.0,
    accelerator: Any = None,
) -> Fit:
    """Train `model` in place; it ends in evaluation mode with the weights of the chosen epoch.

    loss: (inputs, labels, generator) -> {"loss": what is minimised, other terms to be logged: ...}, scalars; dropout
    may draw from torch's global generators, all else draws from `generator`. evaluate: validation numbers of the
    model as it is, named val_... . train: what `director.data.examples` calls examples: a length,
    `epoch_batches(batch_size, seed, epoch)`, and `batch(rows, view) -> (inputs, labels)` of arrays or tensors.

    training: Adam with the L2 term in the gradient (Kingma and Ba, ICLR 2015), linear warm-up, cosine; gradient_clip is
    the largest 2-norm of the whole gradient; patience stops the training early, on the learning rates of the whole
    one; selection the validation number that chooses the epoch, of equals the one with the lowest val_nll, or `last`.
    precision: `bfloat16` for autocast. penalties: weights of terms of the loss that are added to `loss`; the terms are
    logged without them. annealing: see `penalty_share_at`.

    A state is written to `state_file` about every `state_seconds` (0: after every step), and resumed if its
    `identity` (JSON-able: settings, data, seed, code) is the same. It is left there: call
    `director.training.resume.remove_state` when what came of the training is on disk.

    accelerator: an `accelerate.Accelerator`, in each of the processes that train together. Each has its own share as
    `train`, of equally many batches, and draws its own noise; a step takes the mean of their gradients, so that all
    keep the same weights, and each evaluates them.

    Raises InputError without training examples, and when loss or weights stop being finite.
    """
    if not len(train):
        raise InputError("there is no training example; raise data.train")
    device = torch.device(device)
    model.to(device)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(weights, training.learning_rate, weight_decay=training.weight_decay, fused=True)
    progress = load_state(state_file, identity, model, optimiser)
    steps_per_epoch = len(train.epoch_batches(training.batch_size, seed, epoch=0))
    own = () if accelerator is None else (accelerator.process_index,)  # what sets its noise apart from the others'
    if accelerator is not None:
        counts = accelerator.gather(torch.tensor([steps_per_epoch], device=device)).tolist()
        if len(set(counts)) > 1:  # or they would wait for each other for ever
            raise InputError(f"the processes have {counts} batches an epoch; give each as many")
    steps = training.epochs * steps_per_epoch
    if progress.step:
        log.info("resuming at step %d of %d", progress.step, steps)
    loss = torch.compile(loss) if compile else loss

    def shared(value: Tensor) -> Tensor:
        """Its mean over the processes."""
        return value if accelerator is None else accelerator.reduce(value, "mean")

    def take_step(rows: np.ndarray, epoch: int, rate: float) -> None:
        inputs, labels = (to_device(batch, device) for batch in train.batch(rows, epoch))
        with seeded(device, seed, progress.step, *own) as generator, autocast(device, precision):
            terms = loss(inputs, labels, generator)
        share = penalty_share_at(annealing, progress.step, steps)
        added = sum(share * weight * terms[name] for name, weight in (penalties or {}).items())
        terms["loss"] = terms["loss"] + added
        for name, term in terms.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + len(rows) * term.detach().double()
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        terms["loss"].backward()
        for weight in weights:
            weight.grad = None if weight.grad is None else shared(weight.grad)
        if training.gradient_clip is not None:
            nn.utils.clip_grad_norm_(weights, training.gradient_clip)
        optimiser.step()
        progress.step += 1

    reset_peak_memory(device)
    started = saved = time.monotonic()
    earlier = progress.seconds
    with deterministic(device), _progress_bar(steps, progress.step) as advance:
        for epoch in range(progress.step // steps_per_epoch, training.epochs):
            if training.patience and len(progress.history) - progress.best_epoch >= training.patience:
                log.info("stopping: epoch %d was the best of %d", progress.best_epoch, len(progress.history))
                break
            batches = train.epoch_batches(training.batch_size, seed, epoch)
            model.train()
            for rows in batches[progress.step % steps_per_epoch :]:
                rate = learning_rate_at(training, progress.step, steps_per_epoch)
                take_step(rows, epoch, rate)
                position = f"epoch {epoch + 1}, step {progress.step} of {steps}, learning rate {rate:.3g}"
                ends_epoch = progress.step % steps_per_epoch == 0
                due = time.monotonic() - saved >= state_seconds
                if ends_epoch or due or device.type == "cpu" or progress.step % CHECK_EVERY == 0:
                    # a loss that was not finite once leaves the sum so, and no step goes unseen
                    _refuse_divergence("loss", [progress.sums["loss"]], position)
                if ends_epoch:
                    _refuse_divergence("weights", weights, position)
                    sums = {name: shared(total).item() for name, total in progress.sums.items()}
                    means = {f"train_{name}": total / len(train) for name, total in sums.items()}
                    model.eval()
                    row = {"epoch": epoch + 1, "learning_rate": rate, **means, **evaluate()}
                    _finish_epoch(progress, row, training.selection, model)
                progress.seconds = earlier + time.monotonic() - started
                if due:
                    save_state(state_file, identity, progress, model, optimiser)
                    saved = time.monotonic()
                advance()
    model.load_state_dict(progress.kept[progress.best_epoch])
    model.eval()
    return Fit(
        progress.history,
        progress.best_epoch,
        progress.early_epoch,
        progress.kept,
        progress.seconds,
        peak_memory_bytes(device),
    )


def learning_rate_at(training: Training, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step, counted from 0: linear up to the peak over the warm-up, then half a cosine down."""
    steps, warmup_steps = training.epochs * steps_per_epoch, round(training.warmup_epochs * steps_per_epoch)
    peak, final = training.learning_rate, training.final_learning_rate
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - 1 - warmup_steps)  # 0 to 1
    return final + (peak - final) * (1 + math.cos(math.pi * share)) / 2


def penalty_share_at(annealing: float, step: int, steps: int) -> float:
    """Share of their weights that penalties have in a step, counted from 0.

    It rises linearly from 0 to 1 in the first `annealing` of all steps; 0: it is always 1.
    """
    return min(1.0, step / (annealing * steps)) if annealing else 1.0


def _refuse_divergence(what: str, tensors: list[Tensor], position: str) -> None:
    if not all(tensor.isfinite().all() for tensor in tensors):
        raise InputError(
            f"training diverged: {what} no longer finite by {position}; lower learning_rate, lengthen warmup_epochs, "
            "lower gradient_clip, or use precision float32"
        )


def _finish_epoch(progress: Progress, row: dict[str, float], selection: str, model: nn.Module) -> None:
    """Add the epoch's row to the history, and keep the weights if it is the one to choose so far, or the early one."""
    number, sign = SELECTIONS[selection]
    if number not in row:
        raise InputError(f"selection is {selection!r}, but an epoch gives {', '.join(row)}; choose one of them")
    for name, value in row.items():
        if not math.isfinite(value):
            raise InputError(f"epoch {row['epoch']}: {name} is {value}; lower learning_rate, or set gradient_clip")
    if progress.history and row["train_loss"] > DIVERGED * max(1.0, progress.history[0]["train_loss"]):
        raise InputError(
            f"training diverged: train_loss is {row['train_loss']:.3g} in epoch {row['epoch']}, over {DIVERGED} times "
            f"that of epoch 1; lower learning_rate, lengthen warmup_epochs, or lower gradient_clip"
        )
    progress.history.append(row)
    progress.sums = {}
    # A few hundred validation examples often tie in accuracy; the likelihood then tells the epochs apart.
    best = min(progress.history, key=lambda past: (sign * past[number], past.get("val_nll", 0.0)))
    early = min(progress.history, key=lambda past: past["val_nll"]) if "val_nll" in row else best
    progress.best_epoch, progress.early_epoch = best["epoch"], early["epoch"]
    epochs = {progress.best_epoch, progress.early_epoch}
    progress.kept = {epoch: state for epoch, state in progress.kept.items() if epoch in epochs}
    if row["epoch"] in epochs:
        progress.kept[row["epoch"]] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    log.info(", ".join(f"{name} {value:.4g}" for name, value in row.items()))


@contextmanager
def _progress_bar(steps: int, done: int) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step: moves a bar on a terminal, does nothing where the words go to a file."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=steps, completed=done)
        yield lambda: bar.advance(task)

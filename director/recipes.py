"""What every training job does around the one loop of `director.training`, and the training of a backbone.

A job reads data and split, trains, and writes weights, history, cost and settings.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from director.backbones import ImageTransformer, parameter_count, save_model
from director.data.dataset import Dataset, ImageExamples
from director.data.splits import load_split
from director.device import device_name, resolve_device, seeded, set_threads
from director.files import InputError, file_digest, replacing, write_json, write_text
from director.metrics import accuracy, nll
from director.noise import BatchNoise
from director.prediction import predict
from director.predictions import Predictions
from director.provenance import code_digest, git_commit, versions
from director.resume import remove_state
from director.training import fit


@dataclass(frozen=True)
class Job:
    """What every training job is given: data, split, seed, machine, and the files that it writes.

    normalisation, augmentation: of `ImageExamples`. about: experiment, backbone and the like, kept with the weights.
    The state of an unfinished training lies beside the weights and is removed last.
    """

    dataset_folder: str | Path
    split_file: str | Path
    normalisation: Mapping[str, Any]
    augmentation: Mapping[str, Any] | None
    seed: int
    about: Mapping[str, Any]
    weights_file: str | Path
    history_file: str | Path
    cost_file: str | Path
    settings_file: str | Path
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False
    threads: int = 1

    def examples(self) -> tuple[ImageExamples, ImageExamples]:
        """The split's train part, augmented in training, and its validation part."""
        dataset, split = Dataset.load(self.dataset_folder), load_split(self.split_file)
        if dataset.labels is None:
            raise InputError(f"{dataset.name} has no labels, so nothing can be trained on it; choose another data set")
        train, validation = (dataset.select(split[part]) for part in ("train", "validation"))
        views = {"normalisation": self.normalisation, "augmentation": self.augmentation}
        return ImageExamples(train, **views, seed=self.seed), ImageExamples(validation, **views)

    def train(
        self,
        network: nn.Module,
        loss: Callable[[Any, Tensor, torch.Generator], dict[str, Tensor]],
        evaluate: Callable[[], np.ndarray],
        train: Any,
        validation: ImageExamples,
        training: Mapping[str, Any],
        origin: Mapping[str, Any],
        before: float = 0.0,
    ) -> None:
        """Fit `network` and write what came of it.

        loss: as in `fit`, a plain function of the recipe's module: a state is resumed only if what that module does is
        unchanged. evaluate: validation logits [S, N, C]. origin: what else the weights depend on, as JSON. before:
        seconds of training that this one builds on.
        """
        origin = {
            "seed": self.seed,
            "data": validation.dataset.about["fingerprint"],
            "split": file_digest(self.split_file),
            "training": dict(training),
            "normalisation": self.normalisation,
            "augmentation": self.augmentation,
            "precision": self.precision,
            **origin,
        }

        def validate() -> dict[str, float]:
            predictions = Predictions(evaluate(), validation.dataset.labels)
            return {"val_accuracy": accuracy(predictions), "val_nll": nll(predictions)}

        state_file = Path(self.weights_file).with_name("state.safetensors")
        outcome = fit(
            network,
            loss,
            validate,
            train,
            seed=self.seed,
            **training,
            state_file=state_file,
            identity={**origin, "code": code_digest(loss.__code__.co_filename), "torch": versions("torch")},
            device=resolve_device(self.device),
            precision=self.precision,
            compile=self.compile,
        )
        machine = {"device": device_name(resolve_device(self.device)), "threads": self.threads}
        notes = {**self.about, **origin, "best_epoch": outcome.best_epoch}
        notes["versions"] = versions("torch", "numpy")
        save_model(self.weights_file, network, notes)  # without the commit: the same training gives the same bytes
        notes["commit"] = git_commit()
        with replacing(self.history_file) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(outcome.history[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(outcome.history)
        cost = {
            "parameters": parameter_count(network),
            "train_seconds": before + outcome.seconds,
            "epochs": len(outcome.history),
            "best_epoch": outcome.best_epoch,
            **machine,
            "peak_memory_bytes": outcome.peak_memory_bytes,
        }
        write_json(self.cost_file, cost)
        write_text(self.settings_file, yaml.safe_dump({**notes, **machine, "compile": self.compile}, sort_keys=False))
        remove_state(state_file)


def train_backbone(
    *, model: Mapping[str, Any], training: Mapping[str, Any], penalties: Mapping[str, float] | None = None, **job: Any
) -> None:
    """Train an image transformer by maximum likelihood.

    model: settings of `ImageTransformer`. training: those of `fit`. penalties: weights of what kernel-eigenpair layers
    add, loss = cross-entropy + ksvd J^2 + kl KL (baselines.md, section 5), with one sample of their noise per step;
    validation is one pass without noise. job: see `Job`.
    """
    job = Job(**job)
    set_threads(job.threads)
    train, validation = job.examples()
    _refuse_other_images(train.dataset, model)
    device = resolve_device(job.device)
    with seeded(torch.device("cpu"), job.seed):
        network = ImageTransformer(**model)
    weights = penalties or {}

    def loss(images: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        logits, found = network.forward_with_penalties(images, BatchNoise(generator))
        entropy = F.cross_entropy(logits, labels)
        total = entropy + sum(weights.get(name, 0.0) * penalty for name, penalty in found.items())
        return {"loss": total, "cross_entropy": entropy, **found} if found else {"loss": total}

    def evaluate() -> np.ndarray:
        return predict(network, validation, batch_size=1024, device=device, precision=job.precision)

    origin = {"model": dict(model), "penalties": dict(weights)}
    job.train(network, loss, evaluate, train, validation, training, origin)


def _refuse_other_images(dataset: Dataset, model: Mapping[str, Any]) -> None:
    expected = (model["image_size"], model["image_size"], model["channels"])
    if dataset.images.shape[1:] != expected:
        raise InputError(
            f"{dataset.name} has images of {dataset.images.shape[1:]} (height, width, channels), the model is made for "
            f"{expected}; set model.image_size and model.channels to the data's"
        )
    classes = int(dataset.labels.max()) + 1
    if classes != model["classes"]:
        raise InputError(
            f"{dataset.name} has {classes} classes, the model {model['classes']}; set model.classes to {classes}"
        )

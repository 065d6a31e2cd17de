"""What every training job does around the one loop of `director.training.fit`.

A job reads data and split, trains, and writes weights, history, cost and settings into one folder.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from director.code_digest import code_digest
from director.data.dataset import Dataset
from director.data.examples import Augmentation, ImageExamples, Normalisation, TextExamples
from director.data.splits import load_split
from director.device import device_name, peak_memory_bytes, reset_peak_memory, resolve_device
from director.errors import InputError
from director.files import file_digest, read_json, reading, replacing, write_json, write_text
from director.models.weights import parameter_count, save_model
from director.numbers.metrics import accuracy, mcc, nll
from director.numbers.predictions import Predictions
from director.provenance import git_commit, versions
from director.settings.training import Compute, Training
from director.training.examples import examples_for
from director.training.fit import Fit, fit
from director.training.predict import Randomness, predict
from director.training.resume import remove_state

WEIGHTS, HISTORY, COST, SETTINGS = "model.safetensors", "history.csv", "cost.json", "settings.yaml"  # in the folder
EARLY = "early.safetensors"  # of a backbone: the same model at the epoch with the lowest validation NLL
STATE = "state.safetensors"  # of an unfinished training, removed last


def read_train_seconds(cost_file: str | Path) -> float:
    """Seconds of a training or a capture from its `cost.json`; InputError for a file that is not that."""
    cost = read_json(cost_file)
    with reading(cost_file, "a file of training costs", "delete it and run the same command again"):
        if not isinstance(cost["train_seconds"], int | float):
            raise TypeError(f"train_seconds is {cost['train_seconds']!r}")
        return float(cost["train_seconds"])


@dataclass(frozen=True)
class TrainingJob:
    """What every training job is given: data, split, seed, machine, and the folder that it writes into.

    normalisation, augmentation: of `ImageExamples`, None for texts. about: experiment, backbone and the like, kept
    with the weights. predict_batch: rows per forward pass in validation. folder: receives `model.safetensors`,
    `history.csv`, `cost.json` and `settings.yaml`, and of a backbone `early.safetensors`.
    """

    dataset_folder: str | Path
    split_file: str | Path
    folder: str | Path
    seed: int
    normalisation: Normalisation | None = None
    augmentation: Augmentation | None = None
    precision: str = "float32"
    predict_batch: int = 512
    about: Mapping[str, Any] | None = None
    compute: Compute = field(default_factory=Compute)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return resolve_device(self.compute.device)

    @cached_property
    def parts(self) -> tuple[Dataset, Dataset]:
        """The split's train and validation parts."""
        dataset, split = Dataset.load(self.dataset_folder), load_split(self.split_file)
        if dataset.labels is None:
            raise InputError(f"{dataset.name} has no labels, so nothing can be trained on it; choose another data set")
        return dataset.select(split["train"]), dataset.select(split["validation"])

    def examples(self, model: nn.Module) -> tuple[ImageExamples | TextExamples, ImageExamples | TextExamples]:
        """What `model` sees of the parts, augmented in training."""
        train, validation = (
            examples_for(model, part, self.normalisation, self.augmentation, self.seed) for part in self.parts
        )
        return train, validation

    def run(
        self,
        network: nn.Module,
        loss: Callable[[Any, Tensor, torch.Generator], dict[str, Tensor]],
        train: Any,
        validation: ImageExamples | TextExamples,
        training: Training,
        origin: Mapping[str, Any],
        *,
        randomness: Randomness = "none",
        samples: int = 1,
        seconds_before: float = 0.0,
        early: bool = False,
        penalties: Mapping[str, float] | None = None,
        annealing: float = 0.0,
    ) -> None:
        """Fit `network` and write what came of it.

        loss, penalties, annealing: as in `fit`. origin: what else the weights depend on, as JSON. randomness, samples:
        of the predictions on the validation part that choose the epoch. seconds_before: of the trainings that this one
        builds on. early: write the weights of the epoch with the lowest validation NLL, too.
        """
        origin = self._origin(validation, {"training": training.model_dump(), **origin})
        # A state is resumed only by the code that wrote it.
        code = code_digest(f"{loss.__module__}:{loss.__qualname__.split('.')[0]}")
        outcome = fit(
            network,
            loss,
            lambda: self._validation_numbers(network, validation, randomness, samples),
            train,
            training,
            seed=self.seed,
            state_file=Path(self.folder, STATE),
            identity={**origin, "code": code, "torch": versions("torch")},
            device=self.device,
            precision=self.precision,
            compile=self.compute.compile,
            penalties=penalties,
            annealing=annealing,
        )
        self._write(network, outcome, origin, seconds_before, early)
        remove_state(Path(self.folder, STATE))

    def keep(self, network: nn.Module, validation: ImageExamples | TextExamples, origin: Mapping[str, Any]) -> None:
        """Write `network` as it is, in place of a training: its history is one row, of epoch 0."""
        network.to(self.device).eval()
        reset_peak_memory(self.device)
        row = {"epoch": 0, **self._validation_numbers(network, validation, "none", 1)}
        outcome = Fit([row], 0, 0, {0: network.state_dict()}, 0.0, peak_memory_bytes(self.device))
        self._write(network, outcome, self._origin(validation, {"training": None, **origin}), 0.0, early=True)

    def _origin(self, validation: ImageExamples | TextExamples, more: Mapping[str, Any]) -> dict[str, Any]:
        """All that the weights depend on, as JSON."""
        return {
            "seed": self.seed,
            "data": validation.dataset.about["fingerprint"],
            "split": file_digest(self.split_file),
            "normalisation": self.normalisation and self.normalisation.model_dump(),
            "augmentation": self.augmentation and self.augmentation.model_dump(),
            "precision": self.precision,
            **more,
        }

    def _validation_numbers(
        self, network: nn.Module, validation: ImageExamples | TextExamples, randomness: Randomness, samples: int
    ) -> dict[str, float]:
        output = predict(
            network,
            validation,
            randomness=randomness,
            samples=samples,
            seed=self.seed,
            batch_size=self.predict_batch,
            device=self.device,
            precision=self.precision,
        )
        labels = validation.dataset.labels
        predictions = Predictions(output.logits, labels)
        numbers = {"val_accuracy": accuracy(predictions), "val_nll": nll(predictions)}
        # undefined for labels of one class
        return numbers | ({"val_mcc": mcc(predictions)} if len(np.unique(labels)) > 1 else {})

    def _write(
        self, network: nn.Module, outcome: Fit, origin: Mapping[str, Any], seconds_before: float, early: bool
    ) -> None:
        folder = Path(self.folder)
        machine = {"device": device_name(self.device), "threads": self.compute.threads}
        epochs = {"best_epoch": outcome.best_epoch, "early_epoch": outcome.early_epoch}
        notes = {**(self.about or {}), **origin, **epochs, "versions": versions("torch", "numpy")}
        files = {WEIGHTS: outcome.best_epoch} | ({EARLY: outcome.early_epoch} if early else {})
        for name, epoch in files.items():
            network.load_state_dict(outcome.kept[epoch])
            # without the commit: the same training gives the same bytes
            save_model(folder / name, network, {**notes, "epoch": epoch})
        notes["commit"] = git_commit()
        with replacing(folder / HISTORY) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(outcome.history[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(outcome.history)
        cost = {
            "parameters": parameter_count(network),
            "train_seconds": seconds_before + outcome.seconds,
            "epochs": len(outcome.history),
            **epochs,
            **machine,
            "peak_memory_bytes": outcome.peak_memory_bytes,
        }
        write_json(folder / COST, cost)
        text = yaml.safe_dump({**notes, **machine, "compile": self.compute.compile}, sort_keys=False)
        write_text(folder / SETTINGS, text)

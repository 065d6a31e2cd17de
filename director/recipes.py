"""What every training job does around the one loop of `director.training`, and the training of a backbone.

A job reads data and split, trains, and writes weights, history, cost and settings.
"""

import csv
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from director.backbones import ImageTransformer, parameter_count, save_model
from director.data.dataset import Dataset, ImageExamples, TextExamples
from director.data.splits import load_split
from director.data.texts import Texts
from director.data.tokenizer import pretrained_tokenizer, train_tokenizer
from director.device import device_name, resolve_device, seeded, set_threads
from director.files import InputError, file_digest, replacing, write_json, write_text
from director.metrics import accuracy, mcc, nll
from director.noise import BatchNoise
from director.prediction import examples_for, predict
from director.predictions import Predictions
from director.provenance import code_digest, fingerprint, git_commit, versions
from director.resume import remove_state
from director.text import TextTransformer, pretrained_embedding
from director.training import fit


@dataclass(frozen=True)
class Job:
    """What every training job is given: data, split, seed, machine, and the files that it writes.

    normalisation, augmentation: of `ImageExamples`, None for texts. about: experiment, backbone and the like, kept
    with the weights. The state of an unfinished training lies beside the weights and is removed last.
    """

    dataset_folder: str | Path
    split_file: str | Path
    normalisation: Mapping[str, Any] | None
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

    def train(
        self,
        network: nn.Module,
        loss: Callable[[Any, Tensor, torch.Generator], dict[str, Tensor]],
        evaluate: Callable[[], np.ndarray],
        train: Any,
        validation: ImageExamples | TextExamples,
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
            numbers = {"val_accuracy": accuracy(predictions), "val_nll": nll(predictions)}
            # undefined for labels of one class
            return numbers | ({"val_mcc": mcc(predictions)} if len(np.unique(predictions.labels)) > 1 else {})

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
    """Train a transformer by maximum likelihood.

    model: settings of `ImageTransformer`; for texts those of `TextTransformer` with `vocabulary` and `tokenizer`, of
    which one is None (a tokenizer of so many tokens is trained on the training part, or a pretrained one is taken), and
    `embedding`, a pretrained encoder whose token table is the start, or None. training: those of `fit`. penalties:
    weights of what kernel-eigenpair layers add, loss = cross-entropy + ksvd J^2 + kl KL (baselines.md, section 5), with
    one sample of their noise per step; validation is one pass without noise. job: see `Job`.
    """
    job = Job(**job)
    set_threads(job.threads)
    part, _ = job.parts
    _refuse_other_classes(part, model)
    build = _text_model if isinstance(part.inputs, Texts) else _image_model
    with seeded(torch.device("cpu"), job.seed):
        network = build(part, model)
    train, validation = job.examples(network)
    device = resolve_device(job.device)
    weights = penalties or {}

    def loss(inputs: Any, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        logits, found = network.forward_with_penalties(inputs, BatchNoise(generator))
        entropy = F.cross_entropy(logits, labels)
        total = entropy + sum(weights.get(name, 0.0) * penalty for name, penalty in found.items())
        return {"loss": total, "cross_entropy": entropy, **found} if found else {"loss": total}

    def evaluate() -> np.ndarray:
        return predict(network, validation, batch_size=1024, device=device, precision=job.precision)

    origin = {"model": dict(model), "penalties": dict(weights)}
    if "tokenizer" in network.settings:
        origin["tokens"] = fingerprint(network.settings["tokenizer"])
    if model.get("embedding"):
        origin["table"] = hashlib.sha256(network.embedding.table.weight.detach().numpy()).hexdigest()[:16]
    job.train(network, loss, evaluate, train, validation, training, origin)


def _image_model(dataset: Dataset, model: Mapping[str, Any]) -> ImageTransformer:
    if "max_length" in model:
        raise InputError(f"{dataset.name} holds images, but the model reads texts; set model.kind to image")
    expected = (model["image_size"], model["image_size"], model["channels"])
    if dataset.inputs.shape[1:] != expected:
        raise InputError(
            f"{dataset.name} has images of {dataset.inputs.shape[1:]} (height, width, channels), the model is made for "
            f"{expected}; set model.image_size and model.channels to the data's"
        )
    return ImageTransformer(**model)


def _text_model(dataset: Dataset, model: Mapping[str, Any]) -> TextTransformer:
    if "max_length" not in model:
        raise InputError(f"{dataset.name} holds texts, but the model reads images; set model.kind to text")
    settings = dict(model)
    vocabulary, tokenizer, embedding = (settings.pop(key) for key in ("vocabulary", "tokenizer", "embedding"))
    tokens = train_tokenizer(dataset.inputs, vocabulary) if tokenizer is None else pretrained_tokenizer(tokenizer)
    if embedding is None:
        return TextTransformer(tokenizer=tokens, **settings)
    table = pretrained_embedding(embedding)
    network = TextTransformer(tokenizer=tokens, embedding_width=table.shape[1], **settings)
    own = network.embedding.table.weight
    if len(table) < len(own):
        raise InputError(
            f"embedding {embedding} has {len(table)} rows for {len(own)} tokens; it is another tokenizer's"
        )
    with torch.no_grad():
        own.copy_(table[: len(own)])  # some are padded to a round number
    return network


def _refuse_other_classes(dataset: Dataset, model: Mapping[str, Any]) -> None:
    classes = int(dataset.labels.max()) + 1
    if classes != model["classes"]:
        raise InputError(
            f"{dataset.name} has {classes} classes, the model {model['classes']}; set model.classes to {classes}"
        )

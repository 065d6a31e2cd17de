"""The training of a backbone by maximum likelihood."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from director.data.dataset import Dataset
from director.data.texts import Texts
from director.data.tokenizer import pretrained_tokenizer, train_tokenizer
from director.device import seeded, set_threads, to_device
from director.errors import InputError
from director.models.pretrained import pretrained_classifier
from director.models.transformers import ImageTransformer, TextTransformer, Transformer, pretrained_embedding
from director.noise import BatchNoise
from director.path.residual import check_path, path_of
from director.provenance import fingerprint
from director.settings.model import ImageModel, PretrainedModel, TextModel
from director.settings.training import Training
from director.training.job import TrainingJob


def train_backbone(
    job: TrainingJob,
    model: ImageModel | TextModel | PretrainedModel,
    training: Training,
    attention: Mapping[str, Any] | None = None,
    penalties: Mapping[str, float] | None = None,
    annealing: float = 0.0,
) -> None:
    """Train a transformer by maximum likelihood and write it into the job's folder, also as it was when stopped early.

    model: for texts, a tokenizer of `vocabulary` tokens is trained on the training part, or a pretrained `tokenizer` is
    taken; `embedding` is a pretrained encoder whose token table is the start. A pretrained model is fine-tuned, or
    written as it is (`fine_tune`). attention: see `Transformer`. penalties:
    weights of what the attention layers add to the loss, for kernel-eigenpair attention cross-entropy + ksvd J^2 +
    kl KL (Chen et al., ICML 2024), for sparse Gaussian process attention cross-entropy + kl KL (Chen and Li, ICLR
    2023), with one sample of their noise per step; validation is one pass without noise. annealing: see `fit`.

    Raises InputError if the data set is not what the model reads, and as `fit`.
    """
    set_threads(job.compute.threads)
    part, _ = job.parts
    if isinstance(model, PretrainedModel):
        train_pretrained(job, model, training)
        return
    with seeded(torch.device("cpu"), job.seed):
        network = _fresh_model(part, model, attention)
    train, validation = job.examples(network)
    weights = dict(penalties or {})

    def loss(inputs: Any, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        logits, added = network.forward_with_penalties(inputs, BatchNoise(generator))
        entropy = F.cross_entropy(logits, labels)
        return {"loss": entropy, "cross_entropy": entropy, **added} if added else {"loss": entropy}

    origin = {
        "model": model.model_dump(),
        "attention": attention and dict(attention),
        "penalties": weights,
        "annealing": annealing,
    }
    if isinstance(model, TextModel):
        origin["tokens"] = fingerprint(network.settings["tokenizer"])
        if model.embedding is not None:
            origin["table"] = hashlib.sha256(network.embedding.table.weight.detach().numpy()).hexdigest()[:16]
    job.run(network, loss, train, validation, training, origin, early=True, penalties=weights, annealing=annealing)


def train_pretrained(job: TrainingJob, model: PretrainedModel, training: Training) -> None:
    """Fine-tune a pretrained model by maximum likelihood, or take it as it is, and write it as `train_backbone` does.

    Raises InputError, before anything is trained, if the model cannot be built (`pretrained_classifier`), reads
    something else than the data set holds, or has no path that gives its own logits.
    """
    part, _ = job.parts
    _check_classes(part, model)
    reads = "texts" if isinstance(part.inputs, Texts) else "images"
    if fault := model.fault_with(reads):
        raise InputError(f"model.{fault}")
    if reads == "images" and part.inputs.shape[3] != model.channels:
        raise InputError(
            f"{part.name} has images of {part.inputs.shape[3]} channels, the model {model.channels}; set model.channels"
        )
    with seeded(torch.device("cpu"), job.seed):
        network, start = pretrained_classifier(model, reads, job.normalisation is not None)
    train, validation = job.examples(network)
    first, _ = train.batch(np.arange(min(2, len(train))))
    check_path(path_of(network), to_device(first, torch.device("cpu")))

    def loss(inputs: Any, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(network(inputs), labels)}

    origin = {"model": model.model_dump(), "start": start}
    if model.fine_tune:
        job.run(network, loss, train, validation, training, origin, early=True)
    else:
        job.keep(network, validation, origin)


def _check_classes(part: Dataset, model: ImageModel | TextModel | PretrainedModel) -> None:
    classes = int(part.labels.max()) + 1
    if classes != model.classes:
        raise InputError(
            f"{part.name} has {classes} classes, the model {model.classes}; set model.classes to {classes}"
        )


def _fresh_model(part: Dataset, model: ImageModel | TextModel, attention: Mapping[str, Any] | None) -> Transformer:
    _check_classes(part, model)
    has_texts = isinstance(part.inputs, Texts)
    if has_texts is not isinstance(model, TextModel):
        holds, reads, kind = ("texts", "images", "text") if has_texts else ("images", "texts", "image")
        raise InputError(f"{part.name} holds {holds}, but the model reads {reads}; set model.kind to {kind}")
    layers = attention and dict(attention)
    return _text_model(part, model, layers) if has_texts else _image_model(part, model, layers)


def _image_model(part: Dataset, model: ImageModel, attention: dict[str, Any] | None) -> ImageTransformer:
    expected = (model.image_size, model.image_size, model.channels)
    if part.inputs.shape[1:] != expected:
        raise InputError(
            f"{part.name} has images of {part.inputs.shape[1:]} (height, width, channels), the model is made for "
            f"{expected}; set model.image_size and model.channels to the data's"
        )
    return ImageTransformer(**model.model_dump(exclude={"kind"}), attention=attention)


def _text_model(part: Dataset, model: TextModel, attention: dict[str, Any] | None) -> TextTransformer:
    settings = model.model_dump(exclude={"kind", "vocabulary", "tokenizer", "embedding"}) | {"attention": attention}
    if model.tokenizer is None:
        tokenizer = train_tokenizer(part.inputs, model.vocabulary)
    else:
        tokenizer = pretrained_tokenizer(model.tokenizer)
    if model.embedding is None:
        return TextTransformer(tokenizer=tokenizer, **settings)
    pretrained = pretrained_embedding(model.embedding)
    network = TextTransformer(tokenizer=tokenizer, embedding_width=pretrained.shape[1], **settings)
    table = network.embedding.table.weight
    if len(pretrained) < len(table):
        raise InputError(
            f"embedding {model.embedding} has {len(pretrained)} rows for {len(table)} tokens; it is another tokenizer's"
        )
    with torch.no_grad():
        table.copy_(pretrained[: len(table)])  # some pretrained tables are padded to a round number of rows
    return network

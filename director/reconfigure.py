"""Your own classifier with calibrated uncertainty: `Director.from_model(model).fit(train, validation).predict(test)`.

The last layers of a trained timm or transformers classifier are replaced by a few steps of one stochastic kernel, which
is distilled from the path that the model itself takes (DIRECTOR, arXiv 2602.08920). The model stays as it is.
"""

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from director.device import autocast, module_modes, seeded, to_device
from director.errors import InputError
from director.files import file_digest, read_json, reading, write_json
from director.models.weights import read_tensors, write_tensors
from director.noise import ExampleNoise, ScaledNoise, unfold
from director.numbers.metrics import accuracy, nll
from director.numbers.predictions import (
    Predictions,
    expected_entropy,
    mutual_information,
    predictive_entropy,
)
from director.path.partial import FrozenPrefix, PartialPath, default_last
from director.path.residual import check_path, path_of, student_of
from director.path.view import ResidualPath, class_name
from director.provenance import versions
from director.settings.training import Kernel, Losses, Student, Training
from director.training.batches import Batches, CapturedStates, LiveBatches, captured_states, class_numbers
from director.training.fit import fit
from director.training.noise_scale import fit_noise_scale
from director.training.train_student import distillation_terms

FORMAT = "director student 1"
WEIGHTS, DESCRIPTION = "student.safetensors", "student.json"
TRAINING = Training(
    epochs=10, batch_size=32, learning_rate=5e-4, warmup_epochs=1, weight_decay=5e-5, selection="val_nll", patience=3
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Uncertainty:
    """Of each input, float64 [N], in nats.

    predictive_entropy: of the averaged probabilities. expected_entropy: mean over the roll-outs, what they agree is
    open. mutual_information: the rest, what they disagree about.
    """

    predictive_entropy: np.ndarray
    expected_entropy: np.ndarray
    mutual_information: np.ndarray


class Director(nn.Module):
    """A classifier whose last layers are a few steps of a stochastic kernel, learned from the classifier itself.

    As a module its call gives log-probabilities [B, C], averaged over `samples` roll-outs with the noise of `seed`, so
    that it stands in an existing evaluation loop in the model's place. Its tensors are those that are trained: what is
    kept of the model (`FrozenPrefix`) is shared with it, and follows no `to`.
    """

    def __init__(self, path: ResidualPath, kernel: Kernel, *, samples: int = 10, seed: int = 0) -> None:
        """Use `from_model`, which finds the path."""
        super().__init__()
        self.path, self.kernel_settings = path, kernel
        self.samples, self.seed = samples, seed
        with seeded(torch.device("cpu"), seed):
            network = student_of(path, kernel)
        # A kernel is not trained in half precision, whatever the model is kept in.
        self.network = network if next(network.kernel.parameters()).dtype == torch.float64 else network.float()
        self.noise_scale = 1.0
        self.history: list[dict[str, float]] = []

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        *,
        path: ResidualPath | None = None,
        last: int | None = None,
        states_every: int = 1,
        kernel: Kernel | None = None,
        samples: int = 10,
        seed: int = 0,
        verbose: bool = True,
    ) -> "Director":
        """A student of a trained classifier, not yet fitted; the model is frozen while it is used, and never changed.

        path: your own view of a model that is not known here, a subclass of `director.path.view.ResidualPath`
        (docs/your-own-model.md); None finds one for timm's ViT and DeiT and transformers' BERT, RoBERTa, XLM-R,
        DistilBERT, ViT, DINOv2, Llama and Qwen2. last: how many of its layers are replaced, counted from the end; None:
        a third of them (`default_last`). states_every: how many layers are one step; it divides `last`. kernel:
        settings of the kernel. samples: roll-outs of a prediction that does not say how many. seed: of the kernel's
        weights, of the order of training and of its noise. verbose: print what was found.

        Raises InputError for an architecture without a path, and for a part of it that does not exist.
        """
        path = path_of(model) if path is None else path
        if path.model is not model:
            raise InputError("path is a view of another model; make it of the one that is given")
        chosen = last
        if last is None:
            last = default_last(path.steps, states_every)
        part = PartialPath(path, last, states_every)
        if verbose:
            print(_found(path, part, chosen))
        return cls(part, kernel or Kernel(), samples=samples, seed=seed)

    # -- training

    def fit(
        self,
        train: Any,
        validation: Any,
        *,
        training: Training = TRAINING,
        losses: Losses | None = None,
        selection_samples: int = 4,
        fit_noise: bool = True,
        precision: str = "float32",
        cache_gigabytes: float = 4.0,
        accelerator: Any = None,
    ) -> "Director":
        """Learn the model's path, keep the epoch with the lowest validation NLL, and fit the size of the noise.

        train, validation: a DataLoader, a list of batches or another iterable that can be walked more than once, whose
        batches are (inputs, labels), or mappings of what the model takes and `labels`; a pair or a mapping of whole
        columns; or a data set of Hugging Face with such columns. Labels are class numbers. training: see
        `director.settings.training.Training`; its `batch_size` is that of the captured states, while batches that run
        live have the size that they come in. losses: weights of the path and the task. selection_samples: roll-outs per
        validation input that choose the epoch. fit_noise: then multiply the noise by the number that suits the
        validation data best (`director.training.noise_scale`). precision: `bfloat16` for autocast.

        Behind a frozen prefix the model runs once over the training data: the states of the part that is replaced are
        held in memory, up to `cache_gigabytes` of them. Beyond, and where all layers are replaced, it runs live, in
        each epoch over the batches as they come.

        accelerator: an `accelerate.Accelerator` of a program that runs in several processes (`accelerate launch`). The
        training data are then a DataLoader, of which each process takes its share; gradients are averaged, so that
        all end with the same student. Each validates on all of the validation data. Its mixed precision is taken, too.

        One batch is walked before anything else. Raises InputError where the path does not give the model's own logits,
        and for data that have no labels or other classes than the model.
        """
        student = Student(
            kernel=self.kernel_settings,
            losses=losses or Losses(),
            training=training,
            selection_samples=selection_samples,
        )
        if accelerator is not None:
            train, precision = self._share(train, accelerator), _precision(accelerator, precision)
        train, validation = (Batches(data, self.path.model, training.batch_size) for data in (train, validation))
        inputs, _ = train.first()
        sizes = check_path(self.path, inputs)
        classes = sizes.classes
        log.info("checked: %d states of %d tokens and width %d", sizes.states, sizes.tokens, sizes.width)
        held_out, truth = self._held_out(validation, classes)

        def predictions(samples: int, scale: float = 1.0) -> Predictions:
            return Predictions(self._logits(held_out, samples, self.seed, scale, precision), truth)

        def evaluate() -> dict[str, float]:
            found = predictions(selection_samples)
            return {"val_accuracy": accuracy(found), "val_nll": nll(found)}

        def loss(batch: Mapping[str, Any], labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
            return distillation_terms(self.network, self.path, student, batch, labels, generator)

        examples: CapturedStates | LiveBatches | None = None
        if isinstance(self.network.embedding, FrozenPrefix):
            examples = captured_states(self.path, train, student.losses, classes, cache_gigabytes)
        with tempfile.TemporaryDirectory() as folder:
            done = fit(
                self.network,
                loss,
                evaluate,
                examples or LiveBatches(train, classes),
                training,
                seed=self.seed,
                state_file=Path(folder, "state.safetensors"),
                identity={},
                device=self._device,
                precision=precision,
                state_seconds=math.inf,
                accelerator=accelerator,
            )
        self.history, self.noise_scale = done.history, 1.0
        if fit_noise:
            self.noise_scale = fit_noise_scale(lambda scale: predictions(self.samples if scale else 1, scale))["scale"]
        return self

    # -- prediction

    def predict(
        self, data: Any, samples: int | None = None, seed: int | None = None, *, batch_size: int = 32
    ) -> tuple[np.ndarray, Uncertainty]:
        """Probabilities float64 [N, C], averaged over the roll-outs, and how uncertain they are.

        data: as for `fit`; labels are not needed, and not used. batch_size: of data that do not come in batches. The
        noise of the n-th input depends on (seed, n, samples) alone, so the batches do not matter, beyond rounding.
        """
        found = self.predictions(data, samples, seed, batch_size=batch_size, labelled=False)
        measures = (predictive_entropy, expected_entropy, mutual_information)
        return found.pool().probabilities, Uncertainty(*(measure(found) for measure in measures))

    def predictions(
        self,
        data: Any,
        samples: int | None = None,
        seed: int | None = None,
        *,
        batch_size: int = 32,
        labelled: bool = True,
        precision: str = "float32",
    ) -> Predictions:
        """Logits [S, N, C] of every roll-out, with the labels, for `director.numbers` to measure and to compare."""
        samples, seed = self.samples if samples is None else samples, self.seed if seed is None else seed
        labels: list[np.ndarray] = []

        def inputs() -> Iterator[Any]:
            for batch, truth in Batches(data, self.path.model, batch_size):
                if labelled:
                    labels.append(class_numbers(truth, None, "data"))
                yield batch

        logits = self._logits(inputs(), samples, seed, self.noise_scale, precision)
        return Predictions(logits, np.concatenate(labels) if labelled else None)

    def forward(self, inputs: Any) -> Tensor:
        """Log-probabilities [B, C] of a batch as the model takes it: the mean of the roll-outs' probabilities."""
        with module_modes(self.network):
            logits = self._roll_outs(inputs, 0, self.samples, self.seed, self.noise_scale)
        return logits.log_softmax(-1).logsumexp(0) - math.log(self.samples)

    # -- files

    def save(self, folder: str | Path) -> None:
        """Write the student's own tensors and how to rebuild it around the model: safetensors and JSON."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.network.state_dict().items()}
        write_tensors(folder / WEIGHTS, tensors, {})
        description = {
            "format": FORMAT,
            "weights": file_digest(folder / WEIGHTS),
            "model": {"class": class_name(self.path.model), "fingerprint": _fingerprint(self.path.model)},
            "last": self.path.steps * self.path.states_every,
            "states_every": self.path.states_every,
            "kernel": self.kernel_settings.model_dump(),
            "samples": self.samples,
            "seed": self.seed,
            "noise_scale": self.noise_scale,
            "history": self.history,
            "versions": versions("torch", "numpy"),
        }
        write_json(folder / DESCRIPTION, description)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module, *, path: ResidualPath | None = None) -> "Director":
        """The student that `save` wrote, around the model that it was distilled from. path: as for `from_model`.

        Raises InputError for another model, and for files that are damaged or of another kind.
        """
        folder = Path(folder)
        remedy = "give a folder that `Director.save` wrote"
        content = read_json(folder / DESCRIPTION)
        with reading(folder / DESCRIPTION, f"the description of a student, {FORMAT}", remedy):
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}")
            known, kernel = content["model"], Kernel(**content["kernel"])
            part = {"last": content["last"], "states_every": content["states_every"]}
            options = {"samples": content["samples"], "seed": content["seed"]}
            scale, history = float(content["noise_scale"]), list(content["history"])
            weights, expected = content["weights"], known["fingerprint"]
        if (found := _fingerprint(model)) != expected:
            raise InputError(
                f"{folder}: a student of the {known['class']} with fingerprint {expected}, but the given "
                f"{class_name(model)} has {found}; give the model, with the weights, that it was distilled from"
            )
        if file_digest(folder / WEIGHTS) != weights:
            raise InputError(f"{folder / WEIGHTS} is not the file that {DESCRIPTION} describes; {remedy}")
        student = cls.from_model(model, path=path, kernel=kernel, **part, **options, verbose=False)
        tensors, _ = read_tensors(folder / WEIGHTS, remedy, student._device)
        with reading(folder / WEIGHTS, "the weights of this student", remedy):
            student.network.load_state_dict(tensors)
        student.noise_scale, student.history = scale, history
        return student.eval()

    # -- what these share

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _roll_outs(self, inputs: Any, first: int, samples: int, seed: int, scale: float) -> Tensor:
        """Logits [S, B, C] of a batch whose inputs are numbered from `first`, in the modules' modes as they are."""
        start = self._start(inputs)
        examples = range(first, first + len(start["start"]))
        noise = ScaledNoise(ExampleNoise(seed, examples, samples, self._device), scale)
        return unfold(self.network(start, noise, samples=samples), samples)

    def _logits(
        self, batches: Iterable[Any], samples: int, seed: int, scale: float, precision: str = "float32"
    ) -> np.ndarray:
        """Logits float32 [S, N, C] of `samples` roll-outs of every input of the batches."""
        parts, count = [], 0
        with module_modes(self.network), torch.no_grad(), autocast(self._device, precision):
            for inputs in batches:
                logits = self._roll_outs(to_device(inputs, self._device), count, samples, seed, scale)
                parts.append(logits.float().cpu().numpy())
                count += logits.shape[1]
        if not parts:
            raise InputError("there is no input; give data with at least one")
        return np.concatenate(parts, axis=1)

    def _share(self, train: Any, accelerator: Any) -> DataLoader:
        """This process's part of a loader."""
        if not isinstance(train, DataLoader):
            raise InputError(f"several processes share a DataLoader; the training data are a {type(train).__name__}")
        if self._device.type != accelerator.device.type:
            raise InputError(f"the model is on {self._device}; call model.to(accelerator.device) before from_model")
        return accelerator.prepare_data_loader(train)

    def _start(self, inputs: Any) -> dict[str, Tensor]:
        """X[0], and the mask if there is one, of inputs or of what this gave."""
        x, mask = self.network.start(inputs)
        return {"start": x} if mask is None else {"start": x, "mask": mask}

    def _held_out(self, batches: Batches, classes: int) -> tuple[list[Any], np.ndarray]:
        """The validation batches and labels; behind a frozen prefix the batches as X[0], so that it runs once."""
        frozen, held_out, labels = isinstance(self.network.embedding, FrozenPrefix), [], []
        for inputs, truth in batches:
            held_out.append(self._start(to_device(inputs, self._device)) if frozen else inputs)
            labels.append(class_numbers(truth, classes, "validation"))
        if not labels:
            raise InputError("there is no validation input; give data with at least one")
        return held_out, np.concatenate(labels)


def _precision(accelerator: Any, precision: str) -> str:
    """The accelerator's mixed precision, where it has one, else `precision`."""
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise InputError(f"mixed precision {accelerator.mixed_precision!r} is not supported; choose bf16 or no")
    return "bfloat16" if accelerator.mixed_precision == "bf16" else precision


def _found(path: ResidualPath, part: PartialPath, chosen: int | None) -> str:
    """What was found in a model, and what is replaced, for the eye."""
    last = part.steps * part.states_every
    lines = [
        f"{class_name(path.model)}: {path.steps} layers, {path.steps + 1} states of width {path.width}, "
        f"{path.heads} heads{', causal' if path.causal else ''}",
        f"the last {last} layers become {part.steps} steps of one kernel; the first {part.kept} stay as they are",
    ]
    if chosen is None:
        lines.append(
            "(last=None: the last third; a kernel starts from nothing, so what it replaces forgets the pretraining)"
        )
    return "\n".join(lines)


def _fingerprint(model: nn.Module) -> str:
    """Of the model's weights: names, shapes, types and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

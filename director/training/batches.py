"""Somebody else's data as batches, and what a student is trained on by `director.reconfigure.Director.fit`."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from director.data.augment import epoch_order
from director.data.examples import cut
from director.device import to_device
from director.errors import InputError
from director.path.trajectory import capture
from director.path.view import ResidualPath
from director.settings.training import Losses

LABELS = ("labels", "label")  # of a batch that is a mapping

log = logging.getLogger(__name__)


class Batches:
    """Somebody's data as batches (inputs, labels or None), which can be walked again."""

    def __init__(self, data: Any, model: nn.Module, batch_size: int) -> None:
        """data: see `Director.fit`. Raises InputError for what is none of that."""
        if isinstance(data, Iterator):
            raise InputError(f"{type(data).__name__} can be walked once only; give a list or a DataLoader")
        is_dataset = hasattr(data, "column_names")  # of Hugging Face
        if not is_dataset and not isinstance(data, Iterable):
            raise InputError(f"{type(data).__name__} cannot be walked; give batches, such as a DataLoader of it has")
        self.data, self.model, self.batch_size, self.is_dataset = data, model, batch_size, is_dataset

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for batch in self._batches():
            if isinstance(batch, Mapping):
                label = next((name for name in LABELS if name in batch), None)
                inputs = {name: part for name, part in batch.items() if name not in LABELS}
                yield self._alone(inputs), None if label is None else batch[label]
            elif isinstance(batch, tuple | list) and len(batch) == 2:
                yield tuple(batch)
            else:
                yield batch, None

    def first(self) -> tuple[Any, Any]:
        """The first batch, with its inputs on the model's device."""
        batch = next(iter(self), None)
        if batch is None:
            raise InputError("there is no training input; give data with at least one")
        return to_device(batch[0], next(self.model.parameters()).device), batch[1]

    def sizes(self) -> list[int]:
        """Inputs of each batch; of a DataLoader without loading one."""
        sampler = getattr(self.data, "batch_sampler", None)
        if sampler is not None:
            return [len(batch) for batch in sampler]
        return [len(class_numbers(labels, None, "training")) for _, labels in self]

    def _batches(self) -> Iterator[Any]:
        def slices(count: int) -> Iterator[slice]:
            return (slice(start, start + self.batch_size) for start in range(0, count, self.batch_size))

        if isinstance(self.data, Mapping):
            columns = self.data
            for rows in slices(len(next(iter(columns.values())))):
                yield {name: column[rows] for name, column in columns.items()}
        elif isinstance(self.data, tuple):
            inputs, labels = self.data
            yield from ((inputs[rows], labels[rows]) for rows in slices(len(labels)))
        elif self.is_dataset:
            yield from (self._padded(self.data[rows]) for rows in slices(len(self.data)))
        else:
            yield from self.data

    def _padded(self, rows: Mapping[str, Any]) -> dict[str, Tensor]:
        """Columns of a data set that hold numbers, as tensors, padded on the right, with a mask where there is none."""
        columns = {name: values for name, values in rows.items() if _is_numeric(values)}
        padding = getattr(getattr(self.model, "config", None), "pad_token_id", None) or 0
        if "input_ids" in columns and "attention_mask" not in columns:
            columns["attention_mask"] = [np.ones(len(tokens), np.int64) for tokens in columns["input_ids"]]
        padded = {}
        for name, values in columns.items():
            parts = [torch.as_tensor(np.asarray(value)) for value in values]
            if parts[0].is_floating_point():  # lists of a data set are in double precision
                parts = [part.to(next(self.model.parameters()).dtype) for part in parts]
            if parts[0].ndim == 1:
                fill = padding if name == "input_ids" else 0
                padded[name] = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=fill)
            else:
                padded[name] = torch.stack(parts)
        return padded

    def _alone(self, inputs: dict[str, Any]) -> Any:
        """The one input of a model that takes a tensor, as those of timm; a mapping for one that takes names."""
        return next(iter(inputs.values())) if len(inputs) == 1 and not hasattr(self.model, "config") else inputs


class CapturedStates:
    """Training examples as the states of the teacher's path: what `director.training.fit` calls examples."""

    def __init__(self, states: list[Tensor], labels: np.ndarray, masked: bool) -> None:
        """states: of each example [n, 2L+1, d], X[0..L] and v_1..v_L of its real tokens."""
        self.states, self.labels, self.masked = states, labels, masked
        self.steps = states[0].shape[1] // 2

    def __len__(self) -> int:
        return len(self.labels)

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Rows of each batch of an epoch, every example once."""
        return cut(epoch_order(len(self), seed, epoch), batch_size)

    def batch(self, rows: np.ndarray, view: int) -> tuple[dict[str, Tensor], Tensor]:
        """`states`, `variances` and, where inputs differ in length, `mask`; padded on the right."""
        chosen = [self.states[row] for row in rows]
        values = nn.utils.rnn.pad_sequence(chosen, batch_first=True).permute(2, 0, 1, 3)  # [2L+1, B, N, d]
        batch = {"states": values[: self.steps + 1], "variances": values[self.steps + 1 :]}
        if self.masked:
            lengths = torch.tensor([len(part) for part in chosen])
            batch["mask"] = torch.arange(values.shape[2]) < lengths[:, None]
        return batch, torch.from_numpy(self.labels[rows])


def captured_states(
    path: ResidualPath, batches: Batches, losses: Losses, classes: int, gigabytes: float
) -> CapturedStates | None:
    """The states of all training inputs, in memory and in the model's precision; None beyond so many gigabytes."""
    device = next(path.model.parameters()).device
    states, labels, size = [], [], 0
    for inputs, truth in batches:
        trajectory = capture(path, to_device(inputs, device), losses.softmax_variance)
        values = torch.cat([trajectory.states, trajectory.variances]).permute(1, 2, 0, 3)  # [B, N, 2L+1, d]
        masked = trajectory.mask is not None
        for row, value in enumerate(values):
            # a copy without the padding, on whatever side it is
            states.append((value[trajectory.mask[row]] if masked else value).cpu().clone())
            size += states[-1].nbytes
        labels.append(class_numbers(truth, classes, "training"))
        if size > gigabytes * 1e9:
            log.info("the states take more than %.3g GB: the model runs live; raise cache_gigabytes", gigabytes)
            return None
    return CapturedStates(states, np.concatenate(labels), masked)


class LiveBatches:
    """Training batches as they come, for a teacher that runs along: what `director.training.fit` calls examples."""

    def __init__(self, batches: Batches, classes: int) -> None:
        self.batches, self.classes, self.sizes = batches, classes, batches.sizes()

    def __len__(self) -> int:
        return sum(self.sizes)

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """As many as the data come in; from here they are walked anew."""
        self.iterator = iter(self.batches)
        return [np.arange(size) for size in self.sizes]

    def batch(self, rows: np.ndarray, view: int) -> tuple[dict[str, Any], Tensor]:
        """The next batch. Raises InputError if it has another size than in the epoch before."""
        inputs, labels = next(self.iterator, (None, ()))
        if len(labels) != len(rows):
            raise InputError(f"a batch of {len(rows)} inputs had {len(labels)} in another epoch; give the same sizes")
        return {"inputs": inputs}, torch.from_numpy(class_numbers(labels, self.classes, "training"))


def _is_numeric(values: Any) -> bool:
    """Whether a column of a data set holds numbers, or lists of them."""
    first = values[0]
    while isinstance(first, list) and first:
        first = first[0]
    return isinstance(first, int | float | np.number | np.ndarray | Tensor)


def class_numbers(labels: Any, classes: int | None, what: str) -> np.ndarray:
    """Labels as int64 [B]; raises InputError for what are none."""
    if labels is None:
        raise InputError(f"the {what} batches have no labels; give (inputs, labels), or mappings with `labels`")
    numbers = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"{what} labels of shape {numbers.shape} and type {numbers.dtype}; give class numbers [B]")
    if classes is not None and len(numbers) and not 0 <= numbers.min() <= numbers.max() < classes:
        raise InputError(
            f"{what} labels from {numbers.min()} to {numbers.max()}, but the model has classes 0 to {classes - 1}"
        )
    return numbers.astype(np.int64)

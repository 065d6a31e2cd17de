"""Predictions of any method on any set of inputs: the file that metrics, tables and figures are made from."""

import json
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from director.errors import InputError, listed
from director.files import reading, replacing
from director.numbers.probabilities import BITS, SHARE, evidence, look_like_probabilities

LARGEST = float(np.finfo(np.float32).max)  # the files hold float32
SMALLEST = float(np.finfo(np.float32).tiny)  # positive float32 with all its bits: a float32 softmax ends there
ARRAYS = ("logits", "example", "shift", "severity", "about")  # of a file; labels only where there are any
WRITE = "write it with Predictions(logits, labels).save(path)"


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits of S samples (roll-outs, dropout passes, ensemble members) for N inputs and C classes.

    logits    [S, N, C] float32 or float64, finite, before the softmax; [N, C] is taken as S = 1
    labels    [N] integers 0..C-1, or None where there are none (out-of-distribution inputs)
    example   [N] integers: which example of the data set a row is (default 0..N-1)
    shift     [N] strings: the corruption or shift it was put through (default "clean")
    severity  [N] integers: how strongly (default 0)
    about     what made these predictions: anything JSON can say

    Construction checks all of it and raises `InputError` with the row and the remedy. No two rows may have the
    same (example, shift, severity), no array masked entries, and the logits may not be probabilities, which
    `from_probabilities` takes. Logits of float32 or float64 are not copied, so they may be a memory map; the checks
    and `save` read them part by part. Properties pool several samples by the mean of their softmax.
    """

    logits: NDArray[Any]
    labels: NDArray[np.int64] | None
    example: NDArray[np.int64] | None = None
    shift: NDArray[np.str_] | None = None
    severity: NDArray[np.int64] | None = None
    about: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        logits = _checked_logits(self.logits)
        rows, classes = logits.shape[1:]
        shift = np.full(rows, "clean") if self.shift is None else _checked_shift(self.shift, rows)
        fields = {
            "logits": logits,
            "labels": None if self.labels is None else _checked_labels(self.labels, rows, classes),
            "example": np.arange(rows) if self.example is None else _integers("example", self.example, rows),
            "shift": shift,
            "severity": np.zeros(rows, int) if self.severity is None else _integers("severity", self.severity, rows),
            "about": _checked_about({} if self.about is None else self.about),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._refuse_duplicates()

    def _refuse_duplicates(self) -> None:
        if (np.diff(self.example) > 0).all():  # the usual case: increasing, so no example is there twice
            return
        keys = (self.severity, self._shift_code, self.example)
        order = np.lexsort(keys)
        same = np.all([np.diff(key[order]) == 0 for key in keys], axis=0)
        if same.any():
            first, second = sorted(order[np.argmax(same) :][:2])
            raise InputError(
                f"rows {first} and {second} are both example {self.example[first]}, shift '{self.shift[first]}', "
                f"severity {self.severity[first]}: keep one of them, or give them different examples"
            )

    @cached_property
    def _shift_code(self) -> NDArray[np.int64]:
        return np.unique(self.shift, return_inverse=True)[1]

    def cells(self) -> dict[tuple[str, int], NDArray[np.int64]]:
        """The rows of each (shift, severity), in sorted order of both."""
        order = np.lexsort((self.severity, self._shift_code))
        changes = np.flatnonzero(np.diff(self._shift_code[order]) | np.diff(self.severity[order])) + 1
        groups = np.split(order, changes)
        return {(str(self.shift[rows[0]]), int(self.severity[rows[0]])): rows for rows in groups}

    def save(self, path: str | Path) -> None:
        """Write an .npz (float32 logits, no pickle), atomically; the same content gives the same bytes."""
        arrays = {name: getattr(self, name) for name in ARRAYS} | {
            "logits": self.logits.astype(np.float32, copy=False),
            "about": np.array(json.dumps(self.about, sort_keys=True)),
        }
        if self.labels is not None:
            arrays["labels"] = self.labels
        with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy")  # has a fixed date: the bytes do not depend on the time
                # Logits would hardly become smaller, the other arrays do by far.
                entry.compress_type = zipfile.ZIP_STORED if name == "logits" else zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)

    @classmethod
    def from_probabilities(
        cls,
        probabilities: ArrayLike,
        labels: ArrayLike | None,
        example: ArrayLike | None = None,
        shift: ArrayLike | None = None,
        severity: ArrayLike | None = None,
        about: dict[str, Any] | None = None,
    ) -> "Predictions":
        """Predictions whose logits are the logarithms of probabilities [S, N, C], or [N, C] for S = 1.

        Each row has to lie in [0, 1] and sum to 1, up to the rounding of float32, float16, bfloat16 or of decimals
        with 2 to 4 digits, else `InputError` names it with its sum. It is divided by that sum, so that it is exact
        again. What is below 1.2e-38, the smallest float32 in full precision, is that: a label with probability 0
        costs 87 nats, not infinitely many. Everything else is as in the constructor.
        """
        probabilities = _samples("probabilities", probabilities)
        logits = np.empty_like(probabilities)
        for sample, layer in enumerate(probabilities):
            fits = look_like_probabilities(layer)
            if not fits.all():
                row = int(np.argmin(fits))
                with np.errstate(all="ignore"):  # the sum of infinities, or beyond float64
                    total = layer[row].sum(dtype=float)
                raise InputError(
                    f"probabilities of sample {sample}, row {row} sum to {total:.6g}, the lowest is "
                    f"{layer[row].min():.6g}: give rows within [0, 1] that sum to 1, or values before the softmax to "
                    "Predictions(logits, labels), on the command line without --probabilities"
                )
            floored = np.maximum(layer, SMALLEST, dtype=np.float64)
            logits[sample] = np.log(floored / floored.sum(axis=1, keepdims=True))
        return cls(logits, labels, example, shift, severity, about)

    @classmethod
    def load(cls, path: str | Path, probabilities: bool = False) -> "Predictions":
        """Read what `save` wrote, or any .npz with an array `logits`, and others named as above where there are any.

        probabilities: the file's array `probabilities`, or `logits`, holds what `from_probabilities` takes. Raises
        `InputError` with the file's name for a file that is not that.
        """
        arrays = _read_arrays(path)
        name = "probabilities" if "probabilities" in arrays else "logits"
        unknown = sorted(set(arrays) - {name, "labels", *ARRAYS[1:]})
        if name not in arrays:
            raise InputError(f"{path}: no array logits, but {listed(unknown) or 'nothing'}; {WRITE}")
        if unknown:
            raise InputError(f"{path}: not known beside {name}: {listed(unknown)}; leave them out, or {WRITE}")
        if name == "probabilities" and not probabilities:
            raise InputError(
                f"{path}: holds probabilities, not logits; use Predictions.load(path, probabilities=True), on the "
                "command line --probabilities"
            )
        try:
            about = json.loads(str(arrays.pop("about", "{}")))
            values = arrays.pop(name)
            make = cls.from_probabilities if probabilities else cls
            return make(values, **{"labels": None, **arrays, "about": about})
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: its `about` is not JSON ({error}); leave it out, or {WRITE}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def first(self, samples: int | None = None) -> "Predictions":
        """The first `samples` samples (None = all); `InputError` where there are fewer."""
        if samples is None:
            return self
        if not 1 <= samples <= len(self.logits):
            raise InputError(
                f"{samples} samples asked for: these predictions have {len(self.logits)}, ask for 1 to all"
            )
        return replace(self, logits=self.logits[:samples])

    def pool(self, pooling: str = "softmax", samples: int | None = None) -> "Predictions":
        """The first `samples` samples (None = all) as one, S = 1, whose logits are log-probabilities in float64.

        pooling "softmax": log of the mean of the samples' probabilities, the usual one for deep ensembles and Monte
        Carlo dropout; "logits": log-softmax of the mean of their logits. `about` receives `samples` and `pooling`,
        unless S = 1 and it has them already, from an earlier pooling.
        """
        chosen = self.first(samples)
        pooled = {"samples": len(chosen.logits), "pooling": pooling}
        about = {**self.about, **pooled} if len(self.logits) > 1 else {**pooled, **self.about}
        return replace(self, logits=_pooled(chosen.logits, pooling), about=about)

    def select(self, rows: ArrayLike) -> "Predictions":
        """The given rows (indices, each at most once, or a mask), in that order."""
        try:
            columns = {
                name: None if (column := getattr(self, name)) is None else column[rows]
                for name in ("labels", "example", "shift", "severity")
            }
            return replace(self, logits=self.logits[:, rows], **columns)
        except IndexError as error:
            raise InputError(f"rows cannot be selected ({error}): there are {self.logits.shape[1]}") from error

    @property
    def targets(self) -> NDArray[np.int64]:
        """The labels [N]; `InputError` where there are none."""
        if self.labels is None:
            raise InputError("these predictions carry no labels, so they can serve only as out-of-distribution inputs")
        return self.labels

    @cached_property
    def log_probabilities(self) -> NDArray[np.float64]:
        """[N, C], natural logarithm, finite: what would be below the lowest float32 is that."""
        return _pooled(self.logits, "softmax")

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """[N, C] in [0, 1]."""
        return np.exp(self.log_probabilities)

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """Largest probability [N] in [1/C, 1]."""
        return self.probabilities.max(axis=1)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """Dense rank [N] of the confidence, 0 = lowest; equal confidences share one."""
        return np.unique(self.confidence, return_inverse=True)[1]

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """Most probable class [N]; the first of several."""
        return self.log_probabilities.argmax(axis=1)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the label was predicted [N]; `InputError` without labels."""
        return self.predicted == self.targets

    @cached_property
    def log_likelihood(self) -> NDArray[np.float64]:
        """Log-probability of the label [N]; `InputError` without labels."""
        return self.log_probabilities[np.arange(len(self.targets)), self.targets]

    @cached_property
    def squared_distance(self) -> NDArray[np.float64]:
        """Squared distance [N] of the probabilities to the one-hot label, in [0, 2]; `InputError` without labels."""
        difference = self.probabilities.copy()
        difference[np.arange(len(self.targets)), self.targets] -= 1
        return np.einsum("nc,nc->n", difference, difference)


def predictive_entropy(predictions: Predictions) -> NDArray[np.float64]:
    """Entropy [N] of the pooled prediction in nats, in [0, log C]: the total uncertainty."""
    return _entropy(predictions.log_probabilities)


def expected_entropy(predictions: Predictions) -> NDArray[np.float64]:
    """Mean over the samples of each one's entropy [N] in nats, in [0, log C]: the aleatoric part."""
    return sum(_entropy(log_softmax(sample)) for sample in predictions.logits) / len(predictions.logits)


def mutual_information(predictions: Predictions) -> NDArray[np.float64]:
    """Predictive minus expected entropy [N] in nats, in [0, log C]: the epistemic part, the samples' disagreement.

    Houlsby et al. 2011 (BALD), eq. 2. `InputError` for S = 1, where there is nothing to disagree.
    """
    if len(predictions.logits) < 2:
        raise InputError("mutual information needs at least 2 samples, these predictions have 1")
    return np.maximum(predictive_entropy(predictions) - expected_entropy(predictions), 0)


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log-softmax over the last axis in float64, kept finite."""
    shifted = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)
    return np.clip(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), -LARGEST, 0)


def _pooled(logits: NDArray[Any], pooling: str) -> NDArray[np.float64]:
    """Log-probabilities [N, C] of logits [S, N, C]."""
    if pooling == "logits":
        return log_softmax(logits.mean(axis=0, dtype=np.float64))
    if pooling != "softmax":
        raise InputError(f"pooling '{pooling}' is not known: use softmax or logits")
    total = log_softmax(logits[0])
    for sample in logits[1:]:  # one after the other, so the memory does not grow with S
        np.logaddexp(total, log_softmax(sample), out=total)
    return np.clip(total - np.log(len(logits)), -LARGEST, 0)


def _entropy(log_probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return -(np.exp(log_probabilities) * log_probabilities).sum(axis=-1)


def _read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    foreign = ("a readable .npz file", f"check the path, or {WRITE}")
    with reading(path, *foreign), zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
        ours = ("whole", "delete it and make it again")  # only what `save` wrote is called damaged
        with reading(path, *(ours if {*ARRAYS} <= {*archive.files} else foreign)):
            return {name: archive[name] for name in archive.files}


def _array(name: str, values: Any, kinds: str, meaning: str) -> NDArray[Any]:
    parts = values if isinstance(values, list | tuple) else [values]
    if any(np.ma.is_masked(part) for part in parts):  # numpy would take what lies under the mask
        raise InputError(f"{name} have masked entries, which hold no value: fill them, or leave such rows out")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as an array ({error}): give {meaning}") from error
    if array.dtype.kind not in kinds:
        raise InputError(f"{name} are of type {array.dtype}: give {meaning}")
    return array


def _of_length(name: str, array: NDArray[Any], rows: int) -> NDArray[Any]:
    if array.shape != (rows,):
        raise InputError(f"{name} has shape {array.shape}, the logits have {rows} rows: give one value for each")
    return array


def _integers(name: str, values: Any, rows: int) -> NDArray[np.int64]:
    return _of_length(name, _array(name, values, "iu", "integers"), rows).astype(np.int64)


def _checked_labels(labels: Any, rows: int, classes: int) -> NDArray[np.int64]:
    labels = _integers("labels", labels, rows)
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(
            f"label {labels[row]} in row {row} is not one of the classes 0..{classes - 1}: leave such rows out, "
            "or give labels=None where no input has a label"
        )
    return labels


def _checked_shift(shift: Any, rows: int) -> NDArray[np.str_]:
    shift = _of_length("shift", _array("shift", shift, "UT", "strings"), rows)
    if (shift == "overall").any():
        raise InputError(f"row {int(np.argmax(shift == 'overall'))}: the shift 'overall' is kept for means over shifts")
    # As wide as the longest string, whatever it was selected from: the same content gives the same bytes.
    return shift.astype(f"U{max(1, np.strings.str_len(shift).max())}")


def _checked_about(about: Any) -> dict[str, Any]:
    try:
        if isinstance(about, dict):
            json.dumps(about, sort_keys=True, allow_nan=False)
            return about
    except (TypeError, ValueError) as error:
        raise InputError(f"about cannot be written as JSON ({error}): give plain values with string keys") from error
    raise InputError(f"about is a {type(about).__name__}: give a dictionary")


def _samples(name: str, values: Any) -> NDArray[Any]:
    values = _array(name, values, "iuf", "numbers")
    values = values[None] if values.ndim == 2 else values  # [N, C] -> [1, N, C]
    if values.ndim != 3 or min(values.shape) < 1 or values.shape[2] < 2:
        raise InputError(
            f"{name} have shape {values.shape}: give [S, N, C] or [N, C], S and N at least 1, C at least 2"
        )
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)


def _checked_logits(logits: Any) -> NDArray[Any]:
    logits = _samples("logits", logits)
    rows = logits.shape[0] * logits.shape[1]
    alike, bits = 0, 0.0
    for sample, layer in enumerate(logits):
        unusable = ~(np.abs(layer) <= LARGEST).all(axis=1)  # of NaN, too: every comparison with it is false
        if unusable.any():
            row = int(np.argmax(unusable))
            raise InputError(
                f"logits of sample {sample}, row {row} are not finite float32 numbers: {layer[row].tolist()}"
            )
        found = layer[look_like_probabilities(layer)]
        alike, bits = alike + len(found), bits + evidence(found)
    if alike >= SHARE * rows and bits >= BITS:
        raise InputError(
            f"{alike} of {rows} rows of the logits are within [0, 1] and sum to 1 up to rounding: these look like "
            "probabilities; give them to Predictions.from_probabilities(probabilities, labels), on the command line "
            "with --probabilities, or give the values before the softmax"
        )
    return logits

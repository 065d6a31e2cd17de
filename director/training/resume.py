"""The state of a training in one file, so that a killed one goes on where it was.

The file is no output of the pipeline: it lies undeclared beside the outputs, survives the job, and goes when they
are written. It belongs to one `identity` (settings, data, seed, code); under another one it is not used.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from director.errors import AccessError, InputError
from director.files import reading
from director.models.weights import write_tensors

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]


@dataclass
class Progress:
    """How far a training has come.

    step: optimiser steps done. seconds: time they took, over all starts. history: one row per finished epoch.
    best_epoch, early_epoch: the one to choose and the one with the lowest val_nll so far, counted from 1; 0 before the
    first is finished. sums: of each loss term over the examples of the epoch under way, float64 scalars. kept: the
    model's state at these two epochs, which is one where they are the same.
    """

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    early_epoch: int = 0
    sums: Tensors = field(default_factory=dict)
    kept: dict[int, Tensors] = field(default_factory=dict)


def save_state(
    path: str | Path,
    identity: Mapping[str, Any],
    progress: Progress,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
) -> None:
    """Write everything the rest of the training depends on; a kill while writing leaves the state before."""
    groups = {
        "model": model.state_dict(),
        "kept": _flat(progress.kept),
        "sums": progress.sums,
        "optimiser": _flat(optimiser.state_dict()["state"]),
    }
    tensors = {
        f"{group}/{name}": tensor.detach().to("cpu", copy=True).contiguous()  # safetensors refuses shared memory
        for group, named in groups.items()
        for name, tensor in named.items()
    }
    plain = {key: getattr(progress, key) for key in ("step", "seconds", "history", "best_epoch", "early_epoch")}
    header = json.dumps({"identity": identity, "progress": plain})
    write_tensors(path, tensors, {"training": header})


def load_state(
    path: str | Path, identity: Mapping[str, Any], model: nn.Module, optimiser: torch.optim.Optimizer
) -> Progress:
    """Bring model and optimiser to the saved state and return its progress.

    Where there is no state, or it is broken or another training's, nothing is touched, the log says why, and the
    progress is that of a start. A state that the system does not let be read raises AccessError, and is kept.
    """
    path = Path(path)
    if not path.is_file():
        return Progress()
    groups: dict[str, Tensors] = {"model": {}, "kept": {}, "sums": {}, "optimiser": {}}
    try:
        with (
            reading(path, "a whole training state", "training starts anew", SafetensorError),
            safe_open(path, framework="pt") as file,
        ):
            header = json.loads(file.metadata()["training"])
            saved_identity, plain = header["identity"], header["progress"]
            for key in file.keys():  # noqa: SIM118
                group, name = key.split("/", 1)
                groups[group][name] = file.get_tensor(key)
            progress = Progress(**plain)
    except AccessError:
        raise
    except InputError as error:
        log.warning("%s", error)
        return Progress()

    saved = {"identity": saved_identity, "weights": _shapes(groups["model"])}
    current = {"identity": json.loads(json.dumps(identity)), "weights": _shapes(model.state_dict())}
    if different := list(_differences(saved, current)):
        log.warning("%s: state of another training (%s); training starts anew", path, "; ".join(different[:5]))
        return Progress()

    device = next(model.parameters()).device
    model.load_state_dict(groups["model"])
    entries = _by_number(groups["optimiser"])
    optimiser.load_state_dict({"state": entries, "param_groups": optimiser.state_dict()["param_groups"]})
    kept, sums = ({name: tensor.to(device) for name, tensor in groups[group].items()} for group in ("kept", "sums"))
    return replace(progress, kept=_by_number(kept), sums=sums)


def remove_state(path: str | Path) -> None:
    """Remove the state, and what a kill while writing one has left; call it when the outputs are on disk."""
    path = Path(path)
    for leftover in [path, *path.parent.glob(f".{path.stem}-*{path.suffix}")]:
        leftover.unlink(missing_ok=True)


def _flat(by_number: Mapping[int, Tensors]) -> Tensors:
    """{3: {"weight": tensor}} as {"3.weight": tensor}."""
    return {f"{number}.{name}": tensor for number, named in by_number.items() for name, tensor in named.items()}


def _by_number(flat: Tensors) -> dict[int, Tensors]:
    """What `_flat` was given."""
    by_number: dict[int, Tensors] = {}
    for key, tensor in flat.items():
        number, name = key.split(".", 1)
        by_number.setdefault(int(number), {})[name] = tensor
    return by_number


def _shapes(tensors: Tensors) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _differences(saved: Any, current: Any, name: str = "") -> Iterator[str]:
    """`name: old, now new` for every leaf of two nested tables that differs."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted({*saved, *current}):
            yield from _differences(saved.get(key), current.get(key), f"{name}.{key}".lstrip("."))
    elif saved != current:
        yield f"{name}: {saved!r}, now {current!r}"

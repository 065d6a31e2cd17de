"""Files of weights that describe themselves: what is needed to build the model, beside its tensors."""

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from director.errors import InputError, access_error
from director.files import reading, replacing
from director.models.pretrained import PretrainedClassifier
from director.models.student import StudentNetwork
from director.models.transformers import BACKBONES

FORMAT = "director weights 2"
# What a file may hold. A class carries its `kind`, and `from_settings(settings)`; a model its `settings` (JSON-able).
KINDS: dict[str, Any] = {
    **BACKBONES,
    PretrainedClassifier.kind: PretrainedClassifier,
    StudentNetwork.kind: StudentNetwork,
}


def parameter_count(model: nn.Module) -> int:
    """Number of scalars, whether they are trained or kept as they are."""
    return sum(parameter.numel() for parameter in model.parameters())


def save_model(path: str | Path, model: nn.Module, about: dict[str, Any]) -> None:
    """Write weights, and how to rebuild the model, to one safetensors file: atomic, the same bytes for the same model.

    model: with a `kind` that `load_model` knows, and `settings`. about: JSON-able notes (experiment, seed, epoch, ...)
    that `load_model` gives back.
    """
    kind, settings = (getattr(model, name, None) for name in ("kind", "settings"))
    if kind not in KINDS or settings is None:
        raise InputError(
            f"{path}: a {type(model).__name__} cannot be saved without a kind (one of {', '.join(KINDS)}) and settings"
        )
    # One entry of metadata: safetensors does not keep the order of several.
    header = {"format": FORMAT, "kind": kind, "settings": settings, "about": about}
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    write_tensors(path, tensors, {"director": json.dumps(header, sort_keys=True, allow_nan=False)})


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically; AccessError where the system refuses, such as a full disk."""
    with replacing(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata=dict(metadata))
        except SafetensorError as error:
            raise access_error(path, error) or error from error


def read_tensors(
    path: str | Path, remedy: str, device: str | torch.device = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; InputError, ending with the remedy, for what is not a whole one."""
    with (
        reading(path, "a whole safetensors file", remedy, SafetensorError),
        safe_open(path, framework="pt", device=str(device)) as file,
    ):
        # Clones: a tensor of the file starts at any address, where matrix products round differently, so that
        # the numbers of a model would depend on the length of the header.
        return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


class Saved(NamedTuple):
    """What a file of `save_model` holds."""

    kind: str
    settings: dict[str, Any]
    about: dict[str, Any]
    tensors: dict[str, Tensor]


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[nn.Module, dict[str, Any]]:
    """Read a file of `save_model`: the model in evaluation mode on `device`, and `about`."""
    saved = read_saved(path, device)
    return rebuilt(path, saved, lambda: KINDS[saved.kind].from_settings(saved.settings), device), saved.about


def read_saved(path: str | Path, device: str | torch.device = "cpu") -> Saved:
    """Read a file of `save_model`, with its tensors on `device`, without building the model."""
    path = Path(path)
    remedy = "give a file of `save_model`; if this one should be it, train the model again"
    tensors, metadata = read_tensors(path, remedy, device)
    try:
        header = json.loads(metadata["director"])
        kind, settings, about = header["kind"], header["settings"], header["about"]
        version = header.get("format")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: director did not write this safetensors file; give one of `save_model`") from error
    if version != FORMAT:
        raise InputError(f"{path}: its format is {version}, of another version of director, not {FORMAT}; train again")
    if kind not in KINDS:
        raise InputError(f"{path}: a model of kind {kind!r}; this version knows {', '.join(KINDS)}")
    return Saved(kind, settings, about, tensors)


def rebuilt(path: str | Path, saved: Saved, build: Callable[[], nn.Module], device: str | torch.device) -> nn.Module:
    """The model that `build` makes with fresh weights, with those of the file `path`, in evaluation mode."""
    try:
        with torch.random.fork_rng(devices=[]):  # fresh weights are thrown away; the caller's random state is not
            model = build().to(device)
        model.load_state_dict(saved.tensors, assign=True)  # keeps the precision of the file
    except (KeyError, RuntimeError, TypeError, ValueError) as error:  # InputError and pydantic's are ValueErrors
        reason = textwrap.shorten(str(error), 300)  # torch lists every weight
        raise InputError(f"{path}: its settings and weights do not fit this version of director: {reason}") from error
    return model.eval()

"""How models run: device, threads, precision, modes of modules, memory, and torch's random numbers."""

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from director.errors import InputError

PRECISIONS = ("float32", "bfloat16")


def resolve_device(name: str) -> torch.device:
    """`auto` (CUDA where there is a GPU, else the CPU), `cpu` or `cuda`; InputError where there is no such device."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device is {name!r}; it must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but torch finds no GPU here; use device auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """The model of the GPU, or `cpu`: for tables of cost."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def set_threads(count: int) -> None:
    """Use `count` CPU threads within one operation, from here on."""
    if count < 1:
        raise InputError(f"threads is {count}; it must be 1 or more")
    torch.set_num_threads(count)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Context in which matrix products run in `precision`: float32 (unchanged) or bfloat16."""
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}")
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


def to_device(batch: Any, device: torch.device) -> Any:
    """Arrays and tensors, alone or in mappings, as tensors on `device`; their precision stays."""
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    tensor = batch if isinstance(batch, Tensor) else torch.from_numpy(batch)
    # From pinned memory the copy does not wait for the kernels before it, so the next batch is made meanwhile.
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def module_modes(model: nn.Module, training: Callable[[nn.Module], bool] = lambda module: False) -> Iterator[None]:
    """Set whether each module trains (`training`; evaluation by default), and put all back, also after an error."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = training(module)
        yield
    finally:
        for module, mode in before:
            module.training = mode


def trains_for_dropout(module: nn.Module) -> bool:
    """Which modules are in training mode where dropout is drawn: all but those with running statistics.

    Fused attention takes its dropout from the attention module's own flag, so dropout modules alone are not enough.
    """
    return not any(name.startswith("running_") for name, _ in module.named_buffers(recurse=False))


@contextmanager
def seeded(device: torch.device, seed: int, *numbers: int) -> Iterator[torch.Generator]:
    """Make what is drawn inside a function of `seed` and `numbers` alone.

    Seeds torch's global generators (dropout draws from them), gives them back as they were afterwards, and yields
    another generator on `device`, independent of them.
    """
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be 0 or more")
    words = np.random.SeedSequence(seed, spawn_key=numbers).generate_state(2, np.uint64)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(words[0]))
        yield torch.Generator(device).manual_seed(int(words[1]))


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Same numbers in every run: on a GPU choose the kernels that sum in a fixed order, where torch has them."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if device.type == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG") or ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def reset_peak_memory(device: torch.device) -> None:
    """Count the GPU's peak anew from here; the CPU's belongs to the process and stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory so far: on a GPU what torch allocated, on the CPU what the process held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB

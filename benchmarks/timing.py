"""Paired timings: every action runs once per round, so that what slows the machine down slows all of them."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def paired(actions: Mapping[str, Callable[[], Any]], rounds: int = 15, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of each action, one per round; on a GPU its work is waited for."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warm_up + rounds):
        for name, action in actions.items():
            wait()
            start = time.perf_counter()
            action()
            wait()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], ours: str, peer: str) -> str:
    """Median over the rounds of ours / peer, with the smallest and the largest."""
    ratios = [mine / other for mine, other in zip(seconds[ours], seconds[peer], strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def peak_gigabytes() -> float:
    """Largest memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, kilobytes elsewhere

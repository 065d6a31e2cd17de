"""What the student learns from: the states and variances of a teacher's path, live or from a cache on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from director.files import InputError, file_digest, read_json, replacing, write_json
from director.provenance import fingerprint
from director.taps import ResidualPath

MANIFEST = "manifest.json"
FORMAT = "director trajectory 1"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Trajectory:
    """A batch of paths through a frozen teacher.

    states: [L+1, B, N, d], X[0..L]. variances: [L, B, N, d] >= 0, of the transitions X[l-1] -> X[l]; their means are
    the states. mask: [B, N], True = real token, None: all real. Padding holds zeros.
    """

    states: Tensor
    variances: Tensor
    mask: Tensor | None = None

    def to(self, device: str | torch.device) -> "Trajectory":
        """The same on another device."""
        mask = None if self.mask is None else self.mask.to(device)
        return Trajectory(self.states.to(device), self.variances.to(device), mask)


def capture(path: ResidualPath, inputs: Any, softmax_variance: str = "attention_moments") -> Trajectory:
    """Walk the teacher's path once. softmax_variance: see `ResidualPath.moments`."""
    x, mask = path.embed(inputs)
    states, variances = [x], []
    for step in range(1, path.steps + 1):
        x, variance = path.moments(step, x, mask, softmax_variance)
        states.append(x)
        variances.append(variance)
    states, variances = torch.stack(states), torch.stack(variances)
    if mask is not None:
        states, variances = (torch.where(mask[..., None], values, 0.0) for values in (states, variances))
    return Trajectory(states, variances, mask)


def write_cache(
    folder: str | Path,
    path: ResidualPath,
    inputs: Callable[[np.ndarray], Any],
    count: int,
    *,
    identity: Mapping[str, Any],
    softmax_variance: str = "attention_moments",
    dtype: str = "float32",
    shard_size: int = 128,
) -> None:
    """Capture `count` examples to `folder`, a shard at a time, so that memory does not grow with the data.

    inputs: rows (consecutive integers below count) -> the teacher's inputs, on its device. identity: JSON-able; all
    that the states depend on, like the digest of the weights, the fingerprint of data and rows, and seed and view of
    the augmentation. dtype: float32, bfloat16 or float16. shard_size: examples of a shard, and of a batch.

    An interrupted capture of the same identity goes on after its last whole shard; a cache of another identity is
    replaced. Raises InputError where states are not finite or too large for `dtype`, where padding comes before real
    tokens, and if `folder` holds something else.
    """
    if dtype not in DTYPES:
        raise InputError(f"a trajectory cache of {dtype!r} is not possible; choose one of {', '.join(DTYPES)}")
    if count < 1 or shard_size < 1:
        raise InputError(f"count is {count} and shard_size {shard_size}; both must be 1 or more")
    folder = Path(folder)
    head = {
        "format": FORMAT,
        "identity": {**identity, "softmax_variance": softmax_variance},
        "dtype": dtype,
        "count": count,
        "shard_size": shard_size,
        "steps": path.steps,
        "width": path.width,
    }
    shards = _finished_shards(folder, head)
    for start in range(len(shards) * shard_size, count, shard_size):
        rows = np.arange(start, min(start + shard_size, count))
        trajectory = capture(path, inputs(rows), softmax_variance)
        shards.append(_write_shard(folder, len(shards), trajectory, dtype))
        write_json(folder / MANIFEST, {**head, "complete": start + shard_size >= count, "shards": shards})


class TrajectoryCache:
    """A cache of `write_cache`, memory-mapped: example i is what row i of the capture was.

    identity: refuse the cache where an entry differs from that of its capture (`softmax_variance` is one).
    verify: compare every file with its checksum. Raises InputError naming what is missing, truncated, changed,
    incomplete, stale or another's.
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, Any], verify: bool = True) -> None:
        self.folder = Path(folder)
        about = _read_manifest(self.folder)
        if changed := _differences(about["identity"], identity):
            raise InputError(f"{self.folder}: stale trajectory cache ({changed}); delete the folder and capture again")
        if not about["complete"]:
            raise InputError(
                f"{self.folder}: an unfinished trajectory cache of {about['count']} examples; run the capture again"
            )
        for shard in about["shards"]:
            _check_shard(self.folder, shard, verify)
        self.identity = about["identity"]
        self.steps, self.width = about["steps"], about["width"]
        self._about = about
        self._open = cache(partial(_open_shard, self.folder))

    def __len__(self) -> int:
        return self._about["count"]

    def batch(self, rows: Sequence[int] | np.ndarray) -> Trajectory:
        """Trajectories of `rows`, in their order, as float32, padded to the longest of them."""
        size = self._about["shard_size"]
        examples = []
        for row in map(int, rows):
            if not 0 <= row < len(self):
                raise InputError(f"{self.folder} has no row {row}: it holds {len(self)} examples")
            offsets, tokens = self._open(row // size)
            start, stop = offsets[row % size : row % size + 2]
            examples.append(tokens[start:stop])  # [n, 2L+1, d]
        lengths = np.array([len(example) for example in examples])
        padded = np.zeros((len(examples), lengths.max(), 2 * self.steps + 1, self.width), examples[0].dtype)
        for example, place in zip(examples, padded, strict=True):
            place[: len(example)] = example
        values = torch.from_numpy(padded).view(getattr(torch, self._about["dtype"])).float()
        values = values.permute(2, 0, 1, 3).contiguous()  # [2L+1, B, N, d]
        masked = any(shard["masked"] for shard in self._about["shards"])
        mask = torch.from_numpy(np.arange(padded.shape[1]) < lengths[:, None]) if masked else None
        return Trajectory(values[: self.steps + 1], values[self.steps + 1 :], mask)


def _write_shard(folder: Path, number: int, trajectory: Trajectory, dtype: str) -> dict[str, Any]:
    """Write the real tokens of a batch one after another, and where each example starts; the manifest's entry."""
    values = torch.cat([trajectory.states, trajectory.variances]).permute(1, 2, 0, 3)  # [B, N, 2L+1, d]
    if not values.isfinite().all():
        raise InputError(
            f"{folder}: the teacher has states that are not finite in shard {number}: "
            "its weights have diverged or its inputs are not normalised"
        )
    if trajectory.mask is not None and (trajectory.mask[:, 1:] & ~trajectory.mask[:, :-1]).any():
        raise InputError(f"{folder}: the inputs of shard {number} have padding before real tokens: pad on the right")
    stored = values.to(getattr(torch, dtype))
    if not stored.isfinite().all():
        raise InputError(
            f"{folder}: states up to {values.abs().max():.3g} do not fit into {dtype}; use bfloat16 or float32"
        )
    batch, longest = values.shape[:2]
    if trajectory.mask is None:
        lengths, tokens = np.full(batch, longest), stored.flatten(0, 1)  # [tokens, 2L+1, d]
    else:
        lengths, tokens = trajectory.mask.sum(1).cpu().numpy(), stored[trajectory.mask]
    tokens = tokens.contiguous().cpu()
    if dtype == "bfloat16":
        tokens = tokens.view(torch.int16)  # numpy has no bfloat16: its bits are kept
    arrays = {
        f"{number:05d}.tokens.npy": tokens.numpy(),
        f"{number:05d}.offsets.npy": np.concatenate([[0], lengths.cumsum()]),
    }
    files = {}
    for name, array in arrays.items():
        with replacing(folder / name) as temporary:
            np.save(temporary, array, allow_pickle=False)
        files[name] = file_digest(folder / name)
    return {"files": files, "masked": trajectory.mask is not None}


def _open_shard(folder: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.load(folder / f"{number:05d}.offsets.npy", allow_pickle=False)
    return offsets, np.load(folder / f"{number:05d}.tokens.npy", mmap_mode="r", allow_pickle=False)


def _check_shard(folder: Path, shard: Mapping[str, Any], verify: bool) -> None:
    for name, digest in shard["files"].items():
        path = folder / name
        if not path.is_file() or (verify and file_digest(path) != digest):
            fault = "differs from its checksum" if path.is_file() else "is missing"
            raise InputError(f"{path}: {fault}; delete the folder {folder} and capture again")


def _read_manifest(folder: Path) -> dict[str, Any]:
    about = read_json(folder / MANIFEST)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{folder / MANIFEST}: not the manifest of a trajectory cache ({FORMAT}); give its folder")
    return about


def _finished_shards(folder: Path, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Manifest entries of the whole shards of an interrupted capture of the same; else clear the folder."""
    if not (folder / MANIFEST).exists():
        return []
    about = _read_manifest(folder)
    if not _differences(about, head):
        whole = []
        for shard in about["shards"]:
            try:
                _check_shard(folder, shard, verify=True)
            except InputError:
                break
            whole.append(shard)
        return whole
    (folder / MANIFEST).unlink()
    for shard in about["shards"]:
        for name in shard["files"]:
            (folder / name).unlink(missing_ok=True)
    return []


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Which of the wanted entries differ, in words; empty if none."""
    names = [name for name, value in wanted.items() if fingerprint(found.get(name)) != fingerprint(value)]
    return ", ".join(f"{name} is {found.get(name)!r}, not {wanted[name]!r}" for name in names)

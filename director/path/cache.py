"""A cache on disk of the trajectories of a training part, so that the teacher runs once."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from director.errors import InputError
from director.files import file_digest, read_json, reading, replacing, write_json
from director.path.trajectory import Trajectory, capture
from director.path.view import ResidualPath
from director.provenance import fingerprint

MANIFEST = "manifest.json"
FORMAT = "director trajectory 1"
DTYPES = ("float32", "bfloat16", "float16")
MANIFEST_KINDS = {
    "identity": dict,
    "dtype": str,
    "count": int,
    "shard_size": int,
    "steps": int,
    "width": int,
    "complete": bool,
    "shards": list,
}
OPEN_SHARDS = 128  # memory maps at once, of all caches together: each holds a file open, and systems allow some 1,000


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
    Every file is compared with its checksum. Raises InputError naming what is missing, truncated, changed, incomplete,
    stale or another's.
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        if changed := _differences(manifest["identity"], identity):
            raise InputError(f"{self.folder}: stale trajectory cache ({changed}); delete the folder and capture again")
        if not manifest["complete"]:
            raise InputError(
                f"{self.folder}: an unfinished trajectory cache of {manifest['count']} examples; run the capture again"
            )
        for shard in manifest["shards"]:
            _check_shard(self.folder, shard)
        self.steps, self.width = manifest["steps"], manifest["width"]
        self._manifest = manifest

    def __len__(self) -> int:
        return self._manifest["count"]

    def batch(self, rows: Sequence[int] | np.ndarray) -> Trajectory:
        """Trajectories of `rows`, in their order, in the precision of the cache, padded to the longest of them."""
        size, shards = self._manifest["shard_size"], self._manifest["shards"]
        examples = []
        for row in map(int, rows):
            if not 0 <= row < len(self):
                raise InputError(f"{self.folder} has no row {row}: it holds {len(self)} examples")
            offsets, tokens = _open_shard(self.folder, row // size, *shards[row // size]["files"].values())
            start, stop = offsets[row % size : row % size + 2]
            # A copy: a view would keep the file of its shard open, however few `_open_shard` remembers.
            examples.append(np.array(tokens[start:stop]))  # [n, 2L+1, d]
        lengths = np.array([len(example) for example in examples])
        padded = np.zeros((len(examples), lengths.max(), 2 * self.steps + 1, self.width), examples[0].dtype)
        for example, row in zip(examples, padded, strict=True):
            row[: len(example)] = example
        # numpy knows no bfloat16 and holds its bits as integers
        values = torch.from_numpy(padded).view(getattr(torch, self._manifest["dtype"]))
        values = values.permute(2, 0, 1, 3).contiguous()  # [2L+1, B, N, d]
        masked = any(shard["masked"] for shard in shards)
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


@lru_cache(maxsize=OPEN_SHARDS)
def _open_shard(folder: Path, number: int, *digests: str) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and tokens of a shard; its `digests` tell it from an earlier one of the same name."""
    offsets = np.load(folder / f"{number:05d}.offsets.npy", allow_pickle=False)
    return offsets, np.load(folder / f"{number:05d}.tokens.npy", mmap_mode="r", allow_pickle=False)


def _check_shard(folder: Path, shard: Mapping[str, Any]) -> None:
    for name, digest in shard["files"].items():
        path = folder / name
        if not path.is_file() or file_digest(path) != digest:
            fault = "differs from its checksum" if path.is_file() else "is missing"
            raise InputError(f"{path}: {fault}; delete the folder {folder} and capture again")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = read_json(path)
    with reading(path, f"the manifest of a trajectory cache, {FORMAT}", "delete the folder and capture again"):
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}")
        for key, kind in MANIFEST_KINDS.items():
            if not isinstance(manifest[key], kind):
                raise TypeError(f"{key} is {manifest[key]!r}")
        if (
            min(manifest[key] for key in ("count", "shard_size", "steps", "width")) < 1
            or manifest["dtype"] not in DTYPES
        ):
            raise ValueError(f"{', '.join(f'{key} {manifest[key]}' for key in ('count', 'shard_size', 'dtype'))}")
        if manifest["complete"] and len(manifest["shards"]) != -(-manifest["count"] // manifest["shard_size"]):
            raise ValueError(f"{len(manifest['shards'])} shards for {manifest['count']} examples")
        for number, shard in enumerate(manifest["shards"]):
            names = [f"{number:05d}.tokens.npy", f"{number:05d}.offsets.npy"]
            if list(shard["files"]) != names or not isinstance(shard["masked"], bool):
                raise ValueError(f"shard {number} lists {', '.join(shard['files'])}")
    return manifest


def _finished_shards(folder: Path, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The undamaged shards of an interrupted capture of the same, as the manifest lists them; else clear the folder."""
    if not (folder / MANIFEST).exists():
        return []
    manifest = _read_manifest(folder)
    if not _differences(manifest, head):
        finished = []
        for shard in manifest["shards"]:
            try:
                _check_shard(folder, shard)
            except InputError:
                break
            finished.append(shard)
        return finished
    (folder / MANIFEST).unlink()
    for shard in manifest["shards"]:
        for name in shard["files"]:
            (folder / name).unlink(missing_ok=True)
    return []


def _differences(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Which of the expected entries differ, in words; empty if none."""
    names = [name for name, value in expected.items() if fingerprint(actual.get(name)) != fingerprint(value)]
    return ", ".join(f"{name} is {actual.get(name)!r}, not {expected[name]!r}" for name in names)

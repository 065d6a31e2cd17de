"""Deep ensembles (Lakshminarayanan et al., NeurIPS 2017) from prediction files: no model is loaded."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from director.errors import InputError
from director.files import file_digest
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, largest, load_suite, read_cost, suite_file, suites_of, write_suites
from director.provenance import git_commit, versions

COLUMNS = ("example", "shift", "severity", "labels")


def pool_ensemble(
    manifest_files: Sequence[str | Path],
    folder: str | Path,
    about: Mapping[str, Any],
) -> None:
    """Write the predictions of an ensemble of M members into `folder`, all suites but `val`, and what they cost.

    manifest_files: of each member; what it cost lies beside it. Sample m of a suite holds the log-probabilities of
    member m, averaged over its own samples if it has several. So pooling the M samples averages the members'
    probabilities, and how far the members disagree can still be measured. Members are read one after the other and
    collected on disk: the memory is about that of one file. about: experiment, backbone, method and the like.

    Raises InputError for fewer than two members, for the same weights twice, and, naming file and row, for members
    that do not predict the same examples.
    """
    if len(manifest_files) < 2:
        raise InputError(f"an ensemble needs at least 2 members, not {len(manifest_files)}; train more seeds")
    origin = {**about, "samples": len(manifest_files), "versions": versions("numpy")}
    suites = [suite for suite in suites_of(manifest_files[0]) if suite != "val"]
    identities = {
        suite: {"members": [file_digest(suite_file(path, suite)) for path in manifest_files], **origin}
        for suite in suites
    }
    costs = [read_cost(Path(path).with_name("cost.json"), suites) for path in manifest_files]
    Path(folder).mkdir(parents=True, exist_ok=True)

    def make(suite: str) -> Made:
        notes = {**origin, "suite": suite, "commit": git_commit()}
        with tempfile.TemporaryFile(dir=folder) as storage:  # without a name: gone when the array is, also after a kill
            predictions = _pooled(manifest_files, suite, storage, notes)
        return Made(predictions, {len(costs): sum(largest(cost["suites"][suite]["seconds"]) for cost in costs)})

    write_suites(folder, identities, make, lambda: _total_cost(costs))


def _pooled(
    manifest_files: Sequence[str | Path], suite: str, storage: BinaryIO, about: Mapping[str, Any]
) -> Predictions:
    """One suite of all members; the logits lie in the file `storage`, which may be closed while they are used."""
    columns, weights = {}, []
    for index, manifest in enumerate(manifest_files):
        path = Path(manifest).with_name(f"{suite}.npz")
        member = load_suite(manifest, suite)
        pooled = member.pool().logits  # [1, N, C]
        if index == 0:
            first, columns = path, {name: getattr(member, name) for name in COLUMNS}
            shape = (len(manifest_files), *pooled.shape[1:])
            logits = np.memmap(storage, dtype=np.float32, mode="w+", shape=shape)
        _refuse_other_rows(path, member, first, columns)
        if pooled.shape[2] != logits.shape[2]:
            raise InputError(f"{path} has {pooled.shape[2]} classes, {first} has {logits.shape[2]}")
        logits[index] = pooled[0]
        weights.append(member.about.get("weights"))
        if weights[-1] is not None and weights[-1] in weights[:-1]:
            twin = Path(manifest_files[weights.index(weights[-1])]).with_name(f"{suite}.npz")
            raise InputError(f"{path} and {twin} come from the same weights; an ensemble needs different members")
    origin = {"weights": weights, "data": member.about.get("data"), "generated": member.about.get("generated", False)}
    return Predictions(logits, **columns, about={**about, **origin})


def _refuse_other_rows(path: str | Path, member: Predictions, first: str | Path, columns: Mapping[str, Any]) -> None:
    for name, expected in columns.items():
        column = getattr(member, name)
        if (column is None) != (expected is None):
            raise InputError(f"of {path} and {first} only one has {name}; pool predictions of one suite")
        if expected is None:
            continue
        if len(column) != len(expected):
            raise InputError(
                f"{path} has {len(column)} rows, {first} has {len(expected)}; pool predictions of one suite"
            )
        if len(rows := np.flatnonzero(column != expected)):
            row = rows[0]
            raise InputError(
                f"{path}, row {row}: {name} is {column[row]}, in {first} it is {expected[row]}; pool predictions of "
                "the same examples in the same order"
            )


def _total_cost(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all members cost if they are trained and run one after the other: sums, and the memory of the largest."""
    return {
        **{key: sum(cost[key] for cost in costs) for key in ("parameters", "train_seconds")},
        "device": ", ".join(sorted({cost["device"] for cost in costs})),
        "threads": max(cost["threads"] for cost in costs),
        "peak_memory_bytes": max(cost["peak_memory_bytes"] for cost in costs),
    }

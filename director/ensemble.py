"""Deep ensembles (Lakshminarayanan et al., NeurIPS 2017) from prediction files: no model is loaded."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from director.files import InputError, read_json, write_json
from director.predictions import Predictions
from director.provenance import git_commit, versions

COLUMNS = ("example", "shift", "severity", "labels")


def pool_ensemble(
    *,
    prediction_files: Sequence[str | Path],
    cost_files: Sequence[str | Path],
    about: Mapping[str, Any],
    predictions_file: str | Path,
    cost_file: str | Path,
) -> None:
    """Write the ensemble of M members as one prediction file with S = M, and what it costs.

    Sample m is the log-probability of member m, its own samples pooled before: pooling the file averages the
    members' probabilities, and their disagreement is still there to be measured. Members are read one at a time and
    gathered on disk, so the memory is about that of one file. about: experiment, backbone, suite and the like.

    Raises InputError for fewer than two members, for the same weights twice, and, naming file and row, for members
    that do not predict the same examples.
    """
    if len(prediction_files) < 2:
        raise InputError(f"an ensemble needs at least 2 members, not {len(prediction_files)}; train more seeds")
    if len(cost_files) != len(prediction_files):
        raise InputError(f"{len(cost_files)} cost files for {len(prediction_files)} members; give one for each")
    folder = Path(predictions_file).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".members-", dir=folder) as gathered:
        columns, weights = {}, []
        for index, path in enumerate(prediction_files):
            member = Predictions.load(path)
            pooled = member.pool().logits  # [1, N, C]
            if index == 0:
                columns = {name: getattr(member, name) for name in COLUMNS}
                shape = (len(prediction_files), *pooled.shape[1:])
                logits = open_memmap(Path(gathered, "logits.npy"), mode="w+", dtype=np.float32, shape=shape)
            _refuse_other_rows(path, member, prediction_files[0], columns)
            if pooled.shape[2] != logits.shape[2]:
                raise InputError(f"{path} has {pooled.shape[2]} classes, {prediction_files[0]} has {logits.shape[2]}")
            logits[index] = pooled[0]
            weights.append(member.about.get("weights"))
            if weights[-1] is not None and weights[-1] in weights[:-1]:
                twin = prediction_files[weights.index(weights[-1])]
                raise InputError(f"{path} and {twin} come from the same weights; an ensemble needs different members")
        origin = {
            "method": "ensemble",
            "samples": len(weights),
            "weights": weights,
            "data": member.about.get("data"),
            "generated": member.about.get("generated", False),
            "commit": git_commit(),
            "versions": versions("numpy"),
        }
        Predictions(logits, **columns, about={**about, **origin}).save(predictions_file)
    write_json(cost_file, _total_cost([read_json(path) for path in cost_files]))


def _refuse_other_rows(path: str | Path, member: Predictions, first: str | Path, columns: Mapping[str, Any]) -> None:
    for name, expected in columns.items():
        found = getattr(member, name)
        if (found is None) != (expected is None):
            raise InputError(f"of {path} and {first} only one has {name}; pool predictions of one suite")
        if expected is None:
            continue
        if len(found) != len(expected):
            raise InputError(
                f"{path} has {len(found)} rows, {first} has {len(expected)}; pool predictions of one suite"
            )
        if len(rows := np.flatnonzero(found != expected)):
            row = rows[0]
            raise InputError(
                f"{path}, row {row}: {name} is {found[row]}, in {first} it is {expected[row]}; pool predictions of the "
                "same examples in the same order"
            )


def _total_cost(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All members are trained, kept and run, one after the other: sums, but the memory of the largest."""
    sums = {key: sum(cost[key] for cost in costs) for key in ("parameters", "train_seconds", "predict_seconds")}
    return {
        **sums,
        "examples": costs[0]["examples"],
        "samples": len(costs),
        "device": ", ".join(sorted({cost["device"] for cost in costs})),
        "threads": max(cost["threads"] for cost in costs),
        "peak_memory_bytes": max(cost["peak_memory_bytes"] for cost in costs),
    }

"""Trap 18: an ensemble needs the memory of one member; and members that do not belong together are refused."""

import json
import tracemalloc

import numpy as np
import pytest

from director.ensemble import pool_ensemble
from director.files import InputError, write_json
from director.predictions import Predictions

COST = {
    "parameters": 100,
    "train_seconds": 10.0,
    "predict_seconds": 2.0,
    "examples": 12,
    "samples": 1,
    "device": "cpu",
    "threads": 1,
    "peak_memory_bytes": 5,
}


def write_member(folder, index, rows=12, classes=3, samples=1, **changes):
    rng = np.random.default_rng(index)
    columns = {
        "logits": rng.normal(size=(samples, rows, classes)).astype(np.float32),
        "labels": np.arange(rows) % classes,
        "example": np.arange(rows),
        "shift": np.full(rows, "clean"),
        "severity": np.zeros(rows, np.int64),
        "about": {"weights": f"digest-{index}", "seed": index},
    }
    Predictions(**columns | changes).save(folder / f"member-{index}.npz")
    write_json(folder / f"member-{index}.cost.json", COST | {"peak_memory_bytes": 5 + index})
    return folder / f"member-{index}.npz"


def pool(folder, files, name="ensemble"):
    pool_ensemble(
        prediction_files=files,
        cost_files=[path.with_suffix(".cost.json") for path in files],
        about={"experiment": "test", "seed": "pooled"},
        predictions_file=folder / f"{name}.npz",
        cost_file=folder / f"{name}.cost.json",
    )
    return folder / f"{name}.npz"


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("samples", [1, 4])
def test_pooling_the_ensemble_averages_the_members_probabilities(tmp_path, samples):
    files = [write_member(tmp_path, index, samples=samples) for index in range(3)]
    ensemble = Predictions.load(pool(tmp_path, files))
    members = [softmax(Predictions.load(path).logits.astype(float)).mean(axis=0) for path in files]
    np.testing.assert_allclose(np.exp(ensemble.logits), members, rtol=1e-5)
    np.testing.assert_allclose(np.exp(ensemble.pool().logits[0]), np.mean(members, axis=0), rtol=1e-5)
    assert ensemble.about["method"] == "ensemble"
    assert ensemble.about["samples"] == 3
    assert ensemble.about["weights"] == ["digest-0", "digest-1", "digest-2"]
    assert ensemble.about["seed"] == "pooled"


def test_cost_is_that_of_all_members(tmp_path):
    pool(tmp_path, [write_member(tmp_path, index) for index in range(3)])
    cost = json.loads((tmp_path / "ensemble.cost.json").read_text())
    sums = {"parameters": 300, "train_seconds": 30.0, "predict_seconds": 6.0, "samples": 3, "peak_memory_bytes": 7}
    assert cost == COST | sums


def test_rows_without_labels_and_repeatable_bytes(tmp_path):
    files = [write_member(tmp_path, index, labels=None) for index in range(2)]
    first, again = pool(tmp_path, files), pool(tmp_path, files, "again")
    assert Predictions.load(first).labels is None
    assert first.read_bytes() == again.read_bytes()
    assert not list(tmp_path.glob(".*"))  # nothing of the gathering is left


def test_twenty_members_need_the_memory_of_few(tmp_path):
    """Trap 18 (nnUNet 34, baal 51): members loaded together, memory grows with their number."""
    # large enough that the 16 MiB with which numpy writes an array do not hide the members' 2 MB each
    files = [write_member(tmp_path, index, rows=50_000, classes=10) for index in range(20)]
    peaks = []
    for count in (2, 10, 20):  # the first only fills caches
        tracemalloc.start()
        pool(tmp_path, files[:count])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.05 * peaks[1]


CHANGES = {
    "example": (np.arange(12)[::-1].copy(), r"member-1\.npz, row 0: example is 11, in .*member-0\.npz it is 0"),
    "shift": (np.array(["clean"] * 7 + ["fog"] * 5), r"member-1\.npz, row 7: shift is fog, in .* it is clean"),
    "severity": (np.repeat([0, 1], [10, 2]), r"member-1\.npz, row 10: severity is 1, in .* it is 0"),
    "labels": (np.full(12, 1), r"member-1\.npz, row 0: labels is 1, in .* it is 0"),
    "no labels": (None, r"of .*member-1\.npz and .*member-0\.npz only one has labels"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_members_that_disagree_are_refused_by_file_and_row(tmp_path, change):
    """Trap 18: averaging the predictions of different rows gives numbers that look right."""
    column, message = CHANGES[change]
    name = change.removeprefix("no ")
    files = [write_member(tmp_path, 0), write_member(tmp_path, 1, **{name: column}), write_member(tmp_path, 2)]
    with pytest.raises(InputError, match=message):
        pool(tmp_path, files)
    assert not (tmp_path / "ensemble.npz").exists()


def test_other_refusals(tmp_path):
    first, short = write_member(tmp_path, 0), write_member(tmp_path, 1, rows=11)
    with pytest.raises(InputError, match="at least 2 members, not 1"):
        pool(tmp_path, [first])
    with pytest.raises(InputError, match="1 cost files for 2 members"):
        pool_ensemble(
            prediction_files=[first, short],
            cost_files=[tmp_path / "member-0.cost.json"],
            about={},
            predictions_file=tmp_path / "out.npz",
            cost_file=tmp_path / "out.json",
        )
    with pytest.raises(InputError, match=r"member-1\.npz has 11 rows, .*member-0\.npz has 12"):
        pool(tmp_path, [first, short])
    with pytest.raises(InputError, match=r"member-2\.npz has 4 classes, .*member-0\.npz has 3"):
        pool(tmp_path, [first, write_member(tmp_path, 2, classes=4, labels=np.arange(12) % 3)])
    twin = write_member(tmp_path, 3, about={"weights": "digest-0"})
    with pytest.raises(InputError, match=r"member-3\.npz and .*member-0\.npz come from the same weights"):
        pool(tmp_path, [first, twin])

"""Traps of ensembles: memory that grows with the members, and members that do not belong together."""

import tracemalloc

import numpy as np
import pytest

from director.errors import InputError
from director.files import write_json
from director.numbers import ensemble as ensembles
from director.numbers.ensemble import pool_ensemble
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, load_suite, manifest_of, read_cost, suites_of, write_suites

COST = {"parameters": 100, "train_seconds": 10.0, "device": "cpu", "threads": 1, "peak_memory_bytes": 5}


def write_member(folder, index, rows=12, classes=3, samples=1, suites=("val", "test"), **changes):
    """The manifest of a member's predictions. changes: of the columns of its predictions, and of its cost."""

    def make(suite):
        rng = np.random.default_rng([index, len(suite)])
        columns = {
            "logits": rng.normal(size=(samples, rows, classes)).astype(np.float32),
            "labels": np.arange(rows) % classes,
            "example": np.arange(rows),
            "shift": np.full(rows, "clean"),
            "severity": np.zeros(rows, np.int64),
            "about": {"weights": f"digest-{index}", "seed": index, "data": "set", "suite": suite, "method": "mle"},
        }
        return Made(Predictions(**columns | changes), {1: 1.5, samples: 2.0})

    manifest = manifest_of(folder / f"seed-{index}", "mle")
    cost = COST | {"peak_memory_bytes": 5 + index}
    write_suites(manifest.parent, {suite: [suite, index] for suite in suites}, make, lambda: cost)
    return manifest


def pool(folder, manifests, name="pooled", code="digest"):
    """The manifest of the ensemble."""
    manifest = manifest_of(folder / name, "ensemble")
    about = {"experiment": "test", "backbone": "softmax", "method": "ensemble", "seed": "pooled", "code": code}
    pool_ensemble(manifests, manifest.parent, about)
    return manifest


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("samples", [1, 4])
def test_pooling_the_ensemble_averages_the_members_probabilities(tmp_path, samples):
    manifests = [write_member(tmp_path, index, samples=samples) for index in range(3)]
    ensemble = load_suite(pool(tmp_path, manifests), "test")
    members = [softmax(load_suite(manifest, "test").logits.astype(float)).mean(axis=0) for manifest in manifests]
    np.testing.assert_allclose(np.exp(ensemble.logits), members, rtol=1e-5)
    np.testing.assert_allclose(np.exp(ensemble.pool().logits[0]), np.mean(members, axis=0), rtol=1e-5)
    expected = {"method": "ensemble", "seed": "pooled", "suite": "test", "samples": 3, "data": "set"}
    expected |= {"weights": ["digest-0", "digest-1", "digest-2"], "generated": False, "code": "digest"}
    assert ensemble.about == ensemble.about | expected
    assert {"commit", "versions", "made_from"} < set(ensemble.about)


def test_one_job_pools_every_suite_but_the_validation(tmp_path):
    suites = ("val", "test", "corrupted", "ood-photographs")
    manifests = [write_member(tmp_path, index, suites=suites) for index in range(2)]
    pooled = pool(tmp_path, manifests)
    assert suites_of(pooled) == list(suites[1:])
    assert {load_suite(pooled, suite).about["suite"] for suite in suites[1:]} == set(suites[1:])


def test_cost_is_that_of_all_members(tmp_path):
    pooled = pool(tmp_path, [write_member(tmp_path, index, samples=4) for index in range(3)])
    sums = {"parameters": 300, "train_seconds": 30.0, "peak_memory_bytes": 7}
    suites = {"test": {"examples": 12, "seconds": {"3": 6.0}}}  # the seconds of 4 samples, of each member
    assert read_cost(pooled.with_name("cost.json")) == COST | sums | {"suites": suites}


def test_rows_without_labels_and_repeatable_bytes(tmp_path):
    manifests = [write_member(tmp_path, index, labels=None) for index in range(2)]
    first, again = pool(tmp_path, manifests), pool(tmp_path, manifests, "again")
    assert load_suite(first, "test").labels is None
    for name in ("test.npz", "manifest.json"):
        assert first.with_name(name).read_bytes() == again.with_name(name).read_bytes()
    assert not list(first.parent.glob(".*")), "the file in which members were collected is gone"


def test_what_is_there_from_the_same_members_is_kept(tmp_path, monkeypatch):
    """Also after a commit that changes nothing of the code: a suite that is added is made alone."""
    monkeypatch.setattr(ensembles, "git_commit", lambda: "first")
    pooled = pool(tmp_path, [write_member(tmp_path, index) for index in range(2)])
    before = pooled.with_name("test.npz").read_bytes()
    monkeypatch.setattr(ensembles, "git_commit", lambda: "second")
    more = [write_member(tmp_path, index, suites=("val", "test", "shifted")) for index in range(2)]
    pool(tmp_path, more)
    assert pooled.with_name("test.npz").read_bytes() == before
    commits = [load_suite(pooled, suite).about["commit"] for suite in suites_of(pooled)]
    assert commits == ["first", "second"]
    pool(tmp_path, more, code="another")
    assert load_suite(pooled, "test").about["commit"] == "second"
    pool(tmp_path, [*more, write_member(tmp_path, 2, suites=("val", "test", "shifted"))])
    assert len(load_suite(pooled, "test").logits) == 3


def test_twenty_members_need_the_memory_of_few(tmp_path):
    """nnUNet issue 34, baal issue 51: members loaded together, so that the memory grows with their number."""
    # large enough that the 16 MiB with which numpy writes an array do not hide the members' 2 MB each
    manifests = [write_member(tmp_path, index, rows=50_000, classes=10, suites=("test",)) for index in range(20)]
    peaks = []
    for count in (2, 10, 20):  # the first only fills caches
        tracemalloc.start()
        pool(tmp_path, manifests[:count])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.05 * peaks[1]


CHANGES = {
    "example": (np.arange(12)[::-1].copy(), r"seed-1.*test\.npz, row 0: example is 11, in .*seed-0.*test\.npz it is 0"),
    "shift": (np.array(["clean"] * 7 + ["fog"] * 5), r"seed-1.*test\.npz, row 7: shift is fog, in .* it is clean"),
    "severity": (np.repeat([0, 1], [10, 2]), r"seed-1.*test\.npz, row 10: severity is 1, in .* it is 0"),
    "labels": (np.full(12, 1), r"seed-1.*test\.npz, row 0: labels is 1, in .* it is 0"),
    "no labels": (None, r"of .*seed-1.*test\.npz and .*seed-0.*test\.npz only one has labels"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_members_that_disagree_are_refused_by_file_and_row(tmp_path, change):
    """nnUNet issue 34, baal issue 51: averaging the predictions of different rows gives numbers that look right."""
    column, message = CHANGES[change]
    name = change.removeprefix("no ")
    manifests = [
        write_member(tmp_path, 0),
        write_member(tmp_path, 1, **{name: column}),
        write_member(tmp_path, 2),
    ]
    with pytest.raises(InputError, match=message):
        pool(tmp_path, manifests)
    assert not manifest_of(tmp_path / "pooled", "ensemble").exists()


def test_other_refusals(tmp_path):
    first, short = write_member(tmp_path, 0), write_member(tmp_path, 1, rows=11)
    with pytest.raises(InputError, match="at least 2 members, not 1"):
        pool(tmp_path, [first])
    with pytest.raises(InputError, match=r"seed-1.*test\.npz has 11 rows, .*seed-0.*test\.npz has 12"):
        pool(tmp_path, [first, short])
    with pytest.raises(InputError, match=r"seed-2.*test\.npz has 4 classes, .*seed-0.*test\.npz has 3"):
        pool(tmp_path, [first, write_member(tmp_path, 2, classes=4, labels=np.arange(12) % 3)])
    twin = write_member(tmp_path, 3, about={"weights": "digest-0"})
    with pytest.raises(InputError, match=r"seed-3.*test\.npz and .*seed-0.*test\.npz come from the same weights"):
        pool(tmp_path, [first, twin])
    with pytest.raises(InputError, match=r"seed-4.*manifest\.json lists no test\.npz"):
        pool(tmp_path, [first, write_member(tmp_path, 4, suites=("val",))])
    whole = write_member(tmp_path, 5)
    write_json(whole.with_name("cost.json"), COST | {"suites": {}})
    with pytest.raises(InputError, match=r"seed-5.*cost\.json: no cost of test; delete it"):
        pool(tmp_path, [first, whole])

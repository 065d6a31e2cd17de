"""The suites of a method: what is made, what is kept, and what is refused."""

import json
import logging
import weakref

import numpy as np
import pytest

from director.errors import InputError
from director.files import file_digest, write_json
from director.numbers.predictions import Predictions
from director.numbers.suites import (
    Made,
    is_whole,
    largest,
    load_suite,
    manifest_of,
    read_cost,
    suite_file,
    suites_of,
    write_suites,
)
from director.provenance import fingerprint

COST = {"parameters": 7, "train_seconds": 2.5, "device": "cpu", "threads": 1, "peak_memory_bytes": 9}
SUITES = ("val", "test", "corrupted", "ood-photographs")
IDENTITIES = {suite: {"weights": "digest", "suite": suite} for suite in SUITES}


class Job:
    """Makes suites, remembers which, and fails at one of them."""

    def __init__(self, folder, fails_at=None):
        self.folder, self.fails_at, self.made = folder, fails_at, []

    def make(self, suite):
        if suite == self.fails_at:
            raise RuntimeError("killed")
        self.made.append(suite)
        np.savez(self.folder / f"{suite}.depth.npz", variance=np.full((6, 2), len(suite), np.float32))
        logits = np.random.default_rng(len(suite)).normal(size=(3, 6, 4)).astype(np.float32)
        labels = None if suite.startswith("ood-") else np.arange(6) % 4
        return Made(Predictions(logits, labels, about={"suite": suite}), {1: 0.5, 3: 1.5 + len(self.made)})

    def run(self, identities=None, beside=("depth.npz",)):
        """The suites that were made."""
        self.made = []
        write_suites(self.folder, identities or IDENTITIES, self.make, lambda: COST, beside)
        return self.made


@pytest.fixture
def manifest(tmp_path):
    """The manifest's path; its folder is there and empty."""
    path = manifest_of(tmp_path, "director")
    path.parent.mkdir(parents=True)
    return path


def test_every_suite_is_written_and_listed(manifest):
    assert Job(manifest.parent).run() == list(SUITES) == suites_of(manifest)
    assert manifest.parts[-3:] == ("director", "predictions", "manifest.json")
    content = json.loads(manifest.read_text())
    assert content["format"] == "director predictions 1"
    assert content["suites"]["test"]["rows"] == 6
    for name, about in content["suites"]["test"]["files"].items():
        file = manifest.with_name(name)
        assert about == {"sha256": file_digest(file), "bytes": file.stat().st_size}
    assert list(content["suites"]["test"]["files"]) == ["test.npz", "test.depth.npz"]
    assert suite_file(manifest, "test", "depth.npz") == manifest.with_name("test.depth.npz")
    loaded = load_suite(manifest, "test")
    assert loaded.about == {"suite": "test", "made_from": fingerprint(IDENTITIES["test"])}
    assert load_suite(manifest, "ood-photographs").labels is None
    assert is_whole(manifest)


def test_costs_are_shared_and_of_each_suite(manifest):
    Job(manifest.parent).run()
    cost = read_cost(manifest.with_name("cost.json"))
    assert cost | COST == cost
    assert cost["suites"]["test"] == {"examples": 6, "seconds": {"1": 0.5, "3": 3.5}}
    assert list(cost["suites"]) == list(SUITES)
    assert largest({"3": 1.0, "10": 4.0, "9": 2.0}) == 4.0


def test_the_same_content_gives_the_same_bytes(manifest, tmp_path):
    """Seconds are in the files of costs alone."""
    Job(manifest.parent).run()
    again = manifest_of(tmp_path / "again", "director")
    again.parent.mkdir(parents=True)
    job = Job(again.parent)
    job.made = ["one more, so that the seconds differ"]
    write_suites(job.folder, IDENTITIES, job.make, lambda: COST, ["depth.npz"])
    for name in ("manifest.json", *(f"{suite}.npz" for suite in SUITES)):
        assert again.with_name(name).read_bytes() == manifest.with_name(name).read_bytes(), name
    assert again.with_name("cost.json").read_bytes() != manifest.with_name("cost.json").read_bytes()


def test_a_killed_job_keeps_its_finished_suites(manifest, caplog):
    job = Job(manifest.parent, fails_at="corrupted")
    with pytest.raises(RuntimeError, match="killed"):
        job.run()
    assert job.made == ["val", "test"]
    assert not manifest.exists() and not manifest.with_name("cost.json").exists()
    before = manifest.with_name("test.npz").stat().st_mtime_ns
    with caplog.at_level(logging.INFO):
        assert Job(manifest.parent).run() == ["corrupted", "ood-photographs"]
    assert manifest.with_name("test.npz").stat().st_mtime_ns == before
    assert [record.getMessage().split(": ")[0].split("/")[-1] for record in caplog.records] == ["val.npz", "test.npz"]
    assert suites_of(manifest) == list(SUITES)
    assert read_cost(manifest.with_name("cost.json"))["suites"]["test"]["seconds"]["3"] == 3.5


def test_a_job_that_is_killed_leaves_no_manifest_of_what_it_changed(manifest):
    Job(manifest.parent).run()
    changed = IDENTITIES | {"val": {"weights": "other"}}
    with pytest.raises(RuntimeError, match="killed"):
        Job(manifest.parent, fails_at="test").run(changed | {"test": {"weights": "other"}})
    assert not manifest.exists() and not is_whole(manifest)


def test_a_suite_that_was_being_made_again_is_not_taken_for_the_earlier_one(manifest):
    """The file beside it is new already, its predictions are not; then the settings are changed back."""
    Job(manifest.parent).run()

    def make(suite):
        manifest.with_name("test.depth.npz").write_bytes(b"of other weights")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_suites(manifest.parent, {"test": {"weights": "other"}}, make, lambda: COST, ["depth.npz"])
    assert Job(manifest.parent).run() == ["test"]


def broken_beside(folder):
    path = folder / "test.depth.npz"
    content = path.read_bytes()
    middle = len(content) // 3
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])


BREAKING = {
    "no predictions": lambda folder: (folder / "test.npz").unlink(),
    "truncated": lambda folder: (folder / "test.npz").write_bytes((folder / "test.npz").read_bytes()[:-100]),
    "cut in half": lambda folder: (folder / "test.npz").write_bytes((folder / "test.npz").read_bytes()[:400]),
    "garbage": lambda folder: (folder / "test.npz").write_bytes(b"garbage" * 99),
    "of another suite": lambda folder: (folder / "test.npz").write_bytes((folder / "val.npz").read_bytes()),
    "without identity": lambda folder: Predictions(3 * np.eye(6), None).save(folder / "test.npz"),
    "no cost": lambda folder: (folder / "test.cost.json").unlink(),
    "broken cost": lambda folder: (folder / "test.cost.json").write_text('{"made_from": '),
    "cost of another suite": lambda folder: (folder / "test.cost.json").write_text(
        (folder / "val.cost.json").read_text()
    ),
    "cost is a list": lambda folder: write_json(folder / "test.cost.json", [1]),
    "cost of other rows": lambda folder: write_json(
        folder / "test.cost.json", json.loads((folder / "test.cost.json").read_text()) | {"examples": 5}
    ),
    "seconds are text": lambda folder: write_json(
        folder / "test.cost.json", json.loads((folder / "test.cost.json").read_text()) | {"seconds": {"1": "one"}}
    ),
    "nothing beside": lambda folder: (folder / "test.depth.npz").unlink(),
    "truncated beside": lambda folder: (folder / "test.depth.npz").write_bytes(b"PK"),
    "changed beside": broken_beside,
}


@pytest.mark.parametrize("name", BREAKING)
def test_a_suite_that_is_not_whole_is_made_again(manifest, name):
    Job(manifest.parent).run()
    whole = manifest.read_bytes()
    BREAKING[name](manifest.parent)
    assert Job(manifest.parent).run() == ["test"]
    assert manifest.read_bytes() == whole
    assert Job(manifest.parent).run() == []


def test_another_identity_or_one_suite_more_makes_that_suite_alone(manifest):
    first = {suite: IDENTITIES[suite] for suite in ("val", "test")}
    Job(manifest.parent).run(first)
    assert Job(manifest.parent).run(IDENTITIES) == ["corrupted", "ood-photographs"]
    assert Job(manifest.parent).run(IDENTITIES | {"val": {"weights": "other"}}) == ["val"]
    assert load_suite(manifest, "val").about["made_from"] == fingerprint({"weights": "other"})
    # no longer asked for: not listed, but not removed either
    assert Job(manifest.parent).run(IDENTITIES | {"val": {"weights": "other"}}) == []
    assert Job(manifest.parent).run(first | {"val": {"weights": "other"}}) == []
    assert suites_of(manifest) == ["val", "test"]
    assert manifest.with_name("corrupted.npz").exists()
    assert list(read_cost(manifest.with_name("cost.json"))["suites"]) == ["val", "test"]


def test_the_arrays_of_one_suite_are_freed_before_the_next_one_is_made(manifest):
    references = []

    def make(suite):
        assert all(reference() is None for reference in references)
        logits = np.random.default_rng(0).normal(size=(1, 6, 4))
        references.append(weakref.ref(logits))
        return Made(Predictions(logits, None), {1: 1.0})

    write_suites(manifest.parent, IDENTITIES, make, lambda: COST)
    assert len(references) == len(SUITES)


@pytest.mark.parametrize("beside", [None, "depth.npz"])
@pytest.mark.parametrize("change", ["removed", "truncated", "other bytes"])
def test_a_file_that_was_changed_is_named_with_the_remedy(manifest, change, beside):
    Job(manifest.parent).run()
    path = manifest.with_name(f"test.{beside or 'npz'}")
    content = path.read_bytes()
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if change == "truncated" else content[:-1] + b"?")
    with pytest.raises(InputError, match="make it again") as error:
        suite_file(manifest, "test", beside)
    assert str(path) in str(error.value) and f"delete {manifest}" in str(error.value)
    assert is_whole(manifest) is (change == "other bytes"), "sizes are compared, contents are not read"
    assert len(load_suite(manifest, "val").logits) == 3, "the other suites can be read"
    manifest.unlink()  # the remedy
    Job(manifest.parent).run()
    assert suite_file(manifest, "test", beside) == path


def test_a_suite_that_is_not_listed(manifest):
    Job(manifest.parent).run(beside=())
    with pytest.raises(InputError, match=r"manifest\.json lists no shifted\.npz; it has the suites val, test"):
        load_suite(manifest, "shifted")
    with pytest.raises(InputError, match=r"lists no test\.depth\.npz"):
        suite_file(manifest, "test", "depth.npz")


NO_MANIFESTS = {
    "a list": [],
    "another format": {"format": "director predictions 0", "suites": {}},
    "suites are a list": {"format": "director predictions 1", "suites": ["test"]},
    "no files": {"format": "director predictions 1", "suites": {"test": {"rows": 1}}},
    "rows are text": {"format": "director predictions 1", "suites": {"test": {"rows": "1", "files": {}}}},
    "no checksum": {"format": "director predictions 1", "suites": {"test": {"rows": 1, "files": {"a": {"bytes": 1}}}}},
}


@pytest.mark.parametrize("name", NO_MANIFESTS)
def test_what_is_no_manifest_is_refused(manifest, name):
    write_json(manifest, NO_MANIFESTS[name])
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest.*delete it and run the same command again"):
        suites_of(manifest)
    assert not is_whole(manifest)


def test_a_manifest_that_is_not_there_or_broken(manifest):
    assert not is_whole(manifest)
    with pytest.raises(InputError, match=r"manifest\.json: no such file"):
        load_suite(manifest, "test")
    manifest.write_text("{")
    assert not is_whole(manifest)
    Job(manifest.parent).run()
    manifest.with_name("cost.json").unlink()
    assert not is_whole(manifest), "without costs there is no row of the table"


NO_COSTS = {
    "a list": [[1], "parameters, train_seconds, device, threads, peak_memory_bytes, suites missing"],
    "no threads": [{key: COST[key] for key in COST if key != "threads"} | {"suites": {}}, "threads missing"],
    "text": [COST | {"train_seconds": "2.5", "suites": {}}, "train_seconds missing or of another kind"],
    "suites": [COST | {"suites": {"test": {"examples": 6}}}, r"suites\.test missing or of another kind"],
    "seconds": [COST | {"suites": {"test": {"examples": 6, "seconds": {"one": 1}}}}, r"suites\.test missing"],
}


@pytest.mark.parametrize("name", NO_COSTS)
def test_what_is_no_file_of_costs_is_refused(tmp_path, name):
    content, message = NO_COSTS[name]
    write_json(tmp_path / "cost.json", content)
    with pytest.raises(InputError, match=rf"cost\.json: not a file of costs \({message}"):
        read_cost(tmp_path / "cost.json")

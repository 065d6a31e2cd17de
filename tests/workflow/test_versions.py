"""DVC remembers the study: in a second clone nothing is stale and nothing runs needlessly."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.pipeline
MAIN = "results/tables/main.csv"


class Clone:
    """A git clone of the project, with a user's commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        identity = {
            f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        self.environment = os.environ | identity | {"PATH": tools, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1"}

    def run(self, *words: str) -> str:
        ended = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=400
        )
        assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
        return ended.stdout + ended.stderr

    def commit(self, message: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", message)


@pytest.fixture(scope="module")
def first(study, tmp_path_factory):
    """A clone that holds the finished study and its version, pushed to a remote."""
    folder = tmp_path_factory.mktemp("first")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("director", "workflow", "profiles"):
        shutil.copytree(study.checkout / name, folder / name, ignore=ignore)
    for name in ("Snakefile", "environment.yml", "dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(study.checkout / name, folder / name)
    for name in ("config", "data", "results", ".snakemake"):  # the run itself, as if made here
        shutil.copytree(study.folder / name, folder / name, symlinks=True)
    clone = Clone(folder)
    clone.run("git", "init", "-q")
    clone.run("dvc", "init", "-q")
    shutil.copy(study.checkout / ".dvc/config", folder / ".dvc/config")
    clone.run("dvc", "remote", "add", "-d", "store", str(tmp_path_factory.mktemp("remote")))
    clone.commit("the project")
    clone.run("dvc", "repro")
    clone.commit("the study")
    clone.run("dvc", "push", "-q")
    return clone


@pytest.fixture
def second(first, tmp_path):
    """Another clone elsewhere, with what the version says pulled."""
    clone = Clone(tmp_path / "second")
    subprocess.run(["git", "clone", "-q", str(first.folder), str(clone.folder)], check=True)
    clone.run("dvc", "pull", "-q")
    return clone


def test_the_stage_is_up_to_date_after_it_ran(first):
    assert "up to date" in first.run("dvc", "repro")
    status = first.run("git", "status", "--porcelain")
    assert status == "", "what came out is ignored by git"


def test_metrics_are_shown(first):
    shown = json.loads(first.run("dvc", "metrics", "show", "--json").splitlines()[0])
    numbers = shown[""]["data"]["results/tables/main.json"]["data"]["tiny"]["softmax/mle/1"]
    assert 0 < numbers["accuracy"] < 1 and "auroc_std" in numbers
    first.run("dvc", "plots", "show", "--json")


def test_a_second_clone_has_the_table_and_nothing_to_do(first, second):
    assert (second.folder / MAIN).read_bytes() == (first.folder / MAIN).read_bytes()
    assert "Nothing to be done" in second.run("snakemake", "-n", "--cores", "2")
    assert "Nothing to be done" in second.run("snakemake", "--cores", "2", MAIN)


def test_a_parameter_changed_in_the_second_clone_gives_the_new_table(second):
    """Never the stale one: Snakemake's memory of parameters travels with the outputs."""
    path = second.folder / "config/experiments/tiny.yaml"
    content = yaml.safe_load(path.read_text())
    content["mc_dropout"] = {"samples": [2]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    before = (second.folder / MAIN).read_text()
    second.run("dvc", "repro")
    after = (second.folder / MAIN).read_text()
    assert ",mc_dropout,3," in before and ",mc_dropout,2," in after and ",mc_dropout,3," not in after
    changed = second.run("dvc", "metrics", "diff")
    assert "mc_dropout/2" in changed


def test_the_cache_keeps_its_default_kind(study):
    """Hard or symbolic links would give every checkout the times, and the fate, of the cache."""
    assert "type" not in (study.checkout / ".dvc/config").read_text()
    stage = yaml.safe_load((study.checkout / "dvc.yaml").read_text())["stages"]["tables"]
    outs = {name: options for out in stage["outs"] for name, options in out.items()}
    assert ".snakemake/metadata" in outs and all(options["persist"] for options in outs.values())

"""DVC remembers the study: in a second clone nothing is stale and nothing runs needlessly."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.pipeline
ROOT = Path(__file__).parents[2]
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


def test_status_counts_what_is_done_and_missing(second):
    status = [sys.executable, "workflow/status.py"]
    counts = {words[0]: words[1:] for words in map(str.split, second.run(*status).splitlines()[1:])}
    assert counts["train_backbone"] == ["4", "0", "0"] and all(row[1:] == ["0", "0"] for row in counts.values())
    (second.folder / "results/runs/tiny/softmax/seed-0/metrics.json").unlink()
    (second.folder / MAIN).unlink()
    counts = {words[0]: words[1:] for words in map(str.split, second.run(*status).splitlines()[1:])}
    assert counts["train_backbone"] == ["4", "0", "0"]
    assert counts["measure"] == ["4", "0", "1"] and counts["tabulate"] == ["0", "0", "1"]


def test_an_experiment_stands_beside_the_version_and_either_comes_back_without_computing(first, second):
    """`dvc exp run -S` changes one value; `exp show`, `exp diff` and `metrics diff` set it beside the committed one."""
    second.run("dvc", "exp", "run", "-q", "-n", "fewer", "-S", "config/experiments/tiny.yaml:mc_dropout.samples=[2]")
    later = (second.folder / MAIN).read_bytes()
    assert b",mc_dropout,2," in later and b",mc_dropout,3," not in later
    shown = second.run("dvc", "exp", "show", "--csv", "--no-pager")
    assert "fewer" in shown and "softmax/mle/1.accuracy" in shown
    assert "mc_dropout/2" in second.run("dvc", "metrics", "diff")
    assert "mc_dropout" in second.run("dvc", "exp", "diff", "HEAD", "fewer")
    assert "index.html" in second.run("dvc", "plots", "show")
    second.commit("fewer samples")
    for commit, table in (("HEAD~1", (first.folder / MAIN).read_bytes()), ("-", later)):
        second.run("git", "checkout", "-q", commit)
        second.run("dvc", "checkout", "-q")
        assert (second.folder / MAIN).read_bytes() == table
        assert "Nothing to be done" in second.run("snakemake", "-n", "--cores", "2")


@pytest.fixture
def bucket(tmp_path):
    """Address of an S3 server on the loopback, and the folder of the programs that serve it and talk to it."""
    programs = ROOT / ".venv-s3/bin"
    if not (programs / "moto_server").exists():
        pytest.skip("no S3 server to talk to: make s3-demo (its libraries do not go with those of requirements.lock)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = (tmp_path / "s3.log").open("w")
    server = subprocess.Popen([programs / "moto_server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{url}/study", method="PUT"), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < end and server.poll() is None, "the server does not answer"
                time.sleep(0.2)
        yield url, programs
    finally:
        server.kill()
        server.wait()
        log.close()


def test_push_and_pull_with_an_s3_server(first, bucket, tmp_path):
    url, programs = bucket
    clones = [Clone(tmp_path / name) for name in ("pusher", "puller")]
    for clone, origin in zip(clones, (first.folder, tmp_path / "pusher"), strict=True):
        subprocess.run(["git", "clone", "-q", str(origin), str(clone.folder)], check=True)
        clone.environment |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        if clone is clones[0]:
            clone.run("dvc", "pull", "-q")
            clone.run("dvc", "remote", "add", "-q", "-d", "-f", "store", "s3://study/results")
            clone.run("dvc", "remote", "modify", "store", "endpointurl", url)
            clone.commit("an S3 server as remote")
            clone.run(str(programs / "dvc"), "push", "-q")
    clones[1].run(str(programs / "dvc"), "pull", "-q")
    assert (clones[1].folder / MAIN).read_bytes() == (first.folder / MAIN).read_bytes()
    assert "Nothing to be done" in clones[1].run("snakemake", "-n", "--cores", "2")


def test_the_cache_keeps_its_default_kind(study):
    """Hard or symbolic links would give every checkout the times, and the fate, of the cache."""
    assert "type" not in (study.checkout / ".dvc/config").read_text()
    stage = yaml.safe_load((study.checkout / "dvc.yaml").read_text())["stages"]["tables"]
    outs = {name: options for out in stage["outs"] for name, options in out.items()}
    assert ".snakemake/metadata" in outs and all(options["persist"] for options in outs.values())

"""The study on a SLURM of one node, through profiles/slurm."""

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from director.report.tables import COST

pytestmark = pytest.mark.pipeline
ROOT = Path(__file__).parents[2]
NODE = Path(__file__).with_name("slurm_node.sh")
MAIN = "results/tables/main.csv"
# fewer rows than TINY, and a training that is long enough to be stopped in its middle
SHORT = {"epochs": 2, "warmup_epochs": 1, "learning_rate": 0.01, "batch_size": 200}
ROWS = {
    "seeds": [0],
    "methods": {"softmax": ["mle", "temperature", "director"]},
    "training": SHORT | {"epochs": 16, "batch_size": 20},
    "director": {"training": SHORT, "trajectory": {"source": "live"}, "samples": [2]},
}
TRAINING = "rule_train_backbone_wildcards_tiny_softmax_0"  # how SLURM shows it (%k)
LOG = "logs/train_backbone/tiny/softmax/seed-0.log"
STATE = "results/runs/tiny/softmax/seed-0/backbone/state.safetensors"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A SLURM of one node on this machine. Where it is installed and this is root it must start in CI."""
    missing = [program for program in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(program)]
    if missing:
        pytest.skip(f"SLURM is not installed (no {', '.join(missing)}); .ci/run does, as root on Debian")
    if os.geteuid():
        pytest.skip("only root starts a SLURM node")
    folder = str(tmp_path_factory.mktemp("slurm"))
    started = subprocess.run([NODE, "start", folder], capture_output=True, text=True)
    if started.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"SLURM did not start: {started.stderr[-2000:]}")
    yield
    subprocess.run([NODE, "stop", folder], check=True)
    assert not Path("/etc/slurm/slurm.conf").exists(), "else every later start of Snakemake waits for the controller"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout whose trainings write their state every half second, so that a short one can be resumed."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("director", "workflow", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(ROOT / name, folder / name)
    loop = folder / "director/training/fit.py"
    assert "state_seconds: float = 30.0" in loop.read_text()
    loop.write_text(loop.read_text().replace("state_seconds: float = 30.0", "state_seconds: float = 0.5"))
    return folder


def on_cluster(study):
    """A run on the node: the profile, but for waits that suit jobs of seconds, and CPUs as in the local run."""
    profile = str(study.checkout / "profiles/slurm")
    words = ["--workflow-profile", profile, "--slurm-init-seconds-before-status-checks", "2"]
    return study.command(*words, "--latency-wait", "5", "--set-threads", "train_backbone=1", "--", MAIN)


def training_job(field):
    """What SLURM says of the training job in the queue, in a format of squeue; "" if it is not there."""
    shown = subprocess.run(["squeue", "-h", "-o", f"%k|{field}"], capture_output=True, text=True, check=True).stdout
    return next((line.split("|")[1] for line in shown.splitlines() if line.startswith(f"{TRAINING}|")), "")


def resumed(log):
    """How often a training has said that it resumes; Snakemake takes its log away for a moment when it starts again."""
    return log.read_text().count("resuming at step") if log.exists() else 0


def wait_for(condition, what, driver):
    end = time.monotonic() + 300
    while not condition():
        assert driver.poll() is None, f"the run ended before {what}"
        assert time.monotonic() < end, f"{what} did not happen in five minutes"
        time.sleep(0.1)


def numbers(study):
    """The main table without what jobs cost, which no two runs have in common."""
    return pd.read_csv(study.folder / MAIN, dtype=str).drop(columns=COST[1:])


def test_the_study_on_slurm_is_the_local_one(fresh, slurm, checkout, tmp_path):
    """A training that is cancelled resumes with more memory, and so does one that SLURM starts again."""
    cluster, local = replace(fresh, checkout=checkout), replace(fresh, folder=tmp_path / "local", checkout=checkout)
    for study in (cluster, local):
        study.settings(**ROWS)
    with (tmp_path / "words").open("w") as words:
        driver = subprocess.Popen(
            on_cluster(cluster), cwd=checkout, env=cluster.environment(), stdout=words, stderr=subprocess.STDOUT
        )
    try:
        log, state = cluster.folder / LOG, cluster.folder / STATE
        wait_for(state.exists, "a state of the training", driver)
        first, memory = training_job("%i"), training_job("%m")
        assert training_job("%j").startswith("director_")
        subprocess.run(["scancel", first], check=True)
        wait_for(lambda: training_job("%i") not in ("", first), "the second attempt", driver)
        second = training_job("%i")
        assert training_job("%m") == f"{2 * int(memory.removesuffix('M'))}M"
        wait_for(lambda: resumed(log) == 1, "the cancelled training resumed", driver)
        subprocess.run(["scontrol", "requeue", second], check=True)  # what SLURM does after a preemption
        wait_for(lambda: resumed(log) == 2, "the requeued training resumed", driver)
        assert training_job("%i") == second
        local.snakemake("--cores", "1", MAIN)
        assert driver.wait(timeout=600) == 0, (tmp_path / "words").read_text()[-6000:]
    finally:
        driver.kill()
        driver.wait()
    assert list((cluster.folder / "logs/slurm/rule_train_backbone").rglob(f"{first}.log")), "of the cancelled job"
    pd.testing.assert_frame_equal(numbers(cluster), numbers(local))
    jobs = {path.relative_to(cluster.folder / "logs") for path in (cluster.folder / "logs").glob("*/tiny/**/*.log")}
    assert len(jobs) == len([*local.folder.glob("logs/*/tiny/**/*.log")])

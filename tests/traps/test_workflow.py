"""Traps of the workflow: GPUs that are shared, processes that are killed, locks that stay, runs that are lost."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from mlflow import MlflowClient
from snakemake_executor_plugin_slurm.utils import set_gres_string

from director.files import file_digest
from director.plan import Plan
from director.settings.reading import load_experiment
from director.settings.training import Compute

pytestmark = pytest.mark.pipeline
WEIGHTS = "results/runs/tiny/softmax/seed-0/backbone/model.safetensors"


def wait_for(condition, what):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in two minutes"
        time.sleep(0.05)


def processes(*words):
    """Process ids whose command line holds all the words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it has ended
                continue
            if all(word in command for word in words):
                found.append(int(entry.name))
    return found


LONGER = {"epochs": 15, "warmup_epochs": 1, "learning_rate": 0.01, "batch_size": 20}
SHORTER = LONGER | {"epochs": 2}


@pytest.fixture(scope="module")
def undisturbed(study, tmp_path_factory):
    """Digest of the weights of a longer training that nothing disturbs."""
    whole = replace(study, folder=tmp_path_factory.mktemp("undisturbed"))
    whole.settings(training=LONGER)
    whole.snakemake("--cores", "1", WEIGHTS)
    return file_digest(whole.folder / WEIGHTS)


@pytest.fixture
def running(fresh):
    """A driver in the middle of that training, and the process ids of its job."""
    fresh.settings(training=LONGER)
    command = fresh.command("--cores", "1", WEIGHTS)
    driver = subprocess.Popen(command, cwd=fresh.checkout, env=fresh.environment(), stderr=subprocess.DEVNULL)
    log = fresh.folder / "logs/train_backbone/tiny/softmax/seed-0.log"
    wait_for(lambda: log.exists() and "epoch 1" in log.read_text(), "training")
    scripts = processes(".snakemake/scripts")
    yield driver, [pid for pid in scripts if Path(f"/proc/{pid}/cwd").readlink() == fresh.folder]
    driver.kill()
    driver.wait()
    for pid in processes(".snakemake/scripts"):
        if Path(f"/proc/{pid}/cwd").readlink() == fresh.folder:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["driver", "job"])
def test_trap_25_sigkill_then_the_plain_command_again(fresh, running, undisturbed, victim):
    """snakemake 1318, 1871: a killed driver leaves locks and incomplete files; the same command works and gives the
    same weights, and what was finished is not made anew."""
    driver, jobs = running
    raw = fresh.folder / "data/raw/digits/manifest.json"
    before = raw.stat().st_mtime_ns
    if victim == "driver":
        driver.kill()
    for pid in jobs:  # also beside a killed driver: a node that dies takes both along
        os.kill(pid, signal.SIGKILL)
    assert jobs and driver.wait() != 0
    assert not (fresh.folder / WEIGHTS).exists()
    fresh.snakemake("--cores", "1", WEIGHTS)
    assert raw.stat().st_mtime_ns == before
    assert file_digest(fresh.folder / WEIGHTS) == undisturbed


def test_a_second_driver_is_still_refused(fresh, running):
    """It names the living one, whose job goes on."""
    driver, jobs = running
    second = fresh.snakemake("--cores", "1", WEIGHTS, check=False)
    assert driver.poll() is None, "the first driver ended before the second began"
    told = second.stdout + second.stderr
    assert second.returncode != 0 and f"another run works in this folder (process {driver.pid}," in told
    assert "Traceback" not in told
    assert all(Path(f"/proc/{pid}").exists() for pid in jobs)


@pytest.mark.parametrize("words", [["-n"], ["--summary"], ["--list"], ["--report", "report.zip"]])
def test_a_call_that_runs_no_job_takes_no_lock(fresh, words):
    fresh.snakemake("--cores", "1", *words, check=False)
    assert not (fresh.folder / ".snakemake/driver").exists()


def test_a_job_that_outlives_its_driver_puts_nothing_in_place_of_new_results(fresh, running):
    """The driver is killed, a setting changed, the same command given: the orphan ends and its output never comes."""
    driver, jobs = running
    driver.kill()
    driver.wait()
    fresh.settings(training=SHORTER)
    fresh.snakemake("--cores", "1", WEIGHTS)
    weights = file_digest(fresh.folder / WEIGHTS)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in jobs), "the end of the orphan")
    time.sleep(1)
    assert file_digest(fresh.folder / WEIGHTS) == weights
    settings = yaml.safe_load((fresh.folder / WEIGHTS).with_name("settings.yaml").read_text())
    assert settings["training"]["epochs"] == SHORTER["epochs"]
    log = (fresh.folder / "logs/train_backbone/tiny/softmax/seed-0.log").read_text()
    earlier, later = log.split("---- the job starts again\n")
    assert "epoch 1" in earlier and "the run that started this job is gone" in earlier
    assert f"epoch {SHORTER['epochs']}" in later
    assert fresh.plan(WEIGHTS) == {}


def test_trap_23_eight_cores_and_one_gpu_never_run_two_gpu_jobs(fresh):
    """snakemake 281, 3711: the default profile counts GPU jobs, and each job that may use the GPU says so."""
    (fresh.folder / "config/config.yaml").write_text("experiments: [tiny]\ncompute: {device: cuda}\n")
    shown = fresh.snakemake("-n", "--cores", "8", "all")
    blocks = (shown.stdout + shown.stderr).split("rule ")[1:]
    for rule in ("train_backbone", "cache_trajectory", "train_student", "predict", "predict_student"):
        jobs = [block for block in blocks if block.startswith(f"{rule}:")]
        assert jobs and all("gpu=1" in block for block in jobs)
    assert not any("gpu=1" in block for block in blocks if block.startswith("measure:"))

    folder = fresh.folder / "counted"
    folder.mkdir()
    text = (
        'rule all:\n    input: expand("{n}.done", n=range(4))\n'
        'rule one:\n    output: "{n}.done"\n    resources: gpu=1\n'
        '    shell: "mkdir busy && sleep 0.3 && rmdir busy && touch {output}"\n'
    )
    (folder / "Snakefile").write_text(text)
    command = [*fresh.command()[:3], "--directory", str(folder), "-s", str(folder / "Snakefile"), "--cores", "8"]
    subprocess.run(
        [*command, "--workflow-profile", str(fresh.checkout / "profiles/default")], cwd=folder, check=True, timeout=120
    )


def test_trap_26_no_tasks_per_gpu_beside_a_gpu_request(study):
    """executor-plugin-slurm 373, 342, 316, 459: `--ntasks-per-gpu` conflicts with `--gres`; the profile says no."""
    text = (study.checkout / "profiles/slurm/config.yaml").read_text()
    profile = yaml.safe_load(text)
    assert profile["default-resources"]["tasks_per_gpu"] == 0
    line = next(line for line in text.splitlines() if "tasks_per_gpu" in line)
    assert "--gres" in line and "#" in line, "and says why"


def test_conda_is_refused_with_the_remedy(fresh):
    """The copy of environment.yml that Snakemake would make an environment from has no lock beside it."""
    ended = fresh.snakemake("--cores", "1", WEIGHTS, "--sdm", "conda", check=False)
    assert ended.returncode and "give the same command without --sdm conda" in ended.stdout + ended.stderr


class Asked(dict):
    """Resources as Snakemake hands them to an executor: of a mapping, and by attribute."""

    __getattr__ = dict.get


def test_a_cluster_that_wants_gres_gets_it_alone(fresh):
    """The two lines that the SLURM profile offers: `--gres`, and no `--gpus` beside it."""
    (fresh.folder / "config/config.yaml").write_text("experiments: [tiny]\ncompute: {device: cuda}\n")
    text = (fresh.checkout / "profiles/slurm/config.yaml").read_text()
    assert "# gpu: 0 " in text and "# gres: gpu:1 " in text
    profile = fresh.folder / "profile/config.yaml"
    profile.parent.mkdir()
    profile.write_text(text.replace("# gpu: 0 ", "gpu: 0 ").replace("# gres: gpu:1 ", "gres: gpu:1 "))
    planned = fresh.snakemake("-n", "--workflow-profile", str(profile.parent), WEIGHTS)
    lines = (planned.stdout + planned.stderr).split("rule train_backbone:")[1].splitlines()
    words = next(line for line in lines if "resources:" in line).split("resources: ")[1].split(", ")
    resources = dict(word.split("=") for word in words)
    assert resources["gres"] == "gpu:1" and resources["gpu"] == "0"
    asked = Asked(gpu=int(resources["gpu"]), gres=resources["gres"])
    assert set_gres_string(SimpleNamespace(resources=asked)).split() == ["--gres=gpu:1"]


def test_trap_30_no_run_is_lost_in_tracking(study):
    """hydraflow 245, mlflow 4123: `--cores 8` from scratch, and each run is there once and finished."""
    client = MlflowClient(f"sqlite:///{study.folder}/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    runs = {run.data.tags["director.path"]: run for run in found}
    seeds = [f"results/runs/tiny/softmax/seed-{seed}" for seed in (0, 1)]
    plan = Plan({"tiny": load_experiment(study.folder / "config/experiments/tiny.yaml")}, Compute())
    expected = {"results/runs/{}/{}/seed-{}/{}".format(*job) for job in [*plan.jobs("tiny"), *plan.trained("tiny")]}
    rows = pd.read_csv(study.folder / "results/tables/main.csv")[["experiment", "backbone", "method", "samples"]]
    for row in rows.itertuples(index=False):
        expected.add("results/runs/{}/{}/seed-mean/{}/samples-{}".format(*row))
    assert len(found) == len(runs) and set(runs) == expected
    assert {run.info.status for run in found} == {"FINISHED"}
    mle, student = runs[f"{seeds[0]}/mle"], runs[f"{seeds[0]}/director"]
    table = pd.read_csv(study.folder / "results/tables/all.csv", dtype={"seed": str})
    cell = table[(table["method"] == "mle") & (table["seed"] == "0") & (table["suite"] == "test")]
    assert mle.data.metrics["test/nll"] == cell.set_index("metric").loc["nll", "value"]
    main = pd.read_csv(study.folder / "results/tables/main.csv").set_index(["backbone", "method", "samples"])
    mean = runs["results/runs/tiny/softmax/seed-mean/director/samples-2"].data.metrics
    for name, column in (("test/nll", "nll"), ("test/std/nll", "nll_std"), ("cost/parameters", "parameters")):
        assert mean[name] == pytest.approx(main.loc[("softmax", "director", 2), column])
    assert {"training/train_path", "training/train_task", "test/s1/nll", "test/nll"} <= set(student.data.metrics)
    assert mle.info.end_time > mle.info.start_time, "of the job, by Snakemake's record"
    tables = client.search_runs([client.get_experiment_by_name("tables").experiment_id])
    folders = ("tables", "figures/tiny")
    files = {file.path for folder in folders for file in client.list_artifacts(tables[0].info.run_id, folder)}
    expected = {"tables/main.csv", "tables/all.csv", "figures/tiny/severity.svg", "figures/tiny/depth.svg"}
    assert expected <= files

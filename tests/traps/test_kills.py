"""Processes are killed at random moments: always the same table, nothing lives on, nothing is left over.

`pytest -m slow tests/traps/test_kills.py` kills twenty times; the counts are in docs/reliability.md.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from director.report.tables import COST

pytestmark = pytest.mark.pipeline
MAIN = "results/tables/main.csv"
SMALL = {
    "data": {
        "name": "digits",
        "train": 1600,
        "validation": 100,
        "normalisation": {"scale": 16, "mean": [0.3], "std": [0.4]},
    },
    "seeds": [0],
    "methods": {"softmax": ["mle", "temperature", "director"]},
    "training": {"epochs": 4, "warmup_epochs": 1, "learning_rate": 0.01, "batch_size": 50},
}


def processes(folder):
    """Process ids at work in a folder, this one aside."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:  # it has ended, or belongs to the system
            continue
    return found


def kill(process):
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(process, signal.SIGKILL)


def table(study):
    """The main table without what jobs cost, which no two runs have in common."""
    return pd.read_csv(study.folder / MAIN, dtype=str).drop(columns=COST[1:])


def killed_run(study, moment, victim, chance):
    """Run the study and kill its driver, a job or the whole group after `moment` seconds; whether it was still running.

    A run goes on where the last one was killed; one that has nothing left to do makes a part anew.
    """
    forced = ["train_backbone", "train_student", "predict", "predict_student", "scale", "measure"]
    again = ["--forcerun", chance.choice(forced)] if (study.folder / MAIN).exists() else []
    command = study.command("--cores", "2", MAIN, *again)
    driver = subprocess.Popen(
        command, cwd=study.folder, env=study.environment(), start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        driver.wait(timeout=moment)
        return False  # it had ended before
    except subprocess.TimeoutExpired:
        jobs = [process for process in processes(study.folder) if process != driver.pid]
        if victim == "group":
            os.killpg(driver.pid, signal.SIGKILL)
        elif victim == "job" and jobs:
            kill(chance.choice(jobs))
        else:
            driver.kill()
        driver.wait(timeout=120)
        return True


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_the_study_ends_in_the_same_table(fresh, tmp_path, kills):
    undisturbed, study = fresh, replace(fresh, folder=tmp_path / "killed")
    for each in (undisturbed, study):
        each.settings(**SMALL)
    began = time.monotonic()
    undisturbed.snakemake("--cores", "2", MAIN)
    whole = time.monotonic() - began
    chance, struck = random.Random(kills), 0
    for number in range(kills):
        victim = ("driver", "job", "group")[number % 3]
        struck += killed_run(study, chance.uniform(0.1, 1) * whole / 2, victim, chance)
    assert struck >= kills // 2, "most of the kills came too late"
    study.snakemake("--cores", "2", MAIN)
    deadline = time.monotonic() + 10  # a job looks after its driver every two seconds
    while processes(study.folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes(study.folder) == [], "an orphan lives on"
    pd.testing.assert_frame_equal(table(study), table(undisturbed))
    left = [path for path in (study.folder / "results").rglob("*") if re.match(r"\.", path.name)]
    assert left == [], "half-written files of killed jobs"
    print(f"{struck} of {kills} kills struck")

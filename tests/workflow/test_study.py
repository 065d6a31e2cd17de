"""The main job, end to end, on real input: what it leaves behind."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from director.predictions import Predictions
from director.tables import MAIN

pytestmark = pytest.mark.pipeline
METHODS = ["mle", "temperature", "mc_dropout", "ensemble"]


def test_main_table_has_every_row(study):
    table = pd.read_csv(study.folder / "results/tables/main.csv")
    assert table["method"].tolist() == METHODS
    assert table["samples"].tolist() == [1, 1, 3, 2] and table["seeds"].tolist() == [2, 2, 2, 1]
    assert table[[*MAIN, "parameters", "train_seconds", "predict_seconds_per_1000"]].notna().all(axis=None)
    single = table.set_index("method")
    assert single.loc["temperature", "accuracy"] == single.loc["mle", "accuracy"], "a temperature moves no class"
    assert single.loc["ensemble", "parameters"] == 2 * single.loc["mle", "parameters"]
    assert pd.isna(single.loc["ensemble", "accuracy_std"])


def test_the_tables_numbers_are_those_of_the_prediction_files(study):
    """The table can be traced: the files named by it, measured anew, give its numbers."""
    from director.metrics import ece_15

    runs = [study.folder / f"results/tiny/softmax/seed-{seed}/mc_dropout/predictions/test.npz" for seed in (0, 1)]
    expected = np.mean([ece_15(Predictions.load(path)) for path in runs])
    table = pd.read_csv(study.folder / "results/tables/main.csv").set_index("method")
    assert table.loc["mc_dropout", "ece_15"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("suite", ["test", "corrupted", "ood-photographs"])
@pytest.mark.parametrize("method", METHODS)
def test_every_prediction_file_says_where_it_comes_from(study, method, suite):
    seed = "pooled" if method == "ensemble" else "0"
    folder = study.folder / f"results/tiny/softmax/seed-{seed}/{method}"
    predictions = Predictions.load(folder / f"predictions/{suite}.npz")
    about = predictions.about
    assert (about["experiment"], about["backbone"], about["method"], about["suite"]) == (
        "tiny",
        "softmax",
        method,
        suite,
    )
    assert str(about["seed"]) == seed
    assert about["code"] and about["data"] and about["commit"] and about["versions"]
    assert (predictions.labels is None) is suite.startswith("ood-")
    records = json.loads((folder / f"metrics/{suite}.json").read_text())["records"]
    assert len(records) == (41 if suite == "corrupted" else 1)


def test_corrupted_suite_holds_test_examples_only(study):
    split = np.load(study.folder / "results/tiny/splits/seed-1.npz")
    corrupted = Predictions.load(study.folder / "results/tiny/softmax/seed-1/mle/predictions/corrupted.npz")
    assert set(corrupted.example) <= set(split["test"]) and len(set(corrupted.example)) == 50
    assert len(corrupted.example) == 50 * 8 * 5


def test_companions_are_there(study):
    comparison = pd.read_csv(study.folder / "results/tables/comparison.csv")
    assert set(comparison["method"]) == {"temperature", "mc_dropout", "ensemble"}
    assert ((comparison["lower"] <= comparison["difference"]) & (comparison["difference"] <= comparison["upper"])).all()
    assert "±" in (study.folder / "results/tables/main.md").read_text()
    for figure in ("reliability", "risk_coverage", "severity"):
        assert (study.folder / f"results/figures/tiny/{figure}.svg").read_text().rstrip().endswith("</svg>")


def test_every_job_leaves_a_log_and_a_benchmark(study):
    logs = {path.with_suffix("") for path in (study.folder / "logs").rglob("*.log")}
    benchmarks = {path.with_suffix("").with_suffix("") for path in (study.folder / "logs").rglob("*.benchmark.tsv")}
    assert logs and logs == benchmarks


def test_trap_30_no_run_is_lost_in_tracking(study):
    """hydraflow 245, mlflow 4123: `--cores 8` from scratch, and each run is there once and finished."""
    client = MlflowClient(f"sqlite:///{study.folder}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    seeds = [f"results/tiny/softmax/seed-{seed}" for seed in (0, 1)]
    expected = {f"{seed}/{name}" for seed in seeds for name in ("backbone", "mle", "temperature", "mc_dropout")}
    assert sorted(run.info.run_name for run in runs) == sorted(expected | {"results/tiny/softmax/seed-pooled/ensemble"})
    assert {run.info.status for run in runs} == {"FINISHED"}
    mle = next(run for run in runs if run.info.run_name == f"{seeds[0]}/mle")
    table = pd.read_csv(study.folder / "results/tables/all.csv", dtype={"seed": str})
    cell = table[(table["method"] == "mle") & (table["seed"] == "0") & (table["suite"] == "test")]
    assert mle.data.metrics["test/nll"] == cell.set_index("metric").loc["nll", "value"]
    tables = client.search_runs([client.get_experiment_by_name("tables").experiment_id])
    files = {file.path for file in client.list_artifacts(tables[0].info.run_id)}
    assert {"main.csv", "all.csv", "severity.svg"} <= files


def test_report_holds_the_figures_and_their_captions(study, tmp_path):
    study.snakemake("--cores", "1", "--report", str(tmp_path / "report.zip"))
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        names = archive.namelist()
        page = archive.read(next(name for name in names if name.endswith("report.html"))).decode()
    assert sum(name.endswith(".svg") for name in names) >= 3
    assert "over-confident" in page


def test_lint_is_clean(study):
    ended = study.snakemake("--lint", check=False)
    assert ended.returncode == 0, ended.stderr


def test_slurm_profile_plans_the_whole_run(fresh):
    plan = fresh.plan("--workflow-profile", str(fresh.checkout / "profiles/slurm"), "all")
    assert plan["train_backbone"] == 2 and plan["tabulate"] == 1


def test_environment_for_conda_users_is_that_of_the_lock(study):
    import re
    import tomllib

    import yaml

    conda = yaml.safe_load((study.checkout / "environment.yml").read_text())
    project = tomllib.loads((study.checkout / "pyproject.toml").read_text())["project"]
    python = next(item for item in conda["dependencies"] if isinstance(item, str) and item.startswith("python="))
    assert project["requires-python"] == ">=" + python.removeprefix("python=")
    pip = next(item["pip"] for item in conda["dependencies"] if isinstance(item, dict))
    assert "-r requirements.lock" in pip
    locked = set(re.findall(r"^([a-z0-9-]+)==", (study.checkout / "requirements.lock").read_text(), re.MULTILINE))
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    assert {re.match(r"[a-z0-9-]+", item)[0] for item in wanted} <= locked

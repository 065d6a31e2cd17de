"""Traps of tracking: runs that do not show, doubled runs, lost runs of others, a sink that holds up the study."""

import base64
import contextlib
import io
import math
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking._tracking_service.utils import _tracking_store_registry

from director.errors import InputError
from director.files import file_digest, read_json, write_json, write_text
from director.job_log import AGAIN
from director.numbers.measure import FORMAT
from director.progress import RUNNING
from director.report.live import LOG, LiveRuns, start_beside
from director.report.runs import Run, measured_run, training_run
from director.report.tracking import attempt, failed_attempts, is_lost, publish, publish_runs, publish_tables


def a_run(path, parameters=None, metrics=(), **more):
    return Run(path, f"run {path}", parameters or {}, metrics, **more)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A fresh database: making its schema takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def forget_stores():
    """As a new process: MLflow keeps a database open, whatever has become of the working folder."""
    _tracking_store_registry._get_store_with_resolved_uri.cache_clear()
    SqlAlchemyStore._engine_map.clear()


@pytest.fixture
def client(tmp_path, monkeypatch, empty_store):
    """MLflow with its default store in an empty folder, as a plain `mlflow ui` there would open it."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    forget_stores()
    return MlflowClient("sqlite:///mlflow.db")


def runs_of(client, experiment="digits"):
    """Path -> run: the path is its identity, the name is for people."""
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.data.tags["director.path"]: run for run in found}


def artifacts(client, run):
    """Paths of all files of a run."""

    def inside(folder=None):
        for item in client.list_artifacts(run.info.run_id, folder):
            yield from inside(item.path) if item.is_dir else [item.path]

    return set(inside())


RECORD = {"samples": 1, "pooling": "softmax", "shift": "clean", "severity": 0, "n": 9, "accuracy": 0.9, "auroc": None}


def trained(folder, term="train_loss", **settings):
    """What a training leaves: weights, history of two epochs, settings, cost."""
    write_text(folder / "model.safetensors", f"weights of {folder}")
    write_text(folder / "history.csv", f"epoch,{term},val_nll\n1,2.0,1.5\n2,1.0,\n")
    experiment, backbone = folder.parts[-4:-2]
    lines = {"experiment": experiment, "backbone": backbone, "seed": int(folder.parts[-2].removeprefix("seed-"))}
    lines |= {"code": f"code of {folder.name}", "commit": "def", "data": "123", "split": "456"} | settings
    write_text(folder / "settings.yaml", "".join(f"{key}: {value}\n" for key, value in lines.items()))
    cost = {"parameters": 7, "train_seconds": 1.5, "epochs": 2, "best_epoch": 1, "peak_memory_bytes": 8}
    write_json(folder / "cost.json", cost | {"device": "cpu"})
    return folder


def measured(folder, suites=None, weights="w", **more):
    """Puts a method's metrics into the file of its run folder, and beside them what its predictions cost."""
    seed = folder.parts[-2].removeprefix("seed-")
    about = {"experiment": folder.parts[-4], "method": folder.name, "seed": seed, "code": "abc", "weights": weights}
    about |= {"backbone": folder.parts[-3], "made_from": "f00d", **more}
    path = folder.with_name("metrics.json")
    methods = read_json(path)["methods"] if path.exists() else {}
    suites = suites or {"test": [RECORD]}
    methods[folder.name] = {
        suite: {"about": about | {"suite": suite}, "records": list(records)} for suite, records in suites.items()
    }
    write_json(path, {"format": FORMAT, "methods": methods})
    seconds = {str(record["samples"]): record["samples"] / 4 for record in suites["test"]}
    cost = {"parameters": 7, "train_seconds": 2.5, "device": "cpu", "threads": 1, "peak_memory_bytes": 9}
    write_json(folder / "predictions/cost.json", cost | {"suites": {"test": {"examples": 9, "seconds": seconds}}})
    return path


def seed_folder(experiment="digits", seed=0, nll=0.5):
    """A backbone and its row `mle`."""
    run = Path(f"results/runs/{experiment}/softmax/seed-{seed}")
    backbone = trained(run / "backbone", training="{epochs: 2}", model="{width: 64}")
    weights = file_digest(backbone / "model.safetensors")
    return [backbone], [measured(run / "mle", {"test": [RECORD | {"nll": nll}]}, weights)]


SEED = "results/runs/digits/softmax/seed-0"
MEAN = "results/runs/digits/softmax/seed-mean"


def test_trap_29_a_plain_ui_shows_the_runs(client, tmp_path):
    """mlflow 23634, 18534: the store is what `mlflow ui` opens by itself, artifacts lie at an absolute place."""
    publish_runs(*seed_folder())
    runs = runs_of(client)
    assert set(runs) == {f"{SEED}/backbone", f"{SEED}/mle", f"{MEAN}/mle/samples-1"}
    backbone, mle = (runs[f"{SEED}/{name}"] for name in ("backbone", "mle"))
    assert backbone.data.params["training.epochs"] == "2" and backbone.data.metrics["training/train_loss"] == 1.0
    assert [m.step for m in client.get_metric_history(backbone.info.run_id, "training/train_loss")] == [1, 2]
    origin = {key: backbone.data.tags[key] for key in ("code", "commit", "data", "split")}
    assert origin == {"code": "code of backbone", "commit": "def", "data": "123", "split": "456"}
    assert mle.info.artifact_uri.startswith("file:///") and str(tmp_path) in mle.info.artifact_uri
    assert artifacts(client, mle) == {"metrics.json", "predictions/cost.json"}
    assert mle.data.metrics == {
        "test/accuracy": 0.9,
        "test/nll": 0.5,
        "cost/parameters": 7.0,
        "cost/train_seconds": 2.5,
        "cost/peak_memory_bytes": 9.0,
        "cost/predict_seconds_per_1000": 1000 * 0.25 / 9,
    }
    assert not {"suite", "made_from", "weights", "data", "best_epoch"} & set(mle.data.params)


def test_names_are_for_people_and_nothing_is_hidden_under_a_parent(client):
    """A path is cut off in the browser, and a nested run is not seen until its parent is opened."""
    publish_runs(*seed_folder())
    measured(Path(f"{SEED}/director"), {"test": [RECORD, RECORD | {"samples": 10}]})
    pooled = measured(Path("results/runs/digits/softmax/seed-pooled/ensemble"), {"test": [RECORD | {"samples": 3}]})
    publish_runs([f"{SEED}/backbone"], [f"{SEED}/metrics.json", pooled])
    runs = runs_of(client).values()
    assert {run.info.run_name for run in runs} == {
        "backbone · softmax · seed 0",
        "mle · softmax · seed 0",
        "mle · softmax · mean",
        "director · softmax · seed 0",
        "director · softmax · S = 1 · mean",
        "director · softmax · S = 10 · mean",
        "ensemble · softmax · pooled",
        "ensemble · softmax · mean",
    }
    assert not any("mlflow.parentRunId" in run.data.tags for run in runs)


def test_every_run_has_the_parameters_of_its_training(client):
    """A row that trains nothing has those of its weights, a student also its teacher's, an ensemble the shared ones."""
    pairs = zip(*(seed_folder(seed=seed) for seed in (0, 1)), strict=True)
    backbones, metrics = ([file for files in pair for file in files] for pair in pairs)
    weights = [file_digest(folder / "model.safetensors") for folder in backbones]
    student = trained(backbones[0].with_name("director"), training="{epochs: 9}", teacher=weights[0])
    measured(student, weights=file_digest(student / "model.safetensors"))
    measured(student.with_name("temperature"), weights=weights[0], temperature=1.5)
    pooled = measured(Path("results/runs/digits/softmax/seed-pooled/ensemble"), weights=weights)
    publish_runs([*backbones, student], [*metrics, pooled])
    runs = runs_of(client)
    names = ("model.width", "training.epochs", "method", "seed", "samples", "threads")
    shown = {
        path: [runs[path].data.params.get(name) for name in names]
        for path in (
            f"{SEED}/backbone",
            f"{SEED}/mle",
            str(student),
            f"{SEED}/temperature",
            str(pooled.with_name("ensemble")),
        )
    }
    assert list(shown.values()) == [
        ["64", "2", "backbone", "0", None, None],
        ["64", "2", "mle", "0", "1", "1"],
        ["64", "9", "director", "0", "1", "1"],
        ["64", "2", "temperature", "0", "1", "1"],
        ["64", "2", "ensemble", "pooled", "1", "1"],
    ]
    temperature = runs[f"{SEED}/temperature"].data
    assert temperature.metrics["temperature"] == 1.5 and "temperature" not in temperature.params
    assert all({"cost/parameters", "cost/train_seconds"} <= set(run.data.metrics) for run in runs.values())
    mean = runs[f"{MEAN}/mle/samples-1"].data.params
    assert (mean["model.width"], mean["seed"], mean["samples"]) == ("64", "mean", "1")


def test_each_row_of_the_table_is_a_run_of_means(client):
    """The most samples share their names with methods that have one; of fewer there is a row of its own."""
    values = {0: 0.2, 1: 0.4, 2: 0.9}
    seed_folder()
    files = []
    for seed, nll in values.items():
        one, ten = RECORD | {"nll": 2 * nll}, {"samples": 10, "nll": nll, "auroc": None if seed else 0.5}
        folder = Path(f"results/runs/digits/softmax/seed-{seed}/director")
        files.append(measured(folder, {"test": [one, RECORD | ten]}))
    publish_runs([], files)
    runs = runs_of(client)
    seed = runs[f"{SEED}/director"].data.metrics
    assert (seed["test/nll"], seed["test/s1/nll"]) == (0.2, 0.4)
    assert "test/nll" in runs[f"{SEED}/mle"].data.metrics, "the same column as that of a method with one pass"
    for samples, factor in ((10, 1), (1, 2)):
        mean = runs[f"{MEAN}/director/samples-{samples}"].data
        assert mean.params["samples"] == str(samples) and mean.metrics["seeds"] == 3
        assert mean.metrics["test/nll"] == pytest.approx(factor * 0.5)
        assert mean.metrics["test/std/nll"] == pytest.approx(factor * np.std(list(values.values()), ddof=1))
        assert mean.metrics["cost/predict_seconds_per_1000"] == pytest.approx(1000 * samples / 4 / 9)
        assert "test/auroc" not in mean.metrics, "undefined for a seed"
    single = runs[f"{MEAN}/mle/samples-1"].data.metrics
    assert single["seeds"] == 1 and "test/std/nll" not in single


def test_times_are_those_of_the_work(client):
    """Snakemake's record of the jobs; without it, the time of the file."""
    files = seed_folder()
    for output, began, ended in (
        (f"{SEED}/backbone/model.safetensors", 1e9, 1e9 + 60),
        (f"{SEED}/mle/predictions/manifest.json", 2e9, 2e9 + 5),
    ):
        name = base64.urlsafe_b64encode(output.encode()).decode()
        write_json(f".snakemake/metadata/{name}", {"starttime": began, "endtime": ended})
    unrecorded = trained(Path("results/runs/digits/kep_svgp_1/seed-0/backbone"))
    os.utime(unrecorded / "model.safetensors", (3e9, 3e9))
    first = publish_runs([*files[0], unrecorded], files[1])
    times = {path: (run.info.start_time / 1000, run.info.end_time / 1000) for path, run in runs_of(client).items()}
    assert times == {
        f"{SEED}/backbone": (1e9, 1e9 + 60),
        f"{SEED}/mle": (2e9, 2e9 + 5),
        f"{MEAN}/mle/samples-1": (2e9, 2e9 + 5),
        str(unrecorded): (3e9, 3e9),
    }
    os.utime(unrecorded / "model.safetensors", (4e9, 4e9))
    assert publish_runs([*files[0], unrecorded], files[1]) == first, "a copy has other times, and is the same"


def test_a_student_is_one_run_with_training_and_metrics(client):
    """Its folder holds both."""
    backbones, metrics = seed_folder()
    student = trained(backbones[0].with_name("director"), "train_path", losses="{path: kl}", teacher="fedc")
    records = [RECORD | {"samples": 1, "accuracy": 0.7}, RECORD | {"samples": 10, "accuracy": 0.8}]
    weights = file_digest(student / "model.safetensors")
    measured(student, {"test": records, "ood-photographs": records[1:]}, weights)  # into the file of the run folder
    ids = publish_runs([*backbones, student], metrics)
    runs = runs_of(client)
    means = {f"{MEAN}/{row}" for row in ("mle/samples-1", "director/samples-1", "director/samples-10")}
    assert set(runs) == set(ids) == {str(folder) for folder in (*backbones, student, student.with_name("mle"))} | means
    run = runs[str(student)]
    assert run.data.metrics == {
        "test/s1/accuracy": 0.7,
        "test/accuracy": 0.8,
        "ood-photographs/accuracy": 0.8,
        "training/train_path": 1.0,
        "training/val_nll": 1.5,
        "training/best_epoch": 1.0,
        "training/peak_memory_bytes": 8.0,
        "cost/s1/predict_seconds_per_1000": 1000 * 0.25 / 9,
        "cost/predict_seconds_per_1000": 1000 * 2.5 / 9,
        "cost/parameters": 7.0,
        "cost/train_seconds": 2.5,
        "cost/peak_memory_bytes": 9.0,
    }
    assert (run.data.params["losses.path"], run.data.params["method"]) == ("kl", "director")
    assert (run.data.tags["weights"], run.data.tags["teacher"]) == (weights, "fedc")
    files = {"metrics.json", "predictions/cost.json", "history.csv", "settings.yaml", "cost.json"}
    assert artifacts(client, run) == files


def test_a_changed_student_replaces_its_run_and_no_other(client):
    backbones, metrics = seed_folder()
    student = trained(backbones[0].with_name("director"))
    before = publish_runs([*backbones, student], metrics)
    write_text(student / "model.safetensors", "other weights")
    after = publish_runs([*backbones, student], metrics)
    assert {path for path in before if before[path] != after[path]} == {str(student)}
    assert len(runs_of(client)) == 4


def test_a_changed_method_replaces_its_run_and_no_other(client):
    """All methods of a run folder share one file of metrics."""
    backbones, metrics = seed_folder()
    other = backbones[0].with_name("mc_dropout")
    measured(other)
    mean = f"{MEAN}/mc_dropout/samples-1"
    before = publish_runs(backbones, metrics)
    cell = {"shift": "fog", "severity": 1, "accuracy": 0.3}
    measured(other, {"test": [RECORD], "corrupted": [RECORD | cell, RECORD | {"shift": "overall"}]})
    after = publish_runs(backbones, metrics)
    assert {path for path in before if before[path] != after[path]} == {str(other), mean}
    run = runs_of(client)[str(other)]
    assert "corrupted/accuracy" in run.data.metrics
    content = Path(client.download_artifacts(run.info.run_id, "metrics.json")).read_text()
    assert '"fog"' in content and '"mle"' not in content, "single corruptions of this method alone"


def test_each_experiment_has_its_runs(client):
    """One job publishes all: a path says to which experiment a run belongs."""
    files = [seed_folder(experiment) for experiment in ("digits", "cola")]
    trained_folders, metrics = ([file for part in side for file in part] for side in zip(*files, strict=True))
    ids = publish_runs(trained_folders, metrics)
    assert len(ids) == 6
    for experiment in ("digits", "cola"):
        run = f"results/runs/{experiment}/softmax/seed-0"
        runs = runs_of(client, experiment)
        mean = f"results/runs/{experiment}/softmax/seed-mean/mle/samples-1"
        assert set(runs) == {f"{run}/backbone", f"{run}/mle", mean}
        assert {name: mlflow_run.info.run_id for name, mlflow_run in runs.items()} == {name: ids[name] for name in runs}


def test_metrics_are_the_overall_ones_and_named_by_suite(tmp_path):
    """Cells of single corruptions stay in the file, which is an artifact."""
    cells = [RECORD | {"shift": "fog", "severity": 2, "accuracy": 0.1}, RECORD | {"shift": "overall", "accuracy": 0.5}]
    folder = tmp_path / "runs/digits/softmax/seed-0/mc_dropout"

    def run(*samples):
        suites = {
            suite: [cell | {"samples": number} for number in samples for cell in cells]
            for suite in ("corrupted", "test")
        }
        return measured_run(folder, read_json(measured(folder, suites))["methods"]["mc_dropout"])

    corrupted = [metric for metric in run(3).metrics if metric[0].startswith("corrupted/")]
    assert corrupted == [("corrupted/accuracy", 0.5, 0), ("corrupted/auroc", None, 0)]
    assert (run(3).path, run(3).tags["weights"]) == (str(folder), "w") and '"fog"' in run(3).texts["metrics.json"]
    names = [name for name, _, _ in run(1, 3).metrics if name.startswith("corrupted/")]
    assert names == [
        *(f"corrupted/{metric}" for metric in ("accuracy", "auroc")),
        *(f"corrupted/s1/{metric}" for metric in ("accuracy", "auroc")),
    ]


@pytest.mark.parametrize("name", ["settings.yaml", "history.csv", "cost.json"])
@pytest.mark.parametrize("content", ["", "[]", "7", "epoch\nfirst\n", "\t: ["])
def test_a_training_file_of_something_else_is_named(tmp_path, name, content):
    folder = trained(tmp_path / "digits/softmax/seed-0/backbone")
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}: not .*; delete it and run the same command again"):
        training_run(folder)


def test_an_empty_variable_is_an_unset_one(tmp_path):
    """MLflow would make a number of the empty text."""
    names = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_TRACKING_URI")
    script = f"import os, director.report.tracking as t; print(*[os.environ[name] for name in {names[:2]}], t._store())"
    for value, expected in (("", ["1", "8", "sqlite:///mlflow.db"]), ("5", ["5", "5", "5"])):
        environment = os.environ | dict.fromkeys(names, value)
        ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert ended.stdout.split() == expected, ended.stderr


def test_trap_31_publishing_twice_changes_nothing(client):
    """mlflow 7046, 7152, 16555: no duplicate, no error, the same runs."""
    files = seed_folder()
    first = publish_runs(*files)
    assert publish_runs(*files) == first
    assert len(runs_of(client)) == 3


def test_trap_31_undefined_and_infinite_values_are_not_logged(client):
    """mlflow 25640: a chart would draw them as numbers."""
    values = [("good", 1.0, 0), ("undefined", None, 0), ("nan", math.nan, 0), ("infinite", math.inf, 0)]
    publish("digits", [a_run("results/digits/a", metrics=values)])
    assert runs_of(client)["results/digits/a"].data.metrics == {"good": 1.0}


def test_a_changed_run_is_replaced_and_a_vanished_one_deleted(client):
    one, two = a_run("one", {"a": 1}), a_run("two", {"a": 1})
    before = publish("digits", [one, two])
    after = publish("digits", [a_run("one", {"a": 2})])
    assert after["one"] != before["one"]
    runs = runs_of(client)
    assert set(runs) == {"one"} and runs["one"].data.params == {"a": "2"}


def test_a_publication_killed_half_way_is_made_good(client, monkeypatch):
    """A run that was begun and never finished is replaced, whatever it already held."""
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish("digits", [a_run("one", {"a": 1})])
    publish("digits", [a_run("one", {"a": 1})])
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert [(run.data.tags["director.path"], run.info.status, run.data.params) for run in runs] == [
        ("one", "FINISHED", {"a": "1"})
    ]


def test_other_experiments_are_left_alone(client):
    publish("cifar10", [a_run("theirs")])
    publish("digits", [a_run("ours")])
    assert set(runs_of(client, "cifar10")) == {"theirs"}


def test_runs_of_others_in_the_same_experiment_are_left_alone(client):
    """A colleague's, made by hand, and those of an earlier version, which say a path but not whose they are."""
    experiment = client.create_experiment("digits")
    for name, tags in {"theirs": {}, "ours": {"director.path": "ours"}}.items():
        client.create_run(experiment, run_name=name, tags=tags)
    publish("digits", [a_run("ours"), a_run("gone")])
    publish("digits", [a_run("ours")])
    found = client.search_runs([experiment])
    assert sorted(run.data.tags.get("director.path", "theirs") for run in found) == ["ours", "ours", "theirs"]


@pytest.mark.parametrize("results_came_along", [False, True])
def test_a_second_clone_has_runs_of_its_own_in_one_store(client, tmp_path, monkeypatch, results_came_along):
    """Be it a clone of git, with results from DVC, or a copy of the whole folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    first = publish("digits", [a_run("one"), a_run("two")])
    second = tmp_path / "second"
    second.mkdir()
    if results_came_along:
        shutil.copytree("results", second / "results")
    monkeypatch.chdir(second)
    publish("digits", [a_run("one", {"a": 2})])
    publish("digits", [a_run("one", {"a": 3})])
    monkeypatch.chdir(tmp_path)
    assert publish("digits", [a_run("one"), a_run("two")]) == first
    found = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    names = sorted((run.data.tags["director.path"], run.data.params.get("a", "")) for run in found)
    assert names == [("one", ""), ("one", "3"), ("two", "")]


@pytest.mark.parametrize("original", ["gone", "there"])
def test_a_copied_study_writes_into_its_own_folder(empty_store, tmp_path, monkeypatch, original):
    """The database holds absolute paths: without care, artifacts land in the folder that it was copied from."""
    first, copy = tmp_path / "the first", tmp_path / "a copy"
    first.mkdir()
    shutil.copy(empty_store, first / "mlflow.db")
    monkeypatch.chdir(first)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    forget_stores()
    publish("digits", [a_run("one", texts={"a.txt": "1"})])
    shutil.copytree(first, copy)
    before = sorted(first.rglob("*"))
    if original == "gone":
        shutil.rmtree(first)
        before = []
    monkeypatch.chdir(copy)
    forget_stores()
    for content in ("1", "2"):
        publish("digits", [a_run("one", texts={"a.txt": content})])
    here = MlflowClient("sqlite:///mlflow.db")
    run = runs_of(here)["one"]
    assert Path(here.download_artifacts(run.info.run_id, "a.txt")).read_text() == "2"
    assert copy.as_uri() in run.info.artifact_uri and sorted(first.rglob("*")) == before
    names = {experiment.name for experiment in here.search_experiments()}
    assert names == {"Default", "digits", "digits (artifacts elsewhere, 1)"}, "set aside once"


def test_an_experiment_made_by_hand_in_this_folder_is_used(client):
    client.create_experiment("digits")
    publish("digits", [a_run("one", texts={"a.txt": "1"})])
    assert artifacts(client, runs_of(client)["one"]) == {"a.txt"}


def test_tables_and_figures_are_artifacts_of_one_run(client, tmp_path):
    """Experiments have figures of the same names."""
    write_text(tmp_path / "main.csv", "a\n")
    figures = [f"results/figures/{experiment}/reliability.svg" for experiment in ("digits", "cola")]
    for figure in figures:
        write_text(figure, "<svg/>")
    publish_tables(["main.csv"], figures)
    expected = {"tables/main.csv", "figures/digits/reliability.svg", "figures/cola/reliability.svg"}
    assert artifacts(client, runs_of(client, "tables")["results/tables"]) == expected


def test_artifacts_that_do_not_arrive_are_noticed(client, tmp_path):
    """Two files of one name in one folder of the run: its first publication is not taken for a finished one."""
    for folder in ("a", "b"):
        write_text(tmp_path / folder / "tiny" / "x.svg", folder)
    with pytest.raises(InputError, match="results/tables: 1 of its 2 artifacts arrived"):
        publish_tables([], ["a/tiny/x.svg", "b/tiny/x.svg"])
    assert runs_of(client, "tables")["results/tables"].info.status == "RUNNING"
    publish_tables([], ["b/tiny/x.svg"])
    assert runs_of(client, "tables")["results/tables"].info.status == "FINISHED"


@pytest.fixture
def deaf():
    """Address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://name:secret@127.0.0.1:{server.getsockname()[1]}"


def spoil(store, way):
    """A store that something is wrong with; what it returns is to be kept."""
    if way == "damaged":
        store.write_bytes(b"no database" * 99)
        return None
    connection = sqlite3.connect(store, isolation_level=None)
    if way == "locked":
        connection.execute("BEGIN EXCLUSIVE")
    else:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    return connection


def attempted(tmp_path):
    """One publication as a job makes it: what its flag and the screen say, and the seconds it took."""
    start, screen = time.monotonic(), io.StringIO()
    attempt(lambda: publish("digits", [a_run("one")]), tmp_path / "runs.json", screen)
    return read_json(tmp_path / "runs.json"), screen.getvalue(), time.monotonic() - start


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("damaged", "sqlite:///mlflow.db: the database is damaged; move its file away"),
        ("locked", "sqlite:///mlflow.db: the database is locked; end what holds it"),
        ("old", "sqlite:///mlflow.db: the database is of another version of MLflow; copy it, then `mlflow db upgrade`"),
        ("read-only", "the database cannot be written; change that, or set MLFLOW_TRACKING_URI"),
        ("away", "http://127.0.0.1:9: the server does not answer; start it, or correct or unset MLFLOW_TRACKING_URI"),
        ("deaf", "the server does not answer"),
        ("deleted", "'digits': it was deleted; `mlflow experiments restore -x 1` brings it back, `mlflow gc"),
    ],
)
def test_a_store_that_fails_is_one_line_of_warning_and_publication_stays_due(
    client, tmp_path, monkeypatch, deaf, caplog, fault, words
):
    uris = {"read-only": "sqlite:///file:mlflow.db?mode=ro&uri=true", "away": "http://127.0.0.1:9", "deaf": deaf}
    if fault == "deleted":
        client.delete_experiment(client.create_experiment("digits"))
    elif fault in uris:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uris[fault])
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # the user's own value stands
    forget_stores()
    kept = None if fault == "deleted" or fault in uris else spoil(tmp_path / "mlflow.db", fault)
    flag, screen, seconds = attempted(tmp_path)
    assert screen.startswith("warning: not published to MLflow (") and screen.count("\n") == 1 and words in screen
    assert "the same command tries again" in screen and "secret" not in screen
    assert set(flag) == {"due"} and words in flag["due"] and words in caplog.text
    assert failed_attempts(tmp_path / "runs.json") == 1 and seconds < 10
    assert not is_lost(tmp_path / "runs.json"), "it is not there yet"
    if kept:
        kept.close()


def test_a_publication_that_succeeds_after_a_failed_one(client, tmp_path, monkeypatch):
    """The number of failures stays, so that nothing is due any more."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    attempted(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # as good as unset
    flag, screen, _ = attempted(tmp_path)
    assert flag == {"one": runs_of(client)["one"].info.run_id} and screen == ""
    assert failed_attempts(tmp_path / "runs.json") == 1


def test_a_fault_of_our_own_does_not_hold_up_the_table_either(tmp_path, caplog):
    screen = io.StringIO()
    attempt(lambda: {}["missing"], tmp_path / "runs.json", screen)
    assert "KeyError: 'missing'; the log has more" in screen.getvalue() and "Traceback" in caplog.text


def test_a_store_that_is_gone_is_noticed(client, tmp_path, monkeypatch):
    attempted(tmp_path)
    assert not is_lost(tmp_path / "runs.json")
    Path("mlflow.db").unlink()
    assert is_lost(tmp_path / "runs.json")
    assert not is_lost(tmp_path / "none.json")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert not is_lost(tmp_path / "runs.json"), "that of a server cannot be seen from here"


TABULATED = r" of \d+  tabulate  "  # the line of the finished job


@pytest.mark.pipeline
def test_the_table_is_made_without_mlflow_and_the_same_command_publishes_later(study, tmp_path, monkeypatch):
    copied = study.copy(tmp_path / "study")
    for path in ("results/published", "results/tables"):
        shutil.rmtree(copied.folder / path)
    main = "results/tables/main.csv"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for made in (1, 0):
        ended = copied.snakemake("--cores", "2", main)
        assert (copied.folder / main).read_bytes() == (study.folder / main).read_bytes()
        assert ended.stderr.count("warning: not published") == 1
        assert len(re.findall(TABULATED, ended.stderr)) == made
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    ended = copied.snakemake("--cores", "2", main)
    assert "not published" not in ended.stderr and not re.search(TABULATED, ended.stderr)
    assert "results/runs/tiny/softmax/seed-0/mle" in read_json(copied.folder / "results/published/runs.json")
    assert copied.plan(main) == {}


def test_many_metrics_fit_in_batches(client):
    """MLflow takes 1,000 metrics and 100 parameters in one request."""
    publish("digits", [a_run("long", {f"p{n}": n for n in range(150)}, [("loss", float(n), n) for n in range(2500)])])
    run = runs_of(client)["long"]
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 2500 and len(run.data.params) == 150


def epochs(*numbers):
    """Lines of a training's log."""
    start = "2026-12-03 10:00:00,123 INFO director.training.fit: epoch"
    return "".join(f"{start} {n}, learning_rate 1e-05, train_loss 0.{n}, val_nll 1\n" for n in numbers)


def running(*seeds):
    """What a driver notes while it trains these seeds."""
    about = {"rule": "train_backbone", "experiment": "digits", "epochs": 9}
    jobs = {f"train_backbone digits/softmax/{seed}": f"logs/{seed}.log" for seed in seeds}
    write_json(RUNNING, [{**about, "name": name, "log": log} for name, log in jobs.items()])


def live_run(client, seed):
    return runs_of(client)[f"live: train_backbone digits/softmax/{seed}"]


def curve(client, seed, name="train_loss"):
    history = client.get_metric_history(live_run(client, seed).info.run_id, f"training/{name}")
    return [(metric.step, metric.value) for metric in history]


def test_curves_grow_with_their_training_and_give_way_to_the_finished_run(client):
    runs = LiveRuns(client)
    runs.look()  # the driver has not noted anything yet
    running(0, 1)
    write_text("logs/0.log", epochs(1, 2))
    runs.look()
    runs.look()
    assert curve(client, 0) == [(1, 0.1), (2, 0.2)], "each epoch once"
    assert curve(client, 0, "learning_rate")[0] == (1, 1e-05)
    assert curve(client, 1) == [] and live_run(client, 1).info.status == "RUNNING"
    running(0)
    write_text("logs/0.log", f"{epochs(1, 2)}{AGAIN}\n{epochs(2, 3)}")
    runs.look()
    assert curve(client, 0) == [(1, 0.1), (2, 0.2), (3, 0.3)], "one that resumes goes on"
    assert live_run(client, 1).info.status == "FINISHED"
    runs.close()
    assert live_run(client, 0).info.status == "KILLED"
    publish("digits", [a_run("results/runs/digits/softmax/seed-0/backbone")])
    assert set(runs_of(client)) == {"results/runs/digits/softmax/seed-0/backbone"}


def test_only_a_server_is_told_of_running_trainings(client, monkeypatch):
    assert start_beside() is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    assert start_beside() is None


@contextlib.contextmanager
def driver():
    """A process that starts what streams the curves, and is killed."""
    starting = "import gc, time; from director.report.live import start_beside; print(start_beside(), flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{starting}; gc.collect(); time.sleep(600)"], stdout=subprocess.PIPE, text=True
    )
    beside = int(process.stdout.readline())
    try:
        yield
        assert Path(f"/proc/{beside}").exists()
    finally:
        process.kill()
        process.wait()
    assert within(60, lambda: not Path(f"/proc/{beside}").exists()), "nothing is left behind"


def within(seconds, condition):
    """Whether it comes true in time; what it raises counts as not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            if condition():
                return True
        time.sleep(0.2)
    return False


def test_a_server_that_does_not_answer_is_one_warning_and_nothing_waits(client, monkeypatch, deaf):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", deaf)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    running(0)
    with driver():
        assert not LOG.read_text(), "the driver goes on before the server was asked"
        assert within(60, lambda: LOG.read_text())
    said = LOG.read_text()
    assert said.count("training curves do not arrive") == 1 and "secret" not in said


def test_curves_arrive_after_a_server_was_killed_and_started_again(client, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")

    def serve():
        command = f"mlflow server --port {port} --workers 1 --backend-store-uri sqlite:///mlflow.db".split()
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-m", *command], start_new_session=True, **silent)

    running(0)
    write_text("logs/0.log", epochs(1))
    server = serve()
    try:
        with driver():
            assert within(90, lambda: curve(client, 0)[-1][0] == 1)
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            write_text("logs/0.log", epochs(1, 2))
            assert within(60, lambda: "do not arrive" in LOG.read_text())
            server = serve()
            assert within(90, lambda: curve(client, 0)[-1][0] == 2)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert live_run(client, 0).info.status == "KILLED"

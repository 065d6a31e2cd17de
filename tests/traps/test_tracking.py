"""Traps of tracking: runs that do not show, doubled runs, numbers that are none."""

import math
import shutil

import pytest
from mlflow import MlflowClient

from director.files import write_json, write_text
from director.tracking import Run, publish, publish_runs, publish_tables


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A fresh database: making its schema takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def client(tmp_path, monkeypatch, empty_store):
    """MLflow with its default store in an empty folder, as a plain `mlflow ui` there would open it."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return MlflowClient("sqlite:///mlflow.db")


def runs_of(client, experiment="digits"):
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in found}


def seed_folder(tmp_path, accuracy=0.9):
    run = tmp_path / "results/digits/softmax/seed-0"
    write_text(run / "backbone/model.safetensors", "weights")
    write_text(run / "backbone/history.csv", "epoch,train_loss,val_nll\n1,2.0,1.5\n2,1.0,\n")
    write_text(run / "backbone/settings.yaml", "seed: 0\ntraining: {epochs: 2}\ncode: abc\ncommit: def\ndata: 123\n")
    write_json(run / "backbone/cost.json", {"parameters": 7, "train_seconds": 1.5, "device": "cpu"})
    about = {"experiment": "digits", "method": "mle", "seed": 0, "suite": "test", "code": "abc", "weights": "w"}
    record = {"samples": 1, "pooling": "softmax", "shift": "clean", "severity": 0, "n": 9, "accuracy": accuracy}
    metrics = run / "mle/metrics/test.json"
    write_json(metrics, {"about": about, "records": [record | {"auroc": None}]})
    return [run.relative_to(tmp_path) / "backbone"], [metrics.relative_to(tmp_path)]


def test_trap_29_a_plain_ui_shows_the_runs(client, tmp_path):
    """mlflow 23634, 18534: the store is what `mlflow ui` opens by itself, artifacts lie at an absolute place."""
    publish_runs("digits", *seed_folder(tmp_path))
    runs = runs_of(client)
    assert set(runs) == {"results/digits/softmax/seed-0/backbone", "results/digits/softmax/seed-0/mle"}
    backbone, mle = (runs[f"results/digits/softmax/seed-0/{name}"] for name in ("backbone", "mle"))
    assert backbone.data.params["training.epochs"] == "2" and backbone.data.metrics["train_loss"] == 1.0
    assert [m.step for m in client.get_metric_history(backbone.info.run_id, "train_loss")] == [1, 2]
    assert (backbone.data.tags["code"], backbone.data.tags["commit"], backbone.data.tags["data"]) == (
        "abc",
        "def",
        "123",
    )
    assert mle.data.metrics["test/accuracy"] == 0.9
    assert mle.data.tags["mlflow.parentRunId"] == backbone.info.run_id
    assert mle.info.artifact_uri.startswith("file:///") and str(tmp_path) in mle.info.artifact_uri
    assert [file.path for file in client.list_artifacts(mle.info.run_id)] == ["test.json"]


def test_trap_31_publishing_twice_changes_nothing(client, tmp_path):
    """mlflow 7046, 7152, 16555: no duplicate, no error, the same runs."""
    files = seed_folder(tmp_path)
    first = publish_runs("digits", *files)
    assert publish_runs("digits", *files) == first
    assert len(runs_of(client)) == 2


def test_trap_31_undefined_and_infinite_values_are_not_logged(client):
    """mlflow 25640: a chart would draw them as numbers."""
    values = [("good", 1.0, 0), ("undefined", None, 0), ("nan", math.nan, 0), ("infinite", math.inf, 0)]
    publish("digits", [Run("results/digits/a", metrics=values)])
    assert runs_of(client)["results/digits/a"].data.metrics == {"good": 1.0}


def test_a_changed_run_is_replaced_and_a_vanished_one_deleted(client):
    one, two = Run("one", {"a": 1}), Run("two", {"a": 1})
    before = publish("digits", [one, two])
    after = publish("digits", [Run("one", {"a": 2})])
    assert after["one"] != before["one"]
    runs = runs_of(client)
    assert set(runs) == {"one"} and runs["one"].data.params == {"a": "2"}


def test_a_publication_killed_half_way_is_made_good(client, monkeypatch):
    """A run that was begun and never finished is replaced, whatever it already held."""
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish("digits", [Run("one", {"a": 1})])
    publish("digits", [Run("one", {"a": 1})])
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert [(run.info.run_name, run.info.status, run.data.params) for run in runs] == [("one", "FINISHED", {"a": "1"})]


def test_other_experiments_are_left_alone(client):
    publish("cifar10", [Run("theirs")])
    publish("digits", [Run("ours")])
    assert set(runs_of(client, "cifar10")) == {"theirs"}


def test_tables_and_figures_are_artifacts_of_one_run(client, tmp_path):
    write_text(tmp_path / "main.csv", "a\n")
    write_text(tmp_path / "figure.svg", "<svg/>")
    publish_tables(["main.csv"], ["figure.svg"])
    run = runs_of(client, "tables")["results/tables"]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"main.csv", "figure.svg"}


def test_many_metrics_fit_in_batches(client):
    """MLflow takes 1,000 metrics and 100 parameters in one request."""
    publish("digits", [Run("long", {f"p{n}": n for n in range(150)}, [("loss", float(n), n) for n in range(2500)])])
    run = runs_of(client)["long"]
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 2500 and len(run.data.params) == 150

"""Traps of tracking: runs that do not show, doubled runs, numbers that are none."""

import math
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from director.files import file_digest, write_json, write_text
from director.report.tracking import Run, publish, publish_runs, publish_tables, run_of


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


RECORD = {"samples": 1, "pooling": "softmax", "shift": "clean", "severity": 0, "n": 9, "accuracy": 0.9, "auroc": None}


def trained(folder, term="train_loss", **settings):
    """What a training leaves: weights, history of two epochs, settings, cost."""
    write_text(folder / "model.safetensors", f"weights of {folder.name}")
    write_text(folder / "history.csv", f"epoch,{term},val_nll\n1,2.0,1.5\n2,1.0,\n")
    lines = {"seed": 0, "code": f"code of {folder.name}", "commit": "def", "data": "123"} | settings
    write_text(folder / "settings.yaml", "".join(f"{key}: {value}\n" for key, value in lines.items()))
    write_json(folder / "cost.json", {"parameters": 7, "train_seconds": 1.5, "device": "cpu"})
    return folder


def measured(folder, suite="test", records=(RECORD,)):
    """A file of metrics."""
    about = {"experiment": "digits", "method": folder.name, "seed": 0, "suite": suite, "code": "abc", "weights": "w"}
    path = folder / f"metrics/{suite}.json"
    write_json(path, {"about": about, "records": list(records)})
    return path


def seed_folder():
    run = Path("results/digits/softmax/seed-0")
    return [trained(run / "backbone", training="{epochs: 2}")], [measured(run / "mle")]


def test_trap_29_a_plain_ui_shows_the_runs(client, tmp_path):
    """mlflow 23634, 18534: the store is what `mlflow ui` opens by itself, artifacts lie at an absolute place."""
    publish_runs("digits", *seed_folder())
    runs = runs_of(client)
    assert set(runs) == {"results/digits/softmax/seed-0/backbone", "results/digits/softmax/seed-0/mle"}
    backbone, mle = (runs[f"results/digits/softmax/seed-0/{name}"] for name in ("backbone", "mle"))
    assert backbone.data.params["training.epochs"] == "2" and backbone.data.metrics["train_loss"] == 1.0
    assert [m.step for m in client.get_metric_history(backbone.info.run_id, "train_loss")] == [1, 2]
    assert (backbone.data.tags["code"], backbone.data.tags["commit"], backbone.data.tags["data"]) == (
        "code of backbone",
        "def",
        "123",
    )
    assert mle.data.metrics["test/accuracy"] == 0.9
    assert mle.data.tags["mlflow.parentRunId"] == backbone.info.run_id
    assert mle.info.artifact_uri.startswith("file:///") and str(tmp_path) in mle.info.artifact_uri
    assert [file.path for file in client.list_artifacts(mle.info.run_id)] == ["test.json"]


def test_a_student_is_one_run_with_training_and_metrics(client):
    """Its folder holds both; the backbone it was distilled from is its parent, as that of the other methods."""
    backbones, metrics = seed_folder()
    student = trained(backbones[0].with_name("director"), "train_path", losses="{path: kl}", teacher="fedc")
    records = [RECORD | {"samples": 1, "accuracy": 0.7}, RECORD | {"samples": 10, "accuracy": 0.8}]
    metrics += [measured(student, records=records), measured(student, "ood-photographs", records[1:])]
    ids = publish_runs("digits", [*backbones, student], metrics)
    runs = runs_of(client)
    assert set(runs) == set(ids) == {str(folder) for folder in (*backbones, student, student.with_name("mle"))}
    run = runs[str(student)]
    assert run.data.metrics == {
        "test/samples-1/accuracy": 0.7,
        "test/samples-10/accuracy": 0.8,
        "ood-photographs/accuracy": 0.8,  # measured with one number of samples
        "train_path": 1.0,
        "val_nll": 1.5,
        "parameters": 7.0,
        "train_seconds": 1.5,
    }
    assert (run.data.params["losses.path"], run.data.params["teacher"], run.data.params["method"]) == (
        "kl",
        "fedc",
        "director",
    )
    assert run.data.tags["weights"] == file_digest(student / "model.safetensors")
    assert run.data.tags["mlflow.parentRunId"] == ids[str(backbones[0])]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"test.json", "ood-photographs.json", "history.csv", "settings.yaml", "cost.json"}


def test_a_changed_student_replaces_its_run_and_no_other(client):
    backbones, metrics = seed_folder()
    student = trained(backbones[0].with_name("director"))
    before = publish_runs("digits", [*backbones, student], metrics)
    write_text(student / "model.safetensors", "other weights")
    after = publish_runs("digits", [*backbones, student], metrics)
    assert {path for path in before if before[path] != after[path]} == {str(student)}
    assert len(runs_of(client)) == 3


def test_metrics_are_the_overall_ones_and_named_by_suite(tmp_path):
    """Cells of single corruptions stay in the file, which is an artifact."""
    cells = [RECORD | {"shift": "fog", "severity": 2, "accuracy": 0.1}, RECORD | {"shift": "overall", "accuracy": 0.5}]
    file = measured(tmp_path / "mc_dropout", "corrupted", [cell | {"samples": 3} for cell in cells])
    run = run_of(tmp_path / "mc_dropout", [file], parent="somewhere")
    assert run.metrics == [("corrupted/accuracy", 0.5, 0), ("corrupted/auroc", None, 0)]
    assert (run.parent, run.artifacts, run.tags["weights"]) == ("somewhere", (file,), "w")
    several = [cell | {"samples": samples} for samples in (1, 3) for cell in cells]
    run = run_of(tmp_path / "mc_dropout", [measured(tmp_path / "mc_dropout", "corrupted", several)])
    names = [f"corrupted/samples-{samples}/{metric}" for samples in (1, 3) for metric in ("accuracy", "auroc")]
    assert [name for name, _, _ in run.metrics] == names


def test_trap_31_publishing_twice_changes_nothing(client):
    """mlflow 7046, 7152, 16555: no duplicate, no error, the same runs."""
    files = seed_folder()
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

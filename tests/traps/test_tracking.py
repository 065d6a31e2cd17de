"""Traps of tracking: runs that do not show, doubled runs, numbers that are none."""

import math
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from director.files import file_digest, read_json, write_json, write_text
from director.numbers.measure import FORMAT
from director.report.tracking import Run, measured_run, publish, publish_runs, publish_tables


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


def artifacts(client, run):
    """Paths of all files of a run."""
    listed = client.list_artifacts(run.info.run_id)
    inside = [
        file for folder in listed if folder.is_dir for file in client.list_artifacts(run.info.run_id, folder.path)
    ]
    return {file.path for file in [*listed, *inside] if not file.is_dir}


RECORD = {"samples": 1, "pooling": "softmax", "shift": "clean", "severity": 0, "n": 9, "accuracy": 0.9, "auroc": None}


def trained(folder, term="train_loss", **settings):
    """What a training leaves: weights, history of two epochs, settings, cost."""
    write_text(folder / "model.safetensors", f"weights of {folder.name}")
    write_text(folder / "history.csv", f"epoch,{term},val_nll\n1,2.0,1.5\n2,1.0,\n")
    lines = {"seed": 0, "code": f"code of {folder.name}", "commit": "def", "data": "123"} | settings
    write_text(folder / "settings.yaml", "".join(f"{key}: {value}\n" for key, value in lines.items()))
    write_json(folder / "cost.json", {"parameters": 7, "train_seconds": 1.5, "device": "cpu"})
    return folder


def measured(folder, suites=None):
    """Puts a method's metrics into the file of its run folder, and beside them what its predictions cost."""
    about = {"experiment": folder.parts[-4], "method": folder.name, "seed": 0, "code": "abc", "weights": "w"}
    about |= {"backbone": "softmax", "made_from": "f00d"}
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


def seed_folder(experiment="digits"):
    run = Path(f"results/runs/{experiment}/softmax/seed-0")
    return [trained(run / "backbone", training="{epochs: 2}")], [measured(run / "mle")]


def test_trap_29_a_plain_ui_shows_the_runs(client, tmp_path):
    """mlflow 23634, 18534: the store is what `mlflow ui` opens by itself, artifacts lie at an absolute place."""
    publish_runs(*seed_folder())
    runs = runs_of(client)
    assert set(runs) == {"results/runs/digits/softmax/seed-0/backbone", "results/runs/digits/softmax/seed-0/mle"}
    backbone, mle = (runs[f"results/runs/digits/softmax/seed-0/{name}"] for name in ("backbone", "mle"))
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
    assert artifacts(client, mle) == {"metrics.json", "predictions/cost.json"}
    assert {
        key: mle.data.metrics[key] for key in ("parameters", "train_seconds", "test/samples-1/predict_seconds")
    } == {
        "parameters": 7.0,
        "train_seconds": 2.5,
        "test/samples-1/predict_seconds": 0.25,
    }
    assert not {"suite", "made_from", "weights"} & set(mle.data.params) and mle.data.params["method"] == "mle"


def test_a_student_is_one_run_with_training_and_metrics(client):
    """Its folder holds both; the backbone it was distilled from is its parent, as that of the other methods."""
    backbones, metrics = seed_folder()
    student = trained(backbones[0].with_name("director"), "train_path", losses="{path: kl}", teacher="fedc")
    records = [RECORD | {"samples": 1, "accuracy": 0.7}, RECORD | {"samples": 10, "accuracy": 0.8}]
    measured(student, {"test": records, "ood-photographs": records[1:]})  # into the file of the run folder
    ids = publish_runs([*backbones, student], metrics)
    runs = runs_of(client)
    assert set(runs) == set(ids) == {str(folder) for folder in (*backbones, student, student.with_name("mle"))}
    run = runs[str(student)]
    assert run.data.metrics == {
        "test/samples-1/accuracy": 0.7,
        "test/samples-10/accuracy": 0.8,
        "ood-photographs/accuracy": 0.8,  # measured with one number of samples
        "train_path": 1.0,
        "val_nll": 1.5,
        "test/samples-1/predict_seconds": 0.25,
        "test/samples-10/predict_seconds": 2.5,
        "parameters": 7.0,
        "train_seconds": 1.5,  # of the training itself
        "threads": 1.0,
        "peak_memory_bytes": 9.0,
    }
    assert (run.data.params["losses.path"], run.data.params["teacher"], run.data.params["method"]) == (
        "kl",
        "fedc",
        "director",
    )
    assert run.data.tags["weights"] == file_digest(student / "model.safetensors")
    assert run.data.tags["mlflow.parentRunId"] == ids[str(backbones[0])]
    files = {"metrics.json", "predictions/cost.json", "history.csv", "settings.yaml", "cost.json"}
    assert artifacts(client, run) == files


def test_a_changed_student_replaces_its_run_and_no_other(client):
    backbones, metrics = seed_folder()
    student = trained(backbones[0].with_name("director"))
    before = publish_runs([*backbones, student], metrics)
    write_text(student / "model.safetensors", "other weights")
    after = publish_runs([*backbones, student], metrics)
    assert {path for path in before if before[path] != after[path]} == {str(student)}
    assert len(runs_of(client)) == 3


def test_a_changed_method_replaces_its_run_and_no_other(client):
    """All methods of a run folder share one file of metrics."""
    backbones, metrics = seed_folder()
    other = backbones[0].with_name("mc_dropout")
    measured(other)
    before = publish_runs(backbones, metrics)
    cell = {"shift": "fog", "severity": 1, "accuracy": 0.3}
    measured(other, {"test": [RECORD], "corrupted": [RECORD | cell, RECORD | {"shift": "overall"}]})
    after = publish_runs(backbones, metrics)
    assert {path for path in before if before[path] != after[path]} == {str(other)}
    run = runs_of(client)[str(other)]
    assert "corrupted/accuracy" in run.data.metrics
    content = Path(client.download_artifacts(run.info.run_id, "metrics.json")).read_text()
    assert '"fog"' in content and '"mle"' not in content, "single corruptions of this method alone"


def test_each_experiment_has_its_runs(client):
    """One job publishes all: a path says to which experiment a run belongs."""
    files = [seed_folder(experiment) for experiment in ("digits", "cola")]
    trained_folders, metrics = ([file for part in side for file in part] for side in zip(*files, strict=True))
    ids = publish_runs(trained_folders, metrics)
    assert len(ids) == 4
    for experiment in ("digits", "cola"):
        run = f"results/runs/{experiment}/softmax/seed-0"
        runs = runs_of(client, experiment)
        assert set(runs) == {f"{run}/backbone", f"{run}/mle"}
        assert {name: mlflow_run.info.run_id for name, mlflow_run in runs.items()} == {name: ids[name] for name in runs}
        assert runs[f"{run}/mle"].data.tags["mlflow.parentRunId"] == ids[f"{run}/backbone"]


def test_a_run_made_of_all_seeds_has_no_parent(client):
    backbones, metrics = seed_folder()
    pooled = Path("results/runs/digits/softmax/seed-pooled/ensemble")
    publish_runs(backbones, [*metrics, measured(pooled)])
    assert "mlflow.parentRunId" not in runs_of(client)[str(pooled)].data.tags


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
    assert names == [f"corrupted/samples-{samples}/{metric}" for samples in (1, 3) for metric in ("accuracy", "auroc")]


def test_trap_31_publishing_twice_changes_nothing(client):
    """mlflow 7046, 7152, 16555: no duplicate, no error, the same runs."""
    files = seed_folder()
    first = publish_runs(*files)
    assert publish_runs(*files) == first
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

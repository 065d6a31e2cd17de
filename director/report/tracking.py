"""Runs in MLflow: the only place that knows it, and a sink: no number of the study comes from it.

Jobs write files; one process turns finished run folders into MLflow runs afterwards. Several processes writing to a
fresh database at once lose runs in its schema creation, so nothing else talks to MLflow.
"""

import csv
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from director.files import file_digest, read_json
from director.numbers.measure import read_metrics
from director.numbers.suites import read_cost
from director.provenance import fingerprint

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

STORE = "sqlite:///mlflow.db"  # MLflow's own default, so that a plain `mlflow ui` in the same folder shows the runs
PATH_TAG, DIGEST_TAG = "director.path", "director.digest"
ORIGIN = ("code", "commit", "data", "weights")  # where a run comes from: tags, not parameters
BATCH = 1000  # metrics in one request, MLflow's limit
PARAMETER_LENGTH = 6000  # longest parameter value that MLflow's store takes


@dataclass(frozen=True)
class Run:
    """One MLflow run to be: its name is the path of its folder, which is its identity.

    metrics: (name, value, step); undefined and infinite values are left out, since a chart would draw them as numbers.
    artifacts: files copied into the run. texts: further artifacts, name -> content. parent: path of the run that it is
    nested under, published before it.
    """

    path: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: list[tuple[str, float | None, int]] = field(default_factory=list)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Path, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None

    def digest(self) -> str:
        files = {str(path): file_digest(path) for path in self.artifacts}
        content = [
            dict(self.parameters),
            [list(metric) for metric in self.metrics],
            dict(self.tags),
            files,
            dict(self.texts),
            self.parent,
        ]
        return fingerprint(content)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level: {"training": {"epochs": 3}} -> {"training.epochs": 3}."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def training_run(folder: str | Path) -> Run:
    """The run of a trained model: history as curves, settings as parameters, cost."""
    folder = Path(folder)
    settings = yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8"))
    settings["weights"] = file_digest(folder / "model.safetensors")
    metrics: list[tuple[str, float | None, int]] = []
    with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            epoch = int(row.pop("epoch"))
            metrics += [(key, float(value) if value else None, epoch) for key, value in row.items()]
    metrics += [(key, value, 0) for key, value in read_json(folder / "cost.json").items() if _is_number(value)]
    files = tuple(folder / name for name in ("history.csv", "settings.yaml", "cost.json"))
    return Run(str(folder), *_parameters_and_tags(settings, metrics), files)


def measured_run(folder: str | Path, suites: Mapping[str, Any]) -> Run:
    """The run of a method's predictions. suites: suite -> about and records, as `read_metrics` gives them.

    Metrics are the overall ones, named `<suite>/<metric>`, with `samples-<S>` between where a method is measured with
    several numbers of samples; and what the predictions cost. Those of single corruptions are in the artifact
    `metrics.json`, the method's part of that file: a change of another method does not change this run.
    """
    metrics: list[tuple[str, float | None, int]] = []
    for suite, measured in suites.items():
        several = len({record["samples"] for record in measured["records"]}) > 1
        for record in measured["records"]:
            if record["shift"] in ("clean", "overall") or suite.startswith("ood-"):
                prefix = suite + (f"/samples-{record['samples']}" if several else "")
                numbers = {key: value for key, value in record.items() if isinstance(value, float) or value is None}
                metrics += [(f"{prefix}/{key}", value, 0) for key, value in numbers.items()]
    cost_file = Path(folder, "predictions", "cost.json")
    cost = read_cost(cost_file)
    metrics += [(key, value, 0) for key, value in cost.items() if _is_number(value)]
    for samples, seconds in cost["suites"]["test"]["seconds"].items():
        metrics.append((f"test/samples-{samples}/predict_seconds", seconds, 0))
    about = next(iter(suites.values()))["about"]
    texts = {
        "metrics.json": json.dumps(suites, indent=1, allow_nan=False),
        "predictions/cost.json": cost_file.read_text(encoding="utf-8"),
    }
    return Run(str(folder), *_parameters_and_tags(about, metrics), texts=texts)


def joined(training: Run, measured: Run) -> Run:
    """One run of a folder that holds a trained model and its predictions, a student's."""
    return Run(
        training.path,
        {**measured.parameters, **training.parameters},
        # what both say, such as `train_seconds`, is taken from the training
        list({(key, step): (key, value, step) for key, value, step in [*measured.metrics, *training.metrics]}.values()),
        {**measured.tags, **training.tags},
        training.artifacts,
        measured.texts,
    )


def _parameters_and_tags(
    settings: Mapping[str, Any], metrics: list[tuple[str, float | None, int]]
) -> tuple[dict[str, Any], list[tuple[str, float | None, int]], dict[str, str]]:
    """Parameters, metrics and tags of a run: where it comes from are tags, what its suites differ in is left out."""
    tags = {key: str(settings[key]) for key in ORIGIN if settings.get(key) is not None}
    left_out = (*ORIGIN, "suite", "made_from", "generated")
    return {key: value for key, value in flatten(settings).items() if key not in left_out}, metrics, tags


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def publish(experiment: str, runs: Iterable[Run]) -> dict[str, str]:
    """Make the MLflow experiment hold exactly these runs: new ones added, changed replaced, vanished deleted.

    A run counts as changed when the digest of its content differs, so publishing twice changes nothing; parameters of
    a run cannot be changed, so a changed run is written anew. Parents come before children. Returns path -> run id.
    """
    import mlflow
    from mlflow import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI", STORE)
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    existing = client.get_experiment_by_name(experiment)
    # an absolute path: a relative one would be read from the folder that `mlflow ui` is started in
    location = Path("mlruns", experiment).resolve().as_uri() if uri == STORE else None
    experiment_id = (
        existing.experiment_id if existing else client.create_experiment(experiment, artifact_location=location)
    )
    old: dict[str | None, list[Any]] = {}
    for run in _search(client, experiment_id):
        old.setdefault(run.data.tags.get(PATH_TAG), []).append(run)
    ids: dict[str, str] = {}
    for run in runs:
        tags = {PATH_TAG: run.path, **run.tags}
        if run.parent is not None:
            tags["mlflow.parentRunId"] = ids[run.parent]
        tags[DIGEST_TAG] = fingerprint([run.digest(), tags])
        before = old.pop(run.path, [])
        if [(b.data.tags.get(DIGEST_TAG), b.info.status) for b in before] == [(tags[DIGEST_TAG], "FINISHED")]:
            ids[run.path] = before[0].info.run_id
        else:
            ids[run.path] = _write(client, experiment_id, run, tags)
            old[run.path] = before
    for run in (run for stale in old.values() for run in stale):
        client.delete_run(run.info.run_id)
    return ids


def _search(client: Any, experiment_id: str) -> list[Any]:
    found, token = [], None
    while page := client.search_runs([experiment_id], max_results=1000, page_token=token):
        found += page
        if not (token := page.token):
            break
    return found


def _write(client: Any, experiment_id: str, run: Run, tags: dict[str, str]) -> str:
    """Write one run; killed half-way it stays unfinished, and the next publication replaces it."""
    from mlflow.entities import Metric, Param

    made = client.create_run(experiment_id, run_name=run.path, tags=tags).info.run_id
    now = int(time.time() * 1000)
    parameters = [Param(key, str(value)[:PARAMETER_LENGTH]) for key, value in run.parameters.items()]
    for start in range(0, len(parameters), 100):
        client.log_batch(made, params=parameters[start : start + 100])
    numbers = [
        Metric(key, value, now, step) for key, value, step in run.metrics if value is not None and math.isfinite(value)
    ]
    for start in range(0, len(numbers), BATCH):
        client.log_batch(made, metrics=numbers[start : start + BATCH])
    for path in run.artifacts:
        client.log_artifact(made, str(path))
    for name, text in run.texts.items():
        client.log_text(made, text, name)
    client.set_terminated(made)
    return made


def publish_runs(trained: Iterable[str | Path], metrics_files: Iterable[str | Path]) -> dict[str, str]:
    """Publish what all experiments trained and measured, an MLflow experiment for each; returns path -> run id.

    A backbone is the parent of the other runs in its run folder.

    trained: folders of models, .../<experiment>/<backbone>/seed-<n>/<method>. metrics_files: of run folders.
    """
    runs = {Path(folder): training_run(folder) for folder in trained}
    for file in map(Path, metrics_files):
        for method, suites in read_metrics(file).items():
            folder = file.with_name(method)
            measured = measured_run(folder, suites)
            runs[folder] = joined(runs[folder], measured) if folder in runs else measured
    experiments: dict[str, list[Run]] = {}
    for folder, run in runs.items():
        parent = folder.with_name("backbone")
        nested = replace(run, parent=str(parent)) if parent in runs and parent != folder else run
        experiments.setdefault(folder.parts[-4], []).append(nested)
    ids: dict[str, str] = {}
    for experiment, members in experiments.items():
        ids |= publish(experiment, sorted(members, key=lambda run: run.parent is not None))
    return ids


def publish_tables(tables: Iterable[str | Path], figures: Iterable[str | Path]) -> dict[str, str]:
    """Publish tables and figures as the artifacts of one run, `results/tables`, of the MLflow experiment `tables`."""
    return publish("tables", [Run("results/tables", artifacts=tuple(map(Path, [*tables, *figures])))])

"""Runs in MLflow: the only place that knows it, and a sink: no number of the study comes from it.

Jobs write files; one process turns finished run folders into MLflow runs afterwards. Several processes writing to a
fresh database at once lose runs in its schema creation, so nothing else talks to MLflow. A store may hold runs of
others: those of this study carry its identity, and no other run is touched. What goes wrong there is a warning.
"""

import csv
import json
import logging
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import yaml

from director.errors import InputError
from director.files import file_digest, read_json, reading, write_json
from director.numbers.measure import read_metrics
from director.numbers.suites import read_cost
from director.provenance import fingerprint

# Unless the user has set them; an empty variable is an unset one.
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # a server that does not answer is given up after some twenty seconds; MLflow's own values would wait for minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "8",
}
os.environ.update({name: value for name, value in DEFAULTS.items() if not os.environ.get(name)})
DATABASE_ATTEMPTS = 2  # to open a database; MLflow's ten take two minutes

STORE = "sqlite:///mlflow.db"  # MLflow's own default, so that a plain `mlflow ui` in the same folder shows the runs
STUDY = Path("results/study.json")  # not among what DVC versions: whoever pulls the results has a study of their own
STUDY_TAG, PATH_TAG, DIGEST_TAG = "director.study", "director.path", "director.digest"
ORIGIN = ("code", "commit", "data", "weights")  # where a run comes from: tags, not parameters
BATCH = 1000  # metrics in one request, MLflow's limit
PARAMETER_LENGTH = 6000  # longest parameter value that MLflow's store takes
REMEDIES = {  # words of an error -> what is wrong with the store, and what to do
    "Max retries": "the server does not answer; start it, or correct or unset MLFLOW_TRACKING_URI",
    "is locked": "the database is locked; end what holds it",
    "readonly": "the database cannot be written; change that, or set MLFLOW_TRACKING_URI to another",
    "not a database": "the database is damaged; move its file away, and a new one is made",
    "malformed": "the database is damaged; move its file away, and a new one is made",
    "out-of-date": "the database is of another version of MLflow; copy it, then `mlflow db upgrade` with its address",
}


@dataclass(frozen=True)
class Run:
    """One MLflow run to be: its name is the path of its folder, which is its identity.

    metrics: (name, value, step); undefined and infinite values are left out, since a chart would draw them as numbers.
    artifacts: files copied into the run, and the folder in it of each ("" for none). texts: further artifacts, name ->
    content. parent: path of the run that it is nested under, published before it.
    """

    path: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: list[tuple[str, float | None, int]] = field(default_factory=list)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[Path, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None

    def digest(self) -> str:
        files = {str(path): [folder, file_digest(path)] for path, folder in self.artifacts.items()}
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
    remedy = "delete it and run the same command again"
    path = folder / "settings.yaml"
    with reading(path, "the settings of a training", remedy, yaml.YAMLError):
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise TypeError(f"it holds {type(settings).__name__}")
    settings["weights"] = file_digest(folder / "model.safetensors")
    metrics: list[tuple[str, float | None, int]] = []
    path = folder / "history.csv"
    with reading(path, "the history of a training", remedy), path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            epoch = int(row.pop("epoch"))
            metrics += [(key, float(value) if value else None, epoch) for key, value in row.items()]
        if not metrics:
            raise ValueError("it has no epoch")
    path = folder / "cost.json"
    cost = read_json(path)
    with reading(path, "the cost of a training", remedy):
        metrics += [(key, value, 0) for key, value in cost.items() if _is_number(value)]
    files = {folder / name: "" for name in ("history.csv", "settings.yaml", "cost.json")}
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
    cost = read_cost(cost_file, ["test"])
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


def attempt(publication: Callable[[], dict[str, str]], flag: str | Path, screen: TextIO) -> None:
    """Publish, and write into `flag` what `publication` returns: path -> run id.

    A publication that fails is a warning in the log and on `screen`, whatever the error: the study is good without it.
    Its flag says why it is due, and `failed_attempts` grows by one.
    """
    try:
        content = publication()
    except Exception as error:
        reason = str(error)
        if not isinstance(error, InputError):  # which says all in one line itself
            unknown = f"{type(error).__name__}: {reason.partition(chr(10))[0][:200]}; the log has more"
            known = (remedy for words, remedy in REMEDIES.items() if words in reason)
            reason = f"{re.sub('//[^/@]*@', '//', _store())}: {next(known, unknown)}"  # the address without a password
        warning = f"not published to MLflow ({reason}). Tables do not need it; the same command tries again"
        logging.getLogger(__name__).warning(warning, exc_info=not isinstance(error, InputError))
        print(f"warning: {warning}", file=screen, flush=True)
        content = {"due": warning}
        with _failures(flag).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {warning}\n")
    write_json(flag, content)


def failed_attempts(flag: str | Path) -> int:
    """How many publications with this flag have failed so far."""
    failures = _failures(flag)
    return len(failures.read_text(encoding="utf-8").splitlines()) if failures.exists() else 0


def is_lost(flag: str | Path) -> bool:
    """Whether what was published with this flag went to the default store, and that is gone."""
    if _store() != STORE or Path(STORE.removeprefix("sqlite:///")).exists():
        return False
    return Path(flag).exists() and '"due":' not in Path(flag).read_text(encoding="utf-8", errors="replace")


def _store() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or STORE


def _failures(flag: str | Path) -> Path:
    return Path(flag).with_suffix(".failures")


def publish(experiment: str, runs: Iterable[Run]) -> dict[str, str]:
    """Make the study's runs in the MLflow experiment exactly these: new ones added, changed replaced, vanished deleted.

    A run counts as changed when the digest of its content differs, so publishing twice changes nothing; parameters of
    a run cannot be changed, so a changed run is written anew. Parents come before children. Returns path -> run id.
    An experiment that was deleted in MLflow, and a run whose artifacts do not all arrive, raise InputError.
    """
    import mlflow
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = DATABASE_ATTEMPTS
    mlflow.set_tracking_uri(_store())
    client = MlflowClient()
    experiment_id = _experiment(client, experiment)
    study = _study()
    old: dict[str | None, list[Any]] = {}
    for run in _search(client, experiment_id, study):
        old.setdefault(run.data.tags.get(PATH_TAG), []).append(run)
    ids: dict[str, str] = {}
    for run in runs:
        tags = {STUDY_TAG: study, PATH_TAG: run.path, **run.tags}
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


def _study() -> str:
    """Identity of the study in this folder: random, made once. A copy in another folder has one of its own."""
    identities = read_json(STUDY) if STUDY.exists() else {}
    if not isinstance(identities, dict):
        raise InputError(f"{STUDY}: not a table of identities; delete it, and the runs are published anew")
    folder = str(Path.cwd())
    if folder not in identities:
        identities[folder] = uuid.uuid4().hex
        write_json(STUDY, identities)
    return identities[folder]


def _experiment(client: Any, name: str) -> str:
    """Id of the MLflow experiment of this name, made if there is none.

    The default store lies in the folder of the study, but holds absolute paths of artifacts, which MLflow cannot
    change. If the folder was moved or copied, the experiment keeps its runs under another name, and a new one is made.
    """
    # an absolute path: a relative one would be read from the folder that `mlflow ui` is started in
    location = Path("mlruns", name).resolve().as_uri() if _store() == STORE else None
    existing = client.get_experiment_by_name(name)
    if existing and existing.lifecycle_stage == "deleted":
        raise InputError(
            f"MLflow experiment {name!r}: it was deleted; `mlflow experiments restore -x {existing.experiment_id}` "
            f"brings it back, `mlflow gc --experiment-ids {existing.experiment_id}` removes it for good"
        )
    if existing and location and _is_elsewhere(existing.artifact_location):
        aside = f"{name} (artifacts elsewhere, {existing.experiment_id})"
        logging.getLogger(__name__).warning(
            f"MLflow experiment {name!r}: its artifacts are in {existing.artifact_location}, since this folder was "
            f"moved or copied; it is now {aside!r}, and a new one is made here"
        )
        client.rename_experiment(existing.experiment_id, aside)
        existing = None
    return existing.experiment_id if existing else client.create_experiment(name, artifact_location=location)


def _is_elsewhere(location: str) -> bool:
    """Whether this is a local path outside of the working folder."""
    parts = urlsplit(location)
    return parts.scheme in ("", "file") and not Path(url2pathname(parts.path)).is_relative_to(Path.cwd())


def _search(client: Any, experiment_id: str, study: str) -> list[Any]:
    found, token = [], None
    own = f"tags.`{STUDY_TAG}` = '{study}'"
    while page := client.search_runs([experiment_id], own, max_results=1000, page_token=token):
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
    for path, folder in run.artifacts.items():
        client.log_artifact(made, str(path), folder or None)
    for name, text in run.texts.items():
        client.log_text(made, text, name)
    sent, arrived = len(run.artifacts) + len(run.texts), _count_files(client, made)
    if arrived < sent:
        raise InputError(
            f"MLflow run {run.path}: {arrived} of its {sent} artifacts arrived; look after the store's place for them"
        )
    client.set_terminated(made)
    return made


def _count_files(client: Any, run_id: str, folder: str | None = None) -> int:
    listed = client.list_artifacts(run_id, folder)
    return sum(_count_files(client, run_id, item.path) if item.is_dir else 1 for item in listed)


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
    """Publish tables and figures as the artifacts of one run, `results/tables`, of the MLflow experiment `tables`.

    figures: .../<experiment>/<figure>; those of an experiment get a folder.
    """
    artifacts = {Path(table): "tables" for table in tables}
    artifacts |= {Path(figure): f"figures/{Path(figure).parent.name}" for figure in figures}
    return publish("tables", [Run("results/tables", artifacts=artifacts)])

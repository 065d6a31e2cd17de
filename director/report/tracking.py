"""Runs in MLflow: the only place that knows it, and a sink: no number of the study comes from it.

Jobs write files; one process turns finished run folders into MLflow runs afterwards. Several processes writing to a
fresh database at once lose runs in its schema creation, so nothing else talks to MLflow. A store may hold runs of
others: those of this study carry its identity, and no other run is touched. What goes wrong there is a warning.
"""

import base64
import contextlib
import csv
import json
import logging
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import yaml

from director.errors import InputError
from director.files import file_digest, read_json, reading, write_json
from director.numbers.comparison import spread
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
RECORDS = Path(".snakemake/metadata")  # when each job began and ended
STUDY_TAG, PATH_TAG, DIGEST_TAG = "director.study", "director.path", "director.digest"
# where a run comes from: tags, not parameters
ORIGIN = ("code", "commit", "data", "split", "weights", "teacher", "caches")
OUTCOME = ("best_epoch", "early_epoch")  # of a training, noted with its settings: metrics
FITTED = ("temperature", "noise_scale")  # numbers that a method fits on validation data, noted with its predictions
TEACHERS = ("model.", "attention")  # what a student's run says of its teacher: parameters that begin so
EARLY = "early.safetensors"  # beside the weights of a backbone: other weights of the same training
MEAN = "mean"  # in place of the seed, of a run that is a row of the table
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
    """One MLflow run to be.

    path: of its folder, which is its identity. name: what people read. metrics: (name, value, step); undefined and
    infinite values are left out, since a chart would draw them as numbers. artifacts: files copied into the run, and
    the folder in it of each ("" for none). texts: further artifacts, name -> content. began, ended: of the work, not of
    its publication, in seconds since 1970. rows: number of samples S -> name -> number, of each row of the table that
    the run is a seed of; of these its metrics are made.
    """

    path: str
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[tuple[str, float | None, int]] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[Path, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0
    rows: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)

    def digest(self) -> str:
        """Of all that is published but the times: the same work, done again, is the same run."""
        files = {str(path): [folder, file_digest(path)] for path, folder in self.artifacts.items()}
        content = [
            self.name,
            dict(self.parameters),
            [list(metric) for metric in self.metrics],
            dict(self.tags),
            files,
            dict(self.texts),
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
    weights = folder / "model.safetensors"
    settings |= {"method": folder.name, "weights": file_digest(weights)}
    metrics: list[tuple[str, float | None, int]] = []
    path = folder / "history.csv"
    with reading(path, "the history of a training", remedy), path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            metrics += epoch_metrics({key: float(value) if value else None for key, value in row.items()})
        if not metrics:
            raise ValueError("it has no epoch")
    path = folder / "cost.json"
    cost = read_json(path)
    with reading(path, "the cost of a training", remedy):
        metrics += [(f"cost/{key}", cost[key], 0) for key in ("parameters", "train_seconds")]
        numbers = ("peak_memory_bytes", *OUTCOME)
        metrics += [(f"training/{key}", cost[key], 0) for key in numbers if key in cost]
        if wrong := [name for name, value, _ in metrics if not isinstance(value, int | float | None)]:
            raise TypeError(f"{wrong[0]} is no number")
    files = {folder / name: "" for name in ("history.csv", "settings.yaml", "cost.json")}
    began, ended = job_times(weights)
    return Run(
        str(folder), run_name(folder), _parameters(settings), metrics, _tags(settings), files, began=began, ended=ended
    )


def epoch_metrics(row: Mapping[str, float | None]) -> list[tuple[str, float | None, int]]:
    """The numbers of an epoch as metrics: `training/<number>`, at the step that is the epoch."""
    return [(f"training/{key}", value, int(row["epoch"])) for key, value in row.items() if key != "epoch"]


def measured_run(folder: str | Path, suites: Mapping[str, Any]) -> Run:
    """The run of a method's predictions. suites: suite -> about and records, as `read_metrics` gives them.

    Metrics are the overall ones, `<suite>/<metric>` with the most samples that the method is measured with, and
    `<suite>/s<S>/<metric>` with fewer; and what the predictions cost. So methods share names, whatever their S. Those
    of single corruptions are in the artifact `metrics.json`, the method's part of that file: a change of another method
    does not change this run.
    """
    folder = Path(folder)
    cost_file = folder / "predictions" / "cost.json"
    cost = read_cost(cost_file, ["test"])
    about = next(iter(suites.values()))["about"]
    whole = {f"cost/{key}": cost[key] for key in ("parameters", "train_seconds", "peak_memory_bytes")}
    whole |= {key: about[key] for key in FITTED if key in about}
    samples = sorted({record["samples"] for measured in suites.values() for record in measured["records"]})
    by_samples = {number: _numbers(suites, cost["suites"]["test"], number) for number in samples}
    most = samples[-1]
    named = [(name, value) for name, value in {**by_samples[most], **whole}.items()]
    named += [(_between(name, f"s{n}"), value) for n in samples[:-1] for name, value in by_samples[n].items()]
    settings = {**about, "method": folder.name, "samples": most, "device": cost["device"], "threads": cost["threads"]}
    texts = {
        "metrics.json": json.dumps(suites, indent=1, allow_nan=False),
        "predictions/cost.json": cost_file.read_text(encoding="utf-8"),
    }
    began, ended = job_times(folder / "predictions" / "manifest.json", folder.with_name("temperatures.json"))
    return Run(
        str(folder),
        run_name(folder),
        _parameters(settings),
        [(name, value, 0) for name, value in named],
        _tags(settings),
        texts=texts,
        began=began,
        ended=ended,
        rows={number: numbers | whole for number, numbers in by_samples.items()},
    )


def _numbers(suites: Mapping[str, Any], test_cost: Mapping[str, Any], samples: int) -> dict[str, float | None]:
    """What depends on the number of samples: the overall metrics of every suite, and the seconds on `test`."""
    numbers: dict[str, float | None] = {}
    for suite, measured in suites.items():
        for record in measured["records"]:
            if record["samples"] == samples and (record["shift"] in ("clean", "overall") or suite.startswith("ood-")):
                metrics = {key: value for key, value in record.items() if isinstance(value, float | None)}
                numbers |= {f"{suite}/{key}": value for key, value in metrics.items()}
    if seconds := test_cost["seconds"].get(str(samples)):
        numbers["cost/predict_seconds_per_1000"] = 1000 * seconds / test_cost["examples"]
    return numbers


def _between(name: str, part: str) -> str:
    """A name with a part before its last one: test/nll, s1 -> test/s1/nll."""
    *before, last = name.split("/")
    return "/".join([*before, part, last])


def mean_runs(runs: Sequence[Run]) -> list[Run]:
    """Of all seeds of a backbone's method, a run for each row of the table: each number of samples.

    Mean and standard deviation (`<suite>/std/<metric>`) over seeds as in the table (`director.numbers.comparison`); of
    the memory the largest. `seeds` counts them.
    """
    first = runs[0]
    means = []
    for samples in first.rows:
        seeds = [run.rows[samples] for run in runs]
        metrics: list[tuple[str, float | None, int]] = [("seeds", len(seeds), 0)]
        for name in first.rows[samples]:
            values = [row.get(name) for row in seeds]
            mean, deviation = spread(values)
            mean = max(values) if name == "cost/peak_memory_bytes" else mean
            metrics += [(name, mean, 0), (_between(name, "std"), deviation, 0)]
        folder = Path(first.path)
        path = folder.parent.with_name(f"seed-{MEAN}") / folder.name / f"samples-{samples}"
        own = {"seed": MEAN, "samples": samples}
        means.append(
            Run(
                str(path),
                run_name(path.parent, samples if len(first.rows) > 1 else None),
                shared([run.parameters for run in runs]) | own,
                metrics,
                shared([run.tags for run in runs]),
                began=min(run.began for run in runs),
                ended=max(run.ended for run in runs),
            )
        )
    return means


def shared(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all of some tables have, and have the same; none of no table."""
    first, *others = tables or [{}]
    return {key: value for key, value in first.items() if all(key in t and t[key] == value for t in others)}


def run_name(folder: Path, samples: int | None = None) -> str:
    """The name of a run for people: `director · softmax · seed 0`, `director · softmax · S = 10 · mean`."""
    seed = folder.parent.name.removeprefix("seed-")
    parts = [folder.name, folder.parts[-3]] + ([f"S = {samples}"] if samples else [])
    return " · ".join([*parts, f"seed {seed}" if seed.isdecimal() else seed])


def job_times(*outputs: Path) -> tuple[float, float]:
    """When the job began and ended that wrote the first of `outputs` of which there is a record.

    Seconds since 1970, by Snakemake's record, which travels with the results. Without one, the time of the first file
    there is, for both.
    """
    for output in outputs:
        name = base64.urlsafe_b64encode(str(output).encode()).decode()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            record = json.loads((RECORDS / name).read_text(encoding="utf-8"))
            return float(record["starttime"]), float(record["endtime"])
    times = [output.stat().st_mtime for output in outputs if output.exists()] or [time.time()]
    return times[0], times[0]


def joined(training: Run, measured: Run) -> Run:
    """One run of a folder that holds a trained model and its predictions, a student's."""
    names = {name for name, _, _ in measured.metrics}
    return replace(
        measured,
        parameters={**training.parameters, **measured.parameters},
        metrics=[*measured.metrics, *(metric for metric in training.metrics if metric[0] not in names)],
        tags={**measured.tags, **training.tags},
        artifacts=training.artifacts,
        began=training.began,
        ended=max(training.ended, measured.ended),
    )


def with_training(run: Run, trained: Mapping[str, Run]) -> Run:
    """A run with the parameters of what it was made with: the training of its weights, and a student's teacher.

    trained: SHA-256 of weights -> run of their training. Of an ensemble what its members share.
    """
    trainings = [trained[digest] for digest in run.tags.get("weights", "").split() if digest in trained]
    settings = shared([training.parameters for training in trainings])
    teachers = [trained[digest] for digest in (t.tags.get("teacher") for t in trainings) if digest in trained]
    teacher = shared([training.parameters for training in teachers])
    teacher = {key: value for key, value in teacher.items() if key.startswith(TEACHERS)}
    return replace(run, parameters={**teacher, **settings, **run.parameters})


def _parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a run: all but where it comes from, what came out, and what its suites differ in."""
    left_out = (*ORIGIN, *OUTCOME, *FITTED, "suite", "made_from", "generated")
    return {key: value for key, value in flatten(settings).items() if key not in left_out}


def _tags(settings: Mapping[str, Any]) -> dict[str, str]:
    """Where a run comes from; of several, such as the weights of an ensemble, all with a space between."""
    origin = {key: settings[key] for key in ORIGIN if settings.get(key)}
    return {key: " ".join(value) if isinstance(value, list) else str(value) for key, value in origin.items()}


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
    a run cannot be changed, so a changed run is written anew. Returns path -> run id. An experiment that was deleted in
    MLflow, and a run whose artifacts do not all arrive, raise InputError.
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
        tags[DIGEST_TAG] = fingerprint([run.digest(), tags])
        before = old.get(run.path, [])
        same = (b for b in before if (b.data.tags.get(DIGEST_TAG), b.info.status) == (tags[DIGEST_TAG], "FINISHED"))
        if kept := next(same, None):
            before.remove(kept)
            ids[run.path] = kept.info.run_id
        else:
            ids[run.path] = _write(client, experiment_id, run, tags)
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

    began, ended = int(1000 * run.began), int(1000 * run.ended)
    made = client.create_run(experiment_id, start_time=began, run_name=run.name, tags=tags).info.run_id
    parameters = [Param(key, str(value)[:PARAMETER_LENGTH]) for key, value in run.parameters.items()]
    for start in range(0, len(parameters), 100):
        client.log_batch(made, params=parameters[start : start + 100])
    numbers = [
        Metric(key, value, ended, step)
        for key, value, step in run.metrics
        if value is not None and math.isfinite(value)
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
    client.set_terminated(made, end_time=ended)
    return made


def _count_files(client: Any, run_id: str, folder: str | None = None) -> int:
    listed = client.list_artifacts(run_id, folder)
    return sum(_count_files(client, run_id, item.path) if item.is_dir else 1 for item in listed)


def publish_runs(trained: Iterable[str | Path], metrics_files: Iterable[str | Path]) -> dict[str, str]:
    """Publish what all experiments trained and measured, an MLflow experiment for each; returns path -> run id.

    A run for each backbone, for each method of each run folder, and for each row of the table: the mean over its seeds.

    trained: folders of models, .../<experiment>/<backbone>/seed-<n>/<method>. metrics_files: of run folders.
    """
    trainings = {Path(folder): training_run(folder) for folder in trained}
    by_weights = {run.tags["weights"]: run for run in trainings.values()}
    by_weights |= {file_digest(early): run for folder, run in trainings.items() if (early := folder / EARLY).exists()}
    runs = dict(trainings)
    rows: dict[Path, list[Path]] = {}
    for file in map(Path, metrics_files):
        for method, suites in read_metrics(file).items():
            folder = file.with_name(method)
            measured = measured_run(folder, suites)
            runs[folder] = joined(runs[folder], measured) if folder in runs else measured
            rows.setdefault(file.parents[1] / method, []).append(folder)
    runs = {folder: with_training(run, by_weights) for folder, run in runs.items()}
    experiments: dict[str, list[Run]] = {}
    for folder, run in runs.items():
        experiments.setdefault(folder.parts[-4], []).append(run)
    for folder, seeds in rows.items():
        experiments[folder.parts[-3]] += mean_runs([runs[seed] for seed in seeds])
    ids: dict[str, str] = {}
    for experiment, members in experiments.items():
        ids |= publish(experiment, members)
    return ids


def publish_tables(tables: Iterable[str | Path], figures: Iterable[str | Path]) -> dict[str, str]:
    """Publish tables and figures as the artifacts of one run, `results/tables`, of the MLflow experiment `tables`.

    figures: .../<experiment>/<figure>; those of an experiment get a folder.
    """
    artifacts = {Path(table): "tables" for table in tables}
    artifacts |= {Path(figure): f"figures/{Path(figure).parent.name}" for figure in figures}
    times = [time for path in artifacts for time in job_times(path)]
    run = Run("results/tables", "tables and figures", artifacts=artifacts, began=min(times), ended=max(times))
    return publish("tables", [run])

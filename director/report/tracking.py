"""Runs in MLflow: the only place that knows it, and a sink: no number of the study comes from it.

Jobs write files; one process publishes what came of them (`director.report.runs`) afterwards. Several processes writing
to a fresh database at once lose runs in its schema creation, so nothing else talks to one; to a server
`director.report.live` talks, too. A store may hold runs of others: those of this study carry its identity, and no other
run is touched. What goes wrong there is a warning.
"""

import logging
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

from director.errors import InputError
from director.files import read_json, write_json
from director.provenance import fingerprint
from director.report.runs import Run, study_runs, tables_run

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


def attempt(publication: Callable[[], dict[str, str]], flag: str | Path, screen: TextIO) -> None:
    """Publish, and write into `flag` what `publication` returns: path -> run id.

    A publication that fails is a warning in the log and on `screen`, whatever the error: the study is good without it.
    Its flag says why it is due, and `failed_attempts` grows by one.
    """
    try:
        content = publication()
    except Exception as error:
        warning = f"not published to MLflow ({reason_of(error)}). Tables do not need it; the same command tries again"
        logging.getLogger(__name__).warning(warning, exc_info=not isinstance(error, InputError))
        print(f"warning: {warning}", file=screen, flush=True)
        content = {"due": warning}
        with _failures(flag).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {warning}\n")
    write_json(flag, content)


def reason_of(error: Exception) -> str:
    """What is wrong with the store and what to do, in one line without a password."""
    reason = str(error)
    if isinstance(error, InputError):  # which says all in one line itself
        return reason
    unknown = f"{type(error).__name__}: {reason.partition(chr(10))[0][:200]}; the log has more"
    known = (remedy for words, remedy in REMEDIES.items() if words in reason)
    return re.sub("//[^/@ ]*@", "//", f"{_store()}: {next(known, unknown)}")


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
    client = client_of_store()
    experiment_id = experiment_of(client, experiment)
    study = study_identity()
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


def client_of_store() -> Any:
    """A client of the store that MLFLOW_TRACKING_URI names, or of the one in this folder."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = DATABASE_ATTEMPTS
    mlflow.set_tracking_uri(_store())
    return MlflowClient()


def study_identity() -> str:
    """Identity of the study in this folder: random, made once. A copy in another folder has one of its own."""
    identities = read_json(STUDY) if STUDY.exists() else {}
    if not isinstance(identities, dict):
        raise InputError(f"{STUDY}: not a table of identities; delete it, and the runs are published anew")
    folder = str(Path.cwd())
    if folder not in identities:
        identities[folder] = uuid.uuid4().hex
        write_json(STUDY, identities)
    return identities[folder]


def experiment_of(client: Any, name: str) -> str:
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
    """Publish `director.report.runs.study_runs`, an MLflow experiment for each of the study's; path -> run id."""
    ids: dict[str, str] = {}
    for experiment, runs in study_runs(trained, metrics_files).items():
        ids |= publish(experiment, runs)
    return ids


def publish_tables(tables: Iterable[str | Path], figures: Iterable[str | Path]) -> dict[str, str]:
    """Publish `director.report.runs.tables_run` in the MLflow experiment `tables`; path -> run id."""
    return publish("tables", [tables_run(tables, figures)])

"""What is published of a study: from the files of its run folders to runs, of which nothing says where they go."""

import base64
import contextlib
import csv
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from director.files import file_digest, read_json, reading
from director.numbers.comparison import spread
from director.numbers.measure import FITTED, read_metrics
from director.numbers.suites import read_cost
from director.provenance import fingerprint

RECORDS = Path(".snakemake/metadata")  # when each job began and ended
# where a run comes from: tags, not parameters
ORIGIN = ("code", "commit", "data", "split", "weights", "teacher", "caches")
OUTCOME = ("best_epoch", "early_epoch")  # of a training, noted with its settings: metrics
TEACHERS = ("model.", "attention")  # what a student's run says of its teacher: parameters that begin so
EARLY = "early.safetensors"  # beside the weights of a backbone: other weights of the same training
MEAN = "mean"  # in place of the seed, of a run that is a row of the table


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
    named = list({**by_samples[most], **whole}.items())
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


def study_runs(trained: Iterable[str | Path], metrics_files: Iterable[str | Path]) -> dict[str, list[Run]]:
    """The runs of all that was trained and measured, by experiment.

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
    return experiments


def tables_run(tables: Iterable[str | Path], figures: Iterable[str | Path]) -> Run:
    """One run, `results/tables`, whose artifacts are the tables and figures.

    figures: .../<experiment>/<figure>; those of an experiment get a folder.
    """
    artifacts = {Path(table): "tables" for table in tables}
    artifacts |= {Path(figure): f"figures/{Path(figure).parent.name}" for figure in figures}
    times = [time for path in artifacts for time in job_times(path)]
    return Run("results/tables", "tables and figures", artifacts=artifacts, began=min(times), ended=max(times))

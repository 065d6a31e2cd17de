"""The plan of a study: from its settings to the runs there are, and to what each job is told.

A run is what lies in one run folder, results/runs/<experiment>/<backbone>/seed-<n>: the backbone, the students that are
distilled from it, and the predictions of every method that starts from it. The Snakemake files keep paths and rules;
everything that has to be computed for them is here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from director.code_digest import code_digest
from director.data.catalogue import DATASETS
from director.errors import InputError
from director.methods import POOLED, Method, attention_of
from director.numbers.suites import is_whole, manifest_of
from director.settings.experiment import Experiment
from director.settings.reading import load_configuration
from director.settings.training import Compute

SCRIPTS = Path(__file__).parents[1] / "workflow" / "scripts"
# Tables in which a job looks up one entry: its code digest covers that entry alone.
DATASET_TABLE = "director.data.catalogue:DATASETS"
MODEL_TABLE = "director.models.weights:KINDS"
BACKBONE_TABLE = "director.models.transformers:BACKBONES"
PATH_TABLE = "director.path.residual:PATHS"
ATTENTION_TABLE = "director.models.attention:ATTENTIONS"
MODELS = {
    "image": "director.models.transformers:ImageTransformer",
    "text": "director.models.transformers:TextTransformer",
    "pretrained": "director.models.pretrained:PretrainedClassifier",
}
TRANSFORMER_PATH = "director.path.residual:TransformerPath"
PRETRAINED_PATHS = (
    "director.path.residual:PretrainedPath",
    "director.path.timm_models:VisionTransformerPath",
    "director.path.transformers_models:BertPath",
    "director.path.transformers_models:DistilBertPath",
    "director.path.transformers_models:VitPath",
    "director.path.transformers_models:Dinov2Path",
    "director.path.transformers_models:DecoderPath",
)
STUDENT_MODEL = "director.models.student:StudentNetwork"
# What a job does only with a student's weights, for a posterior, or for a pretrained model.
STUDENT_LOADER = "director.path.students:load_student"
LAPLACE = "director.training.laplace:fit_last_layer"
PRETRAINED_TRAINING = "director.training.train_backbone:train_pretrained"
ATTENTIONS = {
    "kep_svgp": "director.models.attention:KernelEigenpairAttention",
    "sgpa": "director.models.attention:SparseGaussianProcessAttention",
}


class Run(NamedTuple):
    """What names a run folder."""

    experiment: str
    backbone: str
    seed: int | str


class Job(NamedTuple):
    """What names a method's predictions: a run folder and the method."""

    experiment: str
    backbone: str
    seed: int | str
    method: str


@dataclass(frozen=True)
class Plan:
    """Settings of all experiments, by name, and of the machine."""

    experiments: Mapping[str, Experiment]
    compute: Compute

    @classmethod
    def load(cls, config: Mapping[str, Any], file: str | Path) -> "Plan":
        """The plan of a configuration, see `director.settings.reading.load_configuration`; raises InputError."""
        configuration, experiments = load_configuration(config, file)
        plan = cls(experiments, configuration.compute)
        plan._refuse_missing_packages()
        return plan

    def _refuse_missing_packages(self) -> None:
        for experiment in self.experiments:
            for _, name in self.rows(experiment):
                needed = self.predicted(experiment, name).needs
                if needed and find_spec(needed) is None:
                    raise InputError(
                        f"experiment {experiment}: the row {name} needs the package {needed}, which is not installed; "
                        f"`make {needed}`, or pip install 'director[{needed}]', or leave the row out"
                    )

    # -- rows and runs

    def method(self, experiment: str, name: str) -> Method:
        """The method of a row."""
        return self.experiments[experiment].method(name)

    def rows(self, experiment: str) -> list[tuple[str, str]]:
        """(backbone, method) of every row of an experiment's table, in its order."""
        methods = self.experiments[experiment].methods
        return [(backbone, method) for backbone, names in methods.items() for method in names]

    def runs(self, experiment: str) -> list[Run]:
        """Every run folder that holds a row: of each backbone its seeds, then `pooled` where a method pools all."""
        chosen = self.experiments[experiment]
        return [
            Run(experiment, backbone, seed)
            for backbone in chosen.methods
            for seed in [*chosen.seeds, POOLED]
            if self.methods(Run(experiment, backbone, seed))
        ]

    def methods(self, run: Run) -> list[str]:
        """The rows whose predictions lie in a run folder, in their order."""
        names = self.experiments[run.experiment].methods.get(run.backbone, [])
        return [name for name in names if self.method(run.experiment, name).pools_all is (run.seed == POOLED)]

    def jobs(self, experiment: str) -> list[Job]:
        """Every method's predictions, row by row, seed by seed."""
        return [
            Job(*run, method)
            for backbone, method in self.rows(experiment)
            for run in self.runs(experiment)
            if run.backbone == backbone and method in self.methods(run)
        ]

    def scaled(self, run: Run) -> dict[str, str]:
        """Methods of a run folder that a temperature makes -> the method whose predictions it scales."""
        methods = {name: self.method(run.experiment, name) for name in self.methods(run)}
        return {name: method.scales for name, method in methods.items() if method.scales}

    def pooled(self, job: Job) -> list[Job]:
        """The members that a pooling method averages: of all seeds, or of a run's own seed and those that follow it."""
        method, seeds = self.method(job.experiment, job.method), self.experiments[job.experiment].seeds
        if method.members:
            first = seeds.index(job.seed)
            seeds = [*seeds, *seeds][first : first + method.members]
        return [Job(job.experiment, job.backbone, seed, method.pools) for seed in seeds]

    def pooling(self) -> list[str]:
        """Names of all methods that pool others, in any experiment."""
        rows = [(experiment, name) for experiment in self.experiments for _, name in self.rows(experiment)]
        return sorted({name for experiment, name in rows if self.method(experiment, name).pools})

    def students(self, experiment: str, backbone: str) -> list[str]:
        """Methods whose students are distilled from a backbone, also where the table has only rows made of them."""
        names = self.experiments[experiment].methods.get(backbone, [])
        students = [self.predicted(experiment, name).student for name in names]
        return list(dict.fromkeys(filter(None, students)))

    def predicted(self, experiment: str, name: str) -> Method:
        """The method that predicts with a model what a row scales or pools; of any other row its own."""
        method = self.method(experiment, name)
        source = method.scales or method.pools
        return self.predicted(experiment, source) if source else method

    def trained(self, experiment: str) -> list[Job]:
        """Everything that an experiment trains: its backbones (method `backbone`), then their students."""
        chosen = self.experiments[experiment]
        trained = [(backbone, "backbone") for backbone in chosen.methods]
        trained += [(backbone, name) for backbone in chosen.methods for name in self.students(experiment, backbone)]
        return [Job(experiment, backbone, seed, name) for backbone, name in trained for seed in chosen.seeds]

    def names(self, *, weights: str, fits_noise: bool = False) -> list[str]:
        """Names of all methods that predict with these weights, in any experiment."""
        rows = [(experiment, name) for experiment in self.experiments for _, name in self.rows(experiment)]
        methods = [self.predicted(*row) for row in rows]
        names = {method.name for method in methods if (method.weights, method.fits_noise) == (weights, fits_noise)}
        return sorted(names)

    def trained_students(self) -> list[str]:
        """Names of all methods that train a student, in any experiment."""
        pairs = [(name, backbone) for name in self.experiments for backbone in self.experiments[name].methods]
        return sorted({student for pair in pairs for student in self.students(*pair)})

    # -- what jobs are told

    def training_options(self, experiment: str, backbone: str) -> dict[str, Any]:
        """Options of `director.training.train_backbone.train_backbone`."""
        chosen = self.experiments[experiment]
        return {
            "model": chosen.model,
            "training": chosen.training_of(backbone),
            "attention": chosen.attention_layers(backbone),
            "penalties": chosen.penalties_of(backbone),
            "annealing": chosen.annealing_of(backbone),
        }

    def split_options(self, experiment: str) -> dict[str, Any]:
        """Options of `director.data.catalogue.split_of`, but the seed."""
        return self.experiments[experiment].data.model_dump(include={"train", "validation", "protocol"})

    def job_options(self, experiment: str) -> dict[str, Any]:
        """Options of `director.training.job.TrainingJob`, the same for every training of an experiment."""
        chosen = self.experiments[experiment]
        return {
            "normalisation": chosen.data.normalisation,
            "augmentation": chosen.data.augmentation,
            "precision": chosen.precision,
            "predict_batch": chosen.predict_batch,
        }

    def caching_options(self, experiment: str) -> dict[str, Any]:
        """Options of `director.training.cache_trajectory.cache_trajectory`, and the number of `views`."""
        chosen = self.experiments[experiment]
        return {
            "views": chosen.director.trajectory.views,
            "dtype": chosen.director.trajectory.dtype,
            "softmax_variance": chosen.director.losses.softmax_variance,
            "normalisation": chosen.data.normalisation,
            "augmentation": chosen.data.augmentation,
        }

    def is_cached(self, experiment: str, method: str) -> bool:
        """Whether a student learns from a cache of its teacher's path."""
        return self.experiments[experiment].student(method).trajectory.source == "cache"

    def prediction_options(self, experiment: str, name: str) -> dict[str, Any]:
        """Options of `director.training.predict_run.predict_run`."""
        chosen, method = self.experiments[experiment], self.method(experiment, name)
        return {
            "suites": chosen.suites,
            "randomness": method.randomness,
            "samples": chosen.samples_of(name) or [1],
            "profile": method.weights == "student" and method.randomness == "noise",
            "laplace": method.weights == "laplace",
            "normalisation": chosen.data.normalisation,
            "batch_size": chosen.predict_batch,
            "precision": chosen.precision,
        }

    def measured_samples(self, run: Run) -> dict[str, list[int] | None]:
        """Method of a run folder -> the numbers of samples that its rows are made with; None for all there are."""
        return {name: self.experiments[run.experiment].samples_of(name) for name in self.methods(run)}

    def datasets(self, experiment: str) -> list[str]:
        """Every data set that an experiment predicts."""
        return list(dict.fromkeys(suite.dataset for suite in self.experiments[experiment].suites.values()))

    def known_probabilities(self, experiment: str) -> dict[str, str]:
        """Suite -> data set, of the test suites whose labels were drawn from a known distribution."""
        suites = self.experiments[experiment].suites
        known = {name: suite.dataset for name, suite in suites.items() if suite.labelled and name != "val"}
        return {name: dataset for name, dataset in known.items() if DATASETS[dataset].has_probability}

    def figures(self, experiment: str) -> list[str]:
        """Names of an experiment's figures: those that its suites and rows have something to show in."""
        shown = {
            "comparison": len(self.rows(experiment)) > 1,
            "severity": self.experiments[experiment].data.corrupted,
            "out_of_distribution": self.experiments[experiment].data.out_of_distribution,
            "samples": self.samplers(experiment),
            "depth": self.depths(experiment),
            "noise": self.noise_fits(experiment),
            "bayes": self.known_probabilities(experiment),
        }
        always = ["reliability", "risk_coverage", "cost", "training"]
        return [*always, *(name for name, content in shown.items() if content)]

    def baseline(self, experiment: str) -> tuple[str, str]:
        """(backbone, method) of the row that a figure holds all others against: the first `mle`, else the reference."""
        plain = [row for row in self.rows(experiment) if row[1] == "mle"]
        return plain[0] if plain else self.experiments[experiment].comparison.reference

    def depths(self, experiment: str) -> list[Job]:
        """The predictions that hold uncertainty along the depth: those of every student that is a row of the table."""
        students = {job: self.method(experiment, job.method) for job in self.jobs(experiment)}
        return [
            job for job, method in students.items() if method.student == job.method and method.randomness == "noise"
        ]

    def noise_fits(self, experiment: str) -> list[Job]:
        """The predictions whose noise scale is fitted, also where the table has only their scaled rows."""
        jobs = [job._replace(method=self.predicted(experiment, job.method).name) for job in self.jobs(experiment)]
        return [job for job in dict.fromkeys(jobs) if self.method(experiment, job.method).fits_noise]

    def samplers(self, experiment: str) -> list[Job]:
        """The rows whose predictions hold several samples."""
        numbers = {name: self.experiments[experiment].samples_of(name) for _, name in self.rows(experiment)}
        return [job for job in self.jobs(experiment) if max(numbers[job.method] or [1]) > 1]

    def descriptions(self) -> dict[str, str]:
        """Every method that is a row of a table, in words."""
        pairs = [(experiment, name) for experiment in self.experiments for _, name in self.rows(experiment)]
        return {name: self.method(experiment, name).in_words() for experiment, name in pairs}

    def published(self) -> dict[str, Any]:
        """Published numbers: experiment -> backbone -> method -> numbers."""
        return {name: chosen.model_dump()["published"] for name, chosen in self.experiments.items()}

    # -- what a job's code means

    def code(self, script: str, experiment: str | None = None, backbone: str | None = None, **table: str) -> str:
        """Digest of what a script does for one job: a change of meaning reruns the jobs that it concerns, no other.

        experiment, backbone: of the job, where what it does depends on their data set, model and attention. table:
        `dataset`, where the job is about one data set; `weights` that it predicts with, `backbone`, `laplace` or
        `student`.
        """
        entries: dict[str, tuple[str, ...]] = {}
        if dataset := table.get("dataset"):
            entries[DATASET_TABLE] = (f"{DATASETS[dataset].fetch.__module__}:DATASET",)
        if experiment is not None and backbone is not None:
            chosen = self.experiments[experiment]
            attention, _ = attention_of(backbone, chosen.model.depth)
            model = MODELS[chosen.model.kind]
            entries[DATASET_TABLE] = _split(chosen.data.name)
            entries[BACKBONE_TABLE] = (model,)
            is_student, is_pretrained = table.get("weights") == "student", chosen.model.kind == "pretrained"
            entries[PATH_TABLE] = PRETRAINED_PATHS if is_pretrained else (TRANSFORMER_PATH,)
            entries[MODEL_TABLE] = (STUDENT_MODEL,) if is_student and not is_pretrained else (model,)
            if not is_student:
                entries[STUDENT_LOADER] = ()
            if table.get("weights") != "laplace":
                entries[LAPLACE] = ()
            if not is_pretrained:
                entries[PRETRAINED_TRAINING] = ()
            entries[ATTENTION_TABLE] = (ATTENTIONS[attention.name],) if attention else ()
        return _code(script, tuple(entries.items()))


def lost_outputs(jobs: Iterable[tuple[Path, Path, str]]) -> list[Path]:
    """Declared outputs whose prediction files are not all there any more.

    jobs: (declared output, run folder, method). Snakemake knows only the declared output, a manifest of prediction
    files or, of scaled predictions, the file of temperatures; without it the job runs again, and keeps what is good.
    """
    return [output for output, folder, method in jobs if output.exists() and not is_whole(manifest_of(folder, method))]


def refuse_earlier_layout(results: str | Path) -> None:
    """Raise InputError if the folder of results holds runs of a version before 0.2, which are not read."""
    known = {"runs", "tables", "figures"}
    for folder in sorted(Path(results).glob("*")):
        if folder.is_dir() and folder.name not in known and any(folder.glob("*/seed-*")):
            raise InputError(
                f"{folder}: results of an earlier layout, which this version does not read; move the folder away "
                f"(mv {results} {results}-before-0.2) and run again, or use the version that wrote it"
            )


def _split(dataset: str) -> tuple[str, ...]:
    """What a training takes out of the table of data sets: how its set is split, where it says so itself."""
    split = DATASETS[dataset].split
    return (f"{split.__module__}:{split.__name__}",) if split else ()


@cache
def _code(script: str, entries: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    return code_digest(SCRIPTS / f"{script}.py", dict(entries))

# Paths, and what the settings make of them: lists of files, and the options of jobs. The path of a run is its identity,
# and its name in MLflow.
import shutil
from pathlib import Path

from snakemake.exceptions import WorkflowError

from director.configuration import load_configuration
from director.files import InputError
from director.provenance import code_digest
from director.sections import DATASETS, WITH_PROBABILITY

try:
    CONFIGURATION, EXPERIMENTS = load_configuration(config, "config/config.yaml")
except InputError as error:
    raise WorkflowError(str(error))

RAW = "data/raw/{dataset}/manifest.json"
SPLIT = "results/{experiment}/splits/seed-{seed}.npz"
RUN = "results/{experiment}/{backbone}/seed-{seed}"
BACKBONE = f"{RUN}/backbone"
PREDICTIONS = f"{RUN}/{{method}}/predictions/{{suite}}.npz"
COST = f"{RUN}/{{method}}/predictions/{{suite}}.cost.json"
METRICS = f"{RUN}/{{method}}/metrics/{{suite}}.json"
POOLED = "pooled"  # the seed of a run made of all seeds
SCALED = {"temperature": "mle", "director_temperature": "director"}  # method -> the one whose predictions it scales
MAIN = "results/tables/main.csv"
TABLES = [MAIN] + expand("results/tables/{table}", table=["main.json", "main.md", "main.tex", "all.csv", "corruption.csv", "ood.csv", "cost.csv", "comparison.csv"])
STUDENT = "director(?!_temperature)(_[a-z0-9_]+)?"
RUNS_PUBLISHED = expand("mlruns/{experiment}.complete", experiment=EXPERIMENTS)
TABLES_PUBLISHED = "mlruns/tables.complete"
ENVIRONMENT = "../../environment.yml"

COMPUTE = CONFIGURATION.compute
config["compute"] = COMPUTE.model_dump(include={"device", "compile"})  # scripts read the machine from `config`: parameters would make a change of it rerun them
# On a machine without a GPU a torch job asks for none, so that the cap of one GPU job (profiles/default) does not serialise the CPU.
GPUS = int(COMPUTE.device == "cuda" or (COMPUTE.device == "auto" and shutil.which("nvidia-smi") is not None))

wildcard_constraints:
    experiment="|".join(EXPERIMENTS),
    backbone="[a-z0-9_]+",
    seed=r"\d+|pooled",
    method="[a-z0-9_]+",
    suite="val|test|corrupted|shifted|ood-[a-z0-9_]+",
    dataset="[a-z0-9_]+",


def settings(wildcards):
    """Settings of the experiment that a job belongs to."""
    return EXPERIMENTS[wildcards.experiment]


def code(script, *modules):
    """Digest of what a rule's script does, with everything it imports: a change of meaning reruns the rule."""
    return code_digest(Path(workflow.basedir, "workflow/scripts", f"{script}.py"), *modules)


def raw(name):
    return RAW.format(dataset=name)


def rows(experiment):
    """(backbone, method) of every row of an experiment's table."""
    return [(backbone, method) for backbone, methods in EXPERIMENTS[experiment].methods.items() for method in methods]


def seeds_of(experiment, method):
    """Seeds under which a method's runs lie: an ensemble is one run made of all of them."""
    return [POOLED] if method == "ensemble" else EXPERIMENTS[experiment].seeds


def files_of(experiment, pattern, suites=None):
    """`pattern` for every run of an experiment, in every test suite or the ones given."""
    return [
        pattern.format(experiment=experiment, backbone=backbone, seed=seed, method=method, suite=suite)
        for backbone, method in rows(experiment)
        for seed in seeds_of(experiment, method)
        for suite in suites or EXPERIMENTS[experiment].suites
    ]


def trained_of(experiment):
    """The weights of everything that an experiment trains: backbones, and the students distilled from them."""
    settings = EXPERIMENTS[experiment]
    backbones = expand(f"{BACKBONE}/model.safetensors", experiment=experiment, backbone=settings.methods, seed=settings.seeds)
    return backbones + [
        f"{RUN}/{{method}}/model.safetensors".format(experiment=experiment, backbone=backbone, method=method, seed=seed)
        for backbone in settings.methods
        for method in settings.students(backbone)
        for seed in settings.seeds
    ]


def files_of_all(pattern, suites=None):
    return [path for experiment in EXPERIMENTS for path in files_of(experiment, pattern, suites)]


def views_options(wildcards):
    chosen = settings(wildcards)
    return {"precision": chosen.precision, **chosen.data.model_dump(include={"normalisation", "augmentation"})}


def training_options(wildcards):
    chosen = settings(wildcards)
    kep = chosen.kep_svgp if chosen.kep_layers(wildcards.backbone) else None
    return {
        "model": chosen.model_of(wildcards.backbone),
        "training": (kep and kep.training or chosen.training).model_dump(),
        "penalties": kep and {"ksvd": kep.eta_ksvd, "kl": kep.eta_kl},
        **views_options(wildcards),
    }


def distilling_options(wildcards):
    chosen = settings(wildcards).director_of(wildcards.method)
    return {
        **chosen.model_dump(include={"kernel", "losses", "training"}),
        "samples": chosen.selection_samples,
        "views": chosen.trajectory.views,
        **views_options(wildcards),
    }


def caching_options(wildcards):
    chosen = settings(wildcards)
    return {
        "softmax_variance": chosen.director.losses.softmax_variance,
        **chosen.director.trajectory.model_dump(include={"views", "dtype"}),
        **chosen.data.model_dump(include={"normalisation", "augmentation"}),
    }


def trajectory_of(wildcards):
    """The teacher's cached path, if training reads one."""
    cached = settings(wildcards).director_of(wildcards.method).trajectory.source == "cache"
    return [f"{RUN}/trajectory/complete.json".format(**wildcards)] if cached else []


def scaled_by(wildcards, pattern, suite):
    """A file of the method that a temperature is fitted to."""
    return pattern.format(**{**wildcards, "method": SCALED[wildcards.method], "suite": suite})


def depths_of(experiment):
    """Uncertainty along the depth of every student that is a row of the table."""
    pattern = f"{RUN}/{{method}}/predictions/{{suite}}.depth.npz"
    methods = {method for backbone in EXPERIMENTS[experiment].methods for method in EXPERIMENTS[experiment].students(backbone)}
    return [path for path in files_of(experiment, pattern) if Path(path).parts[-3] in methods]


def predicted_dataset(wildcards):
    """Data set of a suite; the validation part and the test suite come from the experiment's own."""
    return raw(settings(wildcards).suites["test" if wildcards.suite == "val" else wildcards.suite])


def prediction_options(wildcards):
    chosen = settings(wildcards)
    limits = {"val": None, "corrupted": chosen.data.corrupted_examples}
    return {
        **chosen.data.model_dump(include={"normalisation"}),
        "part": "validation" if wildcards.suite == "val" else "test",
        "labelled": not wildcards.suite.startswith("ood-"),
        "at_most": limits.get(wildcards.suite, chosen.data.test_examples),
        "samples": max(chosen.samples_of(wildcards.method) or [1]),
        "batch_size": chosen.predict_batch,
        "precision": chosen.precision,
    }


def members(pattern):
    """Input function: the files of all seeds that an ensemble pools."""
    return lambda wildcards: [
        pattern.format(seed=seed, method="mle", **{key: wildcards[key] for key in ("experiment", "backbone", "suite")})
        for seed in settings(wildcards).seeds
    ]


def inside_of(wildcards):
    """The test predictions that an out-of-distribution suite is held against; nothing for other suites."""
    return [PREDICTIONS.format(**{**wildcards, "suite": "test"})] if wildcards.suite.startswith("ood-") else []


def probabilities_of(experiment):
    """Suite -> data set, of those whose labels were drawn from a known distribution."""
    suites = EXPERIMENTS[experiment].suites
    return {suite: name for suite, name in suites.items() if suite in ("test", "shifted") and name in WITH_PROBABILITY}


def figures_of(experiment):
    """Names of an experiment's figures: those that its suites and rows have something to show in."""
    drawn = {
        "severity": EXPERIMENTS[experiment].data.corrupted,
        "depth": depths_of(experiment),
        "bayes": probabilities_of(experiment),
    }
    return ["reliability", "risk_coverage"] + [figure for figure, content in drawn.items() if content]


FIGURES = [f"results/figures/{experiment}/{figure}.svg" for experiment in EXPERIMENTS for figure in figures_of(experiment)]

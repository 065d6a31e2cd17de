# Paths, and short names for what the plan computes (director/plan.py). A run folder is the identity of what lies in it, and
# its path also that of its runs in MLflow.
import shutil
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod

from director.data.catalogue import DATASETS
from director.errors import InputError
from director.methods import POOLED
from director.plan import Job, Plan, Run, lost_outputs, refuse_earlier_layout

try:
    refuse_earlier_layout("results")
    PLAN = Plan.load(config, "config/config.yaml")
except InputError as error:
    raise WorkflowError(str(error))

# The rules name their environment for whoever reads them. Snakemake cannot make it: its copy of environment.yml has neither the lock
# nor the package beside it.
if DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method:
    raise WorkflowError(
        "--sdm conda: jobs run in the environment that snakemake itself runs in; make it once, as environment.yml says, activate it, "
        "and give the same command without --sdm conda"
    )

RAW = "data/raw/{dataset}/manifest.json"
RUN = "results/runs/{experiment}/{backbone}/seed-{seed}"
BACKBONE = f"{RUN}/backbone"
STUDENT = f"{RUN}/{{method}}"
# what a method predicts with (director/methods.py) -> the backbone's file
BACKBONE_WEIGHTS = {"backbone": f"{BACKBONE}/model.safetensors", "early": f"{BACKBONE}/early.safetensors"}
TRAJECTORY = f"{RUN}/trajectory"
MANIFEST = f"{RUN}/{{method}}/predictions/manifest.json"
COST = f"{RUN}/{{method}}/predictions/cost.json"
NOISE_SCALE = f"{RUN}/{{method}}/noise_scale.json"
TEMPERATURES = f"{RUN}/temperatures.json"
METRICS = f"{RUN}/metrics.json"
COMPARISON = "results/runs/{experiment}/comparison.csv"
MAIN = "results/tables/main.csv"
PAGE = "results/tables/main.html"
OTHER_TABLES = expand("results/tables/{table}", table=["main.json", "main.md", "main.tex", "main.html", "all.csv", "corruption.csv", "ood.csv", "cost.csv", "comparison.csv"])
FIGURES = [f"results/figures/{experiment}/{figure}.svg" for experiment in PLAN.experiments for figure in PLAN.figures(experiment)]
# A report shows what is there: straight after the main job, the tables. Snakemake tells nobody that it is making one.
IS_REPORT = any(word.partition("=")[0] == "--report" for word in sys.argv)
FIGURES_TO_SHOW = [figure for figure in FIGURES if not IS_REPORT or Path(figure).exists()]
if IS_REPORT:
    from datetime import date

    from director.report.page import body_of

    if not (Path(MAIN).exists() and Path(PAGE).exists()):
        raise WorkflowError(f"{MAIN} is not there, so there is nothing to report; run snakemake --cores 8 {MAIN} first")
    config["report"] = {"date": date.today().isoformat(), "page": body_of(PAGE)}  # what workflow/report/workflow.rst shows
RUNS_PUBLISHED = "results/published/runs.json"
TABLES_PUBLISHED = "results/published/tables.json"
ENVIRONMENT = "../../environment.yml"

config["compute"] = PLAN.compute.model_dump()  # scripts read the machine from `config`: parameters would make a change of it rerun them
# On a machine without a GPU a torch job asks for none, so that the cap of one GPU job (profiles/default) does not serialise the CPU.
GPUS = int(PLAN.compute.device == "cuda" or (PLAN.compute.device == "auto" and shutil.which("nvidia-smi") is not None))

wildcard_constraints:
    experiment="|".join(PLAN.experiments),
    backbone="[a-z0-9_]+",
    seed=rf"\d+|{POOLED}",
    method="[a-z0-9_]+",
    dataset="[a-z0-9_]+",


def raw(*names):
    """Manifests of data sets."""
    return [RAW.format(dataset=name) for name in names]


def own_data(wildcards):
    """The data set that an experiment trains on."""
    return RAW.format(dataset=PLAN.experiments[wildcards.experiment].data.name)


def code(script, **table):
    """Input function: digest of what a script does for the job of these wildcards."""
    return lambda wildcards: PLAN.code(script, getattr(wildcards, "experiment", None), getattr(wildcards, "backbone", None), **table)


def run_of(wildcards):
    """The run folder of a job."""
    return Run(wildcards.experiment, wildcards.backbone, wildcards.seed if wildcards.seed == POOLED else int(wildcards.seed))


def job_of(wildcards):
    """The predictions of a job."""
    return Job(*run_of(wildcards), wildcards.method)


def declared(job):
    """The declared output of a method's predictions: its manifest, or the file of temperatures of its run folder."""
    return (TEMPERATURES if PLAN.method(job.experiment, job.method).scales else MANIFEST).format(**job._asdict())


def predictions_of(experiment):
    """What must be there before all predictions of an experiment are."""
    return list(dict.fromkeys(map(declared, PLAN.jobs(experiment))))


def trained_of(experiment):
    """The weights of everything that an experiment trains."""
    return [f"{STUDENT}/model.safetensors".format(**job._asdict()) for job in PLAN.trained(experiment)]


def of_all(function):
    """What a function gives for every experiment, in one list."""
    return [item for experiment in PLAN.experiments for item in function(experiment)]


def metrics_of(experiment):
    return [METRICS.format(**run._asdict()) for run in PLAN.runs(experiment)]


def manifests_of(experiment):
    """Manifests of all predictions, row by row, seed by seed."""
    return [MANIFEST.format(**job._asdict()) for job in PLAN.jobs(experiment)]


def student_file(wildcards, file):
    """A file of the student that a method predicts with."""
    student = PLAN.method(wildcards.experiment, wildcards.method).student
    return f"{STUDENT}/{file}".format(**{**wildcards, "method": student})


def cached(wildcards, file):
    """A file of the teacher's cached path, where the student reads one."""
    return [f"{TRAJECTORY}/{file}".format(**wildcards)] if PLAN.is_cached(wildcards.experiment, wildcards.method) else []

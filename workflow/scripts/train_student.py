"""Distil a teacher's path into one transition kernel."""

from pathlib import Path

from director.job_log import start
from director.settings.training import Compute
from director.training.cache_trajectory import read_complete
from director.training.job import TrainingJob
from director.training.train_student import train_student

start(snakemake.log[0])
job = TrainingJob(
    dataset_folder=Path(snakemake.input.manifest).parent,
    split_file=snakemake.input.split,
    folder=Path(snakemake.output.weights).parent,
    seed=int(snakemake.wildcards.seed),
    about={key: snakemake.wildcards[key] for key in ("experiment", "backbone")} | {"code": snakemake.params.code},
    compute=Compute(**snakemake.config["compute"] | {"threads": snakemake.threads}),
    **snakemake.params.job,
)
folders = [folder for complete in snakemake.input.cache for folder in read_complete(complete)]
options = snakemake.params.options
train_student(job, options["student"], snakemake.input.teacher, snakemake.input.costs, folders)

"""Distil a teacher's path into one transition kernel."""

from pathlib import Path

from director.distillation import train_director
from director.files import read_json
from director.job import start

start(snakemake.log[0])
train_director(
    teacher_file=snakemake.input.teacher,
    teacher_cost_file=snakemake.input.teacher_cost,
    cache_folders=[folder for complete in snakemake.input.cache for folder in read_json(complete)],
    dataset_folder=Path(snakemake.input.manifest).parent,
    split_file=snakemake.input.split,
    seed=int(snakemake.wildcards.seed),
    about={key: snakemake.wildcards[key] for key in ("experiment", "backbone")} | {"code": snakemake.params.code},
    **{f"{name}_file": snakemake.output[name] for name in ("weights", "history", "cost", "settings")},
    threads=snakemake.threads,
    **snakemake.config["compute"],
    **snakemake.params.options,
)

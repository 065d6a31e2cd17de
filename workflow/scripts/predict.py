"""Predictions of one method with one trained model, on every suite."""

from pathlib import Path

from director.job_log import start
from director.settings.training import Compute
from director.training.predict_run import predict_run

start(snakemake.log[0])
folders = [Path(manifest).parent for manifest in snakemake.input.manifests]
names = {key: snakemake.wildcards[key] for key in ("experiment", "backbone", "method")}
predict_run(
    weights_file=snakemake.input.weights,
    teacher_file=snakemake.input.get("teacher"),
    training_cost_file=snakemake.input.training_cost,
    split_file=snakemake.input.split,
    dataset_folders={folder.name: folder for folder in folders},
    folder=Path(snakemake.output.manifest).parent,
    seed=int(snakemake.wildcards.seed),
    about=names | {"code": snakemake.params.code},
    compute=Compute(**snakemake.config["compute"] | {"threads": snakemake.threads}),
    **snakemake.params.options,
)

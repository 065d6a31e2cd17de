"""Predictions of one method on one suite."""

from pathlib import Path

from director.job import start
from director.prediction import predict_suite

start(snakemake.log[0])
wildcards, params = snakemake.wildcards, snakemake.params
predict_suite(
    weights_file=snakemake.input.weights,
    training_cost_file=snakemake.input.training_cost,
    dataset_folder=Path(snakemake.input.manifest).parent,
    split_file=None if wildcards.suite.startswith(("ood-", "shifted")) else snakemake.input.split,
    method=wildcards.method,
    seed=int(wildcards.seed),
    about={key: wildcards[key] for key in ("experiment", "backbone", "suite")} | {"code": params.code},
    predictions_file=snakemake.output.predictions,
    cost_file=snakemake.output.cost,
    depth_file=snakemake.output.get("depth"),
    threads=snakemake.threads,
    device=snakemake.config["compute"]["device"],
    **params.options,
)

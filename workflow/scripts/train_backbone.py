"""Train one backbone to its best validation epoch."""

from pathlib import Path

from director.job import start
from director.recipes import train_backbone

start(snakemake.log[0])
train_backbone(
    dataset_folder=Path(snakemake.input.manifest).parent,
    split_file=snakemake.input.split,
    seed=int(snakemake.wildcards.seed),
    about={key: snakemake.wildcards[key] for key in ("experiment", "backbone")} | {"code": snakemake.params.code},
    weights_file=snakemake.output.weights,
    history_file=snakemake.output.history,
    cost_file=snakemake.output.cost,
    settings_file=snakemake.output.settings,
    threads=snakemake.threads,
    **snakemake.config["compute"],
    **snakemake.params.options,
)

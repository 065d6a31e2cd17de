"""Bring the runs of one experiment into MLflow."""

from pathlib import Path

from director.files import write_json
from director.job import start
from director.tracking import publish_runs

start(snakemake.log[0])
ids = publish_runs(
    snakemake.wildcards.experiment,
    trained=[Path(path).parent for path in snakemake.input.weights],
    metrics_files=snakemake.input.metrics,
)
write_json(snakemake.output.complete, ids)

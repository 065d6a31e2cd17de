"""Bring the runs of all experiments into MLflow."""

from pathlib import Path

from director.files import write_json
from director.job_log import start
from director.report.tracking import publish_runs

start(snakemake.log[0])
trained = [Path(path).parent for path in snakemake.input.weights]
write_json(snakemake.output.complete, publish_runs(trained, snakemake.input.metrics))

"""Bring the runs of all experiments into MLflow."""

import os
from pathlib import Path

from director.job_log import start
from director.report.tracking import attempt, publish_runs

screen = os.fdopen(os.dup(2), "w")  # before the log takes its place
start(snakemake.log[0])
trained = [Path(path).parent for path in snakemake.input.weights]
attempt(lambda: publish_runs(trained, snakemake.input.metrics), snakemake.output.complete, screen)

"""Bring the tables and figures into MLflow, as the artifacts of one run."""

import os

from director.job_log import start
from director.report.tracking import attempt, publish_tables

screen = os.fdopen(os.dup(2), "w")  # before the log takes its place
start(snakemake.log[0])
attempt(lambda: publish_tables(snakemake.input.tables, snakemake.input.figures), snakemake.output.complete, screen)

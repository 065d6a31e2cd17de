"""Bring the tables and figures into MLflow, as the artifacts of one run."""

from director.files import write_json
from director.job_log import start
from director.report.tracking import publish_tables

start(snakemake.log[0])
write_json(snakemake.output.complete, publish_tables(snakemake.input.tables, snakemake.input.figures))

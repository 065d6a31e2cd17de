"""Reliability diagrams of an experiment's rows, on the test suite."""

from director.job_log import start
from director.report.figures import plot_reliability

start(snakemake.log[0])
plot_reliability(snakemake.params.manifests, snakemake.output.figure)

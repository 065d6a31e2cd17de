"""Accuracy, NLL and ECE of an experiment's rows against the severity of the corruption."""

from director.job_log import start
from director.report.figures import plot_severity

start(snakemake.log[0])
plot_severity(snakemake.input.metrics, snakemake.output.figure)

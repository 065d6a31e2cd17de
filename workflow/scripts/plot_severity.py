"""Accuracy, NLL and ECE of an experiment's rows against the severity of the corruption."""

from director.figures import plot_severity
from director.job import start

start(snakemake.log[0])
plot_severity(snakemake.input.metrics, snakemake.output.figure)

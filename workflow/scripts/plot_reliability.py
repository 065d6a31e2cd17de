"""Reliability diagrams of an experiment's rows, on the test suite."""

from director.figures import plot_reliability
from director.job import start

start(snakemake.log[0])
plot_reliability(snakemake.input.predictions, snakemake.output.figure)

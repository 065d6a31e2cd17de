"""Differences of every row of an experiment to its reference row."""

from director.comparison import compare_rows
from director.job import start

start(snakemake.log[0])
compare_rows(snakemake.input.predictions, snakemake.output.comparison, **snakemake.params.comparison)

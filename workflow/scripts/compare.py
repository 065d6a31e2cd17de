"""Differences of every row of an experiment to its reference row."""

from director.job_log import start
from director.numbers.compare_rows import compare_rows

start(snakemake.log[0])
compare_rows(snakemake.params.manifests, snakemake.output.comparison, **snakemake.params.comparison)

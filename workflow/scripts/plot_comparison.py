"""Differences of an experiment's rows to its reference row."""

from director.job_log import start
from director.report.charts import plot_comparison
from director.report.style import save_figure

start(snakemake.log[0])
save_figure(plot_comparison(snakemake.input.comparison), *snakemake.output)

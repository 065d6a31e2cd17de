"""NLL and ECE of an experiment's rows against their cost, and the training curves of its models."""

from director.job_log import start
from director.report.charts import plot_cost, plot_training
from director.report.style import save_figure

start(snakemake.log[0])
cost = plot_cost(snakemake.input.metrics, snakemake.params.costs, snakemake.params.rows)
save_figure(cost, *snakemake.output[:2])
save_figure(plot_training(snakemake.params.folders), *snakemake.output[2:])

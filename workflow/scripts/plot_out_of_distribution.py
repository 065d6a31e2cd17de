"""Histograms of an experiment's rows: confidence on test inputs and on inputs from elsewhere."""

from director.job_log import start
from director.report.figures import plot_out_of_distribution
from director.report.style import save_figure

start(snakemake.log[0])
save_figure(plot_out_of_distribution(snakemake.params.manifests), *snakemake.output)

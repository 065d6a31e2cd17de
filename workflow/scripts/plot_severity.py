"""Accuracy, NLL and ECE of an experiment's rows against the severity of the corruption."""

from director.job_log import start
from director.report.figures import plot_severity
from director.report.style import save_figure

start(snakemake.log[0])
params = snakemake.params
save_figure(plot_severity(params.manifests, params.baseline, **params.intervals), *snakemake.output)

"""Reliability diagrams and risk-coverage curves of an experiment's rows, on the test suite."""

from director.job_log import start
from director.report.figures import plot_reliability, plot_risk_coverage
from director.report.style import save_figure

start(snakemake.log[0])
save_figure(plot_reliability(snakemake.params.manifests), *snakemake.output[:2])
save_figure(plot_risk_coverage(snakemake.params.manifests), *snakemake.output[2:])

"""Risk-coverage curves of an experiment's rows, on the test suite."""

from director.job_log import start
from director.report.figures import plot_risk_coverage

start(snakemake.log[0])
plot_risk_coverage(snakemake.params.manifests, snakemake.output.figure)

"""Risk-coverage curves of an experiment's rows, on the test suite."""

from director.figures import plot_risk_coverage
from director.job import start

start(snakemake.log[0])
plot_risk_coverage(snakemake.input.predictions, snakemake.output.figure)

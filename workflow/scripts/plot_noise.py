"""What the scale of a student's noise and the number of its roll-outs do."""

from director.job_log import start
from director.report.figures import plot_noise

start(snakemake.log[0])
plot_noise(snakemake.input.noise, snakemake.params.manifests, snakemake.output.figure)

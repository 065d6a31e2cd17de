"""The student's predicted variance along its path, on clean, corrupted and foreign inputs."""

from director.job_log import start
from director.report.figures import plot_depth

start(snakemake.log[0])
plot_depth(snakemake.params.manifests, snakemake.output.figure)

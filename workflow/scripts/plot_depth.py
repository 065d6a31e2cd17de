"""The student's predicted variance along its path, on clean, corrupted and foreign inputs."""

from director.figures import plot_depth
from director.job import start

start(snakemake.log[0])
plot_depth(snakemake.input.depths, snakemake.output.figure)

"""The student's predicted variance along its path, on clean, corrupted and foreign inputs."""

from director.job_log import start
from director.report.figures import plot_depth
from director.report.style import save_figure

start(snakemake.log[0])
save_figure(plot_depth(snakemake.input.predictions), *snakemake.output)

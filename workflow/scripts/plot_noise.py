"""NLL and ECE on validation data over the scale of a student's noise."""

from director.job_log import start
from director.report.figures import plot_noise
from director.report.style import save_figure

start(snakemake.log[0])
save_figure(plot_noise(snakemake.input.noise), *snakemake.output)

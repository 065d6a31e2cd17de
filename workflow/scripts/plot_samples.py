"""NLL and ECE of an experiment's rows over the number of samples."""

from director.job_log import start
from director.report.figures import plot_samples
from director.report.style import save_figure

start(snakemake.log[0])
save_figure(plot_samples(snakemake.input.predictions), *snakemake.output)

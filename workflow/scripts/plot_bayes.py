"""Predicted probability against the true one that the labels were drawn from."""

from pathlib import Path

from director.data.dataset import Dataset
from director.job_log import start
from director.report.figures import plot_bayes
from director.report.style import save_figure

start(snakemake.log[0])
folders = [Path(manifest).parent for manifest in snakemake.input.datasets]
truths = {
    suite: Dataset.load(folder).probability for suite, folder in zip(snakemake.params.suites, folders, strict=True)
}
save_figure(plot_bayes(snakemake.params.manifests, truths), *snakemake.output)

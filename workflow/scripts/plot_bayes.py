"""Predicted probability against the true one that the labels were drawn from."""

from pathlib import Path

from director.data.dataset import Dataset
from director.figures import plot_bayes
from director.job import start

start(snakemake.log[0])
folders = [Path(manifest).parent for manifest in snakemake.input.manifests]
truths = {
    suite: Dataset.load(folder).probability for suite, folder in zip(snakemake.params.suites, folders, strict=True)
}
plot_bayes(snakemake.input.predictions, truths, snakemake.output.figure)

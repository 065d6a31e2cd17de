"""Fetch or generate one data set into its folder."""

from pathlib import Path

from director.data.catalogue import fetch_dataset
from director.job_log import start

start(snakemake.log[0])
fetch_dataset(
    snakemake.wildcards.dataset,
    Path(snakemake.output.manifest).parent,
    made_from=[Path(manifest).parent for manifest in snakemake.input.made_from],
)

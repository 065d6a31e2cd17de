"""Deal the examples of a data set into train, validation and test for one seed."""

from pathlib import Path

from director.data.splits import split_dataset
from director.job import start

start(snakemake.log[0])
split_dataset(
    Path(snakemake.input.manifest).parent,
    snakemake.output.split,
    seed=int(snakemake.wildcards.seed),
    **snakemake.params.sizes,
)

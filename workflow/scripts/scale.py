"""Fit the temperatures of a run folder and apply them to every suite."""

from pathlib import Path

from director.job_log import start
from director.numbers.temperature import scale_run

start(snakemake.log[0])
scale_run(
    Path(snakemake.output.temperatures).parent,
    snakemake.params.scaled,
    snakemake.output.temperatures,
    about={"code": snakemake.params.code},
    **snakemake.params.bounds,
)

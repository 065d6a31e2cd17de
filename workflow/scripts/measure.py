"""Every metric of every suite of a run folder, as JSON."""

from pathlib import Path

from director.job_log import start
from director.numbers.measure import measure_run

start(snakemake.log[0])
measure_run(Path(snakemake.output.metrics).parent, snakemake.params.samples, snakemake.output.metrics)

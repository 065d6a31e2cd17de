"""Every metric of one prediction file, as JSON."""

from director.files import write_json
from director.job import start
from director.measurement import measure_suite

start(snakemake.log[0])
write_json(snakemake.output.metrics, measure_suite(snakemake.input.predictions, *snakemake.input.inside))

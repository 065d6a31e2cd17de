"""Every metric of one prediction file, as JSON."""

from director.files import write_json
from director.job import start
from director.measurement import measure_suite

start(snakemake.log[0])
measured = measure_suite(
    snakemake.input.predictions,
    inside=next(iter(snakemake.input.inside), None),
    samples=snakemake.params.samples,
)
write_json(snakemake.output.metrics, measured)

"""The tables of the study, from the metrics and costs of its runs."""

from pathlib import Path

from director.job_log import start
from director.report.page import write_page
from director.report.tables import write_tables

start(snakemake.log[0])
folder = Path(snakemake.output.main).parent
write_tables(
    folder,
    metrics_files=snakemake.input.metrics,
    cost_files=snakemake.params.costs,
    comparison_files=snakemake.input.comparisons,
    published=snakemake.params.published,
    rows=snakemake.params.rows,
)
write_page(snakemake.output.page, folder, snakemake.input.metrics, snakemake.params.methods)

"""Pool the predictions of several seeds into a deep ensemble."""

from pathlib import Path

from director.job_log import start
from director.numbers.ensemble import pool_ensemble

start(snakemake.log[0])
names = {key: snakemake.wildcards[key] for key in ("experiment", "backbone", "method")}
pool_ensemble(
    snakemake.params.manifests,
    Path(snakemake.output.manifest).parent,
    about=names | {"seed": snakemake.params.seed, "code": snakemake.params.code},
)

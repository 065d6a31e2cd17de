"""Pool the predictions of all seeds into a deep ensemble."""

from director.ensemble import pool_ensemble
from director.job import start

start(snakemake.log[0])
pool_ensemble(
    prediction_files=snakemake.input.predictions,
    cost_files=snakemake.input.cost,
    about={key: snakemake.wildcards[key] for key in ("experiment", "backbone", "suite")}
    | {"seed": "pooled", "code": snakemake.params.code},
    predictions_file=snakemake.output.predictions,
    cost_file=snakemake.output.cost,
)

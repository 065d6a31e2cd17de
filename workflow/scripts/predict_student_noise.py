"""Predictions of a student with the noise scale that suits its validation part best."""

from functools import partial
from pathlib import Path

from director.job_log import start
from director.settings.training import Compute
from director.training.noise_scale import fit_into_file
from director.training.predict_run import predict_run

start(snakemake.log[0])
about = {key: snakemake.wildcards[key] for key in ("experiment", "backbone", "method", "seed")}
predict_run(
    weights_file=snakemake.input.weights,
    teacher_file=snakemake.input.teacher,
    training_cost_file=snakemake.input.training_cost,
    split_file=snakemake.input.split,
    dataset_folders={Path(manifest).parent.name: Path(manifest).parent for manifest in snakemake.input.manifests},
    folder=Path(snakemake.output.manifest).parent,
    seed=int(snakemake.wildcards.seed),
    about=about | {"code": snakemake.params.code},
    fit_noise=partial(fit_into_file, snakemake.output.noise, about),
    compute=Compute(**snakemake.config["compute"] | {"threads": snakemake.threads}),
    **snakemake.params.options,
)

"""Fit a temperature on validation predictions and apply it to a suite."""

import shutil
from dataclasses import replace

from director.files import replacing
from director.job import start
from director.predictions import Predictions
from director.provenance import git_commit, versions
from director.temperature import fit_temperature, scale

start(snakemake.log[0])
temperature = fit_temperature(Predictions.load(snakemake.input.validation), **snakemake.params.bounds)
scaled = scale(Predictions.load(snakemake.input.predictions), temperature)
origin = {"code": snakemake.params.code, "commit": git_commit(), "versions": versions("numpy", "scipy")}
about = {**scaled.about, "method": snakemake.params.method, **origin}
replace(scaled, about=about).save(snakemake.output.predictions)
with replacing(snakemake.output.cost) as temporary:
    shutil.copyfile(snakemake.input.cost, temporary)  # one number more to fit and to multiply by

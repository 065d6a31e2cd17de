"""Split the data set for one seed, and train one backbone to its best validation epoch."""

from pathlib import Path

from director.data.catalogue import split_of
from director.data.dataset import Dataset
from director.data.splits import write_split
from director.job_log import start
from director.settings.training import Compute
from director.training.job import TrainingJob
from director.training.train_backbone import train_backbone

start(snakemake.log[0])
folder, seed = Path(snakemake.input.manifest).parent, int(snakemake.wildcards.seed)
write_split(snakemake.output.split, split_of(Dataset.load(folder), seed=seed, **snakemake.params.split))
job = TrainingJob(
    dataset_folder=folder,
    split_file=snakemake.output.split,
    folder=Path(snakemake.output.weights).parent,
    seed=seed,
    about={key: snakemake.wildcards[key] for key in ("experiment", "backbone")} | {"code": snakemake.params.code},
    compute=Compute(**snakemake.config["compute"] | {"threads": snakemake.threads}),
    **snakemake.params.job,
)
train_backbone(job, **snakemake.params.training)

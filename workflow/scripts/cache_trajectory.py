"""Keep the path of a frozen teacher over its training part."""

from pathlib import Path

from director.files import file_digest, write_json
from director.job_log import start
from director.settings.training import Compute
from director.training.cache_trajectory import cache_trajectory

start(snakemake.log[0])
options = dict(snakemake.params.options)
folders = [str(Path(snakemake.output.complete).with_name(f"view-{view}")) for view in range(options.pop("views"))]
cache_trajectory(
    teacher_file=snakemake.input.teacher,
    dataset_folder=Path(snakemake.input.manifest).parent,
    split_file=snakemake.input.split,
    folders=folders,
    cost_file=snakemake.output.cost,
    seed=int(snakemake.wildcards.seed),
    compute=Compute(**snakemake.config["compute"] | {"threads": snakemake.threads}),
    **options,
)
write_json(snakemake.output.complete, {folder: file_digest(Path(folder, "manifest.json")) for folder in folders})

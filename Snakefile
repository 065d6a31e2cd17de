# The whole study: raw data -> weights -> prediction files -> tables and figures.
#   snakemake --cores 8 results/tables/main.csv     the table (and its runs in MLflow)
#   snakemake --cores 8                             tables and figures
from snakemake.utils import min_version

min_version("9.10")

# config/config.yaml is read by director.plan: Snakemake would take 010 for 8 and `on` for true (director/settings/notation.py).
include: "workflow/rules/common.smk"
include: "workflow/rules/driver.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/backbone.smk"
include: "workflow/rules/predict.smk"
include: "workflow/rules/baselines.smk"
include: "workflow/rules/student.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/publish.smk"

report: "workflow/report/workflow.rst"

# A report shows the parameters of each job, which say nothing to its reader: digests of code, and lists of files.
if IS_REPORT:
    for planned in workflow.rules:
        planned._params = type(planned.params)()

# Everything that a reader of the study opens.
rule all:
    default_target: True
    input:
        MAIN,
        OTHER_TABLES,
        FIGURES_TO_SHOW,

# Publication to MLflow: two local rules, the only ones that talk to it. Whoever asks for the table gets the runs published,
# too: `tabulate` comes after them, but needs nothing of them. A publication that fails is a warning, and its flag says why.
# It counts as a failure, whose number is a parameter, so that the same command tries again.
# The flags lie where neither a store that cannot be written reaches them nor DVC, with which results travel.
from director.report.tracking import failed_attempts, is_lost

# The flag of a store that is gone is not true and is taken away, so that `publish` fills the new one.
if workflow.is_main_process:
    for untrue in filter(is_lost, (RUNS_PUBLISHED, TABLES_PUBLISHED)):
        Path(untrue).unlink(missing_ok=True)


localrules:
    publish_runs,
    publish_tables,
    publish,


# One MLflow run per trained backbone, per method of a run folder, and per row of the table.
rule publish_runs:
    input:
        weights=of_all(trained_of),
        metrics=of_all(metrics_of),
    output:
        complete=RUNS_PUBLISHED,
    params:
        code=code("publish_runs"),
        failures=lambda wildcards: failed_attempts(RUNS_PUBLISHED),
    resources:
        mlflow=1,
    log:
        "logs/publish_runs.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/publish_runs.py"


# One MLflow run that holds the tables and figures of the study.
rule publish_tables:
    input:
        tables=[MAIN, *OTHER_TABLES],
        figures=FIGURES,
    output:
        complete=TABLES_PUBLISHED,
    params:
        code=code("publish_tables"),
        failures=lambda wildcards: failed_attempts(TABLES_PUBLISHED),
    resources:
        mlflow=1,
    log:
        "logs/publish_tables.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/publish_tables.py"


# Everything into MLflow: `snakemake --cores 1 publish`, also for results that came from elsewhere.
rule publish:
    input:
        RUNS_PUBLISHED,
        TABLES_PUBLISHED,

# Publication to MLflow: two local rules, the only ones that talk to it. Only the tables wait for it, so that whoever has
# them finds their runs there.
# The flags lie beside the store, so that they are gone when it is, and do not travel with the results.

localrules:
    publish_runs,
    publish_tables,
    publish,


# One MLflow run per trained backbone and per method of a run folder.
rule publish_runs:
    input:
        weights=of_all(trained_of),
        metrics=of_all(metrics_of),
    output:
        complete=RUNS_PUBLISHED,
    params:
        code=code("publish_runs"),
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

# Raw data.

# Fetch a data set once, from what is nearest, and check it against known counts.
rule fetch_dataset:
    input:
        made_from=lambda wildcards: raw(*DATASETS[wildcards.dataset].made_from),
    output:
        manifest=RAW,
    params:
        code=lambda wildcards: PLAN.code("fetch_dataset", dataset=wildcards.dataset),
    wildcard_constraints:
        dataset="|".join(DATASETS),
    log:
        "logs/fetch_dataset/{dataset}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/fetch_dataset.py"

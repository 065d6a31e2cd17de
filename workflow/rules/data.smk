# Raw data and splits.

# Fetch a data set once, from what is nearest, and check it against known counts.
rule fetch_dataset:
    input:
        made_from=lambda wildcards: [raw(name) for name in DATASETS[wildcards.dataset]],
    output:
        manifest=RAW,
    params:
        code=lambda wildcards: code("fetch_dataset", f"director.data.{wildcards.dataset}"),
    wildcard_constraints:
        dataset="|".join(DATASETS),
    log:
        "logs/fetch_dataset/{dataset}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/fetch_dataset.py"


# Deal the examples of an experiment into train, validation and test for one seed.
rule split_dataset:
    input:
        manifest=lambda wildcards: raw(settings(wildcards).data.name),
    output:
        split=SPLIT,
    params:
        code=lambda wildcards: code("split_dataset", f"director.data.{settings(wildcards).data.name}"),
        sizes=lambda wildcards: settings(wildcards).data.model_dump(include={"train", "validation", "protocol"}),
    log:
        "logs/split_dataset/{experiment}/seed-{seed}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/split_dataset.py"

# Backbones: the trained transformers that every method starts from.

# Deal the data into train, validation and test for one seed, and train one backbone to its best validation epoch; `early` is the
# same training at the epoch with the lowest validation NLL. A killed job goes on where it was.
rule train_backbone:
    input:
        manifest=own_data,
    output:
        weights=BACKBONE_WEIGHTS["backbone"],
        early=BACKBONE_WEIGHTS["early"],
        history=f"{BACKBONE}/history.csv",
        cost=f"{BACKBONE}/cost.json",
        settings=f"{BACKBONE}/settings.yaml",
        split=f"{BACKBONE}/split.npz",
    params:
        code=code("train_backbone"),
        split=lambda wildcards: PLAN.split_options(wildcards.experiment),
        job=lambda wildcards: PLAN.job_options(wildcards.experiment),
        training=lambda wildcards: PLAN.training_options(wildcards.experiment, wildcards.backbone),
    threads: PLAN.compute.threads
    resources:
        gpu=GPUS,
    log:
        "logs/train_backbone/{experiment}/{backbone}/seed-{seed}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/train_backbone.py"

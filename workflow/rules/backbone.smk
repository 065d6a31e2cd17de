# Backbones: the trained transformers that every method starts from.

# Train one backbone to its best validation epoch; a killed job goes on where it was.
rule train_backbone:
    input:
        manifest=lambda wildcards: raw(settings(wildcards).data.name),
        split=SPLIT,
    output:
        weights=f"{BACKBONE}/model.safetensors",
        history=f"{BACKBONE}/history.csv",
        cost=f"{BACKBONE}/cost.json",
        settings=f"{BACKBONE}/settings.yaml",
    params:
        code=code("train_backbone"),
        options=training_options,
    threads: COMPUTE.threads
    resources:
        gpu=GPUS,
    log:
        "logs/train_backbone/{experiment}/{backbone}/seed-{seed}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/train_backbone.py"

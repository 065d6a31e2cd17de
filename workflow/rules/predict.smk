# Predictions of the methods that run a model.

# Logits of one method on one suite: a single pass, or every sample of a stochastic one.
rule predict:
    input:
        weights=f"{BACKBONE}/model.safetensors",
        training_cost=f"{BACKBONE}/cost.json",
        manifest=predicted_dataset,
        split=SPLIT,
    output:
        predictions=PREDICTIONS,
        cost=COST,
    params:
        code=code("predict"),
        options=prediction_options,
    wildcard_constraints:
        method="mle|mc_dropout|kep_svgp",
        seed=r"\d+",
    threads: COMPUTE.threads
    resources:
        gpu=GPUS,
    log:
        "logs/predict/{experiment}/{backbone}/seed-{seed}/{method}/{suite}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/predict.py"

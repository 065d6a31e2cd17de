# Baselines made from prediction files alone, without a model.

# Fit one temperature on a method's own validation predictions, and apply it to its predictions of a suite.
rule fit_temperature:
    input:
        validation=lambda wildcards: scaled_by(wildcards, PREDICTIONS, "val"),
        predictions=lambda wildcards: scaled_by(wildcards, PREDICTIONS, wildcards.suite),
        cost=lambda wildcards: scaled_by(wildcards, COST, wildcards.suite),
    output:
        predictions=PREDICTIONS,
        cost=COST,
    params:
        code=code("fit_temperature"),
        method=lambda wildcards: wildcards.method,
        bounds=lambda wildcards: settings(wildcards).temperature.model_dump(),
    wildcard_constraints:
        method="|".join(SCALED),
    log:
        "logs/fit_temperature/{experiment}/{backbone}/seed-{seed}/{method}/{suite}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/fit_temperature.py"


# Pool the `mle` predictions of all seeds into a deep ensemble.
rule pool_ensemble:
    input:
        predictions=members(PREDICTIONS),
        cost=members(COST),
    output:
        predictions=PREDICTIONS.replace("{method}", "ensemble").replace("{seed}", POOLED),
        cost=COST.replace("{method}", "ensemble").replace("{seed}", POOLED),
    params:
        code=code("pool_ensemble"),
    log:
        "logs/pool_ensemble/{experiment}/{backbone}/{suite}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/pool_ensemble.py"

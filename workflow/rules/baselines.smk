# Baselines made from prediction files alone, without a model.

# Fit one temperature on the validation predictions of `mle`, and apply it to a suite.
rule fit_temperature:
    input:
        validation=f"{RUN}/mle/predictions/val.npz",
        predictions=f"{RUN}/mle/predictions/{{suite}}.npz",
        cost=f"{RUN}/mle/predictions/{{suite}}.cost.json",
    output:
        predictions=f"{RUN}/temperature/predictions/{{suite}}.npz",
        cost=f"{RUN}/temperature/predictions/{{suite}}.cost.json",
    params:
        code=code("fit_temperature"),
        bounds=lambda wildcards: settings(wildcards).temperature.model_dump(),
    log:
        "logs/fit_temperature/{experiment}/{backbone}/seed-{seed}/{suite}.log",
    benchmark:
        "logs/fit_temperature/{experiment}/{backbone}/seed-{seed}/{suite}.benchmark.tsv"
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
    benchmark:
        "logs/pool_ensemble/{experiment}/{backbone}/{suite}.benchmark.tsv"
    conda:
        ENVIRONMENT
    script:
        "../scripts/pool_ensemble.py"

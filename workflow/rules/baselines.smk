# Baselines made from prediction files alone, without a model.

# Fit a temperature to a method's own validation predictions and apply it to its other suites, for every scaled row of a run
# folder in one job.
rule scale:
    input:
        manifests=lambda wildcards: [MANIFEST.format(**{**wildcards, "method": source}) for source in dict.fromkeys(PLAN.scaled(run_of(wildcards)).values())],
    output:
        temperatures=TEMPERATURES,
    params:
        code=code("scale"),
        scaled=lambda wildcards: PLAN.scaled(run_of(wildcards)),
        bounds=lambda wildcards: PLAN.experiments[wildcards.experiment].temperature.model_dump(),
    log:
        "logs/scale/{experiment}/{backbone}/seed-{seed}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/scale.py"


# Pool the predictions of all seeds, or of as many as a method says, into a deep ensemble.
rule pool_ensemble:
    input:
        members=lambda wildcards: list(map(declared, PLAN.pooled(job_of(wildcards)))),
    output:
        manifest=MANIFEST,
        cost=COST,
    params:
        code=code("pool_ensemble"),
        seed=lambda wildcards: run_of(wildcards).seed,
        manifests=lambda wildcards: [MANIFEST.format(**job._asdict()) for job in PLAN.pooled(job_of(wildcards))],
    wildcard_constraints:
        method="|".join(PLAN.pooling()) or "none",
    log:
        "logs/pool_ensemble/{experiment}/{backbone}/seed-{seed}/{method}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/pool_ensemble.py"

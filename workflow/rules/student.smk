# The method: the teacher's path, and the student that is distilled from it.

# Run the frozen teacher once over its training part and keep its path, one folder per augmented view.
rule cache_trajectory:
    input:
        teacher=f"{BACKBONE}/model.safetensors",
        manifest=own_data,
        split=f"{BACKBONE}/split.npz",
    output:
        complete=f"{TRAJECTORY}/complete.json",
        cost=f"{TRAJECTORY}/cost.json",
    params:
        code=code("cache_trajectory"),
        options=lambda wildcards: PLAN.caching_options(wildcards.experiment),
    threads: PLAN.compute.threads
    resources:
        gpu=GPUS,
    log:
        "logs/cache_trajectory/{experiment}/{backbone}/seed-{seed}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/cache_trajectory.py"


# Distil the teacher's path into one transition kernel; a killed job goes on where it was.
# The costs of what the student builds on are ancient: other seconds for the same weights are no reason to train again.
rule train_student:
    input:
        teacher=f"{BACKBONE}/model.safetensors",
        cache=lambda wildcards: cached(wildcards, "complete.json"),
        costs=lambda wildcards: [ancient(path) for path in [f"{BACKBONE}/cost.json".format(**wildcards), *cached(wildcards, "cost.json")]],
        manifest=own_data,
        split=f"{BACKBONE}/split.npz",
    output:
        weights=f"{STUDENT}/model.safetensors",
        history=f"{STUDENT}/history.csv",
        cost=f"{STUDENT}/cost.json",
        settings=f"{STUDENT}/settings.yaml",
    params:
        code=code("train_student"),
        job=lambda wildcards: PLAN.job_options(wildcards.experiment),
        options=lambda wildcards: {"student": PLAN.experiments[wildcards.experiment].student(wildcards.method)},
    wildcard_constraints:
        method="|".join(PLAN.trained_students()) or "none",
    threads: PLAN.compute.threads
    resources:
        gpu=GPUS,
    log:
        "logs/train_student/{experiment}/{backbone}/seed-{seed}/{method}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/train_student.py"

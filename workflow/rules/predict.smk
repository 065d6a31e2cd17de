# Predictions: one job per method and run folder writes every suite, with the model loaded once.

# Every suite with a backbone: a single pass, or every sample of a stochastic method. A killed job goes on with the suites that
# it had not finished: their files lie undeclared beside the manifest, which comes last.
rule predict:
    input:
        weights=lambda wildcards: BACKBONE_WEIGHTS[PLAN.method(wildcards.experiment, wildcards.method).weights].format(**wildcards),
        training_cost=ancient(f"{BACKBONE}/cost.json"),
        manifests=lambda wildcards: raw(*PLAN.datasets(wildcards.experiment)),
        split=f"{BACKBONE}/split.npz",
    output:
        manifest=MANIFEST,
        cost=COST,
    params:
        code=code("predict", weights="backbone"),
        options=lambda wildcards: PLAN.prediction_options(wildcards.experiment, wildcards.method),
    wildcard_constraints:
        method="|".join(name for weights in BACKBONE_WEIGHTS for name in PLAN.names(weights=weights)),
        seed=r"\d+",
    threads: PLAN.compute.threads
    resources:
        gpu=GPUS,
    log:
        "logs/predict/{experiment}/{backbone}/seed-{seed}/{method}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/predict.py"


# The same with a posterior of the last layer, which is fitted on the training part first.
use rule predict as predict_laplace with:
    input:
        weights=BACKBONE_WEIGHTS["backbone"],
        training_cost=ancient(f"{BACKBONE}/cost.json"),
        manifests=lambda wildcards: raw(*PLAN.datasets(wildcards.experiment)),
        split=f"{BACKBONE}/split.npz",
    params:
        code=code("predict", weights="laplace"),
        options=lambda wildcards: PLAN.prediction_options(wildcards.experiment, wildcards.method),
    wildcard_constraints:
        method="|".join(PLAN.names(weights="laplace")) or "none",
        seed=r"\d+",
    log:
        "logs/predict_laplace/{experiment}/{backbone}/seed-{seed}/{method}.log",


# Every suite with a student's roll-outs, and the uncertainty along their depth.
use rule predict as predict_student with:
    input:
        weights=lambda wildcards: student_file(wildcards, "model.safetensors"),
        teacher=f"{BACKBONE}/model.safetensors",
        training_cost=lambda wildcards: ancient(student_file(wildcards, "cost.json")),
        manifests=lambda wildcards: raw(*PLAN.datasets(wildcards.experiment)),
        split=f"{BACKBONE}/split.npz",
    params:
        code=code("predict", weights="student"),
        options=lambda wildcards: PLAN.prediction_options(wildcards.experiment, wildcards.method),
    wildcard_constraints:
        method="|".join(PLAN.names(weights="student")) or "none",
        seed=r"\d+",
    log:
        "logs/predict_student/{experiment}/{backbone}/seed-{seed}/{method}.log",


# The same with the noise scale that suits the validation part best, which is kept with what was tried.
rule predict_student_noise:
    input:
        weights=lambda wildcards: student_file(wildcards, "model.safetensors"),
        teacher=f"{BACKBONE}/model.safetensors",
        training_cost=lambda wildcards: ancient(student_file(wildcards, "cost.json")),
        manifests=lambda wildcards: raw(*PLAN.datasets(wildcards.experiment)),
        split=f"{BACKBONE}/split.npz",
    output:
        manifest=MANIFEST,
        cost=COST,
        noise=NOISE_SCALE,
    params:
        code=code("predict_student_noise", weights="student"),
        options=lambda wildcards: PLAN.prediction_options(wildcards.experiment, wildcards.method),
    wildcard_constraints:
        method="|".join(PLAN.names(weights="student", fits_noise=True)) or "none",
        seed=r"\d+",
    threads: PLAN.compute.threads
    resources:
        gpu=GPUS,
    log:
        "logs/predict_student_noise/{experiment}/{backbone}/seed-{seed}/{method}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/predict_student_noise.py"

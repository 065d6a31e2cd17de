# The method: the teacher's path, and the student that is distilled from it.

# Run the frozen teacher once over its training part and keep its path, one folder per augmented view.
rule cache_trajectory:
    input:
        teacher=f"{BACKBONE}/model.safetensors",
        manifest=lambda wildcards: raw(settings(wildcards).data.name),
        split=SPLIT,
    output:
        complete=f"{RUN}/trajectory/complete.json",
    params:
        code=code("cache_trajectory"),
        options=caching_options,
    threads: COMPUTE.threads
    resources:
        gpu=GPUS,
    log:
        "logs/cache_trajectory/{experiment}/{backbone}/seed-{seed}.log",
    benchmark:  # the one job whose cost no other file holds; watching all of them takes a tenth of a small machine
        "logs/cache_trajectory/{experiment}/{backbone}/seed-{seed}.benchmark.tsv"
    conda:
        ENVIRONMENT
    script:
        "../scripts/cache_trajectory.py"


# Distil the teacher's path into one transition kernel; a killed job goes on where it was.
rule train_director:
    input:
        teacher=f"{BACKBONE}/model.safetensors",
        teacher_cost=f"{BACKBONE}/cost.json",
        cache=trajectory_of,
        manifest=lambda wildcards: raw(settings(wildcards).data.name),
        split=SPLIT,
    output:
        weights=f"{RUN}/{{method}}/model.safetensors",
        history=f"{RUN}/{{method}}/history.csv",
        cost=f"{RUN}/{{method}}/cost.json",
        settings=f"{RUN}/{{method}}/settings.yaml",
    params:
        code=code("train_director"),
        options=distilling_options,
    wildcard_constraints:
        method=STUDENT,
    threads: COMPUTE.threads
    resources:
        gpu=GPUS,
    log:
        "logs/train_director/{experiment}/{backbone}/seed-{seed}/{method}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/train_director.py"


# Logits of the student's roll-outs on one suite, and the uncertainty along their depth.
use rule predict as predict_director with:
    input:
        weights=f"{RUN}/{{method}}/model.safetensors",
        training_cost=f"{RUN}/{{method}}/cost.json",
        manifest=predicted_dataset,
        split=SPLIT,
    output:
        predictions=f"{RUN}/{{method}}/predictions/{{suite}}.npz",
        cost=f"{RUN}/{{method}}/predictions/{{suite}}.cost.json",
        depth=f"{RUN}/{{method}}/predictions/{{suite}}.depth.npz",
    params:
        code=code("predict", "director.process"),
        options=prediction_options,
    wildcard_constraints:
        method=STUDENT,
    log:
        "logs/predict_director/{experiment}/{backbone}/seed-{seed}/{method}/{suite}.log",

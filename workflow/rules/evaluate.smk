# Numbers, tables and figures: everything after the prediction files.

# Every metric of one prediction file.
rule measure:
    input:
        predictions=PREDICTIONS,
        inside=inside_of,
    output:
        metrics=METRICS,
    params:
        code=code("measure"),
        samples=lambda wildcards: settings(wildcards).samples_of(wildcards.method),
    log:
        "logs/measure/{experiment}/{backbone}/seed-{seed}/{method}/{suite}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/measure.py"


# Differences of every row to the reference row, with intervals and tests, on the test suite.
rule compare:
    input:
        predictions=lambda wildcards: files_of(wildcards.experiment, PREDICTIONS, ["test"]),
    output:
        comparison="results/{experiment}/comparison.csv",
    params:
        code=code("compare"),
        comparison=lambda wildcards: settings(wildcards).comparison.model_dump(),
    log:
        "logs/compare/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/compare.py"


# The tables of the study. Its runs are published first, so that whoever asks for the table finds them in MLflow.
rule tabulate:
    input:
        metrics=files_of_all(METRICS),
        costs=files_of_all(COST, ["test"]),
        comparisons=expand("results/{experiment}/comparison.csv", experiment=EXPERIMENTS),
        published=RUNS_PUBLISHED,
    output:
        main=report(MAIN, caption="../report/main.rst", category="tables", labels={"table": "main"}),
        others=[table for table in TABLES if table != MAIN],
    params:
        code=code("tabulate"),
        published={name: experiment.model_dump()["published"] for name, experiment in EXPERIMENTS.items()},
    log:
        "logs/tabulate.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/tabulate.py"


# Stated confidence against what came true, per method.
rule plot_reliability:
    input:
        predictions=lambda wildcards: files_of(wildcards.experiment, PREDICTIONS, ["test"]),
    output:
        figure=report("results/figures/{experiment}/reliability.svg", caption="../report/reliability.rst", category="{experiment}", labels={"figure": "reliability"}),
    params:
        code=code("plot_reliability"),
    log:
        "logs/plot_reliability/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_reliability.py"


# Error among the inputs that a method keeps when it may abstain.
rule plot_risk_coverage:
    input:
        predictions=lambda wildcards: files_of(wildcards.experiment, PREDICTIONS, ["test"]),
    output:
        figure=report("results/figures/{experiment}/risk_coverage.svg", caption="../report/risk_coverage.rst", category="{experiment}", labels={"figure": "risk and coverage"}),
    params:
        code=code("plot_risk_coverage"),
    log:
        "logs/plot_risk_coverage/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_risk_coverage.py"


# How accuracy and calibration decay as the corruption grows.
rule plot_severity:
    input:
        metrics=lambda wildcards: files_of(wildcards.experiment, METRICS, ["test", "corrupted"]),
    output:
        figure=report("results/figures/{experiment}/severity.svg", caption="../report/severity.rst", category="{experiment}", labels={"figure": "severity"}),
    params:
        code=code("plot_severity"),
    log:
        "logs/plot_severity/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_severity.py"


# Predicted probability against the true one, where it is known.
rule plot_bayes:
    input:
        predictions=lambda wildcards: files_of(wildcards.experiment, PREDICTIONS, probabilities_of(wildcards.experiment)),
        manifests=lambda wildcards: [raw(name) for name in probabilities_of(wildcards.experiment).values()],
    output:
        figure=report("results/figures/{experiment}/bayes.svg", caption="../report/bayes.rst", category="{experiment}", labels={"figure": "true probability"}),
    params:
        code=code("plot_bayes"),
        suites=lambda wildcards: list(probabilities_of(wildcards.experiment)),
    log:
        "logs/plot_bayes/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_bayes.py"


# How much variance the student's kernel predicts at each step of its path.
rule plot_depth:
    input:
        depths=lambda wildcards: depths_of(wildcards.experiment),
    output:
        figure=report("results/figures/{experiment}/depth.svg", caption="../report/depth.rst", category="{experiment}", labels={"figure": "uncertainty along depth"}),
    params:
        code=code("plot_depth"),
    log:
        "logs/plot_depth/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_depth.py"

# Numbers, tables and figures: everything after the prediction files.

# Every metric of every suite and method of a run folder.
rule measure:
    input:
        predictions=lambda wildcards: [declared(Job(*run_of(wildcards), method)) for method in PLAN.methods(run_of(wildcards))],
    output:
        metrics=METRICS,
    params:
        code=code("measure"),
        samples=lambda wildcards: PLAN.measured_samples(run_of(wildcards)),
    log:
        "logs/measure/{experiment}/{backbone}/seed-{seed}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/measure.py"


# Differences of every row to the reference row, with intervals and tests, on every suite of the main table.
rule compare:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
    output:
        comparison=COMPARISON,
    params:
        code=code("compare"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
        comparison=lambda wildcards: PLAN.experiments[wildcards.experiment].comparison.model_dump(),
    log:
        "logs/compare/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/compare.py"


# The tables of the study. Publication comes first, so that whoever asks for the table finds its runs in MLflow, and is `ancient`:
# the tables are not made from it.
rule tabulate:
    input:
        metrics=of_all(metrics_of),
        comparisons=expand(COMPARISON, experiment=PLAN.experiments),
        published=ancient(RUNS_PUBLISHED),
    output:
        main=report(MAIN, caption="../report/main.rst", category="tables", labels={"table": "main"}),
        others=OTHER_TABLES,
    params:
        code=code("tabulate"),
        costs=[COST.format(**job._asdict()) for job in of_all(PLAN.jobs)],
        published=PLAN.published(),
        rows=[(experiment, *row) for experiment in PLAN.experiments for row in PLAN.rows(experiment)],
    log:
        "logs/tabulate.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/tabulate.py"


# Stated confidence against what came true, per method.
rule plot_reliability:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
    output:
        figure=report("results/figures/{experiment}/reliability.svg", caption="../report/reliability.rst", category="{experiment}", labels={"figure": "reliability"}),
    params:
        code=code("plot_reliability"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
    log:
        "logs/plot_reliability/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_reliability.py"


# Error among the inputs that a method keeps when it may abstain.
rule plot_risk_coverage:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
    output:
        figure=report("results/figures/{experiment}/risk_coverage.svg", caption="../report/risk_coverage.rst", category="{experiment}", labels={"figure": "risk and coverage"}),
    params:
        code=code("plot_risk_coverage"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
    log:
        "logs/plot_risk_coverage/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_risk_coverage.py"


# How accuracy and calibration decay as the corruption grows.
rule plot_severity:
    input:
        metrics=lambda wildcards: metrics_of(wildcards.experiment),
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
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
        datasets=lambda wildcards: raw(*PLAN.known_probabilities(wildcards.experiment).values()),
    output:
        figure=report("results/figures/{experiment}/bayes.svg", caption="../report/bayes.rst", category="{experiment}", labels={"figure": "true probability"}),
    params:
        code=code("plot_bayes"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
        suites=lambda wildcards: list(PLAN.known_probabilities(wildcards.experiment)),
    log:
        "logs/plot_bayes/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_bayes.py"


# How much variance the student's kernel predicts at each step of its path.
rule plot_depth:
    input:
        predictions=lambda wildcards: [MANIFEST.format(**job._asdict()) for job in PLAN.depths(wildcards.experiment)],
    output:
        figure=report("results/figures/{experiment}/depth.svg", caption="../report/depth.rst", category="{experiment}", labels={"figure": "uncertainty along depth"}),
    params:
        code=code("plot_depth"),
        manifests=lambda wildcards: [MANIFEST.format(**job._asdict()) for job in PLAN.depths(wildcards.experiment)],
    log:
        "logs/plot_depth/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_depth.py"


# What the scale of the student's noise and the number of its roll-outs do.
rule plot_noise:
    input:
        noise=lambda wildcards: [NOISE_SCALE.format(**job._asdict()) for job in PLAN.noise_fits(wildcards.experiment)],
        predictions=lambda wildcards: [MANIFEST.format(**job._asdict()) for job in PLAN.samplers(wildcards.experiment)],
    output:
        figure=report("results/figures/{experiment}/noise.svg", caption="../report/noise.rst", category="{experiment}", labels={"figure": "noise scale"}),
    params:
        code=code("plot_noise"),
        manifests=lambda wildcards: [MANIFEST.format(**job._asdict()) for job in PLAN.samplers(wildcards.experiment)],
    log:
        "logs/plot_noise/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_noise.py"

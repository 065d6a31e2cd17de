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
        main=report(MAIN, caption="../report/main.rst", category="tables", labels={"table": "main.csv, raw"}),
        page=report(PAGE, caption="../report/main.rst", category="tables", labels={"table": "main, readable and sortable"}),
        others=[table for table in OTHER_TABLES if table != PAGE],
    params:
        code=code("tabulate"),
        costs=[COST.format(**job._asdict()) for job in of_all(PLAN.jobs)],
        published=PLAN.published(),
        methods=PLAN.descriptions(),
        rows=[(experiment, *row) for experiment in PLAN.experiments for row in PLAN.rows(experiment)],
    log:
        "logs/tabulate.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/tabulate.py"


# Stated confidence against what came true, per row; and the error among the inputs that a row keeps when it may abstain.
rule plot_confidence:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
    output:
        reliability=report("results/figures/{experiment}/reliability.svg", caption="../report/reliability.rst", category="{experiment}", labels={"figure": "reliability"}),
        reliability_png="results/figures/{experiment}/reliability.png",
        risk_coverage=report("results/figures/{experiment}/risk_coverage.svg", caption="../report/risk_coverage.rst", category="{experiment}", labels={"figure": "risk and coverage"}),
        risk_coverage_png="results/figures/{experiment}/risk_coverage.png",
    params:
        code=code("plot_confidence"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
    log:
        "logs/plot_confidence/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_confidence.py"


# Differences of every row to the reference row, with their intervals.
rule plot_comparison:
    input:
        comparison=COMPARISON,
    output:
        comparison=report("results/figures/{experiment}/comparison.svg", caption="../report/comparison.rst", category="{experiment}", labels={"figure": "comparison"}),
        comparison_png="results/figures/{experiment}/comparison.png",
    params:
        code=code("plot_comparison"),
    log:
        "logs/plot_comparison/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_comparison.py"


# What rows cost for what they give, and how their models were trained.
rule plot_training:
    input:
        metrics=lambda wildcards: metrics_of(wildcards.experiment),
        trained=lambda wildcards: [f"{STUDENT}/{file}".format(**job._asdict()) for job in PLAN.trained(wildcards.experiment) for file in ("history.csv", "cost.json")],
    output:
        cost=report("results/figures/{experiment}/cost.svg", caption="../report/cost.rst", category="{experiment}", labels={"figure": "cost"}),
        cost_png="results/figures/{experiment}/cost.png",
        training=report("results/figures/{experiment}/training.svg", caption="../report/training.rst", category="{experiment}", labels={"figure": "training"}),
        training_png="results/figures/{experiment}/training.png",
    params:
        code=code("plot_training"),
        costs=lambda wildcards: [COST.format(**job._asdict()) for job in PLAN.jobs(wildcards.experiment)],
        folders=lambda wildcards: [STUDENT.format(**job._asdict()) for job in PLAN.trained(wildcards.experiment)],
        rows=lambda wildcards: [(wildcards.experiment, *row) for row in PLAN.rows(wildcards.experiment)],
    log:
        "logs/plot_training/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_training.py"


# How accuracy and calibration decay as the corruption grows, and what a row changes of it.
rule plot_severity:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
    output:
        severity=report("results/figures/{experiment}/severity.svg", caption="../report/severity.rst", category="{experiment}", labels={"figure": "severity"}),
        severity_png="results/figures/{experiment}/severity.png",
    params:
        code=code("plot_severity"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
        baseline=lambda wildcards: PLAN.baseline(wildcards.experiment),
        intervals=lambda wildcards: PLAN.experiments[wildcards.experiment].comparison.model_dump(include={"replicates", "level"}),
    log:
        "logs/plot_severity/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_severity.py"


# Confidence on inputs from elsewhere.
rule plot_out_of_distribution:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
    output:
        out_of_distribution=report("results/figures/{experiment}/out_of_distribution.svg", caption="../report/out_of_distribution.rst", category="{experiment}", labels={"figure": "out of distribution"}),
        out_of_distribution_png="results/figures/{experiment}/out_of_distribution.png",
    params:
        code=code("plot_out_of_distribution"),
        manifests=lambda wildcards: manifests_of(wildcards.experiment),
    log:
        "logs/plot_out_of_distribution/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_out_of_distribution.py"


# What every further sample brings.
rule plot_samples:
    input:
        predictions=lambda wildcards: [MANIFEST.format(**job._asdict()) for job in PLAN.samplers(wildcards.experiment)],
    output:
        samples=report("results/figures/{experiment}/samples.svg", caption="../report/samples.rst", category="{experiment}", labels={"figure": "samples"}),
        samples_png="results/figures/{experiment}/samples.png",
    params:
        code=code("plot_samples"),
    log:
        "logs/plot_samples/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_samples.py"


# Predicted probability against the true one, where it is known.
rule plot_bayes:
    input:
        predictions=lambda wildcards: predictions_of(wildcards.experiment),
        datasets=lambda wildcards: raw(*PLAN.known_probabilities(wildcards.experiment).values()),
    output:
        bayes=report("results/figures/{experiment}/bayes.svg", caption="../report/bayes.rst", category="{experiment}", labels={"figure": "true probability"}),
        bayes_png="results/figures/{experiment}/bayes.png",
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
        depth=report("results/figures/{experiment}/depth.svg", caption="../report/depth.rst", category="{experiment}", labels={"figure": "uncertainty along depth"}),
        depth_png="results/figures/{experiment}/depth.png",
    params:
        code=code("plot_depth"),
    log:
        "logs/plot_depth/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_depth.py"


# What the scale of the student's noise does on validation data.
rule plot_noise:
    input:
        noise=lambda wildcards: [NOISE_SCALE.format(**job._asdict()) for job in PLAN.noise_fits(wildcards.experiment)],
    output:
        noise=report("results/figures/{experiment}/noise.svg", caption="../report/noise.rst", category="{experiment}", labels={"figure": "noise scale"}),
        noise_png="results/figures/{experiment}/noise.png",
    params:
        code=code("plot_noise"),
    log:
        "logs/plot_noise/{experiment}.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/plot_noise.py"

"""The plan of a study: its runs, and what jobs are told."""

from pathlib import Path

import pytest
import yaml

from director import plan as plan_module
from director.errors import InputError
from director.methods import POOLED
from director.plan import (
    ATTENTIONS,
    MODELS,
    PRETRAINED_PATHS,
    STUDENT_MODEL,
    TRANSFORMER_PATH,
    Job,
    Plan,
    Run,
    refuse_earlier_layout,
)

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config/config.yaml"
SHIPPED = sorted(path.stem for path in (ROOT / "config/experiments").glob("*.yaml"))


@pytest.fixture(scope="module")
def plan():
    """Every experiment that is shipped."""
    return Plan.load({"experiments": SHIPPED}, CONFIG)


def test_the_rows_of_the_default_study(plan):
    rows = plan.rows("digits")
    assert rows[:2] == [("softmax", "mle"), ("softmax", "temperature")] and ("kep_svgp_all", "director") in rows
    assert plan.methods(Run("digits", "softmax", POOLED)) == ["ensemble"]
    assert "ensemble" not in plan.methods(Run("digits", "softmax", 0))
    assert Run("digits", "kep_svgp_1", POOLED) not in plan.runs("digits")
    assert plan.scaled(Run("digits", "softmax", 0)) == {"temperature": "mle", "director_temperature": "director"}
    members = plan.pooled(Job("digits", "softmax", POOLED, "ensemble"))
    assert members == [Job("digits", "softmax", seed, "mle") for seed in (0, 1, 2)]


def test_an_ensemble_of_two_is_a_row_with_a_run_for_each_seed(plan):
    """It costs as much to train as a student and its teacher, and has a spread over seeds as they have."""
    assert plan.method("cifar10-cpu", "ensemble_2").pools == "mle"
    assert "ensemble_2" not in plan.methods(Run("cifar10-cpu", "softmax", POOLED))
    rows = [job for job in plan.jobs("cifar10-cpu") if job.method == "ensemble_2"]
    assert [[member.seed for member in plan.pooled(job)] for job in rows] == [[0, 1], [1, 2], [2, 0]]
    assert plan.pooling() == ["ensemble", "ensemble_2", "temperature_ensemble"]


@pytest.mark.parametrize("experiment", SHIPPED)
def test_every_row_of_every_experiment_has_its_runs_and_options(plan, experiment):
    chosen = plan.experiments[experiment]
    jobs = plan.jobs(experiment)
    assert plan.rows(experiment) == list(dict.fromkeys((job.backbone, job.method) for job in jobs))
    for backbone, name in plan.rows(experiment):
        method = plan.method(experiment, name)
        seeds = [job.seed for job in jobs if (job.backbone, job.method) == (backbone, name)]
        assert seeds == ([POOLED] if method.pools_all else chosen.seeds)
        if method.weights:
            options = plan.prediction_options(experiment, name)
            assert (options["randomness"] == "none") is (options["samples"] == [1] and method.samples is None)
            assert list(options["suites"])[:2] == ["val", "test"]
        predicted = plan.predicted(experiment, name)
        if predicted.weights == "student":
            assert predicted.student in plan.students(experiment, backbone)
    trained = plan.trained(experiment)
    assert len(trained) == len(set(trained)) and {job.method for job in trained} >= {"backbone"}


def test_what_only_a_scaled_row_needs_is_trained_and_predicted_too():
    content = yaml.safe_load((ROOT / "config/experiments/digits.yaml").read_text())
    content |= {
        "methods": {"softmax": ["director_temperature"]},
        "comparison": {"reference": ["softmax", "director_temperature"]},
    }
    from director.settings.experiment import Experiment
    from director.settings.training import Compute

    alone = Plan({"alone": Experiment.model_validate(content)}, Compute())
    assert alone.students("alone", "softmax") == ["director"]
    assert alone.names(weights="student") == ["director"] and alone.names(weights="backbone") == []


def test_a_row_stopped_early_predicts_once_and_trains_nothing_of_its_own():
    content = yaml.safe_load((ROOT / "config/experiments/digits.yaml").read_text())
    content |= {
        "methods": {"softmax": ["mle_early"]},
        "comparison": {"reference": ["softmax", "mle_early"]},
    }
    from director.settings.experiment import Experiment
    from director.settings.training import Compute

    alone = Plan({"alone": Experiment.model_validate(content)}, Compute())
    assert alone.names(weights="early") == ["mle_early"] and alone.names(weights="backbone") == []
    assert {job.method for job in alone.trained("alone")} == {"backbone"}
    options = alone.prediction_options("alone", "mle_early")
    assert (options["randomness"], options["samples"], options["profile"]) == ("none", [1], False)


def test_the_default_study_has_at_most_ninety_jobs(plan):
    """The jobs of main.csv: see tests/workflow/test_study.py for the count of a dry run."""
    jobs = 2  # tabulate, publish_runs
    for name in ("digits", "agreement"):
        chosen = plan.experiments[name]
        predicted = [job for job in plan.jobs(name) if plan.method(name, job.method).weights]
        jobs += len(plan.datasets(name)) + len(plan.trained(name)) + len(predicted)
        jobs += sum(len(plan.students(name, backbone)) > 0 for backbone in chosen.methods) * len(chosen.seeds)
        jobs += sum(bool(plan.scaled(run)) for run in plan.runs(name)) + len(plan.runs(name))
        jobs += sum(bool(plan.method(name, method).pools) for _, method in plan.rows(name)) + 1
    assert jobs <= 90


def test_results_of_an_earlier_layout_are_refused_by_name(tmp_path):
    (tmp_path / "runs/digits/softmax/seed-0").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    refuse_earlier_layout(tmp_path)
    refuse_earlier_layout(tmp_path / "nothing")
    (tmp_path / "digits/softmax/seed-0/mle/predictions").mkdir(parents=True)
    with pytest.raises(InputError, match=r"digits: results of an earlier layout.*mv "):
        refuse_earlier_layout(tmp_path)


@pytest.mark.parametrize(
    "definition", [*MODELS.values(), *ATTENTIONS.values(), STUDENT_MODEL, TRANSFORMER_PATH, *PRETRAINED_PATHS]
)
def test_definitions_that_the_plan_names_exist(definition):
    import pkgutil

    assert isinstance(pkgutil.resolve_name(definition), type)


def test_a_row_whose_package_is_missing_is_refused_before_anything_runs(tmp_path, monkeypatch):
    chosen = yaml.safe_load((ROOT / "config/experiments/digits.yaml").read_text(encoding="utf-8"))
    chosen["methods"] = {"softmax": ["mle", "laplace_temperature"]}
    chosen["comparison"] = {"reference": ["softmax", "mle"]}
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/digits.yaml").write_text(yaml.safe_dump(chosen), encoding="utf-8")
    config = tmp_path / "config.yaml"
    config.write_text("experiments: [digits]", encoding="utf-8")
    monkeypatch.setattr(plan_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"experiment digits: the row laplace_temperature needs .*make laplace"):
        Plan.load({"experiments": ["digits"]}, config)
    monkeypatch.setattr(plan_module, "find_spec", lambda name: True)
    plan = Plan.load({"experiments": ["digits"]}, config)
    assert plan.names(weights="laplace") == ["laplace"] and plan.names(weights="backbone") == ["mle"]
    assert plan.prediction_options("digits", "laplace")["laplace"]
    assert plan.code("predict", "digits", "softmax", weights="laplace") != plan.code(
        "predict", "digits", "softmax", weights="backbone"
    )

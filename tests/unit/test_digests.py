"""Edits of the code -> the jobs that they make run again: by digest, from the real scripts and tables."""

import shutil
from pathlib import Path

import pytest

from director import code_digest, plan
from director.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
JOBS = {  # name -> arguments of Plan.code
    "fetch digits": ["fetch_dataset", None, None, {"dataset": "digits"}],
    "fetch digits_c": ["fetch_dataset", None, None, {"dataset": "digits_c"}],
    "train softmax": ["train_backbone", "digits", "softmax", {}],
    "train kep": ["train_backbone", "digits", "kep_svgp_1", {}],
    "train sgpa": ["train_backbone", "digits", "sgpa_1", {}],
    "train imdb": ["train_backbone", "imdb-cpu", "softmax", {}],
    "cache": ["cache_trajectory", "digits", "softmax", {}],
    "train student": ["train_student", "digits", "softmax", {}],
    "predict mle": ["predict", "digits", "softmax", {"weights": "backbone"}],
    "predict kep": ["predict", "digits", "kep_svgp_1", {"weights": "backbone"}],
    "predict sgpa": ["predict", "digits", "sgpa_1", {"weights": "backbone"}],
    "predict student": ["predict", "digits", "softmax", {"weights": "student"}],
    "train minilm": ["train_backbone", "minilm-cola-cpu", "softmax", {}],
    "cache minilm": ["cache_trajectory", "minilm-cola-cpu", "softmax", {}],
    "train student of minilm": ["train_student", "minilm-cola-cpu", "softmax", {}],
    "predict minilm": ["predict", "minilm-cola-cpu", "softmax", {"weights": "backbone"}],
    "predict student of minilm": ["predict", "minilm-cola-cpu", "softmax", {"weights": "student"}],
    **{name: [name, None, None, {}] for name in ("scale", "pool_ensemble", "measure", "compare", "tabulate")},
    **{name: [name, None, None, {}] for name in ("plot_severity", "plot_confidence", "publish_runs")},
}
STUDENTS_OF_MINILM = {"train student of minilm", "predict student of minilm"}
TRAININGS = {"train softmax", "train kep", "train sgpa", "train imdb", "train student", "train minilm"}
TRAININGS |= {"train student of minilm"}
PREDICTIONS = {"predict mle", "predict kep", "predict sgpa", "predict student", "predict minilm"}
PREDICTIONS |= {"predict student of minilm"}
EDITS = {
    "a new metric": (
        "numbers/metrics.py",
        "METRICS = {",
        "def error(predictions):\n    return 1 - accuracy(predictions)\n\n\nMETRICS = {'error': error} | {",
        {"measure"},
    ),
    "another definition of a metric that training watches": (
        "numbers/metrics.py",
        "return float(predictions.correct.mean())",
        "return float(predictions.correct.sum() / len(predictions.correct))",
        TRAININGS | {"measure"},
    ),
    "the learning rate": ("training/fit.py", "math.cos(math.pi * share)", "math.cos(3 * share)", TRAININGS),
    "the job around a prediction": (
        "training/predict_run.py",
        'if name == "test" else [most]',
        'if name != "val" else [most]',
        PREDICTIONS,
    ),
    "the kernel": (
        "models/kernel.py",
        "LOG_VARIANCE_START = -3.0",
        "LOG_VARIANCE_START = -2.0",
        {"train student", "predict student"} | STUDENTS_OF_MINILM,
    ),
    "the path of other people's models": (
        "path/transformers_models.py",
        "return torch.cat([-second, first], dim=-1)",
        "return torch.cat([second, -first], dim=-1)",
        {"train minilm", "cache minilm"} | STUDENTS_OF_MINILM,
    ),
    "how texts reach a pretrained model": (
        "models/pretrained.py",
        '"attention_mask": inputs["mask"].long()',
        '"attention_mask": inputs["mask"].int()',
        {"train minilm", "cache minilm", "predict minilm"} | STUDENTS_OF_MINILM,
    ),
    "how a checkpoint is read": (
        "models/pretrained.py",
        "positions -= config.pad_token_id + 1",
        "positions -= config.pad_token_id",
        {"train minilm"},
    ),
    "kernel-eigenpair attention": (
        "models/attention.py",
        "precision = (4 * self.log_l).exp()",
        "precision = (2 * self.log_l).exp()",
        {"train kep", "predict kep"},
    ),
    "sparse Gaussian process attention": (
        "models/attention.py",
        "inverse_lengths = (-self.log_ls).exp()",
        "inverse_lengths = (-2 * self.log_ls).exp()",
        {"train sgpa", "predict sgpa"},
    ),
    "a temperature's search": ("numbers/temperature.py", "xtol=1e-15", "xtol=1e-14", {"scale"}),
    "how a data set is made": (
        "data/digits.py",
        "LEVELS = 16",
        "LEVELS = 15",
        {"fetch digits_c"},
    ),
    "how a data set is split": (
        "data/splits.py",
        "return positions[np.linspace(1, len(positions), count)",
        "return positions[np.linspace(2, len(positions), count)",
        {"train imdb"},
    ),
    "the bootstrap": (
        "numbers/comparison.py",
        "np.random.default_rng(",
        "np.random.default_rng(1 + ",
        {"compare", "plot_severity"},
    ),
    "what an error says": (
        "training/fit.py",
        "there is no training example; raise data.train",
        "nothing to train on: data.train is too small",
        set(),
    ),
    "a description of a setting": ("settings/training.py", "passes over the training examples", "epochs", set()),
    "a docstring": ("models/transformers.py", "What image and text backbones share.", "The common part.", set()),
}


PLAN = Plan.load({"experiments": ["digits", "imdb-cpu", "minilm-cola-cpu"]}, ROOT / "config/config.yaml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the code, to be edited."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("director", "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def digests(checkout, monkeypatch):
    """Gives the digest of every job, by the code in the copy."""
    monkeypatch.setattr(code_digest, "PACKAGE", checkout / "director")
    monkeypatch.setattr(plan, "SCRIPTS", checkout / "workflow/scripts")

    def by_job():
        plan._code.cache_clear()
        return {name: PLAN.code(script, *names, **table) for name, (script, *names, table) in JOBS.items()}

    yield by_job
    plan._code.cache_clear()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_reruns_exactly_what_it_concerns(checkout, digests, edit):
    name, old, new, expected = EDITS[edit]
    path = checkout / "director" / name
    text, before = path.read_text(), digests()
    assert old in text, f"{name} has no {old!r} any more: change this table with it"
    path.write_text(text.replace(old, new))
    try:
        after = digests()
    finally:
        path.write_text(text)
    assert {job for job in JOBS if after[job] != before[job]} == expected

"""What runs again, and what does not: code, parameters, broken files, killed processes."""

import os
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import yaml

from director.numbers.predictions import Predictions

pytestmark = pytest.mark.pipeline
WEIGHTS = "results/runs/tiny/softmax/seed-0/backbone/model.safetensors"
PREDICTIONS = "results/runs/tiny/softmax/seed-0/mle/predictions/test.npz"
UPSTREAM = {"fetch_dataset", "train_backbone", "predict", "pool_ensemble"}
UPSTREAM |= {"cache_trajectory", "train_student", "predict_student"}


@pytest.fixture
def copied(study, tmp_path):
    """The finished study with a checkout of its own, so that its code can be changed."""
    checkout = tmp_path / "checkout"
    for name in ("director", "workflow", "profiles"):
        shutil.copytree(study.checkout / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(study.checkout / name, checkout / name)
    copy = study.copy(tmp_path / "study")
    return replace(copy, checkout=checkout)


def append(path, text):
    path.write_text(path.read_text() + text)


def test_running_twice_does_nothing(study):
    assert study.plan("all", "publish") == {}


def test_a_comment_or_docstring_reruns_nothing(copied):
    for module in (copied.checkout / "director").rglob("*.py"):
        text = module.read_text()
        module.write_text(text.replace('"""', '"""Edited: ', 1) + "\n# a comment\n")
    for script in (copied.checkout / "workflow/scripts").glob("*.py"):
        os.utime(script)
    assert copied.plan("all", "publish") == {}


def edit(checkout, name, old, new):
    path = checkout / "director" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_what_an_error_says_reruns_nothing(copied):
    edit(copied.checkout, "training/fit.py", "there is no training example", "nothing to train on")
    assert copied.plan("all", "publish") == {}


def test_a_new_metric_reruns_measure_and_what_shows_it(copied):
    """tests/unit/test_digests.py has a table of edits; this is one of them, through Snakemake."""
    edit(copied.checkout, "numbers/metrics.py", "METRICS = {", "METRICS = {'one': lambda predictions: 1.0} | {")
    plan = copied.plan("all")
    assert plan["measure"] == 5, "of 2 backbones, 2 seeds, and the ensemble"
    assert not (UPSTREAM | {"scale", "compare"}) & set(plan)


def test_a_change_of_meaning_reruns_exactly_its_dependants(copied):
    edit(copied.checkout, "numbers/temperature.py", "xtol=1e-15", "xtol=1e-14")
    plan = copied.plan("all")
    # all temperatures of a run folder in one job, 2 seeds, and the ensemble of the scaled members
    assert (plan["scale"], plan["pool_ensemble"], plan["measure"]) == (2, 1, 3)
    assert not (UPSTREAM - {"pool_ensemble"}) & set(plan)


def test_a_change_of_the_model_reruns_training_and_what_follows(copied):
    edit(copied.checkout, "models/attention.py", "return x.unflatten(", "return +x.unflatten(")
    plan = copied.plan("all")
    # 2 backbones, 2 seeds; mle, mle_early, mc_dropout and kep_svgp
    assert (plan["train_backbone"], plan["predict"]) == (4, 8)
    assert (plan["cache_trajectory"], plan["train_student"], plan["predict_student"]) == (2, 2, 2)
    assert "fetch_dataset" not in plan


@pytest.mark.parametrize("fault", ["lost", "truncated"])
def test_a_lost_prediction_file_is_made_again_and_nothing_else(copied, fault):
    """Snakemake knows the manifest alone; what it lists is looked for at each start."""
    lost = copied.folder / PREDICTIONS
    before, logits = lost.read_bytes(), Predictions.load(lost).logits
    others = {path: path.stat().st_mtime_ns for path in lost.parent.glob("*.npz") if path != lost}
    lost.unlink()
    if fault == "truncated":
        lost.write_bytes(before[: len(before) // 2])
    assert copied.plan("all") == {}, "what was made from it is there"
    metrics = copied.folder / "results/runs/tiny/softmax/seed-0/metrics.json"
    metrics.unlink()
    assert copied.plan(str(metrics.relative_to(copied.folder))) == {"predict": 1, "measure": 1, "scale": 1}
    copied.snakemake("--cores", "2", str(metrics.relative_to(copied.folder)))
    assert np.array_equal(Predictions.load(lost).logits, logits)
    assert others == {path: path.stat().st_mtime_ns for path in others}, "the other suites are kept"


def test_the_order_of_keys_and_comments_rerun_nothing(copied):
    path = copied.folder / "config/experiments/tiny.yaml"
    content = yaml.safe_load(path.read_text())
    turned = {key: content[key] for key in reversed(content)}
    for key in ("training", "methods", "director"):
        turned[key] = dict(reversed(content[key].items()))
    path.write_text("# another comment\n" + yaml.safe_dump(turned, sort_keys=False))
    assert copied.plan("all", "publish") == {}


def test_a_value_reruns_its_rule_and_what_follows(copied):
    """A dry run for each change of the settings; jobs are 2 seeds times the suites."""
    tiny = yaml.safe_load((copied.folder / "config/experiments/tiny.yaml").read_text())
    copied.settings(mc_dropout={"samples": [4]})
    plan = copied.plan("all")
    assert (plan["predict"], plan["measure"]) == (2, 2)
    assert not UPSTREAM - {"predict"} & set(plan)

    copied.settings(comparison={"replicates": 200})
    assert set(copied.plan("all")) == {"compare", "tabulate", "plot_comparison", "plot_severity", "all"}

    training = tiny["director"]["training"] | {"epochs": 3}
    copied.settings(director=tiny["director"] | {"training": training})
    plan = copied.plan("all")
    assert (plan["train_student"], plan["predict_student"]) == (2, 2)
    assert (plan["predict_student_noise"], plan["scale"]) == (2, 2)
    assert (plan["pool_ensemble"], plan["measure"]) == (1, 3), "as one job scales all methods of a run folder"
    assert not {"train_backbone", "cache_trajectory", "predict"} & set(plan)

    copied.settings(director=tiny["director"] | {"trajectory": {"source": "cache", "views": 1, "dtype": "bfloat16"}})
    plan = copied.plan("all")
    assert (plan["cache_trajectory"], plan["train_student"], plan["predict_student"]) == (2, 2, 2)
    assert not {"train_backbone", "predict"} & set(plan)

    copied.settings(kep_svgp=tiny["kep_svgp"] | {"rank": 3})
    plan = copied.plan("all")
    assert (plan["train_backbone"], plan["predict"]) == (2, 2), "of kep_svgp_1 only"
    assert not {"cache_trajectory", "train_student", "predict_student"} & set(plan)


def test_the_machine_is_no_reason_to_run_again(copied):
    (copied.folder / "config/config.yaml").write_text("experiments: [tiny]\ncompute: {device: auto, threads: 2}\n")
    assert copied.plan("all", "publish") == {}


def test_new_times_of_the_same_files_rerun_nothing(copied):
    """A copy or a checkout by DVC gives every file a new time; content decides."""
    for path in sorted(copied.folder.glob("data/raw/*/*")) + sorted(copied.folder.glob("results/**/*.npz")):
        os.utime(path)
    assert copied.plan("all", "publish") == {}


def test_a_lost_mlflow_store_is_filled_again_without_new_runs(copied):
    shutil.rmtree(copied.folder / "mlruns")
    (copied.folder / "mlflow.db").unlink()
    assert copied.plan("all") == {}
    assert set(copied.plan("publish")) <= {"publish", "publish_runs", "publish_tables", "tabulate"}


@pytest.mark.parametrize(("path", "user"), [(PREDICTIONS, "measure"), (WEIGHTS, "predict")])
def test_a_damaged_file_is_named_and_not_used(copied, path, user):
    """Truncated weights; predictions of the right size, as files of another are found at the start and made again."""
    whole = (copied.folder / path).read_bytes()
    rest = bytes(len(whole) - len(whole) // 2) if path == PREDICTIONS else b""
    (copied.folder / path).write_bytes(whole[: len(whole) // 2] + rest)
    (copied.folder / "results/runs/tiny/softmax/seed-0/metrics.json").unlink()
    ended = copied.snakemake("--cores", "1", "results/runs/tiny/softmax/seed-0/metrics.json", check=False)
    assert ended.returncode != 0
    words = ended.stdout + ended.stderr
    line = next(line for line in words.splitlines() if line.strip().startswith("error: "))
    assert path in line and "again" in line, line
    assert f"rule {user}" in words.lower()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--config", "experiments=[nothing]"], ["config/config.yaml", "experiments", "'nothing'", "known: tiny"]),
        (["--config", "experimets=[tiny]"], ["experimets", "did you mean 'experiments'"]),
        (["--config", "compute={'threads': 0}"], ["compute.threads", "0", "greater than or equal to 1"]),
    ],
)
def test_a_wrong_configuration_is_one_message_without_traceback(fresh, words, expected):
    start = time.monotonic()
    ended = fresh.snakemake("-n", *words, check=False)
    assert ended.returncode != 0 and "Traceback" not in ended.stdout + ended.stderr
    message = [line for line in (ended.stdout + ended.stderr).splitlines() if "config.yaml: " in line]
    assert len(message) == 1
    for word in expected:
        assert word in message[0]
    assert time.monotonic() - start < 60, "before anything runs"


def test_a_wrong_experiment_file_is_one_message(fresh):
    fresh.settings(training={"epochs": "many"})
    ended = fresh.snakemake("-n", check=False)
    assert ended.returncode != 0 and "Traceback" not in ended.stdout + ended.stderr
    assert "config/experiments/tiny.yaml: training.epochs: 'many' refused" in ended.stdout + ended.stderr

"""The main job, end to end, on real input: what it leaves behind."""

import json
import re
import shutil
import zipfile
from base64 import b64encode
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from director.files import file_digest
from director.models.weights import load_model, parameter_count
from director.numbers.measure import read_metrics
from director.numbers.predictions import Predictions, mutual_information
from director.path.residual import path_of, student_of
from director.progress import WIDTH
from director.report.tables import MAIN
from director.settings.training import Kernel

pytestmark = pytest.mark.pipeline
ROWS = [  # backbone, method, samples, runs
    ("softmax", "mle", 1, 2),
    ("softmax", "mle_early", 1, 2),
    ("softmax", "temperature", 1, 2),
    ("softmax", "mc_dropout", 3, 2),
    ("softmax", "ensemble", 2, 1),
    ("softmax", "temperature_ensemble", 2, 1),
    ("softmax", "director", 1, 2),
    ("softmax", "director", 2, 2),
    ("softmax", "director_temperature", 2, 2),
    ("softmax", "director_noise", 2, 2),
    ("softmax", "director_noise_temperature", 2, 2),
    ("kep_svgp_1", "kep_svgp", 1, 2),
    ("kep_svgp_1", "kep_svgp", 2, 2),
]
METHODS = list(dict.fromkeys((backbone, method) for backbone, method, _, _ in ROWS))
SUITES = {"test": 97, "corrupted": 50 * 8 * 5, "ood-photographs": 690}  # and their rows


def main_table(study):
    return pd.read_csv(study.folder / "results/tables/main.csv")


def test_main_table_has_every_row(study):
    table = main_table(study)
    assert list(table[["backbone", "method", "samples", "seeds"]].itertuples(index=False, name=None)) == ROWS
    shown = [column for column in MAIN if not column.startswith("shifted_")]
    assert table[[*shown, "parameters", "train_seconds", "predict_seconds_per_1000"]].notna().all(axis=None)
    assert table["accuracy_std"].isna().tolist() == [method.endswith("ensemble") for _, method, _, _ in ROWS]


def test_a_temperature_moves_no_class(study):
    row = main_table(study).set_index(["method", "samples"])
    for scaled, plain in ((("temperature", 1), ("mle", 1)), (("director_temperature", 2), ("director", 2))):
        for column in ("accuracy", "corrupted_accuracy"):
            assert row.loc[scaled, column] == row.loc[plain, column]
        assert row.loc[scaled, "nll"] != row.loc[plain, "nll"]


def test_costs_in_the_main_table_are_of_what_predicts_and_of_all_that_was_trained(study):
    row = main_table(study).set_index(["method", "samples"])
    seeds = [study.folder / f"results/runs/tiny/softmax/seed-{seed}" for seed in (0, 1)]
    teacher, _ = load_model(seeds[0] / "backbone/model.safetensors")
    student, _ = load_model(seeds[0] / "director/model.safetensors")
    assert row.loc[("mle", 1), "parameters"] == row.loc[("mle_early", 1), "parameters"] == parameter_count(teacher)
    assert row.loc[("mle", 1), "train_seconds"] == row.loc[("mle_early", 1), "train_seconds"], "one training"
    assert row.loc[("ensemble", 2), "parameters"] == 2 * parameter_count(teacher)
    expected = parameter_count(student_of(path_of(teacher), Kernel()))
    for key in (("director", 1), ("director", 2), ("director_temperature", 2)):
        assert row.loc[key, "parameters"] == parameter_count(student) == expected
        assert row.loc[key, "train_seconds"] == row.loc[("director", 1), "train_seconds"]
    for seed in seeds:
        names = ("backbone", "trajectory", "director")
        before, capture, after = (json.loads((seed / f"{name}/cost.json").read_text()) for name in names)
        assert capture["train_seconds"] > 0
        assert before["train_seconds"] + capture["train_seconds"] < after["train_seconds"]


def test_each_row_of_the_main_table_costs_what_its_own_samples_cost(study):
    """S = 1 does not show the seconds of S = 2."""
    row = main_table(study).set_index(["method", "samples"])["predict_seconds_per_1000"]
    costs = [
        json.loads((study.folder / f"results/runs/tiny/softmax/seed-{seed}/director/predictions/cost.json").read_text())
        for seed in (0, 1)
    ]
    for samples in (1, 2):
        seconds = [cost["suites"]["test"]["seconds"][str(samples)] for cost in costs]
        assert row[("director", samples)] == pytest.approx(1000 * np.mean(seconds) / SUITES["test"], rel=1e-12)
    assert row[("director", 1)] != row[("director", 2)] == row[("director_temperature", 2)]


def test_the_tables_numbers_are_those_of_the_prediction_files(study):
    """The table can be traced: the files named by it, measured anew, give its numbers."""
    from director.numbers.metrics import ece_15

    runs = [study.folder / f"results/runs/tiny/softmax/seed-{seed}/mc_dropout/predictions/test.npz" for seed in (0, 1)]
    expected = np.mean([ece_15(Predictions.load(path)) for path in runs])
    table = pd.read_csv(study.folder / "results/tables/main.csv").set_index("method")
    assert table.loc["mc_dropout", "ece_15"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(("backbone", "method"), METHODS)
def test_every_prediction_file_says_where_it_comes_from(study, backbone, method, suite):
    seed = "pooled" if method.endswith("ensemble") else "0"
    folder = study.folder / f"results/runs/tiny/{backbone}/seed-{seed}/{method}"
    predictions = Predictions.load(folder / f"predictions/{suite}.npz")
    about = predictions.about
    assert (about["experiment"], about["backbone"], about["method"], about["suite"]) == (
        "tiny",
        backbone,
        method,
        suite,
    )
    assert str(about["seed"]) == seed
    assert about["code"] and about["data"] and about["commit"] and about["versions"]
    assert (predictions.labels is None) is suite.startswith("ood-")
    rows = [samples for *row, samples, _ in ROWS if row == [backbone, method]]
    scaled = method.endswith("temperature")
    assert predictions.logits.shape == (1 if scaled else max(rows), SUITES[suite], 10)
    records = read_metrics(folder.with_name("metrics.json"))[method][suite]["records"]
    cells = 41 if suite == "corrupted" else 1
    assert [record["samples"] for record in records] == [samples for samples in rows for _ in range(cells)]


def test_a_student_knows_its_teacher_and_predictions_their_student(study):
    import yaml

    for seed in (0, 1):
        run = study.folder / f"results/runs/tiny/softmax/seed-{seed}"
        teacher, student = (file_digest(run / f"{name}/model.safetensors") for name in ("backbone", "director"))
        assert yaml.safe_load((run / "director/settings.yaml").read_text())["teacher"] == teacher
        assert Predictions.load(run / "director/predictions/test.npz").about["weights"] == student
        cache = json.loads((run / "trajectory/view-0/manifest.json").read_text())
        assert (cache["identity"]["weights"], cache["count"], cache["complete"]) == (teacher, 1600, True)


def test_each_method_predicts_with_its_own_weights_of_the_backbone(study):
    """Snakemake's record says which: in a short training both files may hold the same epoch."""
    for seed in (0, 1):
        run = f"results/runs/tiny/softmax/seed-{seed}"
        for method, name in (("mle", "model"), ("mc_dropout", "model"), ("mle_early", "early")):
            weights, manifest = f"{run}/backbone/{name}.safetensors", f"{run}/{method}/predictions/manifest.json"
            record = study.folder / ".snakemake/metadata" / b64encode(manifest.encode()).decode()
            inputs = json.loads(record.read_text())["input"]
            assert [path for path in inputs if path.endswith(".safetensors")] == [weights]
            about = Predictions.load(study.folder / run / method / "predictions/test.npz").about
            assert about["weights"] == file_digest(study.folder / weights)


@pytest.mark.parametrize("suite", SUITES)
def test_a_student_leaves_its_uncertainty_along_the_depth(study, suite):
    for seed in (0, 1):
        folder = study.folder / f"results/runs/tiny/softmax/seed-{seed}/director/predictions"
        predictions = Predictions.load(folder / f"{suite}.npz")
        with np.load(folder / f"{suite}.depth.npz", allow_pickle=False) as file:
            assert file["variance"].shape == (SUITES[suite], 2) and (file["variance"] > 0).all()
            assert np.array_equal(file["mutual_information"], mutual_information(predictions))
            assert json.loads(str(file["about"])) == predictions.about
    others = set(study.folder.glob("results/runs/tiny/*/*/*/predictions/*.depth.npz"))
    assert {path.parts[-3] for path in others} == {"director", "director_noise"}


def test_corrupted_suite_holds_test_examples_only(study):
    split = np.load(study.folder / "results/runs/tiny/softmax/seed-1/backbone/split.npz")
    corrupted = Predictions.load(study.folder / "results/runs/tiny/softmax/seed-1/mle/predictions/corrupted.npz")
    assert set(corrupted.example) <= set(split["test"]) and len(set(corrupted.example)) == 50
    assert len(corrupted.example) == 50 * 8 * 5


def test_companions_are_there(study):
    comparison = pd.read_csv(study.folder / "results/tables/comparison.csv")
    found = list(comparison[["backbone", "method"]].drop_duplicates().itertuples(index=False, name=None))
    assert found == [row for row in METHODS if row != ("softmax", "mle")]
    assert set(comparison["suite"]) == {"test", "corrupted", "ood"}
    drawn = comparison.dropna(subset=["lower"])  # an AUROC may be undefined in a replicate
    assert len(drawn) > 0.8 * len(comparison) and (drawn["lower"] <= drawn["upper"]).all()
    assert "±" in (study.folder / "results/tables/main.md").read_text()
    folder = study.folder / "results/figures/tiny"
    figures = {"reliability", "risk_coverage", "cost", "training", "comparison", "severity", "out_of_distribution"}
    assert {path.stem for path in folder.glob("*.svg")} == figures | {"samples", "depth", "noise"}
    for figure in folder.glob("*.svg"):
        assert figure.read_text().rstrip().endswith("</svg>")
        assert figure.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_what_is_compared_are_rows_of_the_main_table(study):
    """Of several numbers of samples, the largest."""
    comparison = pd.read_csv(study.folder / "results/tables/comparison.csv")
    largest = {(backbone, method): samples for backbone, method, samples, _ in ROWS}  # the last one stays
    for row in comparison.itertuples():
        assert row.samples == largest[row.backbone, row.method], row.method


def test_every_job_leaves_a_log_and_says_what_it_cost(study):
    folder = study.folder / "logs"
    logs = {path.relative_to(folder).parts[0].split(".")[0] for path in folder.rglob("*.log")}
    ran = set(study.plan("--forceall", "all", "publish")) - {"all", "publish"}
    assert ran <= logs
    for rule, pattern in {
        "train_backbone": "backbone/cost.json",
        "train_student": "director/cost.json",
        "cache_trajectory": "trajectory/cost.json",
    }.items():
        assert rule in ran
        assert list((study.folder / "results").rglob(pattern))


def test_report_holds_the_figures_and_their_captions(study, tmp_path):
    study.snakemake("--cores", "1", "--report", str(tmp_path / "report.zip"))
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        names = archive.namelist()
        page = archive.read(next(name for name in names if name.endswith("report.html"))).decode()
    assert sum(name.endswith(".svg") for name in names) == 10 and any(name.endswith("main.html") for name in names)
    assert "over-confident" in page and "transition kernel" in page


def test_report_opens_with_the_table_and_what_its_intervals_carry(study, tmp_path):
    study.snakemake("--cores", "1", "--report", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()

    def embedded(name):
        script = page.partition(f'<script id="{name}">')[2].partition("</script>")[0]
        return json.loads(script.partition(" = ")[2].strip().removesuffix(";"))

    opening = embedded("workflow-desc")
    for words in ("What the intervals carry", "director_noise_temperature (softmax)", "not told apart in", "<table "):
        assert words in opening, words
    shown = {path: result["job_properties"]["params"] for path, result in embedded("results").items()}
    assert len(shown) == 12 and not any(shown.values()), "digests and lists of files say nothing to a reader"


def test_report_straight_after_the_main_job_shows_what_is_there(study, tmp_path):
    copied = study.copy(tmp_path / "copied")
    shutil.rmtree(copied.folder / "results/figures")
    copied.snakemake("--report", "report.zip")
    with zipfile.ZipFile(copied.folder / "report.zip") as archive:
        names = archive.namelist()
    assert any(name.endswith("main.csv") for name in names) and not any(name.endswith(".svg") for name in names)
    shutil.rmtree(copied.folder / "results/tables")
    ended = copied.snakemake("--report", "report.zip", check=False)
    assert ended.returncode and "run snakemake --cores 8 results/tables/main.csv first" in ended.stderr


def test_a_run_says_one_short_line_per_job(study, tmp_path):
    copied = study.copy(tmp_path / "copied")
    plan = copied.plan("all", "--forcerun", "scale")
    ended = copied.snakemake("--cores", "2", "all", "--forcerun", "scale")
    said = (ended.stdout + ended.stderr).split("Job stats:")[1]
    finished = re.findall(r"^\d\d:\d\d:\d\d +(\d+) of (\d+)  (\w+)", said, re.MULTILINE)
    assert [int(number) for number, _, _ in finished] == list(range(1, sum(plan.values()) + 1))
    assert Counter(rule for _, _, rule in finished) == plan
    assert "left" in said and max(map(len, said.splitlines())) <= WIDTH
    complete = Path(re.search(r"Complete log\(s\): (\S+)", said)[1]).read_text()
    assert "reason: " in complete and "output: " in complete, "all of Snakemake's words are in its own log"


def test_lint_is_clean(study):
    ended = study.snakemake("--lint", check=False)
    assert ended.returncode == 0, ended.stderr


def test_slurm_profile_plans_the_whole_run(fresh):
    plan = fresh.plan("--workflow-profile", str(fresh.checkout / "profiles/slurm"), "all")
    assert (plan["train_backbone"], plan["train_student"], plan["tabulate"]) == (4, 2, 1)


def test_environment_for_conda_users_is_that_of_the_lock(study):
    import tomllib

    import yaml

    conda = yaml.safe_load((study.checkout / "environment.yml").read_text())
    project = tomllib.loads((study.checkout / "pyproject.toml").read_text())["project"]
    python = next(item for item in conda["dependencies"] if isinstance(item, str) and item.startswith("python="))
    assert project["requires-python"] == ">=" + python.removeprefix("python=")
    pip = next(item["pip"] for item in conda["dependencies"] if isinstance(item, dict))
    assert "-r requirements.lock" in pip
    locked = set(re.findall(r"^([a-z0-9-]+)==", (study.checkout / "requirements.lock").read_text(), re.MULTILINE))
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    assert {re.match(r"[a-z0-9-]+", item)[0] for item in wanted} <= locked
    # pip cannot install an extra without its dependencies, so that the Makefile repeats what it holds
    assert project["optional-dependencies"]["text-demo"][0] in (study.checkout / "Makefile").read_text()

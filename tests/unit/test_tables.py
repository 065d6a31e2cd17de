"""Tables: the right number in the right cell, and never one where it is undefined."""

import math

import pandas as pd
import pytest

from director.files import InputError, write_json
from director.tables import (
    MAIN,
    corruption_table,
    cost_table,
    long_table,
    main_table,
    markdown,
    ood_table,
    readable,
    write_tables,
)

METRICS = ("accuracy", "nll", "brier", "ece_15", "aurc", "auroc", "fpr95")


def metrics_file(folder, method, seed, suite, records, samples=1):
    about = {"experiment": "e", "backbone": "softmax", "method": method, "seed": seed, "suite": suite}
    about |= {"generated": suite == "corrupted"}
    cell = {"samples": samples, "pooling": "softmax", "shift": "clean", "severity": 0, "n": 4}
    path = folder / f"{method}-{seed}-{suite}.json"
    write_json(path, {"about": about, "records": [cell | record for record in records]})
    return path


@pytest.fixture
def study(tmp_path):
    """Two seeds of `mle`, one pooled `ensemble`; AUROC is undefined for mle at seed 1."""
    files, costs = [], []
    for method, seed, base in (("mle", 0, 0.8), ("mle", 1, 0.6), ("ensemble", "pooled", 0.9)):
        clean = dict.fromkeys(METRICS, base)
        if seed == 1:
            clean["auroc"] = None
        shifted = [
            {"shift": kind, "severity": severity, "accuracy": base - severity / 10, "nll": 1.0, "ece_15": 0.1}
            for kind in ("fog", "gaussian_noise", "motion_blur")
            for severity in (1, 2)
        ]
        overall = {"shift": "overall", "accuracy": base - 0.15, "nll": 1.0, "ece_15": 0.1}
        files.append(metrics_file(tmp_path, method, seed, "test", [clean]))
        files.append(metrics_file(tmp_path, method, seed, "corrupted", [*shifted, overall]))
        for name, auroc in (("a", 0.7), ("b", 0.9)):
            record = {"shift": f"ood-{name}", "ood_auroc": auroc, "ood_fpr95": 0.5, "ood_auroc_entropy": 0.6}
            files.append(metrics_file(tmp_path, method, seed, f"ood-{name}", [record]))
        cost = {"parameters": 10, "train_seconds": 2.0 + base, "predict_seconds": 1.0, "examples": 500}
        path = tmp_path / f"e/softmax/seed-{seed}/{method}/predictions/test.cost.json"
        write_json(path, cost | {"device": "cpu", "threads": 1, "peak_memory_bytes": 5})
        costs.append(path)
    return files, costs


def test_main_table(study):
    files, costs = study
    published = {"e": {"softmax": {"mle": {"accuracy": 0.83, "ece_15": None, "source": "a table"}}}}
    table = main_table(long_table(files), cost_table(costs), published)
    assert list(table.columns[:6]) == ["experiment", "backbone", "method", "samples", "seeds", "generated"]
    measured = [name for column in MAIN for name in (column, f"{column}_std")]
    assert list(table.columns[6:]) == [
        *measured,
        "parameters",
        "train_seconds",
        "predict_seconds_per_1000",
        "published_accuracy",
        "published_mcc",
        "published_ece_15",
    ]
    mle, ensemble = table.iloc[0], table.iloc[1]
    assert (mle["method"], mle["seeds"], ensemble["method"], ensemble["seeds"]) == ("mle", 2, "ensemble", 1)
    assert mle["accuracy"] == pytest.approx(0.7) and mle["accuracy_std"] == pytest.approx(math.sqrt(0.02))
    assert math.isnan(mle["auroc"]), "undefined for one seed: a mean over the others would be another statistic"
    assert math.isnan(ensemble["accuracy_std"]), "one run has no spread"
    assert mle["corrupted_accuracy"] == pytest.approx(0.55)
    assert mle["ood_auroc"] == pytest.approx(0.8), "mean over the two sets"
    assert mle["predict_seconds_per_1000"] == pytest.approx(2.0) and mle["train_seconds"] == pytest.approx(2.7)
    assert mle["published_accuracy"] == 0.83 and math.isnan(mle["published_ece_15"])
    assert math.isnan(ensemble["published_accuracy"])


def test_published_numbers_stand_at_the_row_of_the_most_samples(study, tmp_path):
    files, costs = study
    many = metrics_file(tmp_path / "ten", "mle", 0, "test", [dict.fromkeys(METRICS, 0.9)], samples=10)
    published = {"e": {"softmax": {"mle": {"mcc": 0.32, "source": "a table"}}}}
    table = main_table(long_table([*files, many]), cost_table(costs), published).set_index(["method", "samples"])
    assert table.loc[("mle", 10), "published_mcc"] == 0.32
    assert table["published_mcc"].notna().sum() == 1


def test_companion_tables(study):
    long = long_table(study[0])
    corruption = corruption_table(long).set_index(["method", "group", "shift"])
    assert corruption.loc[("mle", "weather", "fog"), "accuracy"] == pytest.approx(0.55)
    assert corruption.loc[("ensemble", "noise", "all"), "accuracy"] == pytest.approx(0.75)
    ood = ood_table(long).set_index(["method", "suite", "score"])
    assert ood.loc[("mle", "ood-b", "max_softmax"), "auroc"] == pytest.approx(0.9)
    assert ood.loc[("mle", "ood-b", "entropy"), "auroc"] == pytest.approx(0.6)


def test_written_tables(study, tmp_path):
    comparison = tmp_path / "comparison.csv"
    comparison.write_text("experiment,method\ne,mle\n")
    write_tables(tmp_path / "tables", *study, [comparison], {})
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    expected = {f"{name}.csv" for name in ("main", "all", "corruption", "ood", "cost", "comparison")}
    assert names == expected | {"main.json", "main.md", "main.tex"}
    long = pd.read_csv(tmp_path / "tables/all.csv")
    line = long[(long["seed"] == "1") & (long["metric"] == "auroc")]
    assert len(line) == 1 and line["value"].isna().all(), "undefined is an empty cell"
    assert long.set_index(["method", "seed", "suite", "shift", "severity", "metric"]).loc[
        ("mle", "0", "corrupted", "fog", 2, "accuracy"), "value"
    ] == pytest.approx(0.6)


def test_readable_table(study):
    files, costs = study
    text = markdown(readable(main_table(long_table(files), cost_table(costs), {})))
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1, "aligned"
    assert "accuracy %" in lines[0] and "70.0 ± 14.1" in lines[2] and "90.0 " in lines[3]
    assert "nan" not in text
    assert "MCC" not in lines[0] and "shifted" not in lines[0], "no row has them"


def test_the_suite_shifted_and_mcc_have_columns_of_their_own(tmp_path, study):
    files, costs = study
    clean = dict.fromkeys(METRICS, 0.5) | {"mcc": 0.25}
    files = [metrics_file(tmp_path, "mle", 0, "test", [clean])]
    files.append(metrics_file(tmp_path, "mle", 0, "shifted", [clean | {"accuracy": 0.4, "mcc": -0.125}]))
    table = main_table(long_table(files), cost_table(costs[:1]), {})
    row = table.iloc[0]
    assert (row["accuracy"], row["mcc"], row["shifted_accuracy"], row["shifted_mcc"]) == (0.5, 0.25, 0.4, -0.125)
    assert math.isnan(row["corrupted_accuracy"]) and math.isnan(row["ood_auroc"])
    shown = readable(table)
    assert shown["MCC x100"][0] == "25.0" and shown["shifted MCC x100"][0] == "-12.5"
    assert not [heading for heading in shown if heading.startswith(("corrupted", "OOD"))]


def test_generated_suites_are_marked_in_every_table(study):
    files, costs = study
    long = long_table(files)
    assert set(long[long["generated"]]["suite"]) == {"corrupted"}
    table = main_table(long, cost_table(costs), {})
    assert list(table["generated"]) == ["corrupted"] * 2
    assert list(readable(table)["generated"]) == ["corrupted"] * 2
    assert corruption_table(long)["generated"].all() and not ood_table(long)["generated"].any()


def test_a_foreign_metrics_file_is_named(tmp_path):
    write_json(tmp_path / "odd.json", {"records": []})
    with pytest.raises(InputError, match=r"odd\.json.*'about'"):
        long_table([tmp_path / "odd.json"])

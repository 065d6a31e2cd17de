"""Tables: the right number in the right cell, and never one where it is undefined."""

import math

import pandas as pd
import pytest

from director.errors import InputError
from director.files import write_json
from director.numbers.compare_rows import COLUMNS
from director.numbers.measure import FORMAT
from director.report.tables import (
    FITTED,
    MAIN,
    corruption_table,
    cost_table,
    in_order,
    long_table,
    main_table,
    markdown,
    ood_table,
    readable,
    write_tables,
)

METRICS = ("accuracy", "nll", "brier", "ece_15", "aurc", "auroc", "fpr95")


ROWS = [("e", "softmax", "mle"), ("e", "softmax", "ensemble")]


def measured(method, seed, suite, records, samples=1):
    """What `measure_run` writes of one suite."""
    about = {"experiment": "e", "backbone": "softmax", "method": method, "seed": seed, "suite": suite}
    about |= {"generated": suite == "corrupted"}
    cell = {"samples": samples, "pooling": "softmax", "shift": "clean", "severity": 0, "n": 4}
    return {"about": about, "records": [cell | record for record in records]}


def metrics_file(root, seed, methods):
    """The metrics of one run folder; methods: method -> suite -> what was measured."""
    path = root / f"results/runs/e/softmax/seed-{seed}/metrics.json"
    write_json(path, {"format": FORMAT, "methods": methods})
    return path


def cost_file(root, method, seed, seconds, examples=500, train_seconds=2.0):
    """What the predictions of one method cost; seconds: of the suite `test`, by the number of samples."""
    path = root / f"results/runs/e/softmax/seed-{seed}/{method}/predictions/cost.json"
    cost = {"parameters": 10, "train_seconds": train_seconds, "device": "cpu", "threads": 1, "peak_memory_bytes": 5}
    test = {"examples": examples, "seconds": {str(samples): number for samples, number in seconds.items()}}
    write_json(path, cost | {"suites": {"corrupted": {"examples": 7, "seconds": {"1": 9.0}}, "test": test}})
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
        suites = {"test": [clean], "corrupted": [*shifted, overall]}
        for name, auroc in (("a", 0.7), ("b", 0.9)):
            record = {"shift": f"ood-{name}", "ood_auroc": auroc, "ood_fpr95": 0.5, "ood_auroc_entropy": 0.6}
            suites[f"ood-{name}"] = [record]
        suites = {suite: measured(method, seed, suite, records) for suite, records in suites.items()}
        files.append(metrics_file(tmp_path, seed, {method: suites}))
        costs.append(cost_file(tmp_path, method, seed, {1: 1.0}, train_seconds=2.0 + base))
    return files, costs


def test_main_table(study):
    files, costs = study
    published = {"e": {"softmax": {"mle": {"accuracy": 0.83, "ece_15": None, "source": "a table"}}}}
    table = main_table(long_table(files), cost_table(costs), published)
    assert list(table.columns[:6]) == ["experiment", "backbone", "method", "samples", "seeds", "generated"]
    measured = [name for column in (*MAIN, *FITTED) for name in (column, f"{column}_std")]
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


def test_what_was_fitted_is_shown(tmp_path):
    """A temperature and a noise scale belong to the row whose predictions they made, once, and never to another."""
    files = []
    for seed, temperature in ((0, 1.0), (1, 2.0)):
        suites = {
            method: {
                suite: measured(method, seed, suite, [dict.fromkeys(METRICS, 0.5)]) for suite in ("test", "shifted")
            }
            for method in ("mle", "director_noise_temperature")
        }
        for suite in suites["director_noise_temperature"].values():
            suite["about"] |= {"temperature": temperature, "noise_scale": 1.5}
        files.append(metrics_file(tmp_path, seed, suites))
    costs = [cost_file(tmp_path, method, seed, {1: 1.0}) for seed in (0, 1) for method in suites]
    long = long_table(files)
    assert long["metric"].value_counts()[list(FITTED)].tolist() == [2, 2]
    table = main_table(long, cost_table(costs), {}).set_index("method")
    fitted = table.loc["director_noise_temperature"]
    assert (fitted["temperature"], fitted["noise_scale"]) == (1.5, 1.5)
    assert fitted["temperature_std"] == pytest.approx(math.sqrt(0.5))
    assert table.loc["mle", ["temperature", "noise_scale"]].isna().all()
    shown = readable(table.reset_index())
    assert shown[["T", "tau"]].to_numpy().tolist() == [["-", "-"], ["1.50 ± 0.71", "1.50 ± 0.00"]]


def test_published_numbers_stand_at_the_row_of_the_most_samples(study, tmp_path):
    files, costs = study
    suites = {"test": measured("mle", 0, "test", [dict.fromkeys(METRICS, 0.9)], samples=10)}
    many = metrics_file(tmp_path / "ten", 0, {"mle": suites})
    published = {"e": {"softmax": {"mle": {"mcc": 0.32, "source": "a table"}}}}
    table = main_table(long_table([*files, many]), cost_table(costs), published).set_index(["method", "samples"])
    assert table.loc[("mle", 10), "published_mcc"] == 0.32
    assert table["published_mcc"].notna().sum() == 1


def test_a_row_costs_what_its_own_number_of_samples_costs(tmp_path):
    """Not what the most samples cost: 1 and 10 samples of one run are two rows."""
    methods, costs = {}, []
    for seed, factor in ((0, 1.0), (1, 3.0)):
        records = [dict.fromkeys(METRICS, 0.5) | {"samples": samples} for samples in (1, 10)]
        methods[seed] = metrics_file(
            tmp_path, seed, {"director": {"test": measured("director", seed, "test", records)}}
        )
        costs.append(cost_file(tmp_path, "director", seed, {1: 0.5 * factor, 10: 4.0 * factor}, examples=250))
    table = main_table(long_table(methods.values()), cost_table(costs), {}).set_index("samples")
    assert table.loc[1, "predict_seconds_per_1000"] == pytest.approx(1000 * (0.5 + 1.5) / 2 / 250)
    assert table.loc[10, "predict_seconds_per_1000"] == pytest.approx(1000 * (4 + 12) / 2 / 250)
    assert list(table["parameters"]) == [10, 10] and list(table["seeds"]) == [2, 2]
    cost = cost_table(costs)
    assert cost.index.names == ["experiment", "backbone", "method", "samples"]
    assert list(cost.index) == [("e", "softmax", "director", 1), ("e", "softmax", "director", 10)]
    row = cost.loc[("e", "softmax", "director", 10)]
    assert (row["device"], row["threads"], row["peak_memory_bytes"]) == ("cpu", 1, 5)


def test_lines_come_in_the_order_of_the_rows_and_by_seed(study):
    """Files are of run folders, rows are across them."""
    files, _ = study
    long = in_order(long_table([files[2], files[1], files[0]]), ROWS[::-1])
    runs = list(long[["method", "seed"]].drop_duplicates().itertuples(index=False, name=None))
    assert runs == [("ensemble", "pooled"), ("mle", "0"), ("mle", "1")]
    plain = long_table([files[1]])
    assert long[long["seed"] == "1"].reset_index(drop=True).equals(plain), "lines of a run stay as they were"
    assert set(in_order(long_table(files), ROWS[:1])["method"]) == {"mle"}
    with pytest.raises(InputError, match=r"no metrics of e/softmax/director; .*metrics\.json"):
        in_order(long_table(files), [*ROWS, ("e", "softmax", "director")])


def test_seeds_are_ordered_as_numbers(tmp_path):
    suites = [{"mle": {"test": measured("mle", seed, "test", [dict.fromkeys(METRICS, 0.5)])}} for seed in (10, 9)]
    files = [metrics_file(tmp_path, seed, methods) for seed, methods in zip((10, 9), suites, strict=True)]
    assert list(in_order(long_table(files), ROWS[:1])["seed"].unique()) == ["9", "10"]


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
    comparison.write_text(",".join(COLUMNS) + "\n" + "e,softmax,mle,1,test,nll,softmax/director,2,0.1,0,0.2,0.95,,\n")
    write_tables(tmp_path / "tables", *study, [comparison], {}, ROWS[::-1])
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    expected = {f"{name}.csv" for name in ("main", "all", "corruption", "ood", "cost", "comparison")}
    assert names == expected | {"main.json", "main.md", "main.tex"}
    long = pd.read_csv(tmp_path / "tables/all.csv")
    line = long[(long["seed"] == "1") & (long["metric"] == "auroc")]
    assert len(line) == 1 and line["value"].isna().all(), "undefined is an empty cell"
    assert list(pd.read_csv(tmp_path / "tables/main.csv")["method"]) == ["ensemble", "mle"], "the order of the rows"
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
    _, costs = study
    clean = dict.fromkeys(METRICS, 0.5) | {"mcc": 0.25}
    records = {"test": [clean], "shifted": [clean | {"accuracy": 0.4, "mcc": -0.125}]}
    suites = {suite: measured("mle", 0, suite, lines) for suite, lines in records.items()}
    files = [metrics_file(tmp_path, 0, {"mle": suites})]
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
    with pytest.raises(InputError, match=r"odd\.json: not a file of metrics"):
        long_table([tmp_path / "odd.json"])


def test_a_foreign_cost_file_is_named(tmp_path):
    path = cost_file(tmp_path, "mle", 0, {1: 1.0})
    write_json(path, {"predict_seconds": 1.0})
    with pytest.raises(InputError, match=r"predictions/cost\.json: not a file of costs"):
        cost_table([path])

"""Comparison of methods: spread, bootstrap, tests."""

import csv
import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from director.errors import InputError
from director.numbers import metrics
from director.numbers.compare_rows import COLUMNS, COMPARED, compare_rows
from director.numbers.comparison import (
    METRICS,
    Draws,
    aligned,
    draw,
    holm,
    interval,
    paired_bootstrap,
    paired_test,
    resampled,
    resampled_detection,
    spread,
)
from director.numbers.measure import measure_run
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, manifest_of, write_suites
from director.report.tables import MAIN, long_table, per_run


def run_of(seed: int, strength=1.0, rows=300) -> Predictions:
    labels = np.random.default_rng(99).integers(3, size=rows)
    noise = np.random.default_rng(seed).normal(size=(2, rows, 3))
    return Predictions(noise + strength * np.eye(3)[labels], labels)


def test_spread():
    assert spread([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, np.std([1, 2, 4], ddof=1)))
    assert spread([0.25]) == (0.25, None)
    with pytest.raises(InputError, match="nan"):
        spread([1.0, float("nan")])


def test_spread_of_a_metric_that_is_undefined_for_one_seed_is_undefined():
    assert spread([1.0, None, 2.0]) == spread([]) == (None, None)


def test_paired_test():
    a, b = [0.81, 0.83, 0.80, 0.84, 0.82], [0.80, 0.80, 0.79, 0.82, 0.82]
    assert paired_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired_test(b, a) == paired_test(a, b)


def test_paired_test_at_its_ends():
    assert paired_test([0.5], [0.4]) is None
    assert paired_test([0.5, None], [0.4, 0.3]) is None
    assert paired_test([0.5, 0.25], [0.5, 0.25]) == 1
    assert paired_test([0.5, 0.75], [0.25, 0.5]) == 0  # the same difference twice
    with pytest.raises(InputError, match="2 and 1 values"):
        paired_test([0.5, 0.4], [0.4])


def test_holm():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([None]) == [None]
    with pytest.raises(InputError, match=r"p-value 1\.5 at position 1"):
        holm([0.1, 1.5])


# -- metrics of what was drawn


def tied(seed: int, examples: int, cells=(("clean", 0),), classes=3, drop=0.0) -> Predictions:
    """Coarse logits, so that many confidences are equal; `drop`: the share of rows that are left out."""
    generator = np.random.default_rng(seed)
    rows = examples * len(cells)
    labels = np.tile(generator.integers(classes, size=examples), len(cells))
    shift, severity = (np.repeat(of, examples) for of in zip(*cells, strict=True))
    logits = generator.integers(4, size=(2, rows, classes)) / 2 + np.eye(classes)[labels]
    everything = Predictions(logits, labels, np.tile(np.arange(examples) * 3, len(cells)), shift, severity)
    return everything.select(np.flatnonzero(generator.random(rows) >= drop))


def repeated(draws: Draws, run: Predictions, replicate: int) -> Predictions:
    """The rows of a run, each as often as its example is drawn, under new example numbers."""
    rows = np.repeat(np.arange(len(run.example)), draws.weights[replicate][draws.example])
    labels = None if run.labels is None else run.labels[rows]
    return Predictions(run.logits[:, rows], labels, None, run.shift[rows], run.severity[rows])


CELLS = (("clean", 0), ("fog", 1), ("fog", 2), ("snow", 1))


@pytest.mark.parametrize("cells", [CELLS[:1], CELLS], ids=["one cell", "several cells"])
@pytest.mark.parametrize("examples", [7, 90])
@pytest.mark.parametrize("name", METRICS)
def test_a_weighted_metric_is_that_of_repeated_rows(name, examples, cells):
    """Seven examples leave cells empty, and metrics undefined, in some replicates."""
    run = tied(1, examples, cells, drop=0.3 if len(cells) > 1 else 0)
    assert len(np.unique(run.confidence)) < len(run.confidence) or examples < 10, "no ties to test"
    draws = draw(run, 40)
    expected = [metrics.records(repeated(draws, run, replicate))[-1][name] for replicate in range(41)]
    expected = np.array([np.nan if value is None else value for value in expected])
    values = resampled(draws, aligned(draws, run, "run"), [name])[name]
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(expected[0], metrics.records(run)[-1][name], rtol=0, atol=1e-12)  # weight 1 everywhere


@pytest.mark.parametrize("seed", range(5))
def test_weighted_detection_is_that_of_repeated_rows(seed):
    inside, foreign = tied(seed, 60), replace(tied(seed + 50, 45), labels=None)
    sides = draw(inside, 30, (1,)), draw(foreign, 30, (2,))
    runs = [aligned(*side, "run") for side in zip(sides, (inside, foreign), strict=True)]
    values = resampled_detection(sides[0], runs[0], sides[1], runs[1])
    for replicate in range(31):
        summary = metrics.ood_summary(
            *(repeated(*side, replicate) for side in zip(sides, (inside, foreign), strict=True))
        )
        for name in ("auroc", "fpr95"):
            assert values[name][replicate] == pytest.approx(summary["max_softmax"][name], abs=1e-12), name


def test_metrics_of_very_few_rows_are_undefined_where_they_should_be():
    """One example: always right, so nothing is to be told apart; a predictor of one class has a correlation of 0."""
    run = Predictions(np.array([[2.0, 0.0]]), [0])
    values = {name: value[0] for name, value in resampled(draw(run, 1), run, METRICS).items()}
    assert np.isnan(values["auroc"]) and np.isnan(values["fpr95"]) and values["mcc"] == values["aurc"] == 0
    one_label = Predictions(np.array([[2.0, 0.0], [0.0, 2.0]]), [0, 0])
    assert np.isnan(resampled(draw(one_label, 1), one_label, ["mcc"])["mcc"][0])


def test_draws_are_those_of_a_bootstrap():
    """Sizes are kept, a draw is of examples and not of rows, and each suite may have a stream of its own."""
    draws = draw(tied(1, 50, CELLS), 20)
    assert draws.weights.shape == (21, 50) and (draws.weights[0] == 1).all()
    assert (draws.weights.sum(1) == 50).all() and (draws.rows == 50).all()
    assert 0.5 < (draws.weights[1:] > 0).mean() < 0.75  # 1 - 1/e
    assert (draw(tied(2, 50), 20).weights == draws.weights).all()
    assert (draw(tied(1, 50), 20, (1,)).weights != draws.weights).any()


@pytest.mark.parametrize("name", METRICS)
def test_the_bootstrap_resamples_every_metric(name):
    metric = metrics.METRICS[name]
    runs, reference = [run_of(1, 1.5), run_of(2, 1.5)], [run_of(3)]
    found = paired_bootstrap(name, runs, reference, replicates=30)
    assert found["difference"] == pytest.approx(np.mean([metric(run) for run in runs]) - metric(reference[0]))
    assert found["lower"] < found["upper"]
    # the same draws, row by row, through new Predictions; then of the two runs
    generator, drawn = np.random.default_rng((0,)), []
    chosen = np.random.default_rng((0, 2)).integers(2, size=(2, 31))[:, 1:]
    for replicate in range(30):
        rows = generator.integers(300, size=300)
        first, second, third = (
            metric(Predictions(run.logits[:, rows], run.labels[rows])) for run in (*runs, *reference)
        )
        drawn.append(np.take([first, second], chosen[:, replicate]).mean() - third)
    assert (found["lower"], found["upper"]) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_seeds_are_drawn_in_pairs_and_widen_the_interval():
    """Trainings that differ more than test examples do: an interval over examples alone would know nothing of it."""
    examples = np.zeros((3, 2001)) + np.random.default_rng(0).normal(0, 0.001, 2001)  # the same draws for each run
    seeds = np.array([[0.0], [1.0], [5.0]])
    paired = interval(list(examples + seeds + 0.1), list(examples + seeds), 0.95)
    assert paired == pytest.approx({"difference": 0.1, "lower": 0.1, "upper": 0.1}), "what a seed does to both cancels"
    moved = interval(list(examples + seeds), list(examples), 0.95)
    assert moved == pytest.approx({"difference": 2.0, "lower": 0.0, "upper": 5.0}, abs=1e-9)
    alone = interval(list(examples + seeds), [examples[0]], 0.95)
    assert alone == pytest.approx(moved, abs=0.01), "against a pooled run only one side is drawn"
    single = interval([examples[0] + 1], [examples[0]], 0.95)
    assert single == pytest.approx({"difference": 1.0, "lower": 1.0, "upper": 1.0})


def test_the_interval_is_that_of_a_mean():
    runs, reference = [run_of(1, 1.5, rows=2000)], [run_of(3, rows=2000)]
    difference = reference[0].log_likelihood - runs[0].log_likelihood
    error = difference.std() / np.sqrt(2000)
    found = paired_bootstrap("nll", runs, reference, level=0.9)
    assert found["difference"] == pytest.approx(difference.mean())
    assert found["lower"] == pytest.approx(difference.mean() - 1.645 * error, abs=0.15 * error)
    assert found["upper"] == pytest.approx(difference.mean() + 1.645 * error, abs=0.15 * error)


def test_a_method_does_not_differ_from_itself_and_seeds_repeat():
    run, other = run_of(1), run_of(2)
    assert paired_bootstrap("accuracy", [run], [run], 20) == {"difference": 0, "lower": 0, "upper": 0}
    once = paired_bootstrap("accuracy", [run], [other], 20, seed=3)
    assert once == paired_bootstrap("accuracy", [run], [other], 20, seed=3)
    assert once != paired_bootstrap("accuracy", [run], [other], 20, seed=4)


def test_rows_are_matched_by_what_they_are():
    run, other = run_of(1), run_of(2)
    order = np.random.default_rng(0).permutation(300)
    assert paired_bootstrap("accuracy", [run], [other.select(order)], 20) == paired_bootstrap(
        "accuracy", [run], [other], 20
    )


def test_all_rows_of_an_example_are_drawn_together():
    """Copies of every example under other shifts bring no new examples, so the interval must not shrink."""

    def copied(run):
        rows = np.tile(np.arange(300), 4)
        return Predictions(run.logits[:, rows], run.labels[rows], rows, np.repeat(["a", "b", "c", "d"], 300))

    run, other = run_of(1, 1.3), run_of(2)
    single = paired_bootstrap("accuracy", [run], [other], 50)
    assert paired_bootstrap("accuracy", [copied(run)], [copied(other)], 50) == pytest.approx(single)
    some = np.flatnonzero(np.arange(1200) % 7)  # not every example under every shift
    uneven = paired_bootstrap("accuracy", [copied(run).select(some)], [copied(other).select(some)], 50)
    width, uneven_width = (found["upper"] - found["lower"] for found in (single, uneven))
    assert uneven_width == pytest.approx(width, rel=0.25)


def test_other_examples_are_refused():
    run = run_of(1)
    with pytest.raises(InputError, match=r"the first run and reference run 1 .* is \(299, 'clean', 0\) and nothing"):
        paired_bootstrap("accuracy", [run], [run, run.select(np.arange(299))])
    moved = Predictions(run.logits, run.labels, np.where(np.arange(300) == 7, 1000, np.arange(300)))
    with pytest.raises(InputError, match=r"the first run and run 1 .* is \(7, 'clean', 0\) and \(8, 'clean', 0\)"):
        paired_bootstrap("accuracy", [run, moved], [run])
    relabelled = Predictions(run.logits, np.where(np.arange(300) == 5, (run.labels + 1) % 3, run.labels))
    with pytest.raises(InputError, match="for example 5; make both from one data set"):
        paired_bootstrap("accuracy", [run], [relabelled])
    with pytest.raises(InputError, match="0 runs and 1 reference"):
        paired_bootstrap("accuracy", [], [run])
    with pytest.raises(InputError, match="0 replicates"):
        paired_bootstrap("accuracy", [run], [run], replicates=0)


def test_no_interval_where_a_replicate_is_undefined():
    logits = np.tile([2.0, 0.0], (6, 1)) + np.arange(6)[:, None] * [0.1, 0.0]
    one_error = Predictions(logits, [1, 0, 0, 0, 0, 0])
    found = paired_bootstrap("auroc", [one_error], [one_error], 50)
    assert found == {"difference": 0.0, "lower": None, "upper": None}


def test_a_metric_that_has_no_weighted_form_is_refused():
    with pytest.raises(InputError, match="metric is 'ece_classwise_15'; choose one of accuracy, mcc"):
        paired_bootstrap("ece_classwise_15", [run_of(1)], [run_of(2)])


# -- rows of a table

LABELS = np.random.default_rng(5).integers(3, size=40)
ROWS = {"mle": (1, 1.0), "director": (2, 0.6), "ensemble": (3, 0.8)}  # method -> samples, strength


def write_run(root, method, seed, order=None, suites=("test", "corrupted", "shifted", "ood-a", "ood-b")):
    """One run's predictions; the manifest."""
    samples, strength = ROWS[method]
    run = root / f"results/runs/e/softmax/seed-{seed}"

    def make(suite):
        generator = np.random.default_rng([len(method), 9 if seed == "pooled" else seed, *suite.encode()])
        about = {"experiment": "e", "backbone": "softmax", "method": method, "seed": seed, "suite": suite}
        if suite.startswith("ood-"):
            predictions = Predictions(generator.normal(size=(samples, 25, 3)), None, about=about)
        else:
            cells = CELLS[1:] if suite == "corrupted" else CELLS[:1]
            labels = np.tile(LABELS, len(cells))
            logits = generator.normal(size=(samples, len(labels), 3)) + strength * np.eye(3)[labels]
            columns = [np.repeat(of, len(LABELS)) for of in zip(*cells, strict=True)]
            predictions = Predictions(logits, labels, np.tile(np.arange(len(LABELS)), len(cells)), *columns, about)
        return Made(predictions if order is None else predictions.select(order(predictions)), {samples: 1.0})

    cost = dict.fromkeys(("parameters", "train_seconds", "device", "threads", "peak_memory_bytes"), 1)
    write_suites(manifest_of(run, method).parent, dict.fromkeys(suites, method), make, lambda: cost)
    return manifest_of(run, method)


@pytest.fixture
def manifests(tmp_path):
    """Two seeds of `mle` and `director`, and their ensemble."""
    runs = [(method, seed) for method in ("mle", "director") for seed in (0, 1)] + [("ensemble", "pooled")]
    return [write_run(tmp_path, *run) for run in runs]


def compared(manifests, out_file, **options):
    """The lines of a comparison by (method, suite, metric), as they are written."""
    compare_rows(manifests, out_file, **{"reference": ("softmax", "mle"), "replicates": 100} | options)
    with out_file.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    assert tuple(reader.fieldnames) == COLUMNS
    by_key = {(line["method"], line["suite"], line["metric"]): line for line in lines}
    assert len(by_key) == len(lines)
    return by_key


def test_what_is_compared_is_what_the_main_table_shows(manifests, tmp_path):
    """Every column, and every difference is that of the two rows of the table."""
    lines = compared(manifests, tmp_path / "comparison.csv")
    keys = {(suite, metric.removeprefix("ood_")) for suite, metric in MAIN.values()}
    assert keys == {(suite, metric) for suite, names in COMPARED.items() for metric in names}
    assert set(lines) == {(method, *key) for method in ("director", "ensemble") for key in keys}
    for run in {manifest.parents[2] for manifest in manifests}:
        methods = [manifest.parts[-3] for manifest in manifests if manifest.parents[2] == run]
        measure_run(run, dict.fromkeys(methods), run / "metrics.json")
    table = per_run(long_table(sorted(tmp_path.rglob("metrics.json"))))
    means = table.groupby(["method", "samples"]).mean()
    for column, (suite, metric) in MAIN.items():
        for method in ("director", "ensemble"):
            line = lines[method, suite, metric.removeprefix("ood_")]
            difference = means.loc[(method, ROWS[method][0]), column] - means.loc[("mle", 1), column]
            assert float(line["difference"]) == pytest.approx(difference, abs=1e-12), column
            assert float(line["lower"]) < float(line["upper"]), column
            assert (line["experiment"], line["samples"]) == ("e", str(ROWS[method][0]))
    seeds = [
        table.xs((method, str(seed)), level=("method", "seed"))["nll"].iloc[0]
        for method in ("director", "mle")
        for seed in (0, 1)
    ]
    assert float(lines["director", "test", "nll"]["p"]) == pytest.approx(stats.ttest_rel(seeds[:2], seeds[2:]).pvalue)


def test_a_row_without_pairs_has_an_interval_but_no_test(manifests, tmp_path):
    lines = compared(manifests, tmp_path / "comparison.csv", level=0.5)
    pooled, director = lines["ensemble", "test", "nll"], lines["director", "test", "nll"]
    assert (pooled["runs"], pooled["p"], pooled["p_holm"]) == ("1", "", "")
    assert (director["runs"], director["reference"], director["level"]) == ("2", "softmax/mle", "0.5")
    assert director["p"] and director["p_holm"], "pairs of seeds are tested"
    wide = compared(manifests, tmp_path / "wide.csv", level=0.99)["director", "test", "nll"]
    assert float(wide["lower"]) < float(director["lower"]) < float(director["upper"]) < float(wide["upper"])


def test_holm_counts_everything_that_is_printed(tmp_path, monkeypatch):
    """Every row, suite and metric of the file is one more chance to be wrong."""
    monkeypatch.setitem(ROWS, "mc_dropout", (2, 0.9))
    runs = [(method, seed) for method in ("mle", "director", "mc_dropout") for seed in (0, 1, 2)]
    manifests = [write_run(tmp_path, *run, suites=["test", "shifted"]) for run in runs]
    lines = list(compared(manifests, tmp_path / "comparison.csv").values())
    assert {(line["suite"], line["method"]) for line in lines} == set(
        itertools.product(("test", "shifted"), ("director", "mc_dropout"))
    )
    p, adjusted = ([float(line[column]) for line in lines if line["p"]] for column in ("p", "p_holm"))
    assert adjusted == pytest.approx(holm(p))
    assert len(p) > 2 * len(METRICS) and min(adjusted) == pytest.approx(min(1, len(p) * min(p)))


def test_the_order_of_the_rows_in_a_file_does_not_matter(manifests, tmp_path):
    compare_rows(manifests, tmp_path / "one.csv", reference=("softmax", "mle"), replicates=100)
    compare_rows(manifests, tmp_path / "two.csv", reference=("softmax", "mle"), replicates=100)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    backwards = write_run(tmp_path / "backwards", "mle", 1, lambda run: np.arange(len(run.example))[::-1])
    compare_rows(
        [manifests[0], backwards, *manifests[2:]], tmp_path / "two.csv", reference=("softmax", "mle"), replicates=100
    )
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_runs_with_other_inputs_are_refused(manifests, tmp_path):
    fewer = write_run(tmp_path / "fewer", "director", 1, lambda run: np.arange(len(run.example) - 1))
    with pytest.raises(
        InputError, match=r"fewer/.*manifest\.json have different inputs: .* \(39, 'clean', 0\) and nothing"
    ):
        compare_rows([*manifests[:3], fewer], tmp_path / "comparison.csv", reference=("softmax", "mle"))
    with pytest.raises(InputError, match="the reference kep/mle is none of the rows softmax/mle, softmax/director"):
        compare_rows(manifests, tmp_path / "comparison.csv", reference=("kep", "mle"), replicates=1)
    assert not (tmp_path / "comparison.csv").exists()


def test_an_undefined_metric_is_an_empty_cell(tmp_path, monkeypatch):
    """A row that is always right has no wrong predictions to tell apart."""
    monkeypatch.setitem(ROWS, "director", (1, 1000.0))
    manifests = [
        write_run(tmp_path, method, seed, suites=["test"]) for method in ("mle", "director") for seed in (0, 1)
    ]
    lines = compared(manifests, tmp_path / "comparison.csv")
    numbers = ("difference", "lower", "upper", "p", "p_holm")
    assert [lines["director", "test", "auroc"][key] for key in numbers] == [""] * 5
    assert all(lines["director", "test", "nll"][key] for key in numbers)

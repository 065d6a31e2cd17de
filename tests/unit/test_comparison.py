"""Comparison of methods: spread, bootstrap, tests."""

import numpy as np
import pytest
from scipy import stats

from director.comparison import holm, paired_bootstrap, paired_test, spread
from director.files import InputError
from director.metrics import METRICS, accuracy, auroc, nll
from director.predictions import Predictions


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


@pytest.mark.parametrize("name", METRICS)
def test_the_bootstrap_resamples_every_metric(name):
    metric = METRICS[name]
    runs, reference = [run_of(1, 1.5), run_of(2, 1.5)], [run_of(3)]
    found = paired_bootstrap(metric, runs, reference, replicates=30)
    if name == "ece_binary_15":
        assert found == {"difference": None, "lower": None, "upper": None}
        return
    assert found["difference"] == pytest.approx(np.mean([metric(run) for run in runs]) - metric(reference[0]))
    assert found["lower"] < found["upper"]
    # the same draws, row by row, through new Predictions
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(30):
        rows = generator.integers(300, size=300)
        first, second, third = (
            metric(Predictions(run.logits[:, rows], run.labels[rows])) for run in (*runs, *reference)
        )
        drawn.append((first + second) / 2 - third)
    assert (found["lower"], found["upper"]) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_the_interval_is_that_of_a_mean():
    runs, reference = [run_of(1, 1.5, rows=2000)], [run_of(3, rows=2000)]
    difference = reference[0].log_likelihood - runs[0].log_likelihood
    error = difference.std() / np.sqrt(2000)
    found = paired_bootstrap(nll, runs, reference, level=0.9)
    assert found["difference"] == pytest.approx(difference.mean())
    assert found["lower"] == pytest.approx(difference.mean() - 1.645 * error, abs=0.15 * error)
    assert found["upper"] == pytest.approx(difference.mean() + 1.645 * error, abs=0.15 * error)


def test_a_method_does_not_differ_from_itself_and_seeds_repeat():
    run, other = run_of(1), run_of(2)
    assert paired_bootstrap(accuracy, [run], [run], 20) == {"difference": 0, "lower": 0, "upper": 0}
    once = paired_bootstrap(accuracy, [run], [other], 20, seed=3)
    assert once == paired_bootstrap(accuracy, [run], [other], 20, seed=3)
    assert once != paired_bootstrap(accuracy, [run], [other], 20, seed=4)


def test_rows_are_matched_by_what_they_are():
    run, other = run_of(1), run_of(2)
    order = np.random.default_rng(0).permutation(300)
    assert paired_bootstrap(accuracy, [run], [other.select(order)], 20) == paired_bootstrap(
        accuracy, [run], [other], 20
    )


def test_all_rows_of_an_example_are_drawn_together():
    """Copies of every example under other shifts bring no new examples, so the interval must not shrink."""

    def copied(run):
        rows = np.tile(np.arange(300), 4)
        return Predictions(run.logits[:, rows], run.labels[rows], rows, np.repeat(["a", "b", "c", "d"], 300))

    run, other = run_of(1, 1.3), run_of(2)
    single = paired_bootstrap(accuracy, [run], [other], 50)
    assert paired_bootstrap(accuracy, [copied(run)], [copied(other)], 50) == pytest.approx(single)
    some = np.flatnonzero(np.arange(1200) % 7)  # not every example under every shift
    uneven = paired_bootstrap(accuracy, [copied(run).select(some)], [copied(other).select(some)], 50)
    width, uneven_width = (found["upper"] - found["lower"] for found in (single, uneven))
    assert uneven_width == pytest.approx(width, rel=0.25)


def test_other_examples_are_refused():
    run = run_of(1)
    with pytest.raises(InputError, match=r"run 0 and reference run 1 .* is \(299, 'clean', 0\) and nothing"):
        paired_bootstrap(accuracy, [run], [run, run.select(np.arange(299))])
    moved = Predictions(run.logits, run.labels, np.where(np.arange(300) == 7, 1000, np.arange(300)))
    with pytest.raises(InputError, match=r"run 0 and run 1 .* is \(7, 'clean', 0\) and \(8, 'clean', 0\)"):
        paired_bootstrap(accuracy, [run, moved], [run])
    relabelled = Predictions(run.logits, np.where(np.arange(300) == 5, (run.labels + 1) % 3, run.labels))
    with pytest.raises(InputError, match="for example 5; make both from one data set"):
        paired_bootstrap(accuracy, [run], [relabelled])
    with pytest.raises(InputError, match="0 runs and 1 reference"):
        paired_bootstrap(accuracy, [], [run])
    with pytest.raises(InputError, match="0 replicates"):
        paired_bootstrap(accuracy, [run], [run], replicates=0)


def test_no_interval_where_a_replicate_is_undefined():
    logits = np.tile([2.0, 0.0], (6, 1)) + np.arange(6)[:, None] * [0.1, 0.0]
    one_error = Predictions(logits, [1, 0, 0, 0, 0, 0])
    found = paired_bootstrap(auroc, [one_error], [one_error], 50)
    assert found == {"difference": 0.0, "lower": None, "upper": None}


def test_a_metric_of_something_else_is_refused():
    run = run_of(1)
    with pytest.raises(AttributeError, match="not logits"):
        paired_bootstrap(lambda predictions: predictions.logits.mean(), [run], [run])

"""What figures draw: curves and bands that agree with the metrics."""

import numpy as np
import pytest

from director.numbers.comparison import aligned, draw
from director.numbers.curves import by_severity, excess_risk, pooled_reliability
from director.numbers.metrics import aurc, ece_15, reliability
from director.numbers.predictions import Predictions


def random(seed=0, rows=200, classes=4):
    generator = np.random.default_rng(seed)
    return Predictions(generator.normal(size=(rows, classes)), generator.integers(classes, size=rows))


def test_the_diagram_of_one_run_is_that_of_the_metrics():
    run = random()
    diagram = pooled_reliability([run], replicates=50)
    confidence, accuracy, count = reliability(run)
    np.testing.assert_allclose(diagram.confidence, confidence)
    np.testing.assert_allclose(diagram.accuracy, accuracy)
    assert np.array_equal(diagram.count, count) and diagram.error == pytest.approx(ece_15(run))


def test_the_diagram_of_several_runs_is_that_of_their_predictions_together():
    runs = [random(0), random(1)]
    both = Predictions(np.concatenate([run.logits[0] for run in runs]), np.concatenate([run.labels for run in runs]))
    diagram = pooled_reliability(runs, replicates=50)
    np.testing.assert_allclose(diagram.accuracy, reliability(both)[1])
    assert diagram.error == pytest.approx(ece_15(both)) and diagram.error <= np.mean([ece_15(run) for run in runs])


def test_the_band_holds_the_accuracy_and_follows_the_number_of_examples():
    few, many = (pooled_reliability([random(rows=rows)]) for rows in (100, 10_000))
    for diagram in (few, many):
        filled = diagram.count > 0
        assert np.isnan(diagram.lower[~filled]).all() and np.isnan(diagram.accuracy[~filled]).all()
        assert (diagram.lower <= diagram.accuracy + 1e-12)[filled].all()
        assert (diagram.accuracy <= diagram.upper + 1e-12)[filled].all()
    place = np.argmax(many.count)
    accuracy, count = many.accuracy[place], many.count[place]
    width = many.upper[place] - many.lower[place]
    assert width == pytest.approx(2 * 1.96 * np.sqrt(accuracy * (1 - accuracy) / count), rel=0.15)
    assert width < few.upper[place] - few.lower[place]


def test_examples_are_drawn_with_all_their_rows():
    """The same predictions given twice are no more evidence than once."""
    once, twice = (pooled_reliability([random()] * count) for count in (1, 2))
    np.testing.assert_allclose(once.upper, twice.upper)


def test_the_mean_of_the_excess_is_the_aurc_above_the_oracle():
    run = random()
    coverage, excess = excess_risk(run)
    rows, hits = len(coverage), int(run.correct.sum())
    oracle = np.maximum(0, np.arange(1, rows + 1) - hits) / np.arange(1, rows + 1)
    assert excess.mean() == pytest.approx(aurc(run) - oracle.mean())
    assert (excess > -1e-12).all() and excess[-1] == pytest.approx(0)


def test_kinds_of_a_group_count_alike():
    labels = np.zeros(30, int)
    kinds = np.repeat(["fog", "frost", "gaussian_noise"], 10)
    right = np.concatenate([np.arange(10) < 2, np.arange(10) < 6, np.arange(10) < 9])
    logits = np.where(right[:, None], [[2.0, 0.0]], [[0.0, 2.0]])
    run = Predictions(logits, labels, np.tile(np.arange(10), 3), kinds, np.ones(30, int))
    draws = draw(run, 5)
    groups = {"fog": "weather", "frost": "weather", "gaussian_noise": "noise"}
    values = by_severity(draws, aligned(draws, run, "run"), ["accuracy"], groups)
    assert values["accuracy", "weather", 1][0] == pytest.approx(0.4)
    assert values["accuracy", "noise", 1][0] == pytest.approx(0.9)
    assert all(value.shape == (6,) for value in values.values())

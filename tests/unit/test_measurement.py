"""From prediction files to records: which samples, which cells, which names."""

import numpy as np
import pytest

from director.files import InputError
from director.measurement import SCORES, measure_suite
from director.metrics import METRICS, nll, ood_summary, records, summary
from director.predictions import Predictions
from director.temperature import scale

ABOUT = {"experiment": "test", "backbone": "softmax", "method": "director", "seed": 0, "suite": "test"}
CELL = {"samples", "pooling", "shift", "severity", "n"}


def predictions(samples=5, rows=30, seed=0, labelled=True, columns=(), **about):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    logits = rng.normal(size=(samples, rows, 3)) + 2 * np.eye(3)[labels]
    return Predictions(logits.astype(np.float32), labels if labelled else None, **dict(columns), about=ABOUT | about)


def saved(tmp_path, made, name="test"):
    made.save(tmp_path / f"{name}.npz")
    return tmp_path / f"{name}.npz"


def test_each_number_of_samples_has_its_own_records(tmp_path):
    made = predictions()
    measured = measure_suite(saved(tmp_path, made), samples=[1, 3])
    assert measured["about"] == made.about
    assert [record["samples"] for record in measured["records"]] == [1, 3]
    for record, samples in zip(measured["records"], (1, 3), strict=True):
        assert {key: value for key, value in record.items() if key not in CELL} == summary(made.first(samples).pool())
    one, three = (record["nll"] for record in measured["records"])
    assert three < one, "a mean of distributions is no worse than the first of them here"


def test_one_sample_is_measured_as_if_the_others_were_not_there(tmp_path):
    made = predictions()
    first = saved(tmp_path, made.first(1), "first")
    record, *others = measure_suite(saved(tmp_path, made), samples=[1, 3, 5])["records"]
    assert [record] == measure_suite(first)["records"]
    assert len(others) == 2


def test_all_samples_unless_told_otherwise(tmp_path):
    made = predictions()
    file = saved(tmp_path, made)
    everything = measure_suite(file)["records"]
    assert everything == measure_suite(file, samples=None)["records"] == measure_suite(file, samples=[5])["records"]
    assert everything == records(made) and everything[0]["samples"] == 5
    assert everything[0]["nll"] == pytest.approx(nll(made), rel=1e-12)


def test_more_samples_than_there_are_is_refused(tmp_path):
    with pytest.raises(InputError, match="6 samples asked for: these predictions have 5"):
        measure_suite(saved(tmp_path, predictions()), samples=[1, 6])


def test_a_scaled_file_keeps_the_number_of_samples_it_was_pooled_from(tmp_path):
    """`director_temperature` of 5 roll-outs is a row with samples 5, although its file holds one distribution."""
    (record,) = measure_suite(saved(tmp_path, scale(predictions(), 1.5)))["records"]
    assert (record["samples"], record["pooling"]) == (5, "softmax")


def test_a_shifted_suite_has_cells_and_their_mean_for_each_number(tmp_path):
    columns = {
        "example": np.tile(np.arange(10), 3),
        "shift": np.repeat(["fog", "fog", "snow"], 10),
        "severity": np.repeat([1, 2, 1], 10),
    }
    found = measure_suite(saved(tmp_path, predictions(columns=columns, suite="corrupted")), samples=[1, 3])["records"]
    cells = [("fog", 1, 10), ("fog", 2, 10), ("snow", 1, 10), ("overall", 0, 30)]
    assert [(r["samples"], r["shift"], r["severity"], r["n"]) for r in found] == [
        (samples, *cell) for samples in (1, 3) for cell in cells
    ]
    for part in (found[:4], found[4:]):
        assert part[3]["nll"] == pytest.approx(np.mean([record["nll"] for record in part[:3]]), rel=1e-12)
    assert set(found[0]) == CELL | set(METRICS)


def test_an_outside_suite_has_detection_under_its_own_name(tmp_path):
    inside, outside = predictions(), predictions(seed=1, rows=20, labelled=False, suite="ood-photographs")
    files = saved(tmp_path, outside, "ood"), saved(tmp_path, inside)
    found = measure_suite(*files, samples=[1, 3])["records"]
    kinds = ("auroc", "aupr_in", "aupr_out", "fpr95")
    names = {f"ood_{kind}{suffix}" for kind in kinds for suffix in ("", "_entropy", "_mutual_information")}
    for record, samples in zip(found, (1, 3), strict=True):
        assert set(record) == CELL | names
        assert [record[key] for key in ("samples", "pooling", "shift", "severity", "n")] == [
            samples,
            "softmax",
            "ood-photographs",
            0,
            20,
        ]
        expected = ood_summary(inside, outside, samples=samples)
        for score, suffix in SCORES.items():
            for kind in kinds:
                value = record[f"ood_{kind}{suffix}"]
                assert value == (expected[score][kind] if expected[score] else None)
    assert found[0]["ood_auroc_mutual_information"] is None, "one sample disagrees with nothing"
    assert 0 <= found[1]["ood_auroc_mutual_information"] <= 1
    assert measure_suite(*files)["records"] == measure_suite(*files, samples=[5])["records"]

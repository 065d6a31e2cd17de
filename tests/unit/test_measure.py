"""From the predictions of a run folder to records: which suites, samples and cells, and under which names."""

import json

import numpy as np
import pytest

from director.errors import InputError
from director.files import write_json
from director.numbers.measure import SCORES, measure_run, read_metrics
from director.numbers.metrics import METRICS, nll, ood_summary, records, summary
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, manifest_of, write_suites
from director.numbers.temperature import scale

ABOUT = {"experiment": "test", "backbone": "softmax", "method": "director", "seed": 0, "suite": "test"}
COST = {"parameters": 7, "train_seconds": 2.5, "device": "cpu", "threads": 1, "peak_memory_bytes": 9}
CELL = {"samples", "pooling", "shift", "severity", "n"}


def predictions(samples=5, rows=30, seed=0, labelled=True, columns=(), **about):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    logits = rng.normal(size=(samples, rows, 3)) + 2 * np.eye(3)[labels]
    return Predictions(logits.astype(np.float32), labels if labelled else None, **dict(columns), about=ABOUT | about)


def write(folder, suites, method="director"):
    """The predictions of a method, as a job writes them."""

    def make(suite):
        return Made(suites[suite], {len(suites[suite].logits): 1.0})

    identities = {suite: [suite, method] for suite in suites}
    write_suites(manifest_of(folder, method).parent, identities, make, lambda: COST)


def measured(folder, samples=None, method="director"):
    """Suite -> about and records, of one method."""
    measure_run(folder, {method: samples}, folder / "metrics.json")
    return read_metrics(folder / "metrics.json")[method]


def test_each_number_of_samples_has_its_own_records(tmp_path):
    made = predictions()
    write(tmp_path, {"test": made})
    suite = measured(tmp_path, [1, 3])["test"]
    assert {key: suite["about"][key] for key in ABOUT} == made.about
    assert [record["samples"] for record in suite["records"]] == [1, 3]
    for record, samples in zip(suite["records"], (1, 3), strict=True):
        assert {key: value for key, value in record.items() if key not in CELL} == summary(made.first(samples).pool())
    one, three = (record["nll"] for record in suite["records"])
    assert three < one, "a mean of distributions is no worse than the first of them here"


def test_one_sample_is_measured_as_if_the_others_were_not_there(tmp_path):
    made = predictions()
    write(tmp_path, {"test": made})
    write(tmp_path, {"test": made.first(1)}, "mle")
    record, *others = measured(tmp_path, [1, 3, 5])["test"]["records"]
    assert [record] == measured(tmp_path, method="mle")["test"]["records"]
    assert len(others) == 2


def test_all_samples_unless_told_otherwise(tmp_path):
    made = predictions()
    write(tmp_path, {"test": made})
    everything = measured(tmp_path)["test"]["records"]
    assert everything == measured(tmp_path, [5])["test"]["records"]
    assert everything == records(made) and everything[0]["samples"] == 5
    assert everything[0]["nll"] == pytest.approx(nll(made), rel=1e-12)


def test_more_samples_than_there_are_is_refused(tmp_path):
    write(tmp_path, {"test": predictions()})
    with pytest.raises(InputError, match="6 samples asked for: these predictions have 5"):
        measured(tmp_path, [1, 6])
    assert not (tmp_path / "metrics.json").exists()


def test_scaled_predictions_keep_the_number_of_samples_they_were_pooled_from(tmp_path):
    """`director_temperature` of 5 roll-outs is a row with samples 5, although its file holds one distribution."""
    foreign = predictions(labelled=False, suite="ood-photographs")
    write(tmp_path, {"test": scale(predictions(), 1.5), "ood-photographs": scale(foreign, 1.5)})
    for suite in measured(tmp_path).values():
        (record,) = suite["records"]
        assert (record["samples"], record["pooling"]) == (5, "softmax")


def test_a_corrupted_suite_has_cells_and_their_mean_for_each_number(tmp_path):
    columns = {
        "example": np.tile(np.arange(10), 3),
        "shift": np.repeat(["fog", "fog", "snow"], 10),
        "severity": np.repeat([1, 2, 1], 10),
    }
    write(tmp_path, {"test": predictions(), "corrupted": predictions(columns=columns, suite="corrupted")})
    table = measured(tmp_path, [1, 3])["corrupted"]["records"]
    cells = [("fog", 1, 10), ("fog", 2, 10), ("snow", 1, 10), ("overall", 0, 30)]
    assert [(r["samples"], r["shift"], r["severity"], r["n"]) for r in table] == [
        (samples, *cell) for samples in (1, 3) for cell in cells
    ]
    for part in (table[:4], table[4:]):
        assert part[3]["nll"] == pytest.approx(np.mean([record["nll"] for record in part[:3]]), rel=1e-12)
    assert set(table[0]) == CELL | set(METRICS)


def test_an_outside_suite_is_held_against_the_methods_own_test(tmp_path):
    inside, outside = predictions(), predictions(seed=1, rows=20, labelled=False, suite="ood-photographs")
    write(tmp_path, {"ood-photographs": outside, "test": inside})
    write(tmp_path, {"test": predictions(seed=5)}, "mle")
    table = measured(tmp_path, [1, 3])["ood-photographs"]["records"]
    kinds = ("auroc", "aupr_in", "aupr_out", "fpr95")
    names = {f"ood_{kind}{suffix}" for kind in kinds for suffix in ("", "_entropy", "_mutual_information")}
    for record, samples in zip(table, (1, 3), strict=True):
        assert set(record) == CELL | names
        cell = {"samples": samples, "pooling": "softmax", "shift": "ood-photographs", "severity": 0, "n": 20}
        assert record == record | cell
        expected = ood_summary(inside, outside, samples=samples)
        for score, suffix in SCORES.items():
            for kind in kinds:
                value = record[f"ood_{kind}{suffix}"]
                assert value == (expected[score][kind] if expected[score] else None)
    assert table[0]["ood_auroc_mutual_information"] is None, "one sample disagrees with nothing"
    assert 0 <= table[1]["ood_auroc_mutual_information"] <= 1
    assert measured(tmp_path)["ood-photographs"] == measured(tmp_path, [5])["ood-photographs"]


def test_every_method_and_suite_but_the_validation_is_there(tmp_path):
    write(tmp_path, {"val": predictions(suite="val"), "test": predictions(), "shifted": predictions(suite="shifted")})
    write(tmp_path, {"test": predictions(1)}, "mle")
    measure_run(tmp_path, {"mle": None, "director": [2, 5]}, tmp_path / "metrics.json")
    methods = read_metrics(tmp_path / "metrics.json")
    assert {method: list(suites) for method, suites in methods.items()} == {
        "mle": ["test"],
        "director": ["test", "shifted"],
    }
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"format": "director metrics 1", "methods": methods}
    first = (tmp_path / "metrics.json").read_bytes()
    measure_run(tmp_path, {"mle": None, "director": [2, 5]}, tmp_path / "metrics.json")
    assert (tmp_path / "metrics.json").read_bytes() == first


RECORD = {"samples": 1, "shift": "clean", "severity": 0, "pooling": "softmax", "n": 3, "nll": 0.5, "auroc": None}
WRONG = {
    "a list": ([], "list indices"),
    "another format": ({"format": "director metrics 0", "methods": {}}, "its format is 'director metrics 0'"),
    "no format": ({"methods": {}}, "no 'format'"),
    "methods are a list": ({"methods": [1]}, "no attribute 'values'"),
    "no seed": ({"about": {key: ABOUT[key] for key in ABOUT if key != "seed"}}, "no 'seed'"),
    "no severity": ({"records": [{key: RECORD[key] for key in RECORD if key != "severity"}]}, "no 'severity'"),
    "text for a number": ({"records": [RECORD | {"nll": "0.5"}]}, "nll is '0.5'"),
    "text for samples": ({"records": [RECORD | {"samples": "1"}]}, "samples is '1'"),
    "records are text": ({"records": "none"}, "string indices"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_file_of_metrics_is_refused(tmp_path, name):
    change, message = WRONG[name]
    suite = {"about": ABOUT, "records": [RECORD]}
    file = {"format": "director metrics 1", "methods": {"mle": {"test": suite}}}
    write_json(tmp_path / "metrics.json", file)
    assert read_metrics(tmp_path / "metrics.json") == file["methods"]
    if isinstance(change, dict) and not {"format", "methods"} & set(change):
        change = {"methods": {"mle": {"test": suite | change}}}
    if isinstance(change, dict):
        change = change if name == "no format" else file | change
    write_json(tmp_path / "metrics.json", change)
    with pytest.raises(
        InputError, match=rf"metrics\.json: not a file of metrics.*{message}.*run the same command again"
    ):
        read_metrics(tmp_path / "metrics.json")

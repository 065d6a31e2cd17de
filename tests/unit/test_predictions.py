"""The predictions file: what it refuses, what it keeps, and how samples are pooled."""

import errno
import json
import os
import tempfile
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

from director.errors import InputError
from director.numbers.metrics import ece_15
from director.numbers.predictions import Predictions, expected_entropy, mutual_information, predictive_entropy


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(scale=3, size=(4, 6, 3))


@pytest.fixture
def predictions(logits) -> Predictions:
    return Predictions(
        logits,
        labels=[0, 1, 2, 0, 1, 2],
        example=[5, 3, 5, 3, 7, 7],
        shift=["fog", "fog", "clean", "clean", "fog", "clean"],
        severity=[2, 2, 0, 0, 2, 0],
        about={"method": "mc_dropout", "seed": 3},
    )


def test_defaults():
    predictions = Predictions(np.zeros((2, 3)), [0, 1])
    assert predictions.logits.shape == (1, 2, 3)
    assert predictions.example.tolist() == [0, 1]
    assert predictions.shift.tolist() == ["clean", "clean"]
    assert predictions.severity.tolist() == [0, 0]
    assert predictions.about == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.full((2, 2), np.nan)}, "sample 0, row 0"),
        ({"logits": np.array([[[0.0, 1], [2, 3]], [[0, 1], [2, np.inf]]])}, "sample 1, row 1"),
        ({"logits": np.array([[0, 1e300], [0, 1]])}, "row 0 are not finite float32"),
        ({"logits": np.zeros(3)}, r"shape \(3,\)"),
        ({"logits": np.zeros((0, 2, 2))}, "S and N at least 1"),
        ({"logits": np.zeros((0, 2))}, "S and N at least 1"),
        ({"logits": np.zeros((2, 1))}, "C at least 2"),
        ({"logits": [["a", "b"]]}, "give numbers"),
        ({"logits": [[1, 2], [3]]}, "cannot be read as an array"),
        ({"labels": [0, -1]}, "label -1 in row 1"),
        ({"labels": [2, 0]}, "label 2 in row 0"),
        ({"labels": [0]}, r"labels has shape \(1,\), the logits have 2 rows"),
        ({"labels": [0.0, 1.0]}, "labels are of type float64"),
        ({"example": [1, 2, 3]}, "example has shape"),
        ({"example": ["a", "b"]}, "give integers"),
        ({"severity": [0.5, 1.0]}, "severity are of type"),
        ({"shift": [1, 2]}, "give strings"),
        ({"shift": ["fog", "overall"]}, "row 1: the shift 'overall'"),
        ({"about": {"path": object()}}, "cannot be written as JSON"),
        ({"about": {"loss": float("nan")}}, "cannot be written as JSON"),
        ({"about": [1]}, "about is a list"),
        ({"example": [4, 4]}, "rows 0 and 1 are both example 4, shift 'clean', severity 0"),
    ],
)
def test_construction_names_what_is_wrong(change, message):
    good = {"logits": np.array([[0.0, 2.0], [3.0, -1.0]]), "labels": [0, 1]}
    Predictions(**good)
    with pytest.raises(InputError, match=message):
        Predictions(**good | change)


def test_masked_entries_have_no_value():
    good = {"logits": [[0.0, 2.0], [3.0, -1.0]], "labels": [0, 1], "example": [4, 5], "shift": ["a", "b"]}
    good["severity"] = [1, 2]
    plain = Predictions(**{name: np.ma.array(values) for name, values in good.items()})
    for name, values in good.items():
        assert type(getattr(plain, name)) is np.ndarray
        hidden = np.ma.array(values, mask=np.zeros(np.shape(values)))
        hidden[1] = np.ma.masked
        for masked in (hidden, list(hidden)):
            with pytest.raises(InputError, match=f"{name} have masked entries"):
                Predictions(**good | {name: masked})
    with pytest.raises(InputError, match="probabilities have masked entries"):
        Predictions.from_probabilities(np.ma.masked_less([[0.1, 0.9]], 0.5), [0])


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16: a float32 without its last 16 bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


ROUNDINGS = {
    "float64": lambda values: values,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": bfloat16,
    "4 digits": lambda values: values.round(4),
    "3 digits": lambda values: values.round(3).astype(np.float32),
    "2 digits": lambda values: values.round(2),
    "2 digits in float16": lambda values: values.round(2).astype(np.float16),
}


def sure_probabilities(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(classes)
    labels = generator.integers(classes, size=rows)
    return softmax(generator.normal(size=(rows, classes)) + 6 * np.eye(classes)[labels], axis=1), labels


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rounded_probabilities_are_no_logits_but_predictions_all_the_same(rounding, classes):
    exact, labels = sure_probabilities(300, classes)
    rounded = ROUNDINGS[rounding](exact)
    for given in (rounded, np.stack([rounded] * 2)):
        with pytest.raises(InputError, match=r"look like probabilities; .*from_probabilities.*--probabilities"):
            Predictions(given, labels)
    predictions = Predictions.from_probabilities(rounded, labels)
    tolerance = max(0.01, classes / 2 / 10 ** int(rounding[0])) if "digits" in rounding else 0.01
    np.testing.assert_allclose(predictions.probabilities, exact, atol=tolerance)
    np.testing.assert_allclose(predictions.probabilities.sum(axis=1), 1, rtol=1e-6)
    assert ece_15(predictions) == pytest.approx(ece_15(Predictions(np.log(exact), labels)), abs=tolerance)


def test_a_few_broken_rows_do_not_make_logits_of_probabilities():
    probabilities, labels = sure_probabilities(400, 10)
    probabilities[:4] *= 0.9
    probabilities[4:8] = 0
    probabilities[8] += 3
    with pytest.raises(InputError, match=r"391 of 400 rows of the logits .* look like probabilities"):
        Predictions(probabilities, labels)
    with pytest.raises(InputError, match=r"probabilities of sample 0, row 0 sum to 0\.9"):
        Predictions.from_probabilities(probabilities, labels)


@pytest.mark.parametrize(
    "logits",
    [[[1.0, 0.0]], [[0.3, 0.7], [0.5, 0.5], [0.0, 1.0]], np.eye(2)[[0, 1, 1, 0, 1, 0, 0, 1]], np.eye(3), np.eye(4)],
)
def test_a_handful_of_rows_may_look_like_probabilities_by_chance(logits):
    assert Predictions(logits, None).confidence.max() < 0.75


@pytest.mark.parametrize(("rows", "classes"), [(4, 2), (4, 5), (3, 10), (2, 20), (1, 1000)])
def test_few_rows_are_enough_where_chance_is_excluded(rows, classes):
    with pytest.raises(InputError, match=f"{rows} of {rows} rows of the logits"):
        Predictions(sure_probabilities(rows, classes)[0], None)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_logits_within_0_and_1_are_taken_unless_they_sum_to_1(classes):
    noise = np.random.default_rng(0).normal(size=(500, classes))
    for logits in (
        1 / (1 + np.exp(-noise)),
        1 / (1 + np.exp(np.log(classes) - noise)),  # a sum near 1, but no more than that
        noise.clip(0, 1),
        (noise > 0) * 1,
        noise.round(2).clip(0, 1),
        np.abs(noise) / np.linalg.norm(noise, axis=1, keepdims=True),
    ):
        assert Predictions(logits, None).confidence.shape == (500,)


def test_probabilities_of_several_samples(logits):
    probabilities = softmax(logits, axis=-1)
    columns = {"labels": [0, 1, 2, 0, 1, 2], "example": [1, 2, 3, 4, 5, 6], "shift": ["fog"] * 6, "severity": [2] * 6}
    predictions = Predictions.from_probabilities(probabilities, **columns, about={"method": "mine"})
    np.testing.assert_allclose(predictions.logits, log_softmax(logits, axis=-1), rtol=1e-12)
    assert predictions.logits.dtype == np.float64
    for name, values in columns.items():
        assert getattr(predictions, name).tolist() == values
    assert predictions.about == {"method": "mine"}
    assert Predictions.from_probabilities(probabilities[0].astype(np.float32), None).logits.dtype == np.float32


def test_a_probability_of_zero_is_finite():
    predictions = Predictions.from_probabilities([[1, 0, 0], [0.5, 0.5, -1e-9], [1 - 1e-300, 1e-300, 0]], [1, 2, 1])
    np.testing.assert_allclose(predictions.log_likelihood, np.log(np.finfo(np.float32).tiny))
    np.testing.assert_allclose(predictions.confidence, [1, 0.5, 1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, 0.4, 0.0], r"sample 1, row 2 sum to 0\.9, the lowest is 0"),
        ([2.0, 1.0, -1.0], "row 2 sum to 2, the lowest is -1"),
        ([1.2, -0.2, 0.0], r"row 2 sum to 1, the lowest is -0\.2"),
        ([np.nan, 0.5, 0.5], "row 2 sum to nan"),
        ([np.inf, -np.inf, 0.0], "row 2 sum to nan, the lowest is -inf"),
        ([1.7e308, 1.7e308, 0.0], "row 2 sum to inf"),
        ([30, 50, 20], "row 2 sum to 100"),
    ],
)
def test_what_are_no_probabilities_is_named(row, message):
    probabilities = np.full((2, 4, 3), 1 / 3)
    probabilities[1, 2] = row
    with pytest.raises(InputError, match=message):
        Predictions.from_probabilities(probabilities, None)


def test_probabilities_of_a_wrong_shape_or_type_are_named():
    for wrong, message in (([0.5, 0.5], r"shape \(2,\)"), ([[1.0]], "C at least 2"), ([["a", "b"]], "give numbers")):
        with pytest.raises(InputError, match=f"probabilities .*{message}"):
            Predictions.from_probabilities(wrong, None)


def test_the_same_example_may_come_under_several_shifts(predictions):
    with pytest.raises(InputError, match="rows 1 and 4 are both example 3, shift 'fog', severity 2"):
        Predictions(predictions.logits, None, [5, 3, 5, 3, 3, 7], predictions.shift, predictions.severity)


def test_save_and_load_keep_everything(predictions, tmp_path):
    predictions.save(tmp_path / "test.npz")
    loaded = Predictions.load(tmp_path / "test.npz")
    assert loaded.logits.dtype == np.float32
    np.testing.assert_array_equal(loaded.logits, predictions.logits.astype(np.float32))
    for name in ("labels", "example", "shift", "severity"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(predictions, name))
    assert loaded.about == predictions.about


def test_unlabelled_predictions_have_no_label_array(logits, tmp_path):
    Predictions(logits, None).save(tmp_path / "ood.npz")
    with np.load(tmp_path / "ood.npz") as archive:
        assert "labels" not in archive.files
    loaded = Predictions.load(tmp_path / "ood.npz")
    assert loaded.labels is None
    assert loaded.confidence.shape == (6,)
    with pytest.raises(InputError, match="no labels"):
        _ = loaded.correct


def test_the_same_content_gives_the_same_bytes(logits, tmp_path):
    def bytes_of(logits, shift, about):
        Predictions(logits, None, shift=shift, about=about).save(tmp_path / "a.npz")
        return (tmp_path / "a.npz").read_bytes()

    once = bytes_of(logits, np.array(["fog"] * 6), {"a": 1, "b": 2})
    assert once == bytes_of(np.asfortranarray(logits), np.array(["fog"] * 6, dtype="U30"), {"b": 2, "a": 1})
    assert once != bytes_of(logits, np.array(["snow"] * 6), {"a": 1, "b": 2})


def test_a_memory_map_is_neither_copied_nor_read_as_a_whole(tmp_path):
    """Predictions of CIFAR-10-C at full size, [10, 750000, 10], lie in a file without a name while they are made."""
    with tempfile.TemporaryFile(dir=tmp_path) as storage:
        logits = np.memmap(storage, dtype=np.float32, mode="w+", shape=(80, 50_000, 10))  # 160 MB
    for sample in range(len(logits)):
        logits[sample] = np.random.default_rng(sample).normal(size=logits.shape[1:])
    tracemalloc.start()
    try:
        predictions = replace(Predictions(logits, np.zeros(50_000, int)), about={"suite": "corrupted"})
        predictions.save(tmp_path / "large.npz")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.shares_memory(predictions.logits, logits) and np.shares_memory(predictions.first(3).logits, logits)
    assert peak < 64e6, "one sample has 2 MB, and numpy writes blocks of 16 MiB"
    with np.load(tmp_path / "large.npz") as archive:
        assert archive["logits"].shape == logits.shape
    (tmp_path / "large.npz").unlink()


def test_save_leaves_the_old_file_when_it_fails(predictions, tmp_path, monkeypatch):
    predictions.save(tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()

    def full(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(InputError, match=r"a\.npz.*disk full"):
        predictions.first(1).save(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def broken_files(folder, predictions):
    predictions.save(folder / "good.npz")
    content = (folder / "good.npz").read_bytes()
    at = content.index(predictions.logits.astype(np.float32).tobytes()[:16])
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    (folder / "flipped.npz").write_bytes(flipped)
    (folder / "truncated.npz").write_bytes(content[: len(content) // 2])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_text("not a zip file")
    np.save(folder / "single.npy", np.zeros(3))
    np.savez(folder / "pickled.npz", logits=np.array([{"a": 1}], dtype=object))
    np.savez(folder / "foreign.npz", weights=np.zeros(3))
    np.savez(folder / "many.npz", **{f"w{number:02}": np.zeros(1) for number in range(30)})
    with np.load(folder / "good.npz") as archive:
        arrays = dict(archive)
    np.savez(folder / "extra.npz", **arrays, bonus=np.zeros(2))
    np.savez(folder / "both.npz", **arrays, probabilities=softmax(arrays["logits"], axis=-1))
    np.savez(folder / "bad_about.npz", **arrays | {"about": np.array("{")})
    np.savez(folder / "bad_label.npz", **arrays | {"labels": np.array([0, 1, 2, 0, -1, 2])})
    np.savez(folder / "bad_logit.npz", **arrays | {"logits": np.where(arrays["logits"] > 3, np.nan, arrays["logits"])})


WRITE = r"write it with Predictions\(logits, labels\)\.save\(path\)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flipped.npz", r"not whole \(Bad CRC.*; delete it and make it again"),
        ("truncated.npz", rf"not a readable \.npz file \(File is not a zip file\); check the path, or {WRITE}"),
        ("empty.npz", r"not a readable \.npz file"),
        ("text.npz", r"not a readable \.npz file"),
        ("single.npy", r"not a readable \.npz file"),
        ("pickled.npz", rf"not a readable \.npz file \(Object arrays .*{WRITE}"),
        ("foreign.npz", f"no array logits, but weights; {WRITE}"),
        ("many.npz", "no array logits, but w00, .*, w08 and 21 more;"),
        ("extra.npz", "not known beside logits: bonus; leave them out"),
        ("both.npz", "not known beside probabilities: logits; leave them out"),
        ("bad_about.npz", "is not JSON"),
        ("bad_label.npz", "label -1 in row 4"),
        ("bad_logit.npz", r"sample \d, row \d"),
    ],
)
def test_load_names_the_file_and_what_is_wrong(predictions, tmp_path, name, message):
    broken_files(tmp_path, predictions)
    with pytest.raises(InputError, match=f"{name}.*{message}") as error:
        Predictions.load(tmp_path / name)
    assert name == "flipped.npz" or "delete" not in str(error.value), "only what `save` wrote is called damaged"


def test_a_file_of_logits_and_labels_is_enough(predictions, tmp_path):
    np.savez(tmp_path / "mine.npz", logits=predictions.logits[0], labels=predictions.labels)
    np.savez_compressed(tmp_path / "outside.npz", logits=predictions.logits)
    mine, outside = (Predictions.load(tmp_path / f"{name}.npz") for name in ("mine", "outside"))
    np.testing.assert_array_equal(mine.logits, predictions.logits[:1])
    assert mine.labels.tolist() == predictions.labels.tolist() and outside.labels is None
    assert mine.example.tolist() == [*range(6)] and set(mine.shift) == {"clean"} and set(mine.severity) == {0}
    assert mine.about == {}


@pytest.mark.parametrize("array", ["probabilities", "logits"])
def test_a_file_of_probabilities_is_read_as_such(predictions, tmp_path, array):
    probabilities = np.tile(softmax(predictions.logits, axis=-1), (1, 5, 1)).astype(np.float16)
    np.savez(tmp_path / "mine.npz", **{array: probabilities}, labels=np.tile(predictions.labels, 5))
    loaded = Predictions.load(tmp_path / "mine.npz", probabilities=True)
    np.testing.assert_allclose(loaded.probabilities[:6], predictions.probabilities, atol=1e-3)
    with pytest.raises(InputError, match=r"mine\.npz: .*probabilities.*--probabilities"):
        Predictions.load(tmp_path / "mine.npz")
    predictions.save(tmp_path / "logits.npz")
    with pytest.raises(InputError, match=r"logits\.npz: probabilities of sample 0, row 0 sum to .*without --prob"):
        Predictions.load(tmp_path / "logits.npz", probabilities=True)


def test_a_file_that_the_system_refuses_is_not_called_damaged(predictions, tmp_path, monkeypatch):
    predictions.save(tmp_path / "a.npz")

    def message(path) -> str:
        with pytest.raises(InputError) as error:
            Predictions.load(path)
        assert str(error.value).startswith(f"{path}: ")
        assert not {"readable", "damaged", "delete", "whole"} & {*str(error.value).replace(";", "").split()}
        return str(error.value).lower()

    assert "no such file" in message(tmp_path / "missing.npz")
    assert "not a directory" in message(tmp_path / "a.npz" / "b.npz")
    assert "is a directory" in message(tmp_path)
    for number, words in ((errno.EACCES, "permission denied"), (errno.EIO, "input/output error")):

        def refuse(path, number=number):
            raise OSError(number, os.strerror(number), str(path))

        monkeypatch.setattr(zipfile, "ZipFile", refuse)
        assert words in message(tmp_path / "a.npz")


def test_files_need_no_pickle(predictions, tmp_path):
    predictions.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert {name: archive[name].dtype.kind for name in archive.files} == {
            "logits": "f", "labels": "i", "example": "i", "shift": "U", "severity": "i", "about": "U",
        }  # fmt: skip
        assert json.loads(str(archive["about"])) == predictions.about


def test_pooling_by_softmax_is_the_log_of_the_mean_probability(predictions, logits):
    pooled = predictions.pool()
    assert pooled.logits.shape == (1, 6, 3)
    assert pooled.logits.dtype == np.float64
    np.testing.assert_allclose(np.exp(pooled.logits[0]), softmax(logits, axis=-1).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(logsumexp(pooled.logits[0], axis=-1), 0, atol=1e-12)
    assert pooled.about == {"method": "mc_dropout", "seed": 3, "samples": 4, "pooling": "softmax"}


def test_pooling_by_logits_is_the_softmax_of_the_mean_logits(predictions, logits):
    np.testing.assert_allclose(
        predictions.pool("logits").logits[0], log_softmax(logits.mean(axis=0), axis=-1), rtol=1e-12
    )


def test_pooling_takes_the_first_samples(predictions, logits):
    pooled = predictions.pool(samples=2)
    np.testing.assert_allclose(np.exp(pooled.logits[0]), softmax(logits[:2], axis=-1).mean(axis=0), rtol=1e-12)
    assert pooled.about["samples"] == 2
    for samples in (0, 5):
        with pytest.raises(InputError, match=f"{samples} samples asked for: these predictions have 4"):
            predictions.pool(samples=samples)
    with pytest.raises(InputError, match="pooling 'mean'"):
        predictions.pool("mean")


def test_pooling_twice_changes_nothing_and_keeps_what_was_said(predictions, tmp_path):
    once = predictions.pool("logits", samples=3)
    np.testing.assert_allclose(once.pool().logits, once.logits, atol=1e-14)
    once.save(tmp_path / "pooled.npz")
    about = Predictions.load(tmp_path / "pooled.npz").pool().about
    assert (about["samples"], about["pooling"]) == (3, "logits")


def test_properties_pool_several_samples(predictions):
    pooled = predictions.pool()
    for name in ("log_probabilities", "probabilities", "confidence", "predicted", "correct", "log_likelihood"):
        np.testing.assert_allclose(getattr(predictions, name), getattr(pooled, name), atol=1e-14)
    np.testing.assert_array_equal(predictions.rank.argsort(), predictions.confidence.argsort())


def test_equal_inputs_have_equal_confidence_wherever_they_stand():
    logits = np.tile(np.random.default_rng(1).normal(size=(3, 1, 7)).astype(np.float32), (1, 101, 1))
    predictions = Predictions(logits, None)
    assert len(np.unique(predictions.confidence)) == 1
    assert set(predictions.rank) == {0}


def test_extreme_logits_stay_finite():
    largest = np.finfo(np.float32).max
    predictions = Predictions(np.array([[[largest, -largest], [50, -50]], [[-largest, largest], [-50, 50]]]), [0, 1])
    assert np.isfinite(predictions.pool().logits).all()
    np.testing.assert_allclose(predictions.confidence, 0.5)
    np.testing.assert_allclose(mutual_information(predictions), np.log(2))
    assert np.isfinite(predictions.first(1).log_likelihood).all()


def test_select(predictions):
    chosen = predictions.select([4, 0])
    assert chosen.example.tolist() == [7, 5]
    assert chosen.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(chosen.logits, predictions.logits[:, [4, 0]])
    masked = predictions.select(predictions.shift == "clean")
    assert masked.example.tolist() == [5, 3, 7]
    assert masked.about == predictions.about
    with pytest.raises(InputError, match="there are 6"):
        predictions.select([6])


def test_cells_partition_the_rows(predictions):
    cells = predictions.cells()
    assert list(cells) == [("clean", 0), ("fog", 2)]
    assert sorted(cells["clean", 0]) == [2, 3, 5]
    assert sorted(cells["fog", 2]) == [0, 1, 4]


def test_entropies(predictions, logits):
    probabilities = softmax(logits, axis=-1)
    mean = probabilities.mean(axis=0)
    total, aleatoric = -(mean * np.log(mean)).sum(-1), -(probabilities * np.log(probabilities)).sum(-1).mean(0)
    np.testing.assert_allclose(predictive_entropy(predictions), total, rtol=1e-12)
    np.testing.assert_allclose(expected_entropy(predictions), aleatoric, rtol=1e-12)
    np.testing.assert_allclose(mutual_information(predictions), total - aleatoric, rtol=1e-9)


def test_mutual_information_needs_samples_that_can_disagree(predictions, logits):
    equal = Predictions(np.tile(logits[:1], (3, 1, 1)), None)
    np.testing.assert_allclose(mutual_information(equal), 0, atol=1e-12)
    with pytest.raises(InputError, match="at least 2 samples"):
        mutual_information(predictions.first(1))

"""A classifier in a folder and data in files: `director distil` and `director predict`."""

import csv
import re
import shutil
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import timm
import torch
import transformers
from builders import CHECKPOINT_SIZES, bert_checkpoint, sentences
from PIL import Image
from safetensors.torch import save_file

from director.__main__ import main
from director.checkpoint import Classifier, load_student
from director.errors import InputError
from director.files import read_json, write_json
from director.foreign import read
from director.numbers.predictions import Predictions, mutual_information

PAGE = Path(__file__).parents[2] / "docs/your-own-model.md"
BERT = transformers.BertForSequenceClassification


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Folder with a BERT of two classes, and tables of sentences whose label is their verb."""
    folder = tmp_path_factory.mktemp("texts")
    config = bert_checkpoint(folder / "bert", BERT) / "config.json"
    write_json(config, read_json(config) | {"id2label": {"0": "plural", "1": "singular"}})
    rows = [(sentence, "is" in sentence.split()) for sentence in sentences()]
    for name, part in (("train", rows[:24]), ("validation", rows[24:36])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, int(label)) for text, label in part)])
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Folder with a ViT of timm of three classes, and images of three colours in a sub-folder each."""
    folder = tmp_path_factory.mktemp("images")
    torch.manual_seed(0)
    network = timm.create_model("test_vit", num_classes=3, img_size=32)
    config = {**network.pretrained_cfg, "input_size": [3, 32, 32], "num_classes": 3}
    (folder / "vit").mkdir()
    save_file(network.state_dict(), folder / "vit/model.safetensors")
    described = {"architecture": "test_vit", "num_classes": 3, "model_args": {"img_size": 32}}
    write_json(folder / "vit/config.json", {**described, "pretrained_cfg": config})
    generator = np.random.default_rng(0)
    for part, count in (("train", 6), ("validation", 3)):
        for channel, name in enumerate(("blue", "green", "red")):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 99, (40, 36, 3), np.uint8)
                pixels[..., 2 - channel] += 150
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder


def distil(folder, model, suffix=""):
    words = ["distil", folder / model, folder / f"train{suffix}", folder / f"validation{suffix}"]
    words += ["--out", folder / "student", "--epochs", 2, "--samples", 3, "--last", 1, "--max-length", 12]
    return main([*map(str, words), "--device", "cpu"])


def test_texts_from_a_table_to_a_table(texts, capsys, tmp_path):
    assert distil(texts, "bert", ".csv") == 0
    out = capsys.readouterr().out
    assert "the last 1 layers become 1 steps" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[-4:-1]}
    assert rows["validation"] == ["accuracy", "nll", "ece_15"] and {"classifier", "student"} < set(rows)
    table = tmp_path / "predictions.csv"
    assert main(["predict", str(texts / "student"), str(texts / "validation.csv"), "--out", str(table)]) == 0
    archive = tmp_path / "predictions.npz"
    assert main(["predict", str(texts / "student"), str(texts / "validation.csv"), "--out", str(archive)]) == 0
    roll_outs = Predictions.load(archive)
    assert roll_outs.logits.shape == (3, 12, 2)
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0])[:2] == ["p_plural", "p_singular"] and lines[1]["label"] == "singular"
    np.testing.assert_allclose(
        [float(x["mutual_information"]) for x in lines], mutual_information(roll_outs), atol=1e-6
    )
    measured = read(table, probabilities=True, classes=["p_*"])
    np.testing.assert_array_equal(measured.labels, roll_outs.labels)
    np.testing.assert_allclose(measured.pool().probabilities, roll_outs.pool().probabilities, atol=1e-6)


def test_the_validation_numbers_of_the_classifier_are_its_own(texts, capsys):
    assert distil(texts, "bert", ".csv") == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("classifier"))
    classifier = Classifier.load(str(texts / "bert"), max_length=12, device="cpu")
    data = classifier.read(texts / "validation.csv")
    network = BERT.from_pretrained(texts / "bert").eval()
    with torch.no_grad():
        logits = torch.cat([network(**inputs).logits for inputs, _ in data])
    accuracy = (logits.argmax(-1).numpy() == data.labels).mean()
    assert float(said.split()[1]) == pytest.approx(accuracy, abs=1e-4)


def test_images_from_folders(images, capsys, tmp_path):
    assert distil(images, "vit") == 0
    out = tmp_path / "predictions.parquet"
    words = ["predict", str(images / "student"), str(images / "validation"), "--out", str(out), "--samples", "2"]
    assert main(words) == 0
    assert read_json(images / "student/classifier.json")["source"] == str(images / "vit")
    table = pyarrow.parquet.read_table(out)
    assert table.num_rows == 9 and table.column("label").to_pylist() == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    flat = tmp_path / "flat"
    flat.mkdir()
    (images / "validation/red/0.png").rename(flat / "a.png")
    assert main([*words[:2], str(flat), *words[3:]]) == 0
    assert "label" not in pyarrow.parquet.read_table(out).column_names


def test_a_student_goes_with_its_classifier_where_that_was_moved(texts, tmp_path, capsys):
    assert distil(texts, "bert", ".csv") == 0
    moved, student = tmp_path / "moved", tmp_path / "student"
    bert_checkpoint(moved, BERT)
    (texts / "student").rename(student)
    about = read_json(student / "classifier.json")
    write_json(student / "classifier.json", about | {"source": str(tmp_path / "gone")})
    with pytest.raises(InputError, match="gone: neither a folder nor a checkpoint"):
        load_student(student, device="cpu")
    load_student(student, str(moved), device="cpu")
    other = bert_checkpoint(tmp_path / "other")
    torch.manual_seed(9)
    BERT(transformers.BertConfig(**CHECKPOINT_SIZES)).save_pretrained(other)
    with pytest.raises(InputError, match="fingerprint"):
        load_student(student, str(other), device="cpu")


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("sentence,label\na b,1\n", [], "no column text among sentence, label; name one with --text"),
        ("text,label\na b,dual\n", [], "label 'dual' in row 0 is no class of plural, singular"),
        ("text,label\na b,2\n", [], "label 2 in row 0 is no class"),
        ("text,kind\na b,1\n", ["--label", "sort"], "no column sort among text, kind; name one with --label"),
        ("text,label\n7,1\n", [], "row 0 of column text is 7, not a text"),
        ("text,kind\na b,1\n", [], "the training data have no labels; call their column label"),
    ],
)
def test_tables_that_do_not_go_are_refused_by_name(texts, tmp_path, capsys, content, options, says):
    table = tmp_path / "table.csv"
    table.write_text(content, encoding="utf-8")
    words = ["distil", texts / "bert", table, table, "--out", tmp_path / "out", "--max-length", 12, "--device", "cpu"]
    assert main([*map(str, words), *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_student_is_a_model_of_mlflow_without_a_pickle(texts, tmp_path, monkeypatch):
    assert distil(texts, "bert", ".csv") == 0
    shutil.copytree(texts / "student", tmp_path / "calibrated")
    monkeypatch.chdir(tmp_path)
    exec(
        re.search(r"^from director\.report\.pyfunc .*?^save_student[^\n]*", PAGE.read_text(), re.DOTALL | re.MULTILINE)[
            0
        ]
    )
    assert not [file.name for file in (tmp_path / "model").rglob("*.pkl")]
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    asked = pd.DataFrame({"text": sentences()[:5]}, index=[4, 2, 0, 1, 3])
    found = model.predict(asked)
    assert found.index.tolist() == [4, 2, 0, 1, 3]
    student, classifier = load_student(texts / "student", device="cpu")
    probabilities, uncertainty = student.predict(classifier.inputs(sentences()[:5]))
    np.testing.assert_allclose(found[["p_plural", "p_singular"]], probabilities, atol=1e-6)
    np.testing.assert_allclose(found["mutual_information"], uncertainty.mutual_information, atol=1e-6)


def test_other_inputs_and_outputs_are_refused(texts, images, tmp_path, capsys):
    bert, vit = (Classifier.load(str(path), max_length=12, device="cpu") for path in (texts / "bert", images / "vit"))
    with pytest.raises(InputError, match="reads texts; give a table"):
        bert.read(images / "train")
    with pytest.raises(InputError, match="reads images; give a folder"):
        vit.read(texts / "train.csv")
    with pytest.raises(InputError, match="no image in it"):
        vit.read(tmp_path)
    assert main(["predict", str(tmp_path), str(tmp_path), "--out", "table.txt"]) == 2
    assert "table.txt: predictions are written as .npz" in capsys.readouterr().err

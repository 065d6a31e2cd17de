"""Texts through the whole chain: tokenizer, backbone, cached path, student, predictions."""

import hashlib
import json

import numpy as np
import pytest
import torch
import yaml
from builders import (
    CPU,
    IMAGE_MODEL,
    OF_TEXTS,
    PARTS,
    STUDENT,
    TEXT_MODEL,
    TRAINING,
    cached_path,
    changed,
    kep_attention,
    sentences,
    trained_backbone,
    trained_student,
    words,
)

from director.data.catalogue import fetch_dataset, split_of
from director.data.dataset import Dataset
from director.data.examples import Normalisation, TextExamples
from director.data.splits import write_split
from director.data.texts import Texts
from director.data.tokenizer import vocabulary_size
from director.errors import InputError
from director.models.weights import load_model
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite
from director.numbers.temperature import fit_temperature
from director.settings.suite import Suite
from director.training.predict import predict
from director.training.predict_run import predict_run

BY_MCC = changed(TRAINING, selection="val_mcc")


@pytest.fixture
def data(tmp_path):
    """Folder of a data set of texts, and its split."""
    return words(tmp_path)


def backbone(folder, name="backbone", model=(), training=BY_MCC, **options):
    """Train a backbone of texts; the model."""
    settings = changed(TEXT_MODEL, **dict(model))
    trained = trained_backbone(folder, name, model=settings, training=training, **OF_TEXTS | options)
    return load_model(trained / "model.safetensors")[0]


def student(folder, name="director", views=None, **options):
    """Train a student of it; the model."""
    settings = changed(STUDENT, training=BY_MCC, trajectory={"views": views})
    trained = trained_student(folder, name, student=settings, **OF_TEXTS | options)
    return load_model(trained / "model.safetensors")[0]


def cached(folder):
    """Capture the path of the backbone; the folder of the one view that texts have."""
    return cached_path(folder, **OF_TEXTS)


def equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_tokenizer_is_made_of_the_training_part_and_lives_in_the_model(data):
    model = backbone(data)
    tokenizer = model.settings["tokenizer"]
    known = json.loads(tokenizer)["model"]["vocab"]
    assert "bird" in known and "zebra" not in known
    assert model.embedding.table.weight.shape == (vocabulary_size(tokenizer), 16)
    assert (data / "backbone/history.csv").read_text().startswith("epoch,learning_rate,train_loss,val_accuracy")


def test_same_settings_give_the_same_bytes(data):
    backbone(data, "one")
    backbone(data, "two")
    for name in ("model.safetensors", "history.csv", "settings.yaml"):
        assert (data / "one" / name).read_bytes() == (data / "two" / name).read_bytes()


@pytest.mark.parametrize("kep", [False, True], ids=["softmax", "kep_svgp"])
def test_cache_and_live_give_the_same_student(data, monkeypatch, kep):
    """Padding of the capture's batches is not that of the training's; the cache brings its own mask."""
    backbone(data, attention=kep_attention("sum") if kep else None)
    live = student(data, "live", views=1)
    folders = cached(data)
    monkeypatch.setattr("director.training.train_student.capture", pytest.fail)
    read = student(data, "read", views=1, cache_folders=folders)
    for (name, one), (_, other) in zip(live.state_dict().items(), read.state_dict().items(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=name)


def test_no_test_example_influences_weights_epoch_or_temperature(data):
    """Other test labels and other test sentences: the same weights, the same choice, the same T."""

    def chain(folder):
        teacher = backbone(folder)
        taught = student(folder, views=1, cache_folders=cached(folder))
        part = Dataset.load(folder / "data").select(PARTS["validation"])
        validation = TextExamples(part, *settings(teacher))
        logits, labels = predict(teacher, validation, batch_size=8).logits, part.labels
        history = [(folder / name / "history.csv").read_bytes() for name in ("backbone", "director")]
        return teacher, taught, history, fit_temperature(Predictions(logits, labels))

    before = chain(data)
    texts, labels = sentences(), np.arange(40) % 2
    for row in PARTS["test"]:
        texts[row], labels[row] = "something else", 1 - labels[row]
    after = chain(words(data / "other", texts, labels))
    assert equal(before[0], after[0]) and equal(before[1], after[1])
    assert before[2:] == after[2:]


def test_predictions_are_in_the_order_of_the_data_whatever_the_batches(data):
    teacher = backbone(data, attention=kep_attention("sum"))
    taught = student(data)
    examples = TextExamples(Dataset.load(data / "data"), *settings(teacher))
    assert (np.diff(examples.lengths) < 0).any(), "not sorted by length already"
    one_by_one = np.concatenate(
        [
            predict(teacher, TextExamples(examples.dataset.select([row]), *settings(teacher)), batch_size=1).logits
            for row in range(40)
        ],
        axis=1,
    )
    options = {"randomness": "noise", "samples": 3, "seed": 1}
    whole = predict(teacher, examples, **options, batch_size=1000).logits
    roll_outs = predict(taught, examples, **options, batch_size=1000)
    for batch_size in (5, 12):
        close = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(predict(teacher, examples, batch_size=batch_size).logits, one_by_one, **close)
        np.testing.assert_allclose(predict(teacher, examples, **options, batch_size=batch_size).logits, whole, **close)
        other = predict(taught, examples, **options, batch_size=batch_size)
        np.testing.assert_allclose(other.logits, roll_outs.logits, **close)
        np.testing.assert_allclose(other.profile, roll_outs.profile, **close)
    dropout = predict(teacher, examples, randomness="dropout", samples=2, seed=0, batch_size=8)
    assert dropout.logits.shape == (2, 40, 2) and dropout.profile is None


def settings(model):
    return model.settings["tokenizer"], model.settings["max_length"]


def suite(folder, labelled=True, at_most=None, dataset="data", weights="backbone", **options):
    """Predictions of the suite `shifted`, made on a data set that the split does not deal."""
    arguments = {
        "weights_file": folder / weights / "model.safetensors",
        "training_cost_file": folder / weights / "cost.json",
        "split_file": folder / "split.npz",
        "dataset_folders": {dataset: folder / dataset},
        "suites": {"shifted": Suite(dataset=dataset, part=None, labelled=labelled, at_most=at_most)},
        "folder": folder / "predictions",
        "randomness": "none",
        "samples": [1],
        "profile": False,
        "seed": 0,
        "batch_size": 8,
        "about": {"experiment": "test"},
        "compute": CPU,
    }
    predict_run(**arguments | options)
    return load_suite(folder / "predictions/manifest.json", "shifted")


def test_a_suite_of_its_own_has_labels_unless_it_is_foreign_and_takes_the_official_test_part(data):
    backbone(data)
    shifted = suite(data)
    np.testing.assert_array_equal(shifted.labels, np.arange(40) % 2)
    assert suite(data, labelled=False).labels is None
    few = suite(data, at_most=5)
    np.testing.assert_array_equal(few.example, [0, 9, 19, 29, 39])
    np.testing.assert_array_equal(few.logits, shifted.logits[:, few.example])
    parts = {"train": 30, "test": 10}
    Dataset.clean("words", Texts.of(sentences()), np.arange(40) % 2, parts=parts).save(data / "official")
    np.testing.assert_array_equal(suite(data, dataset="official").example, np.arange(30, 40))


def test_real_sentences_train_and_the_shifted_suite_reads_them(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", str(shared / "data"))
    for name in ("cola", "cola_ood"):
        fetch_dataset(name, tmp_path / name)
    split = split_of(Dataset.load(tmp_path / "cola"), train=600, validation=100, seed=0)
    write_split(tmp_path / "split.npz", split)
    short = changed(BY_MCC, epochs=1, warmup_epochs=0, batch_size=32)
    model = {"vocabulary": 400, "max_length": 24}
    backbone(tmp_path, model=model, dataset_folder=tmp_path / "cola", training=short)
    shifted = suite(tmp_path, dataset="cola_ood")
    assert shifted.logits.shape == (1, 516, 2) and shifted.labels.sum() == 354


def test_images_and_texts_do_not_meet(data):
    Dataset.clean("grey", np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2).save(data / "grey")
    with pytest.raises(InputError, match=r"grey holds images, but the model reads texts; set model\.kind to image"):
        backbone(data, dataset_folder=data / "grey")
    with pytest.raises(InputError, match=r"words holds texts, but the model reads images; set model\.kind to text"):
        trained_backbone(data, model=IMAGE_MODEL)
    backbone(data)
    with pytest.raises(InputError, match="grey holds images, not texts"):
        suite(data, dataset="grey")
    black = Normalisation(scale=1, mean=[0], std=[1])
    trained_backbone(data, "image", dataset_folder=data / "grey", normalisation=black, augmentation=None)
    with pytest.raises(InputError, match="words holds texts, not images"):
        suite(data, weights="image")


def test_weights_of_a_backbone_are_no_student(data):
    backbone(data)
    with pytest.raises(InputError, match=r"TextTransformer .* has no path to roll out; give the weights of a student"):
        suite(data, randomness="noise", profile=True)


def test_a_pretrained_tokenizer_and_table_start_the_model(data, monkeypatch):
    tokenizer = backbone(data).settings["tokenizer"]
    table = torch.randn(vocabulary_size(tokenizer) + 2, 5)
    monkeypatch.setattr("director.training.train_backbone.pretrained_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr("director.training.train_backbone.pretrained_embedding", lambda name: table)
    taken = {"vocabulary": None, "tokenizer": "an/encoder", "embedding": "an/encoder"}
    still = changed(BY_MCC, epochs=1, warmup_epochs=0, learning_rate=1e-9, final_learning_rate=0.0)
    model = backbone(data, "taken", model=taken, training=still)
    torch.testing.assert_close(model.embedding.table.weight, table[:-2], rtol=0, atol=1e-6)
    recorded = yaml.safe_load((data / "taken/settings.yaml").read_text())["table"]
    assert recorded == hashlib.sha256(table[:-2].numpy()).hexdigest()[:16]
    assert model.embedding.linear.weight.shape == (16, 5) and model.settings["embedding_width"] == 5
    monkeypatch.setattr("director.training.train_backbone.pretrained_embedding", lambda name: table[:5])
    with pytest.raises(InputError, match=r"embedding an/encoder has 5 rows for .* it is another tokenizer's"):
        backbone(data, "short", model=taken)

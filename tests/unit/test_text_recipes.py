"""Texts through the whole chain: tokenizer, backbone, cached path, student, predictions."""

import hashlib
import json

import numpy as np
import pytest
import torch
import yaml

from director import distillation, recipes
from director.backbones import load_model
from director.data.dataset import Dataset, TextExamples
from director.data.fetch import fetch_dataset
from director.data.splits import split_dataset
from director.data.texts import Texts
from director.data.tokenizer import vocabulary_size
from director.distillation import cache_trajectory, train_director
from director.files import InputError
from director.prediction import predict, predict_director, predict_dropout, predict_samples, predict_suite
from director.predictions import Predictions
from director.recipes import train_backbone

TRAINING = {
    "epochs": 3,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "weight_decay": 0.0,
    "warmup_epochs": 1,
    "final_learning_rate": 1e-4,
    "gradient_clip": 1.0,
    "selection": "val_mcc",
}
MODEL = {
    "vocabulary": 60,
    "tokenizer": None,
    "embedding": None,
    "max_length": 6,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 16,
    "classes": 2,
}
KEP = {"kep_layers": 1, "kep_variant": "sum", "kep_rank": 2, "kep_multiplier": 2}
LOSSES = {
    "path": "kl",
    "path_weight": 1.0,
    "task_weight": 1.0,
    "std_weight": 0.0,
    "variance_floor": 1e-4,
    "softmax_variance": "attention_moments",
}
TRAIN, VALIDATION, TEST = np.arange(24), np.arange(24, 32), np.arange(32, 40)


def sentences():
    """40 sentences of 2 to 8 words; the last 8, which test, have a word of their own."""
    rng = np.random.default_rng(0)
    made = []
    for row in range(40):
        words = rng.choice(["a", "bird", "key", "sings", "near"], rng.integers(1, 8)).tolist()
        made.append(" ".join(["is" if row % 2 else "are", *words, *["zebra"] * (row in TEST)]))
    return made


@pytest.fixture
def data(tmp_path):
    """Folder of a data set of texts, and its split."""
    Dataset.clean("words", Texts.of(sentences()), np.arange(40) % 2).save(tmp_path / "words")
    np.savez(tmp_path / "split.npz", train=TRAIN, validation=VALIDATION, test=TEST)
    return tmp_path


def files(folder, name):
    names = {"weights": "model.safetensors", "history": "history.csv", "cost": "cost.json", "settings": "settings.yaml"}
    return {f"{key}_file": folder / name / file for key, file in names.items()}


def job(folder, name):
    views = {"normalisation": None, "augmentation": None}
    where = {"dataset_folder": folder / "words", "split_file": folder / "split.npz", "device": "cpu"}
    return where | views | files(folder, name) | {"seed": 3, "about": {"experiment": "test"}, "training": TRAINING}


def backbone(folder, name="backbone", model=(), **options):
    train_backbone(**job(folder, name) | {"model": MODEL | dict(model)} | options)
    return load_model(folder / name / "model.safetensors")[0]


def student(folder, name="director", **options):
    teacher = {f"teacher_{key}": files(folder, "backbone")[key] for key in ("cost_file",)}
    teacher["teacher_file"] = folder / "backbone/model.safetensors"
    kernel = {"mlp_ratio": 1.0, "mlp_first": False}
    train_director(**job(folder, name) | teacher | {"kernel": kernel, "losses": LOSSES, "samples": 2} | options)
    return load_model(folder / name / "model.safetensors")[0]


def cached(folder):
    options = {key: job(folder, "")[key] for key in ("dataset_folder", "split_file", "normalisation", "augmentation")}
    teacher = folder / "backbone/model.safetensors"
    how = {"softmax_variance": "attention_moments", "dtype": "float32", "device": "cpu", "seed": 3}
    cache_trajectory(teacher_file=teacher, folders=[folder / "view-0"], **options, **how)
    return [folder / "view-0"]


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
    backbone(data, model=KEP if kep else {})
    live = student(data, "live", views=1)
    folders = cached(data)
    monkeypatch.setattr(distillation, "capture", pytest.fail)
    read = student(data, "read", views=1, cache_folders=folders)
    for (name, one), (_, other) in zip(live.state_dict().items(), read.state_dict().items(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=name)


def test_no_test_example_influences_weights_epoch_or_temperature(data):
    """Other test labels and other test sentences: the same weights, the same choice, the same T."""
    from director.temperature import fit_temperature

    def chain(folder):
        teacher = backbone(folder)
        taught = student(folder, views=1, cache_folders=cached(folder))
        validation = TextExamples(Dataset.load(folder / "words").select(VALIDATION), teacher.settings["tokenizer"], 6)
        logits, labels = predict(teacher, validation, batch_size=8), validation.dataset.labels
        history = [(folder / name / "history.csv").read_bytes() for name in ("backbone", "director")]
        return teacher, taught, history, fit_temperature(Predictions(logits, labels))

    before = chain(data)
    texts, labels = sentences(), np.arange(40) % 2
    for row in TEST:
        texts[row], labels[row] = "something else", 1 - labels[row]
    other = data / "other"
    Dataset.clean("words", Texts.of(texts), labels).save(other / "words")
    np.savez(other / "split.npz", train=TRAIN, validation=VALIDATION, test=TEST)
    after = chain(other)
    assert equal(before[0], after[0]) and equal(before[1], after[1])
    assert before[2:] == after[2:]


def test_predictions_are_in_the_order_of_the_data_whatever_the_batches(data):
    teacher = backbone(data, model=KEP)
    taught = student(data)
    examples = TextExamples(Dataset.load(data / "words"), teacher.settings["tokenizer"], 6)
    assert (np.diff(examples.lengths) < 0).any(), "not sorted by length already"
    one_by_one = np.concatenate(
        [
            predict(teacher, TextExamples(examples.dataset.select([row]), *settings(teacher)), batch_size=1)
            for row in range(40)
        ],
        axis=1,
    )
    options = {"samples": 3, "seed": 1}
    whole = predict_samples(teacher, examples, **options, batch_size=1000)
    logits, profile = predict_director(taught, examples, **options, batch_size=1000)
    for batch_size in (5, 12):
        close = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(predict(teacher, examples, batch_size=batch_size), one_by_one, **close)
        np.testing.assert_allclose(predict_samples(teacher, examples, **options, batch_size=batch_size), whole, **close)
        other = predict_director(taught, examples, **options, batch_size=batch_size)
        np.testing.assert_allclose(other[0], logits, **close)
        np.testing.assert_allclose(other[1], profile, **close)
    assert predict_dropout(teacher, examples, samples=2, seed=0, batch_size=8).shape == (2, 40, 2)


def settings(model):
    return model.settings["tokenizer"], model.settings["max_length"]


def suite(folder, **options):
    arguments = {
        "weights_file": folder / "backbone/model.safetensors",
        "training_cost_file": folder / "backbone/cost.json",
        "dataset_folder": folder / "words",
        "normalisation": None,
        "split_file": None,
        "method": "mle",
        "samples": 1,
        "seed": 0,
        "batch_size": 8,
        "about": {"suite": "shifted"},
        "predictions_file": folder / "suite.npz",
        "cost_file": folder / "suite.cost.json",
        "device": "cpu",
    }
    predict_suite(**arguments | options)
    return Predictions.load(folder / "suite.npz")


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
    np.testing.assert_array_equal(suite(data, dataset_folder=data / "official").example, np.arange(30, 40))


def test_real_sentences_train_and_the_shifted_suite_reads_them(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", str(shared / "data"))
    for name in ("cola", "cola_ood"):
        fetch_dataset(name, tmp_path / name)
    split_dataset(tmp_path / "cola", tmp_path / "split.npz", train=600, validation=100, seed=0)
    short = TRAINING | {"epochs": 1, "warmup_epochs": 0, "batch_size": 32}
    backbone(tmp_path, model={"vocabulary": 400, "max_length": 24}, dataset_folder=tmp_path / "cola", training=short)
    shifted = suite(tmp_path, dataset_folder=tmp_path / "cola_ood")
    assert shifted.logits.shape == (1, 516, 2) and shifted.labels.sum() == 354


def test_images_and_texts_do_not_meet(data):
    Dataset.clean("grey", np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2).save(data / "grey")
    with pytest.raises(InputError, match=r"grey holds images, but the model reads texts; set model\.kind to image"):
        backbone(data, dataset_folder=data / "grey")
    image = {
        "image_size": 4,
        "channels": 1,
        "patch": 2,
        "width": 8,
        "depth": 1,
        "heads": 1,
        "mlp_width": 8,
        "classes": 2,
    }
    with pytest.raises(InputError, match=r"words holds texts, but the model reads images; set model\.kind to text"):
        train_backbone(**job(data, "backbone") | {"model": image})
    backbone(data)
    with pytest.raises(InputError, match="grey holds images, not texts"):
        suite(data, dataset_folder=data / "grey")
    train_backbone(
        **job(data, "image")
        | {"model": image, "dataset_folder": data / "grey", "normalisation": {"scale": 1, "mean": [0], "std": [1]}}
    )
    with pytest.raises(InputError, match="words holds texts, not images"):
        suite(data, weights_file=data / "image/model.safetensors", training_cost_file=data / "image/cost.json")


def test_weights_of_a_backbone_are_no_student(data):
    backbone(data)
    with pytest.raises(InputError, match="TextTransformer has no path to roll out; give the weights of a student"):
        suite(data, method="director", depth_file=data / "depth.npz")


def test_a_pretrained_tokenizer_and_table_start_the_model(data, monkeypatch):
    tokenizer = backbone(data).settings["tokenizer"]
    table = torch.randn(vocabulary_size(tokenizer) + 2, 5)
    monkeypatch.setattr(recipes, "pretrained_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr(recipes, "pretrained_embedding", lambda name: table)
    taken = {"vocabulary": None, "tokenizer": "an/encoder", "embedding": "an/encoder"}
    still = TRAINING | {"epochs": 1, "warmup_epochs": 0, "learning_rate": 1e-9, "final_learning_rate": 0.0}
    model = backbone(data, "taken", model=taken, training=still)
    torch.testing.assert_close(model.embedding.table.weight, table[:-2], rtol=0, atol=1e-6)
    recorded = yaml.safe_load((data / "taken/settings.yaml").read_text())["table"]
    assert recorded == hashlib.sha256(table[:-2].numpy()).hexdigest()[:16]
    assert model.embedding.linear.weight.shape == (16, 5) and model.settings["embedding_width"] == 5
    monkeypatch.setattr(recipes, "pretrained_embedding", lambda name: table[:5])
    with pytest.raises(InputError, match=r"embedding an/encoder has 5 rows for .* it is another tokenizer's"):
        backbone(data, "short", model=taken)

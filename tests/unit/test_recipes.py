"""What is trained: a backbone, and a student along its teacher's path."""

import csv
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from director.backbones import load_model
from director.data.dataset import Dataset, ImageExamples
from director.files import InputError
from director.prediction import predict
from director.recipes import train_backbone

SETTINGS = {
    "epochs": 3,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "weight_decay": 0.0,
    "warmup_epochs": 1,
    "final_learning_rate": 1e-4,
    "gradient_clip": 1.0,
    "selection": "val_nll",
}
MODEL = {
    "image_size": 4,
    "channels": 1,
    "patch": 2,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 16,
    "classes": 2,
}
NORMALISATION = {"scale": 255.0, "mean": [0.5], "std": [0.3]}


@pytest.fixture
def data(tmp_path):
    """Bright and dark images in 40 rows: folder of the data set and split file."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = np.clip(rng.normal(90 + 60 * labels[:, None, None, None], 30, (40, 4, 4, 1)), 0, 255).astype(np.uint8)
    Dataset.clean("bright", images, labels).save(tmp_path / "bright")
    np.savez(tmp_path / "split.npz", train=np.arange(24), validation=np.arange(24, 32), test=np.arange(32, 40))
    return tmp_path


def backbone(folder, name="backbone", model=(), training=(), **options):
    out = folder / name
    files = {
        "weights_file": out / "model.safetensors",
        "history_file": out / "history.csv",
        "cost_file": out / "cost.json",
        "settings_file": out / "settings.yaml",
    }
    arguments = {
        "dataset_folder": folder / "bright",
        "split_file": folder / "split.npz",
        "model": MODEL | dict(model),
        "training": SETTINGS | {"epochs": 4, "selection": "val_accuracy"} | dict(training),
        "normalisation": NORMALISATION,
        "augmentation": {"padding": 1, "flip": True},
        "seed": 3,
        "about": {"experiment": "test", "backbone": "softmax"},
        "device": "cpu",
        "threads": 1,
    }
    train_backbone(**arguments | files | options)
    return files


def test_backbone_writes_weights_history_cost_and_settings(data):
    files = backbone(data)
    model, about = load_model(files["weights_file"])
    assert {key: model.settings[key] for key in MODEL} == MODEL
    assert about["experiment"] == "test"
    assert about["seed"] == 3
    assert about["data"] == Dataset.load(data / "bright").about["fingerprint"]
    assert "torch" in about["versions"]

    rows = list(csv.DictReader(files["history_file"].open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert about["best_epoch"] == 1 + np.argmax([float(row["val_accuracy"]) for row in rows])

    cost = json.loads(files["cost_file"].read_text())
    assert cost["parameters"] == sum(p.numel() for p in model.parameters())
    assert {"train_seconds", "epochs", "best_epoch", "device", "threads", "peak_memory_bytes"} < set(cost)

    settings = yaml.safe_load(files["settings_file"].read_text())
    assert settings["training"]["epochs"] == 4
    assert settings["augmentation"] == {"padding": 1, "flip": True}
    assert sorted(path.name for path in files["weights_file"].parent.iterdir()) == [
        "cost.json",
        "history.csv",
        "model.safetensors",
        "settings.yaml",
    ]


def test_weights_are_those_of_the_best_epoch_and_the_validation_numbers_come_from_them(data):
    files = backbone(data, training={"epochs": 6, "selection": "val_nll"})
    model, about = load_model(files["weights_file"])
    dataset = Dataset.load(data / "bright")
    logits = predict(model, ImageExamples(dataset.select(np.arange(24, 32)), NORMALISATION), batch_size=3)[0]
    nll = F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(dataset.labels[24:32].copy())).item()
    rows = list(csv.DictReader(files["history_file"].open()))
    assert float(rows[about["best_epoch"] - 1]["val_nll"]) == pytest.approx(nll, rel=1e-5)
    assert float(rows[about["best_epoch"] - 1]["val_nll"]) == min(float(row["val_nll"]) for row in rows)


def test_same_settings_give_the_same_bytes_and_another_seed_others(data):
    one, two, other = backbone(data, "one"), backbone(data, "two"), backbone(data, "three", seed=4)
    for name in ("weights_file", "history_file", "settings_file"):
        assert one[name].read_bytes() == two[name].read_bytes()
        assert one[name].read_bytes() != other[name].read_bytes()


def test_kernel_eigenpair_penalties_enter_with_their_weights(data):
    kep = {"kep_layers": 1, "kep_variant": "sum", "kep_rank": 2, "kep_multiplier": 2}
    files = backbone(data, model=kep, training={"epochs": 2}, penalties={"ksvd": 10.0, "kl": 0.5})
    for row in csv.DictReader(files["history_file"].open()):
        expected = float(row["train_cross_entropy"]) + 10 * float(row["train_ksvd"]) + 0.5 * float(row["train_kl"])
        assert float(row["train_loss"]) == pytest.approx(expected, rel=1e-5)
        assert float(row["train_kl"]) > 0
    bare = backbone(data, "bare", model=kep, training={"epochs": 2})
    for row in csv.DictReader(bare["history_file"].open()):
        assert float(row["train_loss"]) == pytest.approx(float(row["train_cross_entropy"]))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"classes": 3}, "bright has 2 classes, the model 3; set model.classes to 2"),
        ({"image_size": 8}, r"images of \(4, 4, 1\) .* made for \(8, 8, 1\)"),
        ({"channels": 3}, r"made for \(4, 4, 3\)"),
    ],
)
def test_model_that_does_not_fit_the_data_is_refused_before_training(data, model, message):
    with pytest.raises(InputError, match=message):
        backbone(data, model=model)
    assert not (data / "backbone").exists()


def test_data_without_labels_cannot_train(data):
    Dataset.clean("dark", np.zeros((40, 4, 4, 1), np.uint8), None).save(data / "dark")
    with pytest.raises(InputError, match="dark has no labels"):
        backbone(data, dataset_folder=data / "dark")

"""Pretrained models as backbones: built from a checkpoint, rebuilt without it, and the students around them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from builders import (
    CHECKPOINT_SIZES,
    COUNT,
    CPU,
    NORMALISATION,
    OF_TEXTS,
    PARTS,
    STUDENT,
    TRAINING,
    bert_checkpoint,
    cached_path,
    changed,
    history,
    text_checkpoint,
    trained_backbone,
    trained_student,
    words,
)
from safetensors.torch import load_file, save_file

from director.data.dataset import Dataset
from director.data.splits import write_split
from director.errors import InputError
from director.files import file_digest, read_json
from director.models.pretrained import PretrainedClassifier
from director.models.weights import load_model
from director.numbers.suites import load_suite
from director.path.partial import FrozenPrefix
from director.path.residual import check_path, path_of
from director.path.students import load_student
from director.settings.model import PretrainedModel
from director.settings.suite import Suite
from director.training.examples import examples_for
from director.training.predict import predict
from director.training.predict_run import predict_run

SHORT = changed(TRAINING, epochs=2, learning_rate=1e-3, final_learning_rate=0.0)
TAUGHT = changed(STUDENT, training=SHORT, trajectory={"views": 1})


def qwen2(folder):
    config = transformers.Qwen2Config(**CHECKPOINT_SIZES, num_key_value_heads=1)
    return text_checkpoint(folder, transformers.Qwen2Model(config))


def vit(folder, classes=5, channels=3):
    network = timm.create_model("test_vit", num_classes=classes, in_chans=channels, img_size=32)
    known = {"input_size": [channels, 32, 32], "mean": [0.4] * channels, "std": [0.2] * channels}
    known |= {"interpolation": "bicubic", "first_conv": "patch_embed.proj", "classifier": "head"}
    config = {"architecture": "test_vit", "num_classes": classes, "pretrained_cfg": known}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in network.state_dict().items()}, folder / "model.safetensors"
    )
    return folder


CHECKPOINTS = {"bert": bert_checkpoint, "qwen2": qwen2, "vit": vit}


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *arguments, **options: pytest.fail("asked the hub"))


def data(folder, name):
    """Write the data set that a checkpoint of this name reads, and its split."""
    if name != "vit":
        return words(folder)
    labels = np.arange(COUNT) % 2
    images = np.random.default_rng(0).integers(0, 120, (COUNT, 8, 8, 3)) + 100 * labels[:, None, None, None]
    Dataset.clean("bright", images.astype(np.uint8), labels).save(folder / "data")
    write_split(folder / "split.npz", PARTS)
    return folder


def settings(name, folder, **changes):
    """Of a model that starts from <folder>/checkpoint."""
    length = {} if name == "vit" else {"max_length": 8}
    return PretrainedModel(
        **{"kind": "pretrained", "source": str(folder / "checkpoint"), "classes": 2} | length | changes
    )


def fine_tuned(tmp_path, name, folder="backbone", training=SHORT, job=(), **changes):
    """Fine-tune a checkpoint that is made first, if it is not there; gives the folder with its files."""
    if not (tmp_path / "checkpoint").exists():
        torch.manual_seed(0)
        CHECKPOINTS[name](tmp_path / "checkpoint")
    if not (tmp_path / "data").exists():
        data(tmp_path, name)
    model = settings(name, tmp_path, **changes)
    return trained_backbone(tmp_path, folder, model=model, training=training, **OF_TEXTS | dict(job))


def load_both(tmp_path, student="director"):
    teacher_file = tmp_path / "backbone/model.safetensors"
    return load_model(teacher_file)[0], load_student(tmp_path / student / "model.safetensors", "cpu", teacher_file)[0]


def logits(model, tmp_path, **options):
    return predict(model, examples_for(model, Dataset.load(tmp_path / "data")), **options).logits


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_fine_tuned_model_is_rebuilt_bit_for_bit_without_its_checkpoint(tmp_path, name):
    folder = fine_tuned(tmp_path, name)
    shutil.rmtree(tmp_path / "checkpoint")
    model, about = load_model(folder / "model.safetensors")
    assert isinstance(model, PretrainedClassifier) and str(tmp_path) not in json.dumps(model.settings)
    own = logits(model, tmp_path)
    assert np.array_equal(own, logits(load_model(folder / "model.safetensors")[0], tmp_path))
    assert own.shape == (1, COUNT, 2) and about["start"] and len(history(folder)) == 2
    validation = predict(
        model, examples_for(model, Dataset.load(tmp_path / "data").select(PARTS["validation"])), batch_size=3
    )
    nll = F.cross_entropy(torch.from_numpy(validation.logits[0]), torch.from_numpy(np.arange(24, 32) % 2)).item()
    assert history(folder)[about["best_epoch"] - 1]["val_nll"] == pytest.approx(nll, rel=1e-5)
    assert read_json(folder / "cost.json")["parameters"] == sum(part.numel() for part in model.parameters())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_all_that_is_not_the_head_starts_as_the_checkpoint(tmp_path, name):
    still = changed(SHORT, epochs=1, warmup_epochs=0, learning_rate=1e-9)
    folder = fine_tuned(tmp_path, name, training=still)
    tensors, start = load_file(folder / "model.safetensors"), load_file(tmp_path / "checkpoint/model.safetensors")
    kept = {key: next(name for name in tensors if name.endswith(key)) for key in start if not key.startswith("head")}
    assert len(kept) > 20
    for key, name in kept.items():
        torch.testing.assert_close(tensors[name], start[key], rtol=0, atol=1e-6, msg=key)


def test_seeds_differ_in_head_and_order_and_the_same_seed_gives_the_same_bytes(tmp_path):
    folders = [fine_tuned(tmp_path, "bert", name, job={"seed": seed}) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    one, same, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == same != other


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("part", [{}, {"states_every": 3, "last": 3}], ids=["the last third", "all, in one step"])
def test_a_student_holds_its_own_tensors_and_takes_the_rest_from_its_teacher(tmp_path, name, part):
    if name == "vit" and part:
        part = {"states_every": 2, "last": 6}
    fine_tuned(tmp_path, name, **part)
    trained_student(tmp_path, student=TAUGHT, **OF_TEXTS)
    teacher, student = load_both(tmp_path)
    assert isinstance(student.embedding, FrozenPrefix) is (not part)
    assert student.steps == (3 if part else 2) if name == "vit" else student.steps == 1
    tensors = load_file(tmp_path / "director/model.safetensors")
    assert {key.split(".")[0] for key in tensors} == {"kernel", "readout"} | ({"embedding"} if part else set())
    count = sum(tensor.numel() for tensor in tensors.values())
    assert read_json(tmp_path / "director/cost.json")["parameters"] == count
    options = {"randomness": "noise", "samples": 3, "seed": 1}
    roll_outs = logits(student, tmp_path, **options)
    assert np.array_equal(roll_outs, logits(load_both(tmp_path)[1], tmp_path, **options))
    assert roll_outs.std(0).max() > 0
    dropped = logits(teacher, tmp_path, randomness="dropout", samples=3)
    assert dropped.std(0).max() > 0


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_cached_path_and_a_live_one_give_the_same_student(tmp_path, monkeypatch, name):
    fine_tuned(tmp_path, name)
    trained_student(tmp_path, "live", student=TAUGHT, **OF_TEXTS)
    folders = cached_path(tmp_path, **OF_TEXTS)
    monkeypatch.setattr("director.training.train_student.capture", lambda *arguments: pytest.fail("ran the teacher"))
    trained_student(tmp_path, "read", student=TAUGHT, cache_folders=folders, **OF_TEXTS)
    live, read = (load_file(tmp_path / folder / "model.safetensors") for folder in ("live", "read"))
    for key, tensor in live.items():
        torch.testing.assert_close(tensor, read[key], rtol=1e-3, atol=1e-4, msg=key)


def test_the_cache_of_another_part_of_the_path_is_refused(tmp_path):
    fine_tuned(tmp_path, "bert", last=1)
    folders = cached_path(tmp_path, **OF_TEXTS)
    fine_tuned(tmp_path, "bert", last=2)
    with pytest.raises(InputError, match="stale trajectory cache"):
        trained_student(tmp_path, student=TAUGHT, cache_folders=folders, **OF_TEXTS)


def test_a_student_does_not_go_with_another_teacher(tmp_path):
    fine_tuned(tmp_path, "bert")
    trained_student(tmp_path, student=TAUGHT, **OF_TEXTS)
    other = fine_tuned(tmp_path, "bert", "other", job={"seed": 9}) / "model.safetensors"
    expected = file_digest(tmp_path / "backbone/model.safetensors")
    with pytest.raises(InputError, match=rf"a student of the teacher with digest {expected}, but .*other.* train the"):
        load_student(tmp_path / "director/model.safetensors", "cpu", other)
    with pytest.raises(
        InputError, match=r"'pretrained' is built around its teacher; load it with director\.path\.stud"
    ):
        load_model(tmp_path / "director/model.safetensors")
    with pytest.raises(InputError, match="a model of kind 'pretrained' has no path to roll out"):
        load_student(other, "cpu", other)


def test_predictions_of_teacher_and_student(tmp_path):
    fine_tuned(tmp_path, "qwen2")
    trained_student(tmp_path, student=TAUGHT, **OF_TEXTS)
    teacher_file = tmp_path / "backbone/model.safetensors"
    common = {
        "split_file": tmp_path / "split.npz",
        "dataset_folders": {"words": tmp_path / "data"},
        "suites": {"test": Suite(dataset="words", part="test", labelled=True)},
        "seed": 0,
        "about": {},
        "compute": CPU,
    }
    for name, options in {
        "backbone": {"randomness": "none", "samples": [1], "profile": False},
        "director": {"randomness": "noise", "samples": [2], "profile": True, "teacher_file": teacher_file},
    }.items():
        folder = tmp_path / name
        files = {"weights_file": folder / "model.safetensors", "training_cost_file": folder / "cost.json"}
        predict_run(**common, **files, **options, folder=folder / "predictions")
        made = load_suite(folder / "predictions/manifest.json", "test")
        assert made.logits.shape == (max(options["samples"]), 8, 2)
    teacher, _ = load_both(tmp_path)
    expected = logits(teacher, tmp_path)[:, PARTS["test"]]
    made = load_suite(tmp_path / "backbone/predictions/manifest.json", "test").logits
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-6)


def test_images_are_normalised_as_the_checkpoint_says_and_resized(tmp_path):
    folder = fine_tuned(tmp_path, "vit")
    model, _ = load_model(folder / "model.safetensors")
    dataset = Dataset.load(tmp_path / "data")
    pixels = torch.from_numpy(np.array(dataset.inputs)).permute(0, 3, 1, 2).float() / 255
    resized = F.interpolate(pixels, (32, 32), mode="bicubic", antialias=True)
    with torch.no_grad():
        expected = model.network((resized - 0.4) / 0.2)
    torch.testing.assert_close(torch.from_numpy(logits(model, tmp_path)[0]), expected, rtol=1e-4, atol=1e-4)
    other = fine_tuned(
        tmp_path, "vit", "own", job={"normalisation": changed(NORMALISATION, mean=[0.5] * 3, std=[1] * 3)}
    )
    assert load_model(other / "model.safetensors")[0].settings["normalisation"] is None


def test_another_size_and_number_of_channels_of_a_timm_model(tmp_path):
    torch.manual_seed(0)
    vit(tmp_path / "checkpoint")
    labels = np.arange(COUNT) % 2
    Dataset.clean(
        "grey", np.full((COUNT, 8, 8, 1), 9, np.uint8) * labels[:, None, None, None].astype(np.uint8), labels
    ).save(tmp_path / "data")
    write_split(tmp_path / "split.npz", PARTS)
    with pytest.raises(InputError, match=r"grey has images of 1 channels, the model 3; set model\.channels"):
        fine_tuned(tmp_path, "vit")
    with pytest.raises(InputError, match=r"its normalisation is not of 1 channels; set data\.normalisation"):
        fine_tuned(tmp_path, "vit", channels=1)
    folder = fine_tuned(tmp_path, "vit", channels=1, image_size=48, job={"normalisation": NORMALISATION})
    model, _ = load_model(folder / "model.safetensors")
    assert model.network.patch_embed.proj.in_channels == 1 and model.network.patch_embed.num_patches == 9


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_a_classifier_is_taken_as_it_is(tmp_path, name):
    torch.manual_seed(0)
    if name == "vit":
        vit(tmp_path / "checkpoint", classes=2)
    else:
        bert_checkpoint(tmp_path / "checkpoint", transformers.BertForSequenceClassification)
    folder = fine_tuned(tmp_path, name, fine_tune=False)
    tensors, start = load_file(folder / "model.safetensors"), load_file(tmp_path / "checkpoint/model.safetensors")
    assert all(torch.equal(tensors[f"network.{key}"], tensor) for key, tensor in start.items())
    (row,) = history(folder)
    assert row["epoch"] == 0 and {"val_accuracy", "val_nll"} < set(row)
    assert read_json(folder / "cost.json")["train_seconds"] == 0.0
    assert (folder / "early.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"has 2 classes, the model 3; set model\.classes to 2"):
        fine_tuned(tmp_path, name, "three", fine_tune=False, classes=3)
    trained_student(tmp_path, student=TAUGHT, **OF_TEXTS)
    assert load_both(tmp_path)[1].settings["backbone"]["kind"] == "pretrained"


def spoil(folder: Path, change) -> None:
    """Change the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


FAULTS = {
    "no head": (
        "bert",
        {"fine_tune": False},
        None,
        "weights are not those of a whole bert: .* set model.fine_tune to true",
    ),
    "other classes": (
        "vit",
        {"fine_tune": False},
        None,
        "a classifier of 5 classes, not 2; set model.fine_tune to true",
    ),
    "missing weights": (
        "bert",
        {},
        lambda folder: spoil(folder, lambda tensors: tensors.pop("encoder.layer.1.output.dense.weight")),
        r"not those of a whole bert: 1 are missing .* such as bert\.encoder\.layer\.1\.output\.dense\.weight",
    ),
    "missing weights of timm": (
        "vit",
        {},
        lambda folder: spoil(folder, lambda tensors: tensors.pop("blocks.1.mlp.fc1.bias")),
        "weights are not those of a whole test_vit: 1 are missing .* such as blocks.1.mlp.fc1.bias",
    ),
    "weights of another shape": (
        "bert",
        {},
        lambda folder: spoil(folder, lambda tensors: tensors.update({"embeddings.LayerNorm.bias": torch.ones(3)})),
        r"1 are missing or of another shape, such as bert\.embeddings\.LayerNorm\.bias",
    ),
    "too long": ("bert", {"max_length": 17}, None, "max_length is 17, but it reads 16 tokens; lower it"),
    "pickle only": (
        "bert",
        {},
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "has no",
    ),
    "no config": (
        "bert",
        {},
        lambda folder: (folder / "config.json").unlink(),
        r"has no config\.json, so it is no check",
    ),
    "unknown architecture of timm": (
        "vit",
        {},
        lambda folder: (folder / "config.json").write_text('{"architecture": "vit_of_tomorrow", "num_classes": 5}'),
        "vit_of_tomorrow cannot be built .*Unknown model",
    ),
    "unknown architecture": (
        "bert",
        {},
        lambda folder: (folder / "config.json").write_text('{"model_type": "bert_of_tomorrow"}'),
        "bert_of_tomorrow.* cannot be built",
    ),
    "all but its last part": ("bert", {"last": 4}, None, "last is 4, but the path has steps 1 to 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_a_backbone_is_refused_before_it_is_trained(tmp_path, monkeypatch, fault):
    name, changes, spoiling, message = FAULTS[fault]
    CHECKPOINTS[name](tmp_path / "checkpoint")
    if spoiling:
        spoiling(tmp_path / "checkpoint")
    monkeypatch.setattr("director.training.job.fit", lambda *arguments, **options: pytest.fail("trained"))
    with pytest.raises(InputError, match=message):
        fine_tuned(tmp_path, name, **changes)


def test_sources_that_are_not_there_are_named(tmp_path, monkeypatch):
    words(tmp_path)
    (tmp_path / "checkpoint").mkdir()

    def away(*arguments, **options):
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", away)
    for source, message in {
        "package:absent/model": r"model\.source package:absent/model: package 'absent' is not installed",
        "some/model": r"model\.source some/model: neither a folder nor a checkpoint that the hub gives \(offline\)",
        str(tmp_path / "checkpoint"): r"has no config\.json, so it is no checkpoint",
    }.items():
        with pytest.raises(InputError, match=message):
            fine_tuned(tmp_path, "bert", source=source)


def test_images_and_texts_do_not_meet(tmp_path):
    data(tmp_path, "vit")
    bert_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"model\.max_length is for texts, the data set holds images"):
        fine_tuned(tmp_path, "bert")
    shutil.rmtree(tmp_path / "data")
    words(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    vit(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"model\.max_length is missing"):
        fine_tuned(tmp_path, "vit")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_path_is_the_models_own(tmp_path, name):
    folder = fine_tuned(tmp_path, name)
    model, _ = load_model(folder / "model.safetensors")
    batch, _ = examples_for(model, Dataset.load(tmp_path / "data")).batch(np.arange(7))
    inputs = (
        {key: torch.from_numpy(part) for key, part in batch.items()}
        if isinstance(batch, dict)
        else torch.from_numpy(batch)
    )
    path = path_of(model)
    assert check_path(path, inputs).states == path.steps + 1
    with torch.no_grad():
        torch.testing.assert_close(path.logits(inputs), model(inputs))

"""What is trained: a backbone, and a student along its teacher's path."""

import csv
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from builders import (
    COUNT,
    IMAGE_MODEL,
    KERNEL,
    LOSSES,
    NORMALISATION,
    STUDENT,
    TRAINING,
    bright_and_dark,
    cached_path,
    changed,
    history,
    kep_attention,
    sgpa_attention,
    trained_backbone,
    trained_student,
)

from director.data.dataset import Dataset
from director.data.examples import ImageExamples
from director.data.splits import write_split
from director.errors import InputError
from director.files import file_digest, read_json, write_json
from director.models.student import StudentNetwork
from director.models.weights import load_model, parameter_count
from director.path.residual import path_of
from director.training import fit, job
from director.training.job import COST, EARLY, HISTORY, SETTINGS, WEIGHTS
from director.training.predict import predict


@pytest.fixture
def data(tmp_path):
    """Folder of bright and dark images, and their split."""
    return bright_and_dark(tmp_path)


def backbone(folder, name="backbone", model=(), training=(), **options):
    """Train a backbone with changed settings; its folder."""
    chosen = changed(TRAINING, **{"epochs": 4, "selection": "val_accuracy"} | dict(training))
    return trained_backbone(folder, name, model=changed(IMAGE_MODEL, **dict(model)), training=chosen, **options)


def test_backbone_writes_weights_history_cost_and_settings(data):
    folder = backbone(data)
    model, about = load_model(folder / WEIGHTS)
    assert model.settings == IMAGE_MODEL.model_dump(exclude={"kind"}) | {"attention": None}
    assert about["experiment"] == "test"
    assert about["seed"] == 3
    assert about["data"] == Dataset.load(data / "data").about["fingerprint"]
    assert "torch" in about["versions"]

    rows = list(csv.DictReader((folder / HISTORY).open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert about["best_epoch"] == 1 + np.argmax([float(row["val_accuracy"]) for row in rows])

    cost = read_json(folder / COST)
    assert cost["parameters"] == sum(p.numel() for p in model.parameters())
    assert {"train_seconds", "epochs", "best_epoch", "early_epoch", "device", "threads"} < set(cost)
    assert cost["peak_memory_bytes"] > 0

    settings = yaml.safe_load((folder / SETTINGS).read_text())
    assert settings["training"]["epochs"] == 4
    assert settings["augmentation"] == {"padding": 1, "flip": True}
    assert sorted(path.name for path in folder.iterdir()) == [
        "cost.json",
        "early.safetensors",
        "history.csv",
        "model.safetensors",
        "settings.yaml",
    ]


def validation_nll(data, weights_file):
    """NLL of the validation part by a file of weights."""
    dataset = Dataset.load(data / "data")
    examples = ImageExamples(dataset.select(np.arange(24, 32)), NORMALISATION)
    logits = predict(load_model(weights_file)[0], examples, batch_size=3).logits[0]
    return F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(dataset.labels[24:32].copy())).item()


def test_weights_are_those_of_the_best_epoch_and_the_validation_numbers_come_from_them(data):
    folder = backbone(data, training={"epochs": 6, "selection": "val_nll"})
    _, about = load_model(folder / WEIGHTS)
    rows = history(folder)
    nll = pytest.approx(validation_nll(data, folder / WEIGHTS), rel=1e-5)
    assert rows[about["best_epoch"] - 1]["val_nll"] == nll == min(row["val_nll"] for row in rows)


def test_the_same_training_stopped_early_lies_beside_it(data):
    """The weights of the epoch with the lowest validation NLL, whatever chooses the epoch."""
    folder = backbone(data, training={"epochs": 6, "selection": "last"})
    (_, last), (_, early) = (load_model(folder / name) for name in (WEIGHTS, EARLY))
    nlls = [row["val_nll"] for row in history(folder)]
    assert (last["epoch"], early["epoch"]) == (6, 1 + np.argmin(nlls)) and early["epoch"] < 6
    for name, about in ((WEIGHTS, last), (EARLY, early)):
        assert nlls[about.pop("epoch") - 1] == pytest.approx(validation_nll(data, folder / name), rel=1e-5)
    assert last == early
    noted = yaml.safe_load((folder / SETTINGS).read_text()), read_json(folder / COST)
    for notes in (early, *noted):
        assert (notes["best_epoch"], notes["early_epoch"]) == (6, 1 + np.argmin(nlls))


def test_where_one_epoch_is_both_the_two_files_are_the_same(data):
    folder = backbone(data, training={"selection": "val_nll"})
    assert (folder / EARLY).read_bytes() == (folder / WEIGHTS).read_bytes()


def test_same_settings_give_the_same_bytes_and_another_seed_others(data):
    one, two, other = backbone(data, "one"), backbone(data, "two"), backbone(data, "three", seed=4)
    for name in (WEIGHTS, EARLY, HISTORY, SETTINGS):
        assert (one / name).read_bytes() == (two / name).read_bytes()
        assert (one / name).read_bytes() != (other / name).read_bytes()


def test_kernel_eigenpair_penalties_enter_with_their_weights(data):
    options = {"attention": kep_attention("sum"), "training": {"epochs": 2}}
    for row in history(backbone(data, penalties={"ksvd": 10.0, "kl": 0.5}, **options)):
        expected = row["train_cross_entropy"] + 10 * row["train_ksvd"] + 0.5 * row["train_kl"]
        assert row["train_loss"] == pytest.approx(expected, rel=1e-5)
        assert row["train_kl"] > 0
    for row in history(backbone(data, "bare", **options)):
        assert row["train_loss"] == pytest.approx(row["train_cross_entropy"])


def test_the_divergence_of_a_sparse_gaussian_process_rises_into_the_loss(data):
    options = {"attention": sgpa_attention(), "penalties": {"kl": 0.5}}
    rows = history(backbone(data, annealing=0.25, **options))  # the first of four epochs
    parts = [(row["train_loss"] - row["train_cross_entropy"]) / row["train_kl"] for row in rows]
    assert 0 < parts[0] < 0.5 and parts[1:] == pytest.approx([0.5] * 3, rel=1e-4)
    at_once = history(backbone(data, "at once", **options))
    assert at_once[0]["train_loss"] == pytest.approx(
        at_once[0]["train_cross_entropy"] + 0.5 * at_once[0]["train_kl"], rel=1e-5
    )


def test_a_student_of_a_sparse_gaussian_process_and_samples_of_its_own(data):
    folder = backbone(data, attention=sgpa_attention(), penalties={"kl": 0.01}, annealing=0.5)
    examples = ImageExamples(Dataset.load(data / "data"), NORMALISATION)
    made, _ = load_model(student(data) / WEIGHTS)
    assert not [name for name, _ in made.named_parameters() if "log_ls" in name or name.endswith(".z")]
    teacher, _ = load_model(folder / WEIGHTS)
    options = {"randomness": "noise", "samples": 3, "seed": 1}
    together, apart = (predict(teacher, examples, batch_size=size, **options).logits for size in (120, 7))
    np.testing.assert_allclose(together, apart, atol=1e-5)
    assert together.std(0).min() > 0
    mean = predict(teacher, examples).logits
    assert np.abs(together - mean).max() > 1e-4


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


# -- a student ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def taught(data):
    """The same folder with a teacher in it."""
    backbone(data, training={"epochs": 2})
    return data


def student(folder, name="director", losses=(), training=(), views=None, settings=(), **options):
    """Train a student with changed settings; its folder."""
    changes = {"losses": dict(losses), "training": dict(training), "trajectory": {"views": views}, **dict(settings)}
    return trained_student(folder, name, student=changed(STUDENT, **changes), **options)


def cached(folder, views=2, **options):
    """Capture the path of the backbone; the folder of each view."""
    return cached_path(folder, views, **options)


def test_student_writes_what_a_backbone_does_and_its_seconds_include_the_teachers(taught):
    teacher_cost = taught / "backbone" / "cost.json"
    content = read_json(teacher_cost)
    alone = read_json(student(taught, "alone") / COST)
    write_json(teacher_cost, content | {"train_seconds": 1000.0})
    folder = student(taught)
    cost = read_json(folder / COST)
    assert content["train_seconds"] < alone["train_seconds"] < 1000 < cost["train_seconds"] < 1100
    model, about = load_model(folder / WEIGHTS)
    assert isinstance(model, StudentNetwork) and model.steps == IMAGE_MODEL.depth
    assert cost["parameters"] == parameter_count(model)
    assert about["teacher"] == file_digest(taught / "backbone" / "model.safetensors")
    settings = yaml.safe_load((folder / SETTINGS).read_text())
    assert (settings["losses"], settings["kernel"]) == (LOSSES.model_dump(), KERNEL.model_dump())
    written, of_teacher = ({path.name for path in (taught / name).iterdir()} for name in ("director", "backbone"))
    assert written == of_teacher - {EARLY}


def test_the_teacher_stays_as_it_was(taught, monkeypatch):
    """File, parameters and buffers, and that nothing of it is shared with the student."""
    file = taught / "backbone" / "model.safetensors"
    before, loaded = file.read_bytes(), []

    def watched(*arguments):
        loaded.append(load_model(*arguments)[0])
        return loaded[0], {}

    monkeypatch.setattr("director.training.train_student.load_model", watched)
    folder = student(taught)
    assert file.read_bytes() == before
    (teacher,), (untouched, _), (distilled, _) = loaded, load_model(file), load_model(folder / WEIGHTS)
    assert teacher.state_dict().keys() == untouched.state_dict().keys()
    for name, tensor in untouched.state_dict().items():
        assert torch.equal(teacher.state_dict()[name], tensor), name
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.training
    # while the student's copies of the same tensors have learned
    for name in ("embedding.position", "embedding.linear.weight"):
        assert not torch.equal(distilled.get_parameter(name), untouched.get_parameter(name))


def test_cache_and_live_give_the_same_weights(taught):
    """Three epochs, two augmented views in turn, batches that are none of the capture's."""
    live = student(taught, "live", views=2)
    read = student(taught, "read", views=2, cache_folders=cached(taught))
    assert (live / HISTORY).read_bytes() == (read / HISTORY).read_bytes()
    one, other = (load_model(folder / WEIGHTS)[0].state_dict() for folder in (live, read))
    assert all(torch.equal(one[name], other[name]) for name in one)
    fresh = student(taught, "fresh")
    assert history(fresh)[1] == history(live)[1], "epoch 2 sees view 1 either way"
    assert history(fresh)[2] != history(live)[2], "epoch 3 sees view 2, or view 0 again"


def test_cached_batches_reach_the_loss_in_the_precision_of_the_cache(taught, monkeypatch):
    """Half the bytes travel to a GPU; what the loss computes with is float32 again."""
    seen, losses = set(), set()
    to_device, path_loss = fit.to_device, StudentNetwork.path_loss

    def watched(batch, device):
        if isinstance(batch, dict):
            seen.update((name, batch[name].dtype) for name in ("states", "variances"))
        return to_device(batch, device)

    def watched_loss(self, states, variances, *rest):
        losses.update({states.dtype, variances.dtype})
        return path_loss(self, states, variances, *rest)

    live = history(student(taught, "live", views=2))
    monkeypatch.setattr(fit, "to_device", watched)
    monkeypatch.setattr(StudentNetwork, "path_loss", watched_loss)
    read = history(student(taught, "read", views=2, cache_folders=cached(taught, dtype="bfloat16")))
    assert seen == {("states", torch.bfloat16), ("variances", torch.bfloat16)}
    assert losses == {torch.float32}
    assert read != live
    for one, other in zip(read, live, strict=True):
        assert one["train_path"] == pytest.approx(other["train_path"], rel=0.05)


def test_the_seconds_of_the_capture_are_the_students(taught):
    folders = cached(taught)
    cost_file = taught / "trajectory/cost.json"
    assert read_json(cost_file)["train_seconds"] > 0
    write_json(cost_file, {"train_seconds": 500.0})
    options = {"views": 2, "cache_folders": folders}
    without = read_json(student(taught, "without", **options) / COST)["train_seconds"]
    seconds = read_json(student(taught, **options, cost_files=(cost_file,)) / COST)["train_seconds"]
    assert without < 400 and 500 < seconds < 900


def test_validation_predicts_in_batches_of_its_own_size(taught, monkeypatch):
    asked = []

    def watched(model, examples, **options):
        asked.append((options["batch_size"], options["randomness"], options["samples"]))
        return predict(model, examples, **options)

    monkeypatch.setattr(job, "predict", watched)
    backbone(taught, "other", training={"epochs": 2}, predict_batch=3)
    assert asked == [(3, "none", 1)] * 2
    asked.clear()
    student(taught, predict_batch=5)
    assert asked == [(5, "noise", STUDENT.selection_samples)] * 3


def test_a_state_is_not_resumed_after_a_change_of_the_students_code(taught, monkeypatch):
    """The digest in a state's identity covers the function that the loss is defined in, and all that it reaches."""
    asked = []
    digest = job.code_digest
    monkeypatch.setattr(job, "code_digest", lambda source: asked.append(source) or digest(source))
    student(taught, "asked")
    assert asked == ["director.training.train_student:train_student"]


def test_with_a_cache_the_teacher_does_not_run(taught, monkeypatch):
    folders = cached(taught)
    monkeypatch.setattr("director.training.train_student.capture", pytest.fail)
    student(taught, views=2, cache_folders=folders)


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({"teacher": "other"}, "weights is '"),
        ({"losses": {"softmax_variance": "zero"}}, "softmax_variance is 'attention_moments', not 'zero'"),
        ({"seed": 4}, "seed is 3, not 4"),
        ({"augmentation": None}, "augmentation is .* not None"),
        ({"normalisation": changed(NORMALISATION, scale=16.0)}, "normalisation is "),
    ],
)
def test_a_cache_of_something_else_is_refused_by_name(taught, changes, entry):
    backbone(taught, "other", seed=4, training={"epochs": 2})
    with pytest.raises(InputError, match=f"view-0: stale trajectory cache .*{entry}"):
        student(taught, views=2, cache_folders=cached(taught), **changes)
    assert not (taught / "director").exists()


def test_a_cache_of_another_view_or_another_split_is_refused(taught):
    folders = cached(taught)
    with pytest.raises(InputError, match=r"view-1: stale trajectory cache .*view is 1, not 0"):
        student(taught, views=2, cache_folders=folders[::-1])
    parts = {"train": np.arange(8, 32), "validation": np.arange(8), "test": np.arange(32, 40)}
    write_split(taught / "split.npz", parts)
    with pytest.raises(InputError, match=r"view-0: stale trajectory cache .*examples is "):
        student(taught, views=2, cache_folders=folders)


def test_the_losses_add_up_with_their_weights(taught):
    for row in history(student(taught, losses={"path_weight": 3.0, "task_weight": 0.25})):
        assert row["train_loss"] == pytest.approx(3 * row["train_path"] + 0.25 * row["train_task"], rel=1e-5)
        assert row["train_path"] > 0 and row["train_task"] > 0


@pytest.mark.parametrize(
    ("losses", "terms"),
    [
        ({"path": "none"}, {"task"}),
        ({"task_weight": 0.0}, {"path"}),
        ({"path": "mse", "std_weight": 0.5}, {"path", "task"}),
    ],
)
def test_a_loss_that_is_off_is_not_computed(taught, monkeypatch, losses, terms):
    called = set()
    for term in ("path", "task"):
        method = getattr(StudentNetwork, f"{term}_loss")
        monkeypatch.setattr(StudentNetwork, f"{term}_loss", lambda *given, m=method, t=term: called.add(t) or m(*given))
    first, *_ = history(student(taught, losses=losses))
    assert called == terms == {key.removeprefix("train_") for key in first if key.startswith("train_")} - {"loss"}
    assert first["train_loss"] == pytest.approx(sum(first[f"train_{term}"] for term in terms), rel=1e-5)


def test_options_of_the_path_loss_reach_it(taught):
    def first(name, **losses):
        return history(student(taught, name, losses=losses, training={"epochs": 2}))[0]["train_path"]

    kl, mse = first("kl"), first("mse", path="mse")
    assert first("std", path="mse", std_weight=1.0) > mse
    assert first("floor", variance_floor=1.0) != kl
    assert first("zero", softmax_variance="zero") != kl


def test_plain_distillation_without_path_and_noise(taught):
    """One deterministic pass that learns the teacher's predictions: what the path and its noise are compared with."""
    losses = {"path": "none", "logit_weight": 1.0, "task_weight": 0.0}
    settings = {"noise": False, "samples": [1], "selection_samples": 1}
    folder = student(taught, losses=losses, settings=settings, training={"epochs": 4})
    rows = history(folder)
    assert set(rows[0]) >= {"train_loss", "train_logit"} and not {"train_path", "train_task"} & set(rows[0])
    assert all(row["train_loss"] == pytest.approx(row["train_logit"]) for row in rows)
    assert rows[-1]["train_logit"] < rows[0]["train_logit"]


@pytest.mark.parametrize("frozen", [["embedding"], ["readout"], ["embedding", "readout"]])
def test_frozen_parts_stay_the_teachers(taught, frozen):
    before, _ = load_model(taught / "backbone/model.safetensors")
    teacher = dict(zip(("embedding", "readout"), path_of(before).student_parts(), strict=True))
    network, _ = load_model(student(taught, settings={"freeze": frozen}) / WEIGHTS)
    for name, part in teacher.items():
        trained = getattr(network, name).state_dict()
        same = all(torch.equal(trained[key], tensor) for key, tensor in part.state_dict().items())
        assert same is (name in frozen)
    assert read_json(taught / "director/cost.json")["parameters"] == parameter_count(network), "kept ones count, too"


def test_the_task_loss_reaches_the_kernel_through_every_step(taught, monkeypatch):
    """One free roll-out in training: each step's mean and log-variance receive a gradient, the first one's too."""
    step, reached = StudentNetwork.step, {}

    def watched(self, t, x, mask=None, noise=None, conditions=None, samples=1):
        after, log_variance = step(self, t, x, mask, noise, conditions, samples)
        if after.requires_grad:
            assert noise is not None, "a step of training without noise"
            for name, tensor in (("state", after), ("log_variance", log_variance)):
                tensor.register_hook(lambda gradient, key=(name, t): reached.update({key: gradient.abs().sum().item()}))
        return after, log_variance

    monkeypatch.setattr(StudentNetwork, "step", watched)
    student(taught, losses={"path": "none"}, training={"epochs": 1, "warmup_epochs": 0})
    assert set(reached) == {(name, t) for name in ("state", "log_variance") for t in range(IMAGE_MODEL.depth)}
    assert min(reached.values()) > 0


@pytest.mark.parametrize("from_cache", [False, True])
def test_a_killed_distillation_goes_on_and_ends_the_same(taught, monkeypatch, from_cache):
    """Trap 24, for a student: killed in each epoch, after a step that was saved."""
    options = {"views": 2, "cache_folders": cached(taught)} if from_cache else {}
    whole = student(taught, "whole", **options)
    monkeypatch.setattr(job, "fit", partial(job.fit, state_seconds=0))
    task_loss, steps = StudentNetwork.task_loss, []

    def mortal(*given):
        steps.append(None)
        if len(steps) in (3, 6, 9):  # three steps to an epoch; a step that dies is taken again
            raise KeyboardInterrupt
        return task_loss(*given)

    monkeypatch.setattr(StudentNetwork, "task_loss", mortal)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            student(taught, "killed", **options)
    killed = student(taught, "killed", **options)
    assert len(steps) == 9 + 3, "every step once, and the three that died again"
    for name in (WEIGHTS, HISTORY, SETTINGS):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert not (killed / "state.safetensors").exists()


def test_a_student_of_a_kernel_eigenpair_teacher(data):
    backbone(data, attention=kep_attention(), training={"epochs": 2}, penalties={"ksvd": 0.1, "kl": 0.001})
    folder = student(data)
    model, _ = load_model(folder / WEIGHTS)
    assert not [name for name, _ in model.named_parameters() if "log_l" in name or "qk" in name]
    # its last layer has a variance of its own, whatever softmax layers are said to have
    zero = history(student(data, "zero", losses={"softmax_variance": "zero"}))
    assert zero[0]["train_path"] != history(folder)[0]["train_path"]
    logits = predict(model, ImageExamples(Dataset.load(data / "data"), NORMALISATION), batch_size=40).logits
    assert logits.shape == (1, COUNT, 2)

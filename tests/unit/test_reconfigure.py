"""The user's door: somebody's classifier in, calibrated predictions out."""

import json
import re
import runpy
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import timm
import torch
import transformers
from timm.models import vision_transformer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from director.errors import InputError
from director.numbers.metrics import nll
from director.path.partial import FrozenPrefix
from director.path.residual import path_of
from director.path.timm_models import VisionTransformerPath
from director.path.trajectory import capture
from director.reconfigure import DESCRIPTION, WEIGHTS, Director
from director.settings.training import Kernel, Losses, Training
from director.training.batches import Batches, LiveBatches, captured_states

ROOT = Path(__file__).resolve().parents[2]
COUNT, CLASSES = 48, 3
SHORT = Training(epochs=3, batch_size=8, learning_rate=3e-3, warmup_epochs=1, selection="val_nll")


def vit(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 4, "num_heads": 2, "num_classes": CLASSES}
    model = vision_transformer.VisionTransformer(**sizes | changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def text_model(kind, seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 8}
    sizes |= {} if kind == "Bert" else {"num_key_value_heads": 1}
    config = getattr(transformers, f"{kind}Config")(vocab_size=30, pad_token_id=0, num_labels=CLASSES, **sizes)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def images(count=COUNT):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, 8, 8, generator=generator)
    return inputs, (inputs.mean((1, 2, 3)) > 0).long()


def texts(count=COUNT):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 8, (count, 1), generator=generator)
    mask = torch.arange(7) < lengths
    tokens = torch.where(mask, torch.randint(3, 30, (count, 7), generator=generator), 0)
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": (lengths[:, 0] > 4).long()}


def fitted(model=None, data=None, **options):
    model = vit() if model is None else model
    data = images() if data is None else data
    return Director.from_model(model, last=2, verbose=False).fit(data, data, training=SHORT, **options)


@pytest.mark.parametrize("kind", ["Bert", "Qwen2"])
def test_a_text_classifier_is_fitted_and_predicts(kind):
    model, data = text_model(kind), texts()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    student = fitted(model, data)
    assert len(student.history) == 3 and student.history[-1]["train_loss"] < student.history[0]["train_loss"]
    probabilities, uncertainty = student.predict(data, samples=5, seed=0)
    assert probabilities.shape == (COUNT, CLASSES)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    parts = uncertainty.expected_entropy + uncertainty.mutual_information
    np.testing.assert_allclose(uncertainty.predictive_entropy, parts, atol=1e-6)
    assert (uncertainty.mutual_information >= -1e-9).all()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "given",
    [
        lambda inputs, labels: DataLoader(TensorDataset(inputs, labels), batch_size=8),
        lambda inputs, labels: [(inputs[:20], labels[:20]), (inputs[20:], labels[20:])],
        lambda inputs, labels: {"image": inputs, "labels": labels},
        lambda inputs, labels: datasets.Dataset.from_dict({"image": inputs.numpy(), "label": labels.numpy()}),
    ],
    ids=["loader", "batches", "columns", "dataset"],
)
def test_data_come_as_loaders_batches_columns_or_data_sets(given):
    """The same images in another shape are the same predictions, whatever the batches."""
    inputs, labels = images()
    student, data = fitted(), given(inputs, labels)
    expected, found = student.predictions((inputs, labels)), student.predictions(data)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
    assert np.array_equal(found.labels, labels.numpy())
    again = fitted(data=data)
    assert [row["val_nll"] for row in again.history] == pytest.approx(
        [row["val_nll"] for row in student.history], rel=1e-4
    )


def test_texts_of_a_data_set_are_padded():
    """Token lists of different lengths, without a mask, and a column of words that the model does not take."""
    data = texts()
    real = data["attention_mask"].bool()
    columns = {
        "input_ids": [tokens[mask].tolist() for tokens, mask in zip(data["input_ids"], real, strict=True)],
        "label": data["labels"].tolist(),
        "text": ["words"] * COUNT,
    }
    student = Director.from_model(text_model("Bert"), last=1, verbose=False)
    expected = student.predictions(data)
    found = student.predictions(datasets.Dataset.from_dict(columns))
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)


def test_states_that_are_captured_once_are_those_of_the_live_model():
    """On whatever side texts are padded."""
    for model, data in ((vit(), images()), (text_model("Bert"), texts()), (text_model("Llama"), texts())):
        student = Director.from_model(model, last=2, verbose=False)
        batches = Batches(data, model, 8)
        captured = captured_states(student.path, batches, Losses(), CLASSES, 1.0)
        rows, start = np.arange(8), 0
        for inputs, labels in batches:
            trajectory = capture(student.path, inputs)
            batch, truth = captured.batch(rows + start, 0)
            tokens = batch["states"].shape[2]
            mask = trajectory.mask
            torch.testing.assert_close(batch["states"], trajectory.states[:, :, :tokens])
            torch.testing.assert_close(batch["variances"], trajectory.variances[:, :, :tokens])
            assert mask is None or torch.equal(batch["mask"], mask[:, :tokens])
            assert torch.equal(truth, labels)
            start += len(rows)
        assert len(captured) == start == COUNT
        order = np.concatenate(captured.epoch_batches(5, 0, 0))
        assert sorted(order) == list(range(COUNT)) and list(order) != sorted(order)


def test_the_frozen_prefix_runs_once_per_input(monkeypatch):
    model, data, seen = vit(), images(), []
    model.blocks[0].register_forward_hook(lambda *_: seen.append("module"))
    embed = VisionTransformerPath._embed
    monkeypatch.setattr(VisionTransformerPath, "_embed", lambda self, x: seen.append(len(x)) or embed(self, x))
    student = Director.from_model(model, last=2, verbose=False).fit(data, data, training=SHORT)
    batches, first = COUNT // 8, 1
    # the batch that is checked, then each training and each validation batch once, whatever the epochs and samples
    assert seen.count(8) == first + 2 * batches
    seen.clear()
    student.predict(data, samples=7, batch_size=8)
    assert seen == [8] * batches


def test_beyond_the_memory_that_it_may_take_the_model_runs_live():
    data = DataLoader(TensorDataset(*images()), batch_size=8)
    captured, live = fitted(data=data), fitted(data=data, cache_gigabytes=0.0)
    assert isinstance(live.network.embedding, FrozenPrefix)
    # the same student from batches in another order
    assert live.history[-1]["val_nll"] == pytest.approx(captured.history[-1]["val_nll"], abs=0.1)
    whole = Director.from_model(vit(), last=4, states_every=2, verbose=False)
    assert not isinstance(whole.network.embedding, FrozenPrefix)
    before = whole.network.embedding.parts.patch_embed.proj.weight.clone()
    whole.fit(data, data, training=SHORT)
    assert not torch.equal(before, whole.network.embedding.parts.patch_embed.proj.weight), "it is trained, too"


def test_the_sizes_of_live_batches_are_those_of_the_loader_and_may_not_change():
    inputs, labels = images(10)
    data = DataLoader(TensorDataset(inputs, labels), batch_size=4)
    live = LiveBatches(Batches(data, vit(), 99), CLASSES)
    assert [len(rows) for rows in live.epoch_batches(99, 0, 0)] == live.sizes == [4, 4, 2] and len(live) == 10
    changing = [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]
    live = LiveBatches(Batches(changing, vit(), 99), CLASSES)
    rows = live.epoch_batches(99, 0, 0)
    changing[0] = (inputs[:3], labels[:3])
    with pytest.raises(InputError, match="a batch of 4 inputs had 3 in another epoch"):
        live.batch(rows[0], 0)


def test_the_epoch_is_chosen_and_the_training_stopped_by_validation_nll():
    data, other = images(), (images()[0], torch.randint(CLASSES, (COUNT,)))  # nothing to learn there
    training = SHORT.model_copy(update={"epochs": 12, "patience": 2})
    student = Director.from_model(vit(), last=2, verbose=False).fit(data, other, training=training, fit_noise=False)
    values = [row["val_nll"] for row in student.history]
    assert len(values) < 12 and int(np.argmin(values)) == len(values) - 3
    assert student.noise_scale == 1.0
    assert nll(student.predictions(other, samples=4)) == pytest.approx(min(values), rel=1e-4)


def test_as_a_module_it_gives_averaged_log_probabilities():
    inputs, labels = images(6)
    student = fitted(fit_noise=False)
    student.train()
    output = student(inputs)
    assert output.shape == (6, CLASSES) and student.network.training
    probabilities, _ = student.predict((inputs, labels))
    np.testing.assert_allclose(output.detach().exp().numpy(), probabilities, atol=1e-5)
    assert nn.functional.nll_loss(output, labels).item() == pytest.approx(
        nll(student.predictions((inputs, labels))), rel=1e-4
    )


@pytest.mark.parametrize("model", [vit, lambda: text_model("Qwen2")], ids=["vit", "qwen2"])
def test_a_saved_student_is_the_same_around_the_same_model(model, tmp_path):
    data = images() if model is vit else texts()
    student = fitted(model(), data)
    student.noise_scale = 1.5
    student.save(tmp_path / "calibrated")
    again = Director.load(tmp_path / "calibrated", model())
    assert np.array_equal(again.predict(data)[0], student.predict(data)[0])
    assert again.history == student.history and not again.training
    names = {name.split(".")[0] for name in again.network.state_dict()}
    assert names == {"kernel", "readout"}, "what stays of the model is not saved"
    assert sorted(path.name for path in (tmp_path / "calibrated").iterdir()) == [DESCRIPTION, WEIGHTS]


def test_a_saved_student_is_refused_by_another_model_and_when_it_is_damaged(tmp_path):
    student = fitted()
    student.save(tmp_path)
    with pytest.raises(InputError, match=r"VisionTransformer with fingerprint \w+, but the given .* has \w+; give"):
        Director.load(tmp_path, vit(seed=1))
    description = json.loads((tmp_path / DESCRIPTION).read_text())
    (tmp_path / DESCRIPTION).write_text(json.dumps(description | {"kernel": {"mlp_ratio": "wide"}}))
    with pytest.raises(InputError, match=r"student\.json.*give a folder that `Director\.save` wrote"):
        Director.load(tmp_path, vit())
    (tmp_path / DESCRIPTION).write_text(json.dumps(description))
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(InputError, match=r"student\.safetensors is not the file that student\.json describes"):
        Director.load(tmp_path, vit())
    with pytest.raises(InputError, match=r"student\.json"):
        Director.load(tmp_path / "nothing", vit())


def test_what_was_found_is_printed_with_the_reason_of_the_default(capsys):
    student = Director.from_model(vit(depth=6))
    shown = capsys.readouterr().out
    assert "VisionTransformer: 6 layers, 7 states of width 8, 2 heads" in shown
    assert "the last 2 layers become 2 steps" in shown and "the first 4 stay" in shown
    assert "forgets the pretraining" in shown
    assert student.path.steps == 2
    Director.from_model(text_model("Qwen2"), last=4, states_every=2)
    shown = capsys.readouterr().out
    assert "causal" in shown and "become 2 steps of one kernel; the first 0 stay" in shown and "last third" not in shown


def test_a_half_precision_model_keeps_its_precision_and_the_student_trains_in_full():
    model = vit().bfloat16()
    inputs, labels = images()
    data = [(inputs.bfloat16(), labels)]
    student = fitted(model, data)
    assert {parameter.dtype for parameter in student.network.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert np.isfinite(student.predict(data)[0]).all()
    double = fitted(vit().double(), [(inputs.double(), labels)])
    assert {parameter.dtype for parameter in double.network.parameters()} == {torch.float64}


@pytest.mark.parametrize("states_every", [0, 3, 5])
def test_steps_that_do_not_fit_are_refused_by_the_value_that_was_given(states_every):
    if states_every == 3:
        assert Director.from_model(vit(), states_every=3, verbose=False).path.kept == 1
        return
    with pytest.raises(InputError, match=f"states_every (is )?{states_every}"):
        Director.from_model(vit(), states_every=states_every, verbose=False)


class Unforeseen(nn.Module):
    """A classifier of nobody's."""

    def forward(self, inputs):
        return inputs.mean((2, 3))


def test_a_model_that_is_not_known_is_refused_with_the_nearest_and_the_argument():
    with pytest.raises(InputError, match=r"Unforeseen has no residual path here; known, the nearest first: .*path="):
        Director.from_model(Unforeseen())
    with pytest.raises(InputError, match="path is a view of another model"):
        Director.from_model(vit(), path=path_of(vit()))


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (iter([1]), "can be walked once only; give a list or a DataLoader"),
        (7, "int cannot be walked; give batches"),
        ([], "there is no training input"),
        ([images()[0]], "the training batches have no labels"),
        ((images()[0], images()[1].float()), r"training labels of shape \(8,\) and type float32; give class numbers"),
        ((images()[0], images()[1] + 7), "training labels from 7 to 8, but the model has classes 0 to 2"),
    ],
    ids=["iterator", "number", "empty", "unlabelled", "real", "classes"],
)
def test_data_that_cannot_be_learned_from_are_refused(train, words):
    for last in (2, 4):  # behind a frozen prefix, and where all layers are replaced
        student = Director.from_model(vit(), last=last, kernel=Kernel(), verbose=False)
        with pytest.raises(InputError, match=words):
            student.fit(train, images(), training=SHORT)
    if not isinstance(train, int) and not hasattr(train, "__next__"):
        with pytest.raises(InputError, match=words.replace("training", "validation")):
            student.fit(images(), train, training=SHORT)


# -- what docs/your-own-model.md and examples/ show


class Encoder(nn.Module):
    """The classifier for which the page writes a path."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.width, self.heads, self.linear = 8, 2, nn.Linear(5, 8)
        options = {"dim_feedforward": 16, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, **options) for _ in range(3)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d((1, 8)), nn.Flatten(), nn.Linear(8, CLASSES))

    def forward(self, inputs):
        x = self.linear(inputs)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shown(number):
    page = (ROOT / "docs/your-own-model.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)[number]


def test_the_page_of_your_own_model_runs(tmp_path, monkeypatch):
    """With tiny weights in place of downloaded ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timm, "create_model", lambda *name, **options: vit())
    text = text_model("Bert")
    monkeypatch.setattr(transformers.AutoModelForSequenceClassification, "from_pretrained", lambda name: text)
    columns = texts()
    lists = {"input_ids": columns["input_ids"].tolist(), "label": columns["labels"].tolist()}
    for number, data in ((0, [images()]), (1, datasets.Dataset.from_dict(lists))):
        names = dict.fromkeys(("train", "validation", "test"), data)
        exec(shown(number), names)
        assert names["probabilities"].shape == (COUNT, CLASSES) and names["student"].history
        assert len(shown(number).splitlines()) <= 9


def test_a_model_that_nobody_foresaw_takes_the_path_of_the_page(tmp_path):
    names = {"model": Encoder()}
    exec(shown(3), names)
    inputs = torch.randn(COUNT, 4, 5, generator=torch.Generator().manual_seed(2))
    data = (inputs, (inputs.mean((1, 2)) > 0).long())
    student = names["student"].fit(data, data, training=SHORT)
    student.save(tmp_path)
    again = Director.load(tmp_path, names["model"], path=names["MyPath"](names["model"]))
    assert np.array_equal(again.predict(data)[0], student.predict(data)[0])
    with pytest.raises(InputError, match="path="):
        Director.load(tmp_path, names["model"])


@pytest.mark.parametrize("name", ["timm_images", "transformers_texts"])
def test_the_examples_run(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--epochs", "1"])
    runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    assert re.search(r"student +accuracy 0\.\d{3}, NLL \d\.\d{3}", capsys.readouterr().out)

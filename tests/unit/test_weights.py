"""Files of weights: what was saved comes back, and what cannot be used is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from director.data.tokenizer import load_tokenizer, train_tokenizer
from director.errors import InputError
from director.models.pretrained import PretrainedClassifier
from director.models.student import StudentNetwork
from director.models.transformers import ImageTransformer, TextTransformer
from director.models.weights import FORMAT, KINDS, load_model, save_model
from director.noise import ExampleNoise
from director.path.residual import path_of, student_of
from director.settings.training import Kernel

SIZES = {"width": 12, "depth": 3, "heads": 3, "mlp_width": 10}
IMAGE = {**SIZES, "image_size": 8, "channels": 2, "patch": 4, "classes": 5}
TOKENIZER = train_tokenizer(["the key is here", "the keys are here", "a bird sings", "birds sing"], 60)
TEXT = {**SIZES, "max_length": 7, "classes": 4, "tokenizer": TOKENIZER}
KEP_SUM = {"kind": "kep_svgp", "layers": 2, "variant": "sum", "rank": 2, "multiplier": 2}
SGPA = {"kind": "sgpa", "layers": 2, "kernel": "exponential", "inducing": 2}


def image_model(**changes):
    torch.manual_seed(1)
    return ImageTransformer(**IMAGE | changes).eval()


def text_model(**changes):
    torch.manual_seed(1)
    return TextTransformer(**TEXT | changes).eval()


def moved_student(teacher, **kernel):
    """A student away from its start, where every step is the identity."""
    made = student_of(path_of(teacher), Kernel(**kernel)).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in made.kernel.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def images(count=4):
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(2))


def texts():
    mask = torch.arange(7) < torch.tensor([7, 1, 4])[:, None]
    return {"tokens": torch.randint(10, (3, 7), generator=torch.Generator().manual_seed(3)), "mask": mask}


@pytest.mark.parametrize("attention", [None, KEP_SUM, SGPA], ids=["softmax", "kep_svgp", "sgpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_comes_back(tmp_path, attention, dtype):
    model = image_model(attention=attention).to(dtype)
    save_model(tmp_path / "a.safetensors", model, {"seed": 3})
    before = torch.random.get_rng_state()
    again, about = load_model(tmp_path / "a.safetensors")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert about == {"seed": 3} and again.settings == model.settings == IMAGE | model.settings
    assert not again.training and all(parameter.requires_grad for parameter in again.parameters())
    assert torch.equal(again(images().to(dtype)), model(images().to(dtype)))
    save_model(tmp_path / "b.safetensors", again, {"seed": 3})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention": KEP_SUM}, {"attention": SGPA}, {"embedding_width": 5}],
    ids=["softmax", "kep", "sgpa", "table"],
)
def test_a_saved_text_model_comes_back_with_its_tokenizer(tmp_path, changes):
    save_model(tmp_path / "a.safetensors", text_model(**changes), {"seed": 3})
    again, _ = load_model(tmp_path / "a.safetensors")
    assert isinstance(again, TextTransformer)
    torch.testing.assert_close(again(texts()), text_model(**changes)(texts()))
    assert load_tokenizer(again.settings["tokenizer"]).encode("the keys").tokens[0] == "the"
    student = moved_student(text_model(**changes))
    save_model(tmp_path / "student.safetensors", student, {})
    student_again, _ = load_model(tmp_path / "student.safetensors")
    torch.testing.assert_close(student_again(texts()), student(texts()))
    assert student_again.settings["backbone"]["settings"]["tokenizer"] == TOKENIZER


@pytest.mark.parametrize("attention", [None, KEP_SUM, SGPA], ids=["softmax", "kep_svgp", "sgpa"])
def test_a_saved_student_comes_back(tmp_path, attention):
    teacher = image_model(attention=attention, heads=2).double()
    made = moved_student(teacher, mlp_ratio=2.0, mlp_first=True, dropout=0.2)
    save_model(tmp_path / "student.safetensors", made, {"epoch": 4})
    again, about = load_model(tmp_path / "student.safetensors")
    assert isinstance(again, StudentNetwork) and about == {"epoch": 4} and again.settings == made.settings
    assert again.kernel.mlp_first and again.kernel.attention.heads == 2
    assert str(again) == str(made)  # dropout rates, too
    noise = ExampleNoise(0, range(4), 1)
    assert torch.equal(again(images().double(), noise), made(images().double(), noise))


@pytest.mark.parametrize("notes", range(8))
def test_the_numbers_of_a_loaded_model_do_not_depend_on_the_length_of_its_notes(tmp_path, notes):
    made = moved_student(image_model(heads=2).double(), mlp_ratio=2.0)
    save_model(tmp_path / "student.safetensors", made, {"notes": 8 * notes * "a"})
    again, _ = load_model(tmp_path / "student.safetensors")
    assert all(tensor.data_ptr() % 16 == 0 for tensor in again.state_dict().values())
    assert torch.equal(again(images().double()), made(images().double()))


def test_unusable_model_files_are_named(tmp_path):
    good, student = tmp_path / "good.safetensors", tmp_path / "student.safetensors"
    save_model(good, image_model(), {})
    save_model(student, moved_student(image_model()), {})

    def refused(content, message, name="bad.safetensors"):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}.*{message}"):
            load_model(tmp_path / name)

    refused(None, "no such file", "missing.safetensors")
    refused(good.read_bytes()[:-10], "not a whole safetensors file")
    refused(b"", "not a whole safetensors file")
    refused(b"PK" + bytes(100), "not a whole safetensors file")

    def rewritten(header, weights=good):
        metadata = None if header is None else {"director": json.dumps(header)}
        save_file(load_file(weights), tmp_path / "bad.safetensors", metadata=metadata)

    def header(kind="image_transformer", **changes):
        return {"format": FORMAT, "kind": kind, "settings": image_model().settings | changes, "about": {}}

    for content, message in [
        (None, "director did not write"),
        ([], "director did not write"),
        ({"format": FORMAT, "kind": "image_transformer"}, "director did not write"),
        (
            header("resnet"),
            "kind 'resnet'; this version knows image_transformer, text_transformer, pretrained, director",
        ),
        (header(colour=1), "do not fit.*colour"),
        (header(depth=2), "do not fit.*blocks.2"),
        (header(classes=6), "do not fit.*size mismatch"),
        (header(patch=3), "do not fit.*patches of 3"),
    ]:
        rewritten(content)
        refused(None, message)

    settings = moved_student(image_model()).settings
    for changes, message in [
        ({"steps": 0}, "do not fit.*at least 1 step, not 0"),
        ({"kernel": {"dropout": 2.0}}, "do not fit.*dropout"),
        ({"kernel": {"depth": 2}}, "do not fit.*depth"),
        ({"backbone": {"kind": "resnet", "settings": {}}}, "do not fit.*resnet"),
    ]:
        rewritten({"format": FORMAT, "kind": "director", "settings": settings | changes, "about": {}}, student)
        refused(None, message)


@pytest.mark.parametrize("version", [None, "director weights 1", 1])
def test_a_file_of_another_version_is_refused_by_name(tmp_path, version):
    """An earlier version wrote no format, and the settings of its models meant something else."""
    model = image_model()
    header = {"kind": "image_transformer", "settings": model.settings, "about": {}}
    header |= {} if version is None else {"format": version}
    path = tmp_path / "old.safetensors"
    save_file(model.state_dict(), path, metadata={"director": json.dumps(header)})
    with pytest.raises(InputError, match=rf"old\.safetensors: .*format is {version}, .* not {FORMAT}; train again"):
        load_model(path)


def test_the_header_says_its_format(tmp_path):
    from safetensors import safe_open

    save_model(tmp_path / "a.safetensors", image_model(), {"seed": 1})
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["director"])
    assert header == {
        "format": FORMAT,
        "kind": "image_transformer",
        "settings": image_model().settings,
        "about": {"seed": 1},
    }


def test_kinds_are_classes_with_that_kind():
    assert set(KINDS.values()) == {ImageTransformer, TextTransformer, PretrainedClassifier, StudentNetwork}
    assert all(model.kind == kind for kind, model in KINDS.items())


def test_a_model_without_kind_or_settings_cannot_be_saved(tmp_path):
    with pytest.raises(InputError, match=r"a\.safetensors: a Linear cannot be saved without a kind"):
        save_model(tmp_path / "a.safetensors", torch.nn.Linear(2, 2), {})
    student = moved_student(image_model())
    unsaved = StudentNetwork(student.embedding, student.kernel, student.readout, student.steps)
    with pytest.raises(InputError, match=r"a StudentNetwork cannot be saved without a kind .* and settings"):
        save_model(tmp_path / "a.safetensors", unsaved, {})
    unknown = image_model()
    unknown.kind = "resnet"  # one that `load_model` would refuse
    with pytest.raises(InputError, match=r"cannot be saved without a kind \(one of image_transformer"):
        save_model(tmp_path / "a.safetensors", unknown, {})
    assert list(tmp_path.iterdir()) == []

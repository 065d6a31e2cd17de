"""A wrong setting is one line: file, key, value, remedy."""

import copy
import inspect
import json
from pathlib import Path
from typing import get_args, get_origin

import pytest
import yaml
from pydantic import ValidationError

import director.settings.data
import director.settings.experiment
import director.settings.model
import director.settings.suite
import director.settings.training
from director.errors import InputError
from director.methods import ATTENTIONS, METHODS
from director.models import attention as attention_module
from director.models.attention import (
    KERNELS,
    VARIANTS,
    KernelEigenpairAttention,
    SparseGaussianProcessAttention,
)
from director.models.transformers import ImageTransformer, TextTransformer
from director.path.cache import DTYPES
from director.path.view import SOFTMAX_VARIANCES
from director.schema import Schema
from director.settings.experiment import Configuration, Experiment
from director.settings.model import ImageModel, TextModel
from director.settings.notation import read_yaml
from director.settings.pages import generated_files
from director.settings.reading import load_configuration, load_experiment
from director.settings.training import KepSvgp, Losses, Sgpa, Training, TrajectorySource
from director.training.fit import SELECTIONS

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "config/experiments/digits.yaml"  # it has every section
DATA = yaml.safe_load(DIGITS.read_text())["data"]
DIRECTOR = {"training": {"epochs": 30, "batch_size": 50}}


def changed(path: tuple, value) -> dict:
    content = yaml.safe_load(DIGITS.read_text())
    table = content
    for key in path[:-1]:
        table = table[key]
    if value is None:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("training", "epoch"), 3, ["training.epoch", "did you mean 'epochs'"]),
        (("traning",), {}, ["traning", "did you mean 'training'"]),
        (("data", "normalisation", "sdt"), [1.0], ["data.normalisation.sdt", "'std'"]),
        (("data", "train"), None, ["data.train", "missing"]),
        (("data", "train"), -5, ["data.train", "-5", "greater than or equal to 1"]),
        (("data", "name"), "mnist", ["data.name", "'mnist'", "'digits'"]),
        (("data", "corrupted"), "photographs", ["data.corrupted", "'photographs'", "'digits_c'"]),
        (("data", "corrupted"), "cifar10_c", ["data", "'cifar10_c'", "not a shifted copy of 'digits'"]),
        (("data", "shifted"), "cola_ood", ["data", "digits holds images, cola_ood texts", "drop one"]),
        (("data", "out_of_distribution"), ["imdb"], ["data", "digits holds images, imdb texts"]),
        (("data", "name"), "imdb", ["data", "imdb holds texts, digits_c images"]),
        (("data", "protocol"), "paper", ["data", "'paper' is for cola, not for digits"]),
        (("data", "test_examples"), 0, ["data.test_examples", "greater than or equal to 1"]),
        (("data", "normalisation"), None, ["data", "digits holds images: add normalisation"]),
        (("data", "normalisation", "std"), [0.0], ["data.normalisation.std.0", "0.0", "greater than 0"]),
        (("data", "normalisation", "mean"), [0.1, 0.2], ["2 means, 1 stds for 1 channels"]),
        (("model", "patch"), 3, ["model", "patch 3 does not divide image_size 8"]),
        (("model", "heads"), 5, ["model", "heads 5 does not divide width 64"]),
        (("model", "dropout"), 1.0, ["model.dropout", "1.0", "less than 1"]),
        (("model", "pach"), 2, ["model.pach", "unknown key", "did you mean 'patch'"]),
        (("model", "kind"), "sound", ["model:", "sound", "'image', 'text'"]),
        (("training", "learning_rate"), "fast", ["training.learning_rate", "'fast'"]),
        (("training", "epochs"), 5, ["training", "warmup_epochs 5"]),
        (("seeds",), [], ["seeds", "at least 1"]),
        (("seeds",), [0, 1, 1], ["seeds [0, 1, 1]", "twice"]),
        (("seeds",), [0], ["ensemble needs two seeds"]),
        (("methods", "softmax"), ["mle", "dropout"], ["methods.softmax.1", "'dropout'"]),
        (("methods", "softmax"), ["temperature"], ["comparison.reference", "not among the methods"]),
        (("methods", "softmax"), ["mle", "mle"], ["methods", "names one twice"]),
        (("methods", "softmax"), ["mle", "kep_svgp"], ["kep_svgp on softmax", "use a backbone kep_svgp_*"]),
        (("methods", "sgpa_1"), ["kep_svgp"], ["kep_svgp on sgpa_1", "use a backbone kep_svgp_*"]),
        (("methods", "kep_svgp_1"), ["sgpa"], ["sgpa on kep_svgp_1", "use a backbone sgpa_*"]),
        (("methods", "sgpa_6"), ["sgpa"], ["sgpa_6 has more layers than model.depth 5"]),
        (("methods", "kep_svgp_9"), ["kep_svgp"], ["kep_svgp_9 has more layers than model.depth 5"]),
        (("methods", "kep_svgp_0"), ["kep_svgp"], ["methods.kep_svgp_0", "refused", "pattern"]),
        (("methods", "kep_svgp"), ["kep_svgp"], ["methods.kep_svgp", "refused", "pattern"]),
        (("methods", "Softmax"), ["mle"], ["methods.Softmax", "refused", "pattern"]),
        (("mc_dropout",), {"samples": [1, 5]}, ["mc_dropout.samples [1, 5]", "use 2 or more"]),
        (("mc_dropout",), {"samples": 10}, ["mc_dropout.samples", "10", "valid list"]),
        (("kep_svgp",), {"samples": []}, ["kep_svgp.samples", "at least 1"]),
        (("kep_svgp",), {"variant": "both"}, ["kep_svgp.variant", "'both'", "'concat'"]),
        (("sgpa",), {"kernel": "rbf"}, ["sgpa.kernel", "'rbf'", "'ard'", "'exponential'"]),
        (("sgpa",), {"inducing": 0}, ["sgpa.inducing", "greater than or equal to 1"]),
        (("sgpa",), {"annealing": 1.5}, ["sgpa.annealing", "1.5", "less than or equal to 1"]),
        (("director", "samples"), [0], ["director.samples.0", "greater than or equal to 1"]),
        (("director", "losses"), {"path": "none", "task_weight": 0}, ["director.losses", "nothing to learn"]),
        (("director", "losses"), {"path_weight": 0, "task_weight": 0}, ["director.losses", "nothing to learn"]),
        (("director", "losses"), {"path": "wasserstein"}, ["director.losses.path", "'wasserstein'", "'kl'"]),
        (("director", "losses"), {"variance_floor": 0}, ["director.losses.variance_floor", "greater than 0"]),
        (("director", "losses"), {"task_wieght": 1}, ["director.losses.task_wieght", "did you mean 'task_weight'"]),
        (("model", "dropout"), 0, ["mc_dropout needs model.dropout above 0"]),
        (("director", "trajectory"), {"source": "cache"}, ["director.trajectory", "set views"]),
        (("director", "training", "epochs"), 5, ["director.training", "warmup_epochs 5"]),
        (("methods", "softmax"), ["mle", "director_mse"], ["director_mse", "no variant 'mse'", "known: none"]),
        (("variants",), {"temperature": {}}, ["variants", "director_temperature is another row"]),
        (("variants",), {"z": {"losses": {"softmax_variance": "zero"}}}, ["variants: z reads the cache", "live"]),
        (("variants",), {"mse": {"losses": {"pth": "mse"}}}, ["variants.mse.losses.pth", "did you mean 'path'"]),
        (("temperature",), {"lower": 3, "upper": 2}, ["temperature", "lower 3"]),
    ],
)
def test_a_wrong_setting_is_one_line_with_file_key_value_and_remedy(tmp_path, path, value, words):
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(changed(path, value)))
    with pytest.raises(InputError) as caught:
        load_experiment(file)
    message = str(caught.value)
    assert "\n" not in message
    for word in [str(file), *words]:
        assert word in message


def schemas_below(schema) -> set:
    """A table and every table in it."""
    found = {schema}
    parts = [field.annotation for field in schema.model_fields.values()]
    while parts:
        part = parts.pop()
        parts += get_args(part)
        if isinstance(part, type) and issubclass(part, Schema):
            found |= schemas_below(part)
    return found


def holding(annotation, value) -> tuple:
    """What a key of this type may hold with `value` in the place of a number; empty if no number belongs there."""
    if annotation in (int, float):
        return (value,)
    inside = next(filter(None, (holding(part, value) for part in get_args(annotation))), ())
    return ([*inside],) if inside and get_origin(annotation) is list else inside


NUMBERS = [
    pytest.param(schema, name, field.annotation, id=f"{schema.__name__}.{name}")
    for schema in sorted(schemas_below(Experiment) | schemas_below(Configuration), key=lambda schema: schema.__name__)
    for name, field in schema.model_fields.items()
    if holding(field.annotation, 1)
]


def test_the_keys_that_hold_numbers_are_found():
    keys = {parameter.id for parameter in NUMBERS}
    assert {"Normalisation.mean", "Normalisation.std", "Augmentation.padding", "Training.gradient_clip"} < keys
    assert {"Published.mcc", "Kernel.dropout", "TextModel.vocabulary", "Experiment.seeds", "Compute.threads"} < keys
    assert len(keys) > 50


@pytest.mark.parametrize(("schema", "name", "annotation"), NUMBERS)
def test_no_key_takes_for_a_number_what_is_none(schema, name, annotation):
    """Infinite, undefined, a switch, text: in every table, also in lists and where null may stand."""
    for value in (float("inf"), float("-inf"), float("nan"), True, False, "1", "010", ""):
        with pytest.raises(ValueError) as caught:
            schema.model_validate({name: holding(annotation, value)[0]})
        own = {problem["type"] for problem in caught.value.errors() if problem["loc"][0] == name}
        assert own and own <= {"int_type", "float_type", "finite_number"}, value


@pytest.mark.parametrize(
    "word", ["010", "1:30", "0x10", "0o10", "1_000", "2026-02-30", "2026-02-12", "true", "yes", '"3"']
)
@pytest.mark.parametrize(
    ("key", "remedy"), [("epochs", "decimal digits, as 10"), ("learning_rate", "decimal digits, as 0.001 or 1e-3")]
)
def test_a_number_that_is_not_plainly_one_is_refused(tmp_path, key, word, remedy):
    """YAML 1.1 reads 010 as 8, 1:30 as 90 and on as true, and has no words for 2026-02-30."""
    assert f"training.{key}: {yaml_value(word)!r} refused" in refusal(tmp_path, f"training: {{{key}: {word}}}", remedy)


@pytest.mark.parametrize("word", [".inf", "-.inf", ".nan", "1e999"])
def test_a_number_that_is_not_finite_is_refused(tmp_path, word):
    for key in ("learning_rate", "gradient_clip"):
        assert f"training.{key}: " in refusal(tmp_path, f"training: {{{key}: {word}}}", "a finite number")
    assert "training.epochs: " in refusal(tmp_path, f"training: {{epochs: {word}}}", "decimal digits, as 10")


@pytest.mark.parametrize("word", ["60.0", "1e2", "null", "~", ""])
def test_an_integer_has_no_point_and_no_power(tmp_path, word):
    assert "training.epochs: " in refusal(tmp_path, f"training: {{epochs: {word}}}", "decimal digits, as 10")


@pytest.mark.parametrize("word", ["yes", "on", "1", '"true"', "Off"])
def test_a_switch_is_true_or_false(tmp_path, word):
    shown = refusal(tmp_path, f"director: {{kernel: {{mlp_first: {word}}}}}", "write true or false")
    assert f"director.kernel.mlp_first: {yaml_value(word)!r} refused" in shown


@pytest.mark.parametrize("word", ["10", "1.5", "true", "null"])
def test_text_that_looks_like_something_else_needs_quotes(tmp_path, word):
    text = "published: {softmax: {mle: {source: %s}}}"
    assert "published.softmax.mle.source: " in refusal(tmp_path, text % word, "write it in quotes")
    (tmp_path / "right.yaml").write_text(text % f'"{word}"')
    assert read_yaml(tmp_path / "right.yaml")["published"]["softmax"]["mle"]["source"] == word


def refusal(folder, text: str, remedy: str) -> str:
    """The line with this remedy, of what is said of an experiment file that has sections of `text`."""
    (folder / "wrong.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_experiment(folder / "wrong.yaml")
    lines = [line for line in str(caught.value).splitlines() if remedy in line]
    assert len(lines) == 1 and lines[0].startswith(f"{folder / 'wrong.yaml'}: "), str(caught.value)
    return lines[0]


def yaml_value(word: str):
    """What a word means to whoever reads it."""
    return True if word == "true" else int(word) if word == "1" else word.strip('"')


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("0", 0), ("-3", -3), ("+7", 7), ("128", 128), ("1e-3", 0.001), ("1E-3", 0.001), ("5.", 5.0), ("-.5", -0.5)),
        *(("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("yes", "yes"), ("no", "no")),
        *(("00", "00"), ("01.5", "01.5"), ("1.5.2", "1.5.2"), ("12e", "12e"), ("inf", "inf"), ("2026-02-30",) * 2),
        *(("'3'", "3"), ('"true"', "true"), ("''", ""), (">-\n  3", "3"), ("=", "="), ("\u0663", "\u0663")),
    ],
)
def test_a_word_is_read_as_it_looks(tmp_path, word, value):
    (tmp_path / "a.yaml").write_text(f"key: {word}\n")
    read = read_yaml(tmp_path / "a.yaml")["key"]
    assert read == value and type(read) is type(value)


def test_shipped_files_mean_the_same_to_every_reader_of_yaml():
    for path in [ROOT / "config/config.yaml", *(ROOT / "config/experiments").glob("*.yaml")]:
        assert read_yaml(path) == yaml.safe_load(path.read_text()), path


def test_the_variance_over_dropout_masks_needs_dropout(tmp_path):
    content = yaml.safe_load(DIGITS.read_text())
    content["model"]["dropout"] = 0
    content["methods"] = {"softmax": ["mle", "director"]}
    content["director"]["losses"]["softmax_variance"] = "dropout_moments"
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"dropout_moments needs model\.dropout above 0; raise it"):
        load_experiment(file)


def test_every_problem_of_a_file_is_told_at_once(tmp_path):
    content = changed(("training", "epoch"), 3)
    content["seeds"] = []
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError) as caught:
        load_experiment(tmp_path / "wrong.yaml")
    assert len(str(caught.value).splitlines()) == 2


TEXT = {
    "data": {"name": "agreement", "train": 3000, "validation": 500, "shifted": "agreement_shifted"},
    "model": {
        "kind": "text",
        "max_length": 24,
        "vocabulary": 300,
        "width": 32,
        "depth": 2,
        "heads": 2,
        "mlp_width": 32,
        "classes": 2,
    },
    "seeds": [0],
    "methods": {"softmax": ["mle"], "kep_svgp_1": ["kep_svgp"]},
    "kep_svgp": {"variant": "sum"},
}


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("data", {"normalisation": {"mean": [0], "std": [1]}}, ["data:", "agreement holds texts", "normalisation"]),
        ("data", {"augmentation": {"flip": True}}, ["data:", "agreement holds texts", "augmentation"]),
        ("data", {"shifted": "cola_ood"}, ["data:", "'cola_ood' belongs to 'cola', not to 'agreement'"]),
        ("data", {"shifted": "imdb"}, ["data.shifted", "'imdb'", "'agreement_shifted'"]),
        ("data", {"out_of_distribution": ["svhn"]}, ["agreement holds texts, svhn images: no model reads both"]),
        ("model", {"kind": "image"}, ["model.image_size: missing"]),
        ("model", {"image_size": 8}, ["model.image_size: unknown key", "max_length"]),
        ("model", {"vocabulary": None}, ["model:", "set either vocabulary", "or tokenizer"]),
        ("model", {"tokenizer": "a/b"}, ["model:", "set either vocabulary", "or tokenizer"]),
        ("model", {"embedding": "a/b"}, ["model:", "embedding 'a/b'", "set tokenizer to it, not None"]),
        ("model", {"heads": 3}, ["model:", "heads 3 does not divide width 32"]),
        ("kep_svgp", {"variant": "concat"}, ["kep_svgp.variant concat: texts differ in length; set it to sum"]),
    ],
)
def test_a_wrong_setting_of_a_text_experiment_is_one_line_too(tmp_path, section, changes, words):
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(TEXT))
    assert load_experiment(file).model.kind == "text"
    file.write_text(yaml.safe_dump(TEXT | {section: TEXT[section] | changes}))
    with pytest.raises(InputError) as caught:
        load_experiment(file)
    lines = str(caught.value).splitlines()
    assert any(all(word in line for word in [str(file), *words]) for line in lines), lines


PRETRAINED = {"kind": "pretrained", "source": "an/encoder", "max_length": 24, "classes": 2}
ON_SOFTMAX = {"softmax": ["mle", "mc_dropout", "director"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"methods": {"softmax": ["mle"], "kep_svgp_1": ["kep_svgp"]}},
            [
                "methods: backbone kep_svgp_1: a model of kind pretrained has softmax attention",
                "use the backbone softmax",
            ],
        ),
        ({"methods": {"softmax": ["mle"], "sgpa_all": ["sgpa"]}}, ["backbone sgpa_all: a model of kind pretrained"]),
        ({"methods": {"softmax": ["mle", "sgpa"]}}, ["sgpa on softmax: no such posterior"]),
        ({"model": {"max_length": None}}, ["model.max_length is missing", "set it"]),
        ({"model": {"image_size": 224}}, ["model.image_size is for images", "leave it out"]),
        ({"model": {"last": 3, "states_every": 2}}, ["model:", "states_every 2 does not divide last 3"]),
        ({"model": {"source": ""}}, ["model.source"]),
        ({"model": {"depth": 4}}, ["model.depth: unknown key"]),
        ({"model": {"dropout": 0.0}}, ["mc_dropout needs model.dropout above 0"]),
        (
            {"model": {"fine_tune": False}, "seeds": [0, 1], "methods": {"softmax": ["mle", "ensemble"]}},
            ["methods: ensemble: with model.fine_tune false the model is the same for every seed"],
        ),
    ],
)
def test_a_wrong_setting_of_a_pretrained_model_is_one_line_too(tmp_path, changes, words):
    file = tmp_path / "wrong.yaml"
    content = TEXT | {"model": PRETRAINED, "methods": ON_SOFTMAX}
    file.write_text(yaml.safe_dump(content))
    assert load_experiment(file).model.kind == "pretrained"
    file.write_text(yaml.safe_dump(content | changes | {"model": PRETRAINED | changes.get("model", {})}))
    with pytest.raises(InputError) as caught:
        load_experiment(file)
    lines = str(caught.value).splitlines()
    assert any(all(word in line for word in [str(file), *words]) for line in lines), lines


def test_a_pretrained_model_of_images_needs_no_normalisation_but_may_have_one():
    model = {"kind": "pretrained", "source": "timm/a_vit", "classes": 10, "channels": 1}
    data = digits().model_dump()["data"]
    for normalisation in (None, data["normalisation"]):
        chosen = digits(model=model, data=data | {"normalisation": normalisation}, methods={"softmax": ["mle"]})
        assert chosen.model.fine_tune and chosen.model.image_size is None
    with pytest.raises(ValueError, match="normalisation has 1 means, 1 stds for 3 channels"):
        digits(model=model | {"channels": 3}, methods={"softmax": ["mle"]})
    with pytest.raises(ValueError, match=r"model\.max_length is for texts, the data set holds images"):
        digits(model=model | {"max_length": 4}, methods={"softmax": ["mle"]})


def test_sparse_gaussian_process_attention_reads_texts():
    """And then kep_svgp.variant, which no backbone has, does not matter."""
    methods = {"softmax": ["mle"], "sgpa_all": ["sgpa", "director"]}
    chosen = Experiment.model_validate(TEXT | {"methods": methods, "kep_svgp": {}})
    assert chosen.attention_layers("sgpa_all") == {"kind": "sgpa", "layers": 2, "kernel": "ard", "inducing": 16}


def test_a_backbone_has_its_own_attentions_penalties_training_and_annealing():
    methods = {"softmax": ["mle"], "kep_svgp_1": ["kep_svgp"], "sgpa_3": ["sgpa"]}
    sgpa = {"kernel": "exponential", "inducing": 5, "eta_kl": 0.1, "training": {"epochs": 7}, "samples": [4, 2]}
    chosen = digits(methods=methods, sgpa=sgpa)
    assert chosen.attention_layers("sgpa_3") == {"kind": "sgpa", "layers": 3, "kernel": "exponential", "inducing": 5}
    assert chosen.penalties_of("sgpa_3") == {"kl": 0.1} and chosen.training_of("sgpa_3").epochs == 7
    assert [chosen.annealing_of(backbone) for backbone in methods] == [0.0, 0.0, 0.5]
    assert chosen.samples_of("sgpa") == [2, 4]


def test_a_text_model_does_not_go_with_images_nor_an_image_model_with_texts():
    for data, model in ((digits().model_dump()["data"], TEXT["model"]), (TEXT["data"], digits().model_dump()["model"])):
        with pytest.raises(ValueError, match=r"model\.kind is \w+, but \w+ holds \w+s; set it to \w+"):
            Experiment.model_validate(TEXT | {"data": data, "model": model})


def test_suites_and_their_data_sets():
    texts, images = Experiment.model_validate(TEXT).suites, digits(data=DATA | {"test_examples": 90}).suites
    assert {name: suite.dataset for name, suite in texts.items()} == {
        "val": "agreement",
        "test": "agreement",
        "shifted": "agreement_shifted",
    }
    assert [(name, *suite.model_dump().values()) for name, suite in images.items()] == [
        ("val", "digits", "validation", True, None),
        ("test", "digits", "test", True, 90),
        ("corrupted", "digits_c", "test", True, DATA["corrupted_examples"]),
        ("ood-photographs", "photographs", None, False, 90),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeds: [0\n", "not readable as YAML"),
        ("- a\n- b\n", "holds list"),
        ("", "holds NoneType"),
        ("seeds: [0]\nseeds: [1]\n", "line 2: key 'seeds' stands twice; keep it once"),
        ("data:\n  name: digits\n  name: cola\n", "line 3: key 'name' stands twice"),
        (
            "training: &a {epochs: 3}\ndirector:\n  training:\n    <<: *a\n",
            "line 4: the merge key << is not read; write",
        ),
        ("training: {epochs: !!int '3'}\n", "line 1: the tag .*int is not read; leave it out"),
        ("training: !env SECTION\n", "the tag !env is not read"),
        ("seeds: &a [*a]\n", "not readable as YAML: .*recursive"),
        ("? [1]\n: 2\n", "not readable as YAML: .*unhashable key"),
        ("seeds: [0]\n---\nseeds: [1]\n", "not readable as YAML: expected a single document"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path, text, words):
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        load_experiment(tmp_path / "broken.yaml")
    assert "broken.yaml" in str(caught.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path, monkeypatch):
    def said(path):
        with pytest.raises(InputError) as caught:
            load_experiment(path)
        assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such file" in said(tmp_path / "nothing.yaml")
    (tmp_path / "folder.yaml").mkdir()
    assert "is a directory" in said(tmp_path / "folder.yaml")
    (tmp_path / "latin.yaml").write_bytes("data: {name: caf\u00e9}".encode("latin-1"))
    assert "can't decode" in said(tmp_path / "latin.yaml") and "UTF-8" in said(tmp_path / "latin.yaml")
    (tmp_path / "zero.yaml").write_bytes(b"data: \0")
    assert "not readable as YAML" in said(tmp_path / "zero.yaml")

    def forbidden(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", forbidden)
    assert "permission denied" in said(tmp_path / "latin.yaml")


@pytest.fixture
def shipped(tmp_path):
    """A folder with one experiment, and the configuration that the test writes into it."""
    (tmp_path / "experiments").mkdir()
    for name in ("digits", "no", "2024"):
        (tmp_path / f"experiments/{name}.yaml").write_text(DIGITS.read_text())

    def write(text):
        (tmp_path / "config.yaml").write_text(text)
        return tmp_path / "config.yaml"

    return write


def test_the_configuration_is_read_as_it_is_written_whatever_snakemake_made_of_it(shipped):
    for text, given, words in [
        ("experiments: [digits]\ncompute: {threads: 010}", {"threads": 8}, "compute.threads: '010' refused"),
        ("experiments: [digits]\ncompute: {threads: yes}", {"threads": True}, "compute.threads: 'yes' refused"),
        ("experiments: [digits]\ncompute: {compile: on}", {"compile": True}, "write true or false"),
        ("experiments: [digits]\ncompute: {threads: 1, threads: 2}", {"threads": 2}, "line 2: key 'threads' stands"),
        ("experiments: [digits]\ncompute: {<<: {threads: 2}}", {"threads": 2}, "line 2: the merge key <<"),
    ]:
        file = shipped(text)
        with pytest.raises(InputError) as caught:
            load_configuration({"experiments": ["digits"], "compute": given}, file)
        assert str(caught.value).startswith(f"{file}: ") and words in str(caught.value)
    assert list(load_configuration({}, shipped("experiments: [no]"))[1]) == ["no"]


def test_what_the_command_line_says_is_read_as_a_file_is(shipped):
    """Snakemake hands on the values inside brackets as text."""
    file = shipped("experiments: [digits]\ncompute: {device: cpu, threads: 3}")
    for given, expected in [
        ({}, ("cpu", False, 3)),
        ({"compute": {"threads": "2", "compile": "true"}}, ("cpu", True, 2)),
        ({"compute": {"device": "cuda"}}, ("cuda", False, 3)),
    ]:
        compute = load_configuration(given, file)[0].compute
        assert (compute.device, compute.compile, compute.threads) == expected
    assert list(load_configuration({"experiments": ["2024"]}, file)[1]) == ["2024"]
    for value in ("010", "1_0", "2.0", "true", ".inf", True, 2.0, float("inf"), float("nan"), "null", None):
        with pytest.raises(InputError) as caught:
            load_configuration({"compute": {"threads": value}}, file)
        assert f"--config over {file}: compute.threads: " in str(caught.value)
        assert "decimal digits, as 10" in str(caught.value)


def digits(**changes) -> Experiment:
    content = yaml.safe_load(DIGITS.read_text()) | {"comparison": {"reference": ["softmax", "mle"]}}
    return Experiment.model_validate(content | changes)


def test_the_order_of_keys_changes_nothing():
    content = yaml.safe_load(DIGITS.read_text())
    turned = {key: content[key] for key in reversed(content)}
    for key in ("training", "methods", "director"):
        turned[key] = dict(reversed(content[key].items()))
    assert json.dumps(Experiment.model_validate(turned).model_dump()) == json.dumps(
        Experiment.model_validate(content).model_dump()
    )


def test_rows_are_ordered_by_backbone_softmax_first():
    methods = {"kep_svgp_all": ["kep_svgp", "director"], "softmax": ["temperature", "mle"], "kep_svgp_1": ["kep_svgp"]}
    chosen = digits(methods=methods)
    assert list(chosen.methods) == ["softmax", "kep_svgp_1", "kep_svgp_all"]
    assert chosen.methods["softmax"] == ["temperature", "mle"], "methods in the order of the file"


@pytest.mark.parametrize(
    "backbone, layers", [("softmax", 0), ("kep_svgp_1", 1), ("kep_svgp_5", 5), ("kep_svgp_all", 5)]
)
def test_a_backbones_name_says_how_many_layers_are_kernel_eigenpair(backbone, layers):
    chosen = digits(
        methods={"softmax": ["mle"], "kep_svgp_5": ["mle"]}, kep_svgp={"variant": "sum", "rank": 3, "multiplier": 2}
    )
    attention = chosen.attention_layers(backbone)
    expected = {"kind": "kep_svgp", "layers": layers, "variant": "sum", "rank": 3, "multiplier": 2}
    assert attention == (expected if layers else None)
    network = ImageTransformer(**chosen.model.model_dump(exclude={"kind"}), attention=attention)
    kinds = [isinstance(block.attention_half.attention, KernelEigenpairAttention) for block in network.blocks]
    assert kinds == [False] * (5 - layers) + [True] * layers, "the last layers"


def test_a_softmax_backbone_does_not_depend_on_options_it_has_not():
    """Else a change of the rank would train it again."""
    changed_rank = digits(kep_svgp={"rank": 3, "training": {"epochs": 6}})
    for given in ("attention_layers", "penalties_of", "training_of", "annealing_of"):
        assert getattr(changed_rank, given)("softmax") == getattr(digits(), given)("softmax")
        assert getattr(changed_rank, given)("kep_svgp_1") is not None


def test_samples_of_stochastic_methods():
    chosen = digits(
        mc_dropout={"samples": [10, 2]}, kep_svgp={"samples": [5]}, director=DIRECTOR | {"samples": [30, 1, 3]}
    )
    samples = {method: chosen.samples_of(method) for method in ("mc_dropout", "kep_svgp", "director")}
    assert samples == {"mc_dropout": [2, 10], "kep_svgp": [5], "director": [1, 3, 30]}
    for method in ("mle", "ensemble", "temperature", "director_temperature"):
        assert chosen.samples_of(method) is None, "all the samples of what it is made from, on one row"


def test_a_variant_is_the_experiments_student_but_for_what_it_names():
    base = DIRECTOR | {"losses": {"path_weight": 0.3, "variance_floor": 0.01}, "samples": [1, 3]}
    chosen = digits(
        methods={"softmax": ["mle", "director_mse", "director_temperature"], "kep_svgp_1": ["kep_svgp"]},
        director=base,
        variants={"mse": {"losses": {"path": "mse"}}, "short": {"training": {"epochs": 6}, "samples": [2]}},
    )
    for variant, part, changes in (
        ("director_mse", "losses", {"path": "mse"}),
        ("director_short", "training", {"epochs": 6}),
    ):
        expected = chosen.director.model_dump()
        expected[part] |= changes
        expected["samples"] = [2] if variant == "director_short" else [1, 3]
        assert chosen.student(variant).model_dump() == expected
        assert chosen.samples_of(variant) == expected["samples"]
    assert chosen.student("director") == digits(director=base).director
    assert (chosen.method("director_mse").name, chosen.method("director_mse").weights) == ("director_mse", "student")


def test_unknown_experiment_names_the_known_ones():
    with pytest.raises(InputError, match=r"experiments: 'nothing'.*known:.*digits"):
        load_configuration({"experiments": ["nothing"]}, ROOT / "config/config.yaml")


@pytest.mark.parametrize("name", ["tables", "figures", "a/b", "two words", ""])
def test_an_experiments_name_is_a_folders_name(name):
    with pytest.raises(InputError, match="cannot name a folder"):
        load_configuration({"experiments": [name]}, ROOT / "config/config.yaml")


def test_shipped_configuration_and_every_shipped_experiment_are_valid():
    load_configuration(yaml.safe_load((ROOT / "config/config.yaml").read_text()), ROOT / "config/config.yaml")
    for path in (ROOT / "config/experiments").glob("*.yaml"):
        load_experiment(path)
        head = path.read_text().splitlines()[:3]
        assert [line.split(":")[0] for line in head] == ["# Reproduces", "# Expect", "# Costs"], path


@pytest.mark.parametrize("path", sorted(generated_files()))
def test_generated_files_are_in_step_with_the_schema(path):
    assert (ROOT / path).read_text(encoding="utf-8") == generated_files()[path], "run: python -m director options"


def test_every_option_is_described():
    def fields(schema):
        for name, field in schema.model_fields.items():
            yield f"{schema.__name__}.{name}", field

    sections = ("data", "experiment", "model", "suite", "training")
    known = [value for name in sections for value in vars(getattr(director.settings, name)).values()]
    schemas = {value for value in known if isinstance(value, type) and issubclass(value, Schema)} - {Schema}
    assert len(schemas) > 15
    assert [name for schema in schemas for name, field in fields(schema) if not field.description] == []
    assert [schema.__name__ for schema in schemas if schema.__doc__ == Schema.__doc__ or not schema.__doc__] == []


def test_settings_are_the_arguments_of_what_they_set():
    """The schema does not repeat defaults or names of the code: they are passed straight through."""
    images, texts = (set(inspect.signature(model).parameters) for model in (ImageTransformer, TextTransformer))
    assert set(ImageModel.model_fields) - {"kind"} == images - {"attention"}
    assert set(TextModel.model_fields) - texts == {"kind", "vocabulary", "embedding"}, "become tokenizer and table"
    layer = set(inspect.signature(KernelEigenpairAttention).parameters)
    assert set(KepSvgp().layer()) == layer - {"width", "heads", "tokens", "dropout"}
    layer = set(inspect.signature(SparseGaussianProcessAttention).parameters)
    assert set(Sgpa().layer()) == layer - {"width", "heads", "tokens", "dropout"}


def test_a_table_of_methods_and_one_of_attentions():
    """Every attention that settings know can be built; every method's relations are methods."""
    assert set(ATTENTIONS) == set(attention_module.ATTENTIONS)
    for method in METHODS.values():
        sources = [bool(method.weights), bool(method.scales), bool(method.pools)]
        assert sum(sources) == 1, f"{method.name} predicts, scales or pools"
        assert {method.scales, method.pools} - {None} <= set(METHODS)
        assert method.samples is None or min(method.samples(digits())) >= 1


def test_rows_that_are_made_of_others():
    chosen = digits(variants={"mse": {"losses": {"path": "mse"}}}, director=DIRECTOR | {"samples": [1, 4]})
    assert chosen.method("mc_dropout_temperature").scales == "mc_dropout"
    noise = chosen.method("director_mse_noise")
    assert (noise.student, noise.fits_noise, noise.samples(chosen)) == ("director_mse", True, [4])
    assert chosen.method("director_noise_temperature").scales == "director_noise"
    assert chosen.method("director_noise").student == chosen.method("director").student == "director"


def test_a_student_without_noise_is_one_pass():
    plain = {"losses": {"path": "none", "logit_weight": 1.0}, "noise": False, "samples": [1], "selection_samples": 1}
    chosen = digits(methods={"softmax": ["mle", "director", "director_plain"]}, variants={"plain": plain})
    method = chosen.method("director_plain")
    assert (method.randomness, method.samples, method.student) == ("none", None, "director_plain")
    with pytest.raises(ValidationError, match="director_plain has no noise of a student"):
        digits(methods={"softmax": ["mle", "director", "director_plain_noise"]}, variants={"plain": plain})
    with pytest.raises(ValidationError, match="noise false makes all roll-outs the same"):
        digits(variants={"plain": plain | {"samples": [1, 10]}})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["mle", "mle_temperature"], "mle_temperature is the row temperature; call it that"),
        (["mle", "ensemble", "ensemble_temperature"], "ensemble has no validation predictions; drop the method"),
        (["mle", "temperature", "temperature_temperature"], "temperature is scaled already"),
        (["mle", "mle_noise"], "mle has no noise of a student, which could be scaled"),
        (["mle", "director_fast_noise"], "no variant 'fast'; known: none"),
        (["mle", "temperature_ensemble"], "temperature_ensemble pools the row temperature of softmax; add it"),
        (["mle", "temperature_ensemble_2"], "temperature_ensemble_2 pools the row temperature of softmax; add it"),
        (["mle", "ensemble_3"], "ensemble_3 needs more than 3 seeds, not .*; the ensemble of all of them is ensemble"),
        (["mle", "ensemble_2_temperature"], "ensemble_2 has no validation predictions; drop the method"),
        (["mle", "ensemble_1"], "pattern"),
    ],
)
def test_rows_that_cannot_be_made_of_others_are_named(rows, message):
    with pytest.raises(ValidationError, match=message):
        digits(methods={"softmax": rows})


def test_choices_are_those_of_the_code():
    def choices(schema, field):
        return set(get_args(schema.model_fields[field].annotation))

    assert choices(Losses, "softmax_variance") == set(SOFTMAX_VARIANCES)
    assert choices(TrajectorySource, "dtype") == set(DTYPES)
    assert choices(KepSvgp, "variant") == set(VARIANTS)
    assert choices(Sgpa, "kernel") == set(KERNELS)
    assert choices(Training, "selection") == set(SELECTIONS)


def test_settings_are_not_changed_by_loading():
    content = yaml.safe_load(DIGITS.read_text())
    before = copy.deepcopy(content)
    Experiment.model_validate(content)
    assert content == before

"""A wrong setting is one line: file, key, value, remedy."""

import copy
import inspect
import json
from pathlib import Path
from typing import get_args

import pytest
import yaml

import director.settings.data
import director.settings.experiment
import director.settings.model
import director.settings.suite
import director.settings.training
from director.errors import InputError
from director.methods import ATTENTIONS, METHODS
from director.models import attention as attention_module
from director.models.attention import VARIANTS, KernelEigenpairAttention
from director.models.transformers import ImageTransformer, TextTransformer
from director.path.cache import DTYPES
from director.path.residual import SOFTMAX_VARIANCES
from director.schema import Schema
from director.settings.experiment import Experiment
from director.settings.model import ImageModel, TextModel
from director.settings.pages import generated_files
from director.settings.reading import load_configuration, load_experiment
from director.settings.training import KepSvgp, Losses, Training, TrajectorySource
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
        (("methods", "kep_svgp_9"), ["kep_svgp"], ["kep_svgp_9 has more layers than model.depth 5"]),
        (("methods", "kep_svgp_0"), ["kep_svgp"], ["methods.kep_svgp_0", "refused", "pattern"]),
        (("methods", "kep_svgp"), ["kep_svgp"], ["methods.kep_svgp", "refused", "pattern"]),
        (("methods", "Softmax"), ["mle"], ["methods.Softmax", "refused", "pattern"]),
        (("mc_dropout",), {"samples": [1, 5]}, ["mc_dropout.samples [1, 5]", "use 2 or more"]),
        (("mc_dropout",), {"samples": 10}, ["mc_dropout.samples", "10", "valid list"]),
        (("kep_svgp",), {"samples": []}, ["kep_svgp.samples", "at least 1"]),
        (("kep_svgp",), {"variant": "both"}, ["kep_svgp.variant", "'both'", "'concat'"]),
        (("director", "samples"), [0], ["director.samples.0", "greater than or equal to 1"]),
        (("director", "losses"), {"path": "none", "task_weight": 0}, ["director.losses", "nothing to learn"]),
        (("director", "losses"), {"path_weight": 0, "task_weight": 0}, ["director.losses", "nothing to learn"]),
        (("director", "losses"), {"path": "wasserstein"}, ["director.losses.path", "'wasserstein'", "'kl'"]),
        (("director", "losses"), {"variance_floor": 0}, ["director.losses.variance_floor", "greater than 0"]),
        (("director", "losses"), {"task_wieght": 1}, ["director.losses.task_wieght", "did you mean 'task_weight'"]),
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
        ("seeds: [0]\nseeds: [1]\n", "'seeds' stands twice"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path, text, words):
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        load_experiment(tmp_path / "broken.yaml")
    assert "broken.yaml" in str(caught.value)


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
    for given in ("attention_layers", "penalties_of", "training_of"):
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


def test_a_table_of_methods_and_one_of_attentions():
    """Every attention that settings know can be built; every method's relations are methods."""
    assert set(ATTENTIONS) == set(attention_module.ATTENTIONS)
    for method in METHODS.values():
        sources = [bool(method.weights), bool(method.scales), bool(method.pools)]
        assert sum(sources) == 1, f"{method.name} predicts, scales or pools"
        assert {method.scales, method.pools} - {None} <= set(METHODS)
        assert method.samples is None or min(method.samples(digits())) >= 1


def test_choices_are_those_of_the_code():
    def choices(schema, field):
        return set(get_args(schema.model_fields[field].annotation))

    assert choices(Losses, "softmax_variance") == set(SOFTMAX_VARIANCES)
    assert choices(TrajectorySource, "dtype") == set(DTYPES)
    assert choices(KepSvgp, "variant") == set(VARIANTS)
    assert choices(Training, "selection") == set(SELECTIONS)


def test_settings_are_not_changed_by_loading():
    content = yaml.safe_load(DIGITS.read_text())
    before = copy.deepcopy(content)
    Experiment.model_validate(content)
    assert content == before

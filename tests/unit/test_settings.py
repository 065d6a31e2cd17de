"""A wrong setting is one line: file, key, value, remedy."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from director.files import InputError
from director.options import generated_files
from director.settings import Experiment, load_configuration, load_experiment

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "config/experiments/digits.yaml"


def changed(path: tuple, value) -> dict:
    content = yaml.safe_load(DIGITS.read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
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
        (("data", "corrupted"), "photographs", ["data", "'photographs'", "not a shifted copy"]),
        (("data", "normalisation", "std"), [0.0], ["data.normalisation.std.0", "0.0", "greater than 0"]),
        (("data", "normalisation", "mean"), [0.1, 0.2], ["2 means, 1 stds for 1 channels"]),
        (("model", "patch"), 3, ["model", "patch 3 does not divide image_size 8"]),
        (("model", "heads"), 5, ["model", "heads 5 does not divide width 64"]),
        (("model", "dropout"), 1.0, ["model.dropout", "1.0", "less than 1"]),
        (("training", "learning_rate"), "fast", ["training.learning_rate", "'fast'"]),
        (("training", "epochs"), 5, ["training", "warmup_epochs 5"]),
        (("seeds",), [], ["seeds", "at least 1"]),
        (("seeds",), [0, 1, 1], ["seeds [0, 1, 1]", "twice"]),
        (("seeds",), [0], ["ensemble needs two seeds"]),
        (("methods", "softmax"), ["mle", "dropout"], ["methods.softmax.1", "'dropout'"]),
        (("methods", "softmax"), ["temperature"], ["comparison.reference", "'mle'"]),
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


def test_the_order_of_keys_changes_nothing():
    content = yaml.safe_load(DIGITS.read_text())
    turned = {key: content[key] for key in reversed(content)}
    turned["training"] = dict(reversed(content["training"].items()))
    assert json.dumps(Experiment.model_validate(turned).model_dump()) == json.dumps(
        Experiment.model_validate(content).model_dump()
    )


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

    from director import settings

    schemas = [c for c in vars(settings).values() if isinstance(c, type) and issubclass(c, settings.Schema)]
    missing = [name for schema in schemas for name, field in fields(schema) if not field.description]
    assert missing == []
    assert [schema.__name__ for schema in schemas if not schema.__doc__] == ["Schema"]


def test_training_settings_are_the_arguments_of_the_loop():
    """The schema does not repeat the loop's defaults elsewhere: names are passed straight through."""
    import inspect

    from director.backbones import ImageTransformer
    from director.settings import Model, Training
    from director.training import fit

    assert set(Training.model_fields) <= set(inspect.signature(fit).parameters)
    assert set(Model.model_fields) <= set(inspect.signature(ImageTransformer).parameters)


def test_settings_are_not_changed_by_loading():
    content = yaml.safe_load(DIGITS.read_text())
    before = copy.deepcopy(content)
    Experiment.model_validate(content)
    assert content == before

"""Imports run downwards only, and every script's digest covers what it imports."""

import ast
from pathlib import Path

import pytest

from director.provenance import PACKAGE, imported_modules

# from the bottom up; a module imports from rows below its own, and from its own row only what stands before it
LAYERS = [
    ["files", "provenance"],
    ["predictions", "metrics", "temperature", "comparison", "measurement", "ensemble"],
    ["device", "noise", "attention", "backbones", "taps", "trajectory", "transition", "process"],
    [
        "data.augment",
        "data.texts",
        "data.tokenizer",
        "data.dataset",
        "data.sources",
        "data.splits",
        "data.images",
        "data.cifar_pickles",
        "data.cifar",
        "data.cifar10",
        "data.cifar100",
        "data.svhn",
        "data.lsun",
        "data.digits",
        "data.digits_c",
        "data.filters",
        "data.corruptions",
        "data.cifar10_c",
        "data.cifar10_c_200",
        "data.photographs",
        "data.cola",
        "data.cola_ood",
        "data.imdb",
        "data.agreement",
        "data.agreement_shifted",
        "data.fetch",
        "text",
        "resume",
        "prediction",
        "training",
        "recipes",
        "distillation",
    ],
    ["job", "sections", "settings", "configuration", "options", "tables", "figures", "tracking", "__main__"],
]
ORDER = {f"director.{name}": (layer, place) for layer, names in enumerate(LAYERS) for place, name in enumerate(names)}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
NUMBERS = {name for layer in LAYERS[:2] for name in layer}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def test_every_module_has_its_place():
    assert {name_of(path) for path in MODULES} == set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_downwards(path):
    for imported in imported_modules(path) & set(ORDER):
        assert ORDER[imported] < ORDER[name_of(path)], f"{name_of(path)} imports {imported}, which stands above it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_numbers_need_no_torch_and_only_tracking_knows_mlflow(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    if path.stem in NUMBERS and path.parent == PACKAGE:
        assert not names & {"torch", "pandas", "matplotlib"}
    if path.stem != "tracking":
        assert "mlflow" not in names
    assert "snakemake" not in names and "dvc" not in names
    if path.stem != "cifar_pickles":  # the publisher's own files, behind their MD5 and a list of allowed calls
        assert not names & {"pickle", "dill", "joblib", "shelve"}


def test_names_say_something():
    assert not {"utils", "helpers", "core", "base", "misc", "manager", "engine"} & {path.stem for path in MODULES}

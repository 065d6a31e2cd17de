"""The house is in order: the direction of imports, what a job imports, names, and references that lead somewhere."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "director"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
SCRIPTS = sorted((ROOT / "workflow/scripts").glob("*.py"))
FILES = [
    *sorted(
        path
        for folder in ("director", "workflow", "config", "profiles", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*")
    ),
    *(
        ROOT / name
        for name in (
            "README.md",
            "CHANGELOG.md",
            "Makefile",
            "Dockerfile",
            "Snakefile",
            "pyproject.toml",
            "dvc.yaml",
            "environment.yml",
        )
    ),
    *(ROOT / name / "README.md" for name in ("data", "results")),
]
TEXTS = [
    path
    for path in FILES
    if path.suffix in {".py", ".smk", ".yaml", ".yml", ".md", ".rst", ".toml", ""} and path.is_file()
]
SLOW = {
    "torch",
    "pandas",
    "matplotlib",
    "seaborn",
    "mlflow",
    "transformers",
    "timm",
    "datasets",
    "pyarrow",
    "scipy",
    "sklearn",
}
# what each script may load of these
ALLOWED = {
    **{name: {"torch"} for name in ("train_student", "cache_trajectory", "predict", "predict_student_noise")},
    **{name: set() for name in ("measure", "scale", "pool_ensemble", "compare")},
    # the catalogue of data sets loads scipy as such, which loads its parts where they are used (test_catalogue.py)
    "train_backbone": {"torch", "scipy"},
    "fetch_dataset": {"scipy"},
    **{name: {"pandas", "pyarrow"} for name in ("tabulate", "publish_runs", "publish_tables")},
}


def test_imports_keep_their_contracts():
    """Rooms import downwards, without a circle, and libraries stay where they belong (pyproject.toml)."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_is_hidden_in_a_string(path):
    """A module named in a string is an arrow that no drawing shows."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "") for node in calls}
    assert not names & {"import_module", "__import__", "resolve_name"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_job_imports_only_what_it_uses(script):
    """Importing torch takes two seconds of a job, pandas and matplotlib one: a job of numbers loads none of them."""
    tree = ast.parse(script.read_text())
    imports = "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys\n{imports}\nprint(*{{name.split('.')[0] for name in sys.modules}})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    allowed = ALLOWED.get(script.stem, {"pandas", "pyarrow", "matplotlib", "seaborn", "scipy"})  # a plot
    assert set(shown.stdout.split()) & SLOW <= allowed


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_reads_calls_and_writes(script):
    assert len(script.read_text().splitlines()) <= 25


def test_names_say_something():
    assert not {"utils", "helpers", "core", "base", "misc", "manager", "engine"} & {path.stem for path in MODULES}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_references_lead_to_what_exists_here(path):
    """A page that is named exists, with the heading that stands in quotes behind it."""
    text = path.read_text(encoding="utf-8")
    for name, heading in re.findall(r"([\w./-]+\.md)\b(?:`?\)?,? ['\"]([^'\"\n]+)['\"])?", text):
        candidates = [path.parent / name, ROOT / name, ROOT / "docs" / name]
        if path.name == "artefacts.md" or name == "main.md" or name.startswith("results/"):
            continue  # a file that the pipeline makes
        page = next((candidate for candidate in candidates if candidate.is_file()), None)
        assert page is not None, f"{path} names {name}, which is not here"
        if heading:
            headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in headings, f"{path} names {heading!r} of {name}; it has {headings}"
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", text):
        assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{path} names {test} of {file}"
    assert not re.search(r"\b(method|baselines|protocols|toolchain|traps)\.md, section \d", text)


def test_the_image_has_the_environment_of_the_lock():
    """The Python of the lock, its hashes, and what is copied is not kept out of the build."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = next(line.removeprefix("FROM python:") for line in lines if line.startswith("FROM "))
    assert project["requires-python"] == ">=" + ".".join(python.split("-")[0].split(".")[:2])
    assert any("--require-hashes" in line for line in lines)
    copied = {line.split()[1] for line in lines if line.startswith("COPY ")}
    kept_out, *let_in = (ROOT / ".dockerignore").read_text().split()
    assert kept_out == "*" and {word.removeprefix("!") for word in let_in} == copied
    assert all((ROOT / name).is_file() for name in copied)

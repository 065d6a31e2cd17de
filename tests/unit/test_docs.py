"""The documentation names what there is: links, metrics, rules, columns and paths."""

import pkgutil
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from director.__main__ import main
from director.numbers.metrics import METRICS
from director.report.tables import COST, FITTED, MAIN, PUBLISHED, ROW

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOLDERS = ("director", "workflow", "config", "profiles", "docs", "tests", "benchmarks", ".ci", ".dvc")


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_backticks_exist(page):
    for words in re.findall(r"`([^`\n]+)`", prose(page)):
        if words.split("/")[0] in FOLDERS and re.fullmatch(r"[\w./-]+/[\w./-]*", words):
            assert (ROOT / words).exists(), f"{page.name} names {words}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_are_those_of_code_or_options(page):
    """`director.losses.path` is an option, `director.path.cache.write_cache` a function: both begin with one word."""
    options = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE))
    for words in re.findall(r"`(director(?:\.\w+)+)(?:\([^`]*\))?`", prose(page)):
        if words not in options:
            try:
                pkgutil.resolve_name(words)
            except (ImportError, AttributeError) as error:
                pytest.fail(f"{page.name} names {words}: {error}")


def test_the_quick_start_shows_what_own_predictions_give(tmp_path, monkeypatch, capsys):
    """What `check` says of the table that it shows, and its other commands as they stand."""
    section = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8").partition("\n## 7. Your own predictions\n")[2]
    table = re.search(r"^```csv\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[1]
    (command, says), *_ = re.findall(r"^\$ director (.+)\n(.+)", section, re.MULTILINE)
    (tmp_path / "pets.csv").write_text(table, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert capsys.readouterr().out == f"{says}\n"
    logits = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"]).assign(
        label=["a", "b"] * 15
    )
    logits.to_csv("new.csv")
    logits.assign(a=0.5).to_parquet("old.parquet")
    commands = re.findall(r"^director (.+?) +#", section, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["measure", "compare", "plot"]
    for command in commands:
        assert main(command.split()) == 0, command


def test_every_metric_has_its_section():
    sections = re.findall(r"^### `(\w+)`$", prose(ROOT / "docs/metrics.md"), re.MULTILINE)
    assert set(METRICS) <= set(sections) and len(sections) == len(set(sections))


def test_every_column_of_the_main_table_is_explained():
    text = prose(ROOT / "docs/metrics.md")
    columns = text[text.index("### `main.csv`") : text.index("### `all.csv`")]
    missing = [name for name in [*ROW, "seeds", *MAIN, *FITTED, *COST, *PUBLISHED] if f"`{name}`" not in columns]
    assert not missing


def test_every_rule_is_named():
    text = prose(ROOT / "docs/pipeline.md")
    files = [ROOT / "Snakefile", *sorted(ROOT.glob("workflow/rules/*.smk"))]
    heads = r"^(?:rule|use rule \w+ as) (\w+)(?: with)?:"
    rules = [rule for file in files for rule in re.findall(heads, file.read_text(), re.MULTILINE)]
    assert len(rules) > 15 and "predict_student" in rules
    missing = [rule for rule in rules if f"`{rule}`" not in text]
    assert not missing

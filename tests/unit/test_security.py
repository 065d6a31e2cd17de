"""Nothing that is read is run: no shell, no pickle but one, no name with a meaning to a shell, no open server."""

import ast
import re
from pathlib import Path

import pytest

from director.errors import InputError
from director.settings.reading import load_configuration

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(path for folder in ("director", "workflow") for path in (ROOT / folder).rglob("*.py"))
RULES = sorted([ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")])
RUN = {"eval", "exec", "system", "popen", "check_output", "getoutput", "spawn", "execv", "run_path"}


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_string_is_run(path):
    """Programs are called with a list of words, so that no word is read by a shell; no text becomes code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_method = isinstance(node.func, ast.Attribute) and name == "eval"  # model.eval()
            assert name not in RUN or is_method, f"line {node.lineno}: {name}"
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert "shell" not in keywords, f"line {node.lineno}: shell"
            assert keywords.get("allow_pickle", "False") == "False", f"line {node.lineno}: allow_pickle"
            assert keywords.get("trust_remote_code", "False") == "False", f"line {node.lineno}: trust_remote_code"


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_no_rule_has_a_shell_command(path):
    """Rules call scripts, which are handed the configuration as values."""
    assert not re.search(r"^\s*(shell|run|wrapper|notebook):", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["a;b", "$(id)", "a b", "../a", "a`id`", "a'b", '"', "a|b", "a\nb", "", "."])
def test_a_name_with_a_meaning_to_a_shell_or_a_path_is_refused(tmp_path, name):
    """Names of experiments, backbones and methods are parts of paths and of what SLURM is told."""
    file = tmp_path / "config/config.yaml"
    (file.parent / "experiments").mkdir(parents=True)
    file.write_text("experiments: []\n")
    with pytest.raises(InputError):
        load_configuration({"experiments": [name]}, file)


def test_no_server_listens_to_others():
    """What documents and commands start listens on this machine alone, the default of all of them."""
    texts = [*PYTHON, *RULES, *ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "Makefile", ROOT / "Dockerfile"]
    for path in texts:
        assert not re.search(r"0\.0\.0\.0|--host(?! 127\.0\.0\.1)|^EXPOSE", path.read_text(), re.MULTILINE), path

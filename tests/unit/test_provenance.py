"""The digest of code follows meaning: not comments, but everything that is imported."""

import subprocess
import sys

import pytest

from director.provenance import PACKAGE, code_digest, fingerprint, git_commit, imported_modules, versions

BASE = '"""About."""\n\nfrom director.metrics import nll\n\n\ndef f(x):\n    """Twice."""\n    return 2 * x\n'


def digest_of(tmp_path, text):
    (tmp_path / "script.py").write_text(text)
    return code_digest(tmp_path / "script.py")


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("About", "Something else"),
        BASE.replace("Twice", "Doubled"),
        BASE.replace("    return", "    # why\n    return"),
        BASE.replace("2 * x", "2*x"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(tmp_path, text):
    assert digest_of(tmp_path, text) == digest_of(tmp_path, BASE)


@pytest.mark.parametrize(
    "text", [BASE.replace("2 * x", "3 * x"), BASE.replace("metrics import nll", "temperature import scale")]
)
def test_meaning_counts(tmp_path, text):
    assert digest_of(tmp_path, text) != digest_of(tmp_path, BASE)


def test_a_change_two_imports_away_counts(tmp_path, monkeypatch):
    """director.comparison is not read by a script itself, but by what it imports."""
    package = tmp_path / "director"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "far.py").write_text("VALUE = 1\n")
    (package / "near.py").write_text("from director import far\n")
    (package / "other.py").write_text("VALUE = 1\n")
    monkeypatch.setattr("director.provenance.PACKAGE", package)
    text = "def f():\n    from director.near import far\n    return far\n"  # an import inside a function counts too
    before = digest_of(tmp_path, text)
    (package / "other.py").write_text("VALUE = 2\n")
    assert digest_of(tmp_path, text) == before
    (package / "far.py").write_text("VALUE = 2\n")
    assert digest_of(tmp_path, text) != before


def test_imports_of_the_package_are_found_whatever_their_form(tmp_path):
    (tmp_path / "s.py").write_text("import director.files\nfrom director import metrics\nimport numpy\n")
    assert imported_modules(tmp_path / "s.py") == {"director", "director.files", "director.metrics"}


def test_fingerprint_ignores_the_order_of_keys():
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_commit_of_a_checkout_and_of_none(tmp_path):
    assert git_commit(tmp_path) is None
    run = ["git", "-C", str(tmp_path)]
    subprocess.run([*run, "init", "-q"], check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run([*run, "add", "a"], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*run, *identity, "commit", "-q", "-m", "a"], check=True)
    git_commit.cache_clear()
    assert len(git_commit(tmp_path)) == 40
    (tmp_path / "a").write_text("2")
    git_commit.cache_clear()
    assert git_commit(tmp_path).endswith("-dirty")


def test_versions_name_this_package_too():
    assert versions("numpy").keys() == {"director", "numpy"}


def test_provenance_is_cheap_to_import():
    """The Snakefile computes digests each time it is read."""
    loaded = "import sys, director.provenance; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True, cwd=PACKAGE.parent)

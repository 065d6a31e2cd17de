"""Fingerprints, the commit and the library versions."""

import subprocess
import sys

from director.provenance import PACKAGE, fingerprint, git_commit, versions


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
    """The Snakefile imports it each time it is read."""
    loaded = "import sys, director.provenance; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True, cwd=PACKAGE.parent)

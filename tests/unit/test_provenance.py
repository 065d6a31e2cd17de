"""Fingerprints, the commit and the library versions."""

import shutil
import subprocess
import sys

import pytest

from director.provenance import PACKAGE, fingerprint, git_commit, versions


def test_fingerprint_ignores_the_order_of_keys():
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def commit_of(file):
    git_commit.cache_clear()
    return git_commit(file)


@pytest.fixture
def checkout(tmp_path):
    """A repository that tracks the file `a`."""
    (tmp_path / "a").write_text("1")
    run = ["git", "-C", str(tmp_path)]
    subprocess.run([*run, "init", "-q"], check=True)
    subprocess.run([*run, "add", "a"], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*run, *identity, "commit", "-q", "-m", "a"], check=True)
    return tmp_path


def test_commit_of_a_checkout_and_of_none(checkout, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "a"
    outside.write_text("1")
    assert commit_of(outside) is None
    assert len(commit_of(checkout / "a")) == 40
    (checkout / "a").write_text("2")
    assert commit_of(checkout / "a").endswith("-dirty")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_copy_that_lies_in_another_projects_repository_has_no_commit(checkout, ignored):
    """As a package in the .venv of a checkout; the commit of that project says nothing about this code."""
    packages = checkout / ".venv/lib/site-packages"
    packages.mkdir(parents=True)
    if ignored:
        (checkout / ".venv/.gitignore").write_text("*")
    names = ("__init__.py", "provenance.py")
    (packages / PACKAGE.name).mkdir()
    for name in names:
        shutil.copy(PACKAGE / name, packages / PACKAGE.name)
    asked = "from director import provenance; print(provenance.__file__, provenance.git_commit())"
    shown = subprocess.run([sys.executable, "-c", asked], cwd=packages, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [str(packages / PACKAGE.name / "provenance.py"), "None"]
    assert commit_of(checkout / "a") is not None


def test_without_git_or_in_a_repository_of_another_user_there_is_no_commit(checkout, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch for its tests
        assert commit_of(checkout / "a") is None
    with monkeypatch.context() as changed:
        changed.setenv("PATH", str(checkout))
        assert commit_of(checkout / "a") is None
    assert commit_of(checkout / "a") is not None
    assert commit_of(checkout / "gone/a") is None


def test_versions_name_this_package_too():
    assert versions("numpy").keys() == {"director", "numpy"}


def test_provenance_is_cheap_to_import():
    """The Snakefile imports it each time it is read."""
    loaded = "import sys, director.provenance; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True, cwd=PACKAGE.parent)

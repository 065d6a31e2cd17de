"""Where a number comes from: the code, the commit, the library versions and the settings behind it."""

import ast
import hashlib
import importlib.metadata
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


def fingerprint(content: Any) -> str:
    """SHA-256 (first 16 hexadecimal digits) of JSON-able `content`, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def imported_modules(source: str | Path) -> set[str]:
    """Modules of this package that the file `source` imports, anywhere in it, as dotted names."""
    names = set()
    for node in ast.walk(_tree(Path(source))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from director import metrics` names a module, `from director.metrics import nll` a function
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.split(".")[0] == PACKAGE.name and _file(name)}


def code_digest(source: str | Path, *more: str) -> str:
    """Digest of what `source`, the modules of this package it imports (directly or not) and `more` modules do.

    Taken over syntax trees without docstrings, so that comments, docstrings and layout do not count: a rule
    carries it as a parameter, and Snakemake reruns the rule when the meaning of its code changes and only then.
    """
    waiting, seen = [Path(source), *map(_known_file, more)], set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += map(_known_file, imported_modules(path))
    return fingerprint(sorted(map(_meaning, seen)))


@cache
def git_commit(folder: str | Path = PACKAGE.parent) -> str | None:
    """Commit of the checkout this code runs from, `-dirty` behind it where tracked files differ; None outside git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of `packages`, and of this one."""
    return {name: importlib.metadata.version(name) for name in (PACKAGE.name, *packages)}


def _known_file(name: str) -> Path:
    path = _file(name)
    assert path is not None, name
    return path


def _file(name: str) -> Path | None:
    place = PACKAGE.parent.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _meaning(path: Path) -> str:
    tree = _tree(path)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                node.body = body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()

"""Where a number comes from: fingerprints of what it is made from, the commit, and the library versions."""

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

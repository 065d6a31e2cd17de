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
def git_commit(file: str | Path = __file__) -> str | None:
    """Commit of the repository that tracks `file`, `-dirty` behind it where tracked files differ.

    None outside git, and for a copy that merely lies in a repository, such as one installed into a project's `.venv`;
    also where git is missing or refuses a repository of another user.
    """
    file = Path(file)

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", file.name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of `packages`, and of this one."""
    return {name: importlib.metadata.version(name) for name in (PACKAGE.name, *packages)}

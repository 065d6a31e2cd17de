"""Files that are either whole or not there."""

import hashlib
import json
import os
import re
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from director.errors import AccessError, InputError, access_error

# What readers raise for a file whose content is not what it should be.
FAULTS = (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, OSError, RuntimeError)
FAULTS += (zipfile.BadZipFile, zlib.error)
FAULTS += (SyntaxError, tokenize.TokenError)  # of NumPy, whose headers are words of Python

TEMPORARY = re.compile(r"\..+-[a-z0-9_]{8}(\.\w+)?")  # the names that `replacing` gives, which mkstemp ends


@contextmanager
def accessing(path: str | Path) -> Iterator[None]:
    """Turn an error of the system (a full disk, no permission) into an AccessError that names `path`."""
    try:
        yield
    except OSError as error:
        if refused := access_error(path, error):
            raise refused from error
        raise


@contextmanager
def reading(path: str | Path, kind: str, remedy: str, *faults: type[Exception]) -> Iterator[None]:
    """Turn whatever goes wrong while `path` is read into one InputError with its name.

    An error of the system (no such file, no permission, a disk at fault) keeps its meaning and is an AccessError. Any
    other of FAULTS or `faults` says that the file is not `kind`, such as "a split file"; `remedy` says what to do.
    """
    try:
        yield
    except InputError as error:
        if isinstance(error, AccessError) or str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except (*FAULTS, *faults) as error:
        if refused := access_error(path, error):
            raise refused from error
        words = re.sub(r"\s*\n\s*", " ", str(error)) or type(error).__name__  # in one line
        reason = f"no {words}" if isinstance(error, KeyError) else words
        raise InputError(f"{path}: not {kind} ({reason}); {remedy}") from error


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` on success, remove it on failure.

    A process killed half-way leaves the old file as it was, so nothing that was good is lost. A disk that is full, a
    folder that may not be written and the like raise AccessError with the name of `path`.
    """
    path = Path(path)
    name, temporary = None, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix is kept, since numpy, safetensors and matplotlib choose the format by it.
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes it private to the user
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        where = path if error.filename in (None, name) else error.filename
        # numpy says only how much of an array arrived, without a number
        unknown = AccessError(f"{path}: could not be written ({error}); is the disk full?")
        raise access_error(where, error) or unknown from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def remove_temporaries(folder: str | Path) -> None:
    """Remove what killed writers of `replacing` left anywhere below a folder; nothing may be writing there."""
    for path in Path(folder).rglob(".*-*"):
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused (ValueError), since JSON has no word for them."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file of the pipeline; a missing or broken one raises `InputError` with its name."""
    with reading(path, "a whole JSON file", "delete it and run the same command again"):
        return json.loads(Path(path).read_text(encoding="utf-8"))


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""What is raised for input that cannot be used."""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

# What to do about a file that the system refuses; any other error of the system stands for itself.
REMEDIES = {
    errno.ENOENT: "correct the path, or make the file first",
    errno.ENOTDIR: "correct the path",
    errno.EISDIR: "give a file, not a folder",
    errno.EACCES: "give yourself the permission",
    errno.EPERM: "give yourself the permission",
    errno.EROFS: "choose a folder that can be written",
    errno.ENOSPC: "make room and run the same command again",
    errno.EDQUOT: "make room within your quota and run the same command again",
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk, or the server that it is mounted from",
    errno.ESTALE: "check the server that the folder is mounted from",
}


class InputError(ValueError):
    """Bad input (settings, data file, weights, predictions): the message names the value and the remedy."""


class AccessError(InputError):
    """A file that the system does not let be read or written: it is not there, may not be, or the disk is full."""


def listed(names: Sequence[str]) -> str:
    """Names in a message, the first few of many."""
    return ", ".join(names[:9]) + (f" and {len(names) - 9} more" if len(names) > 9 else "")


def access_error(path: str | Path, error: Exception) -> AccessError | None:
    """What the system says of `path`, and the remedy; None for an error that is not the system's."""
    number = _number(error)
    if number in (None, errno.EINVAL):  # a position outside the file, which its own content gave
        return None
    remedy = f"; {REMEDIES[number]}" if number in REMEDIES else ""
    return AccessError(f"{path}: {os.strerror(number).lower()}{remedy}")


def _number(error: Exception) -> int | None:
    """The system's number of an error; libraries in Rust keep it in the text only."""
    told = re.search(r"\(os error (\d+)\)", str(error))
    number = int(told[1]) if told else getattr(error, "errno", None)
    kinds = {FileNotFoundError: errno.ENOENT, IsADirectoryError: errno.EISDIR, PermissionError: errno.EACCES}
    number = number or kinds.get(type(error))
    return errno.EISDIR if number == errno.ENODEV else number  # a folder cannot be mapped into memory

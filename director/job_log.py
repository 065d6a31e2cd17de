"""The start of a pipeline job: where its words go, and when it ends."""

import atexit
import contextlib
import logging
import os
import sys
from pathlib import Path
from types import TracebackType

from director.driver import end_with_driver
from director.errors import REMEDIES, InputError, access_error

# Snakemake deletes the log of a job before it starts the job again. A second name of the file keeps what a job said
# that was killed or failed, until it has ended well.
EARLIER = ".earlier"
AGAIN = "---- the job starts again"  # a line between what the earlier start said and what this one says


def start(log_file: str | Path) -> None:
    """Send everything this process prints or logs to `log_file`, behind what an earlier, unfinished start has said.

    Bad input, and a file that the system refuses, end the process with one line, no traceback. It also ends when the
    driver that started it is gone (`director.driver`).
    """
    sys.excepthook = _excepthook
    log = Path(log_file)
    log.parent.mkdir(parents=True, exist_ok=True)
    earlier = log.with_name(log.name + EARLIER)
    if earlier.exists():
        earlier.replace(log)
    else:
        log.unlink(missing_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    if os.fstat(handle).st_size:
        os.write(handle, f"{AGAIN}\n".encode())
    with contextlib.suppress(OSError):  # a file system without second names: then the log begins anew each time
        earlier.hardlink_to(log)
    atexit.register(_forget, earlier)
    for stream in (1, 2):  # file descriptors, so that the words of libraries written in C arrive too
        os.dup2(handle, stream)
    os.close(handle)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.captureWarnings(True)
    end_with_driver()


def _forget(earlier: Path) -> None:
    """Drop the second name of the log; not after an error, which `_excepthook` has noted."""
    if not hasattr(sys, "last_value"):
        earlier.unlink(missing_ok=True)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.last_value = error
    refused = isinstance(error, OSError) and error.errno in REMEDIES and access_error(error.filename or "a file", error)
    if refused or issubclass(kind, InputError):
        print(f"error: {refused or error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)

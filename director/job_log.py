"""The start of a pipeline job: where its words go."""

import logging
import os
import sys
from pathlib import Path
from types import TracebackType

from director.errors import InputError


def start(log_file: str | Path) -> None:
    """Send everything this process prints or logs to `log_file`; bad input ends it with one line, no traceback."""
    log = Path(log_file)
    log.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):  # file descriptors, so that the words of libraries written in C arrive too
        os.dup2(handle, stream)
    os.close(handle)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.captureWarnings(True)
    sys.excepthook = _excepthook


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, InputError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)

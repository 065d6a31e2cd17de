"""One driver per working folder, and jobs that end with it.

The driver is the process that plans the jobs of a study and starts them (Snakemake's). Two of them in one folder would
train the same model into the same files; a job that outlives its driver could put weights of old settings in place of
new ones. So the driver that is in charge holds a lock of the operating system and writes into its file who it is; each
of its jobs ends when the driver is gone or another one is in charge.
"""

import atexit
import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

from director.errors import InputError
from director.files import accessing

FILE = Path(".snakemake/driver")  # in the working folder
VARIABLE = "DIRECTOR_DRIVER"  # environment variable of a job: the driver that started it, as in the file
INTERVAL = 2.0  # seconds between two looks of a job at its driver

log = logging.getLogger(__name__)


class Driver(NamedTuple):
    """Who is in charge: host and process, when it began (local time), and a random word that no other driver has."""

    host: str
    process: int
    began: str
    token: str

    @classmethod
    def parse(cls, text: str) -> "Driver | None":
        """A driver from what `str` gives; None for anything else, such as the empty file of one that has ended."""
        words = text.split()
        if len(words) != 4 or not words[1].isdecimal():
            return None
        return cls(words[0], int(words[1]), words[2], words[3])

    def __str__(self) -> str:
        return f"{self.host} {self.process} {self.began} {self.token}"

    def is_here(self) -> bool:
        """Whether it runs on this host, so that its process can be seen from here."""
        return self.host == socket.gethostname()

    def lives(self) -> bool:
        """Whether its process is there; to be asked on its host only."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's process
            return True
        return True


def take_charge(file: Path = FILE) -> None:
    """Be the driver of this working folder until this process ends.

    Raises InputError naming host, process and start of a driver that lives, or of which that cannot be known: one on
    another host, whose locks may not reach this one.
    """
    with accessing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = file.open("a+", encoding="utf-8")
    locked = _lock(handle)
    handle.seek(0)
    other = Driver.parse(handle.read())
    if other is not None and not other.is_here():
        raise InputError(
            f"{file}: a run on host {other.host} (process {other.process}, since {other.began}) has not said that it "
            f"ended, and this host cannot see whether it lives; if it does not, delete {file}"
        )
    if locked is False or (locked is None and other is not None and other.lives()):
        who = f"process {other.process}, since {other.began}" if other else "just starting"
        raise InputError(f"{file}: another run works in this folder ({who}); wait for it, or stop it")
    began = datetime.now().isoformat(timespec="seconds")
    current = Driver(socket.gethostname(), os.getpid(), began, secrets.token_hex(8))
    _write(handle, str(current))
    os.environ[VARIABLE] = str(current)
    atexit.register(_write, handle, "")  # the handle lives as long as the process, and with it the lock


def is_in_charge(file: Path = FILE) -> bool:
    """Whether a driver works in this folder, or may do so on another host."""
    driver = _current(file)
    return driver is not None and (not driver.is_here() or driver.lives())


def end_with_driver(file: Path = FILE) -> None:
    """End this process, a job, when the driver that started it is gone, or another one is in charge.

    A job that no driver started is left alone.
    """
    own = Driver.parse(os.environ.get(VARIABLE, ""))
    if own is None:
        return
    seen = own.is_here() and own.lives()  # not on a node of a cluster, nor in a container that hides it
    file = file.absolute()

    def look() -> None:
        while not _is_gone(own, seen, file):
            time.sleep(INTERVAL)
        log.error("the run that started this job is gone (%s); the job ends", own)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, name="end_with_driver", daemon=True).start()


def _is_gone(own: Driver, seen: bool, file: Path) -> bool:
    if seen and not own.lives():
        return True
    current = _current(file)
    return current is not None and current.token != own.token


def _current(file: Path) -> Driver | None:
    """The driver that the file names; None if it names none, or is out of reach."""
    try:
        return Driver.parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def _lock(handle: IO[str]) -> bool | None:
    """True if the lock is ours now, False if another process holds it, None where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def _write(handle: IO[str], text: str) -> None:
    handle.seek(0)
    handle.truncate()
    handle.write(text)
    handle.flush()

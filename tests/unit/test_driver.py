"""One driver per working folder, and jobs that end with it."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from director import driver
from director.driver import VARIABLE, Driver, is_in_charge, take_charge
from director.errors import InputError

DRIVE = "import time; from director.driver import take_charge; take_charge(); print(1, flush=True); time.sleep({})"
JOB = """
import sys, time
from director import driver
driver.INTERVAL = 0.05
driver.end_with_driver()
print("started", flush=True)
time.sleep(30)
"""


def start(script, folder, **environment):
    """A process in `folder`, once it has printed its first line."""
    variables = {**os.environ, **environment}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=folder, env=variables, **streams)
    assert process.stdout.readline()
    return process


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder, and no driver that this process belongs to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(driver.atexit, "register", lambda *_: None)
    return tmp_path


@pytest.fixture
def living(folder):
    process = start(DRIVE.format(30), folder)
    yield process
    process.kill()
    process.wait()


def test_a_second_driver_is_refused_by_name(folder, living):
    assert is_in_charge()
    with pytest.raises(InputError, match=rf"another run works in this folder \(process {living.pid}, since "):
        take_charge()
    assert Driver.parse(driver.FILE.read_text()).process == living.pid


def test_one_that_was_killed_is_replaced(folder, living):
    living.kill()
    living.wait()
    assert not is_in_charge()
    take_charge()
    assert Driver.parse(driver.FILE.read_text()).process == os.getpid()
    assert os.environ[VARIABLE] == driver.FILE.read_text()


def test_one_that_ended_says_so(folder):
    process = start(DRIVE.format(0), folder)
    assert process.wait() == 0
    assert driver.FILE.read_text() == ""


def test_what_cannot_be_known_is_told_and_not_cleared(folder):
    """A driver on another login node: a lock of one host says nothing there."""
    driver.FILE.parent.mkdir()
    driver.FILE.write_text("login-1 4711 2026-12-03T10:00:00 abc")
    told = r"host login-1 \(process 4711, since 2026-12-03T10:00:00\).*delete \.snakemake/driver"
    with pytest.raises(InputError, match=told):
        take_charge()
    assert driver.FILE.read_text().startswith("login-1") and is_in_charge()


@pytest.mark.parametrize("content", ["", "\x00\x00", "four words but no number", "login-1 4711"])
def test_a_file_that_names_nobody_is_nobodys(folder, content):
    driver.FILE.parent.mkdir()
    driver.FILE.write_text(content)
    take_charge()
    assert Driver.parse(driver.FILE.read_text()).host == socket.gethostname()


@pytest.mark.parametrize("alive", [True, False])
def test_without_locks_the_process_is_asked_for(folder, living, monkeypatch, alive):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(driver.fcntl, "flock", no_locks)
    if alive:
        with pytest.raises(InputError, match=f"process {living.pid}"):
            take_charge()
    else:
        living.kill()
        living.wait()
        take_charge()


def test_a_job_ends_when_its_driver_was_killed(folder, living):
    job = start(JOB, folder, **{VARIABLE: driver.FILE.read_text()})
    assert job.poll() is None
    living.kill()
    living.wait()
    assert job.wait(timeout=10) == -signal.SIGKILL
    assert "the run that started this job is gone" in job.stderr.read()


def test_a_job_on_another_host_ends_when_another_driver_is_in_charge(folder):
    own = "elsewhere 1 2026-12-03T10:00:00 own"
    driver.FILE.parent.mkdir()
    driver.FILE.write_text(own)
    job = start(JOB, folder, **{VARIABLE: own})
    for text in (own, ""):  # the driver lives, or has ended: the scheduler of the cluster is told by it
        driver.FILE.write_text(text)
        time.sleep(0.3)
        assert job.poll() is None
    driver.FILE.write_text("elsewhere 2 2026-12-03T11:00:00 other")
    assert job.wait(timeout=10) == -signal.SIGKILL


def test_a_job_that_no_driver_started_is_left_alone(folder):
    driver.FILE.parent.mkdir()
    driver.FILE.write_text("elsewhere 2 2026-12-03T11:00:00 other")
    job = start(JOB, folder)
    time.sleep(0.3)
    assert job.poll() is None
    job.kill()
    job.wait()

"""A job's words go to its log, and bad input is one line there."""

import subprocess
import sys

import pytest

SCRIPT = """
import logging, os, warnings
from director.errors import InputError
from director.job_log import start
start({log!r})
print("printed"); logging.getLogger("x").info("logged"); warnings.warn("warned"); os.system("echo from a child")
raise {error}
"""


@pytest.mark.parametrize(("error", "traceback"), [("InputError('bad value 3')", False), ("KeyError('x')", True)])
def test_everything_goes_to_the_log(tmp_path, error, traceback):
    log = tmp_path / "logs" / "job.log"
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(log=str(log), error=error)], capture_output=True, text=True
    )
    assert ended.returncode != 0 and ended.stdout + ended.stderr == ""
    text = log.read_text()
    for word in ("printed", "INFO x: logged", "warned", "from a child"):
        assert word in text
    assert ("Traceback" in text) is traceback
    assert ("error: bad value 3" in text) is not traceback


@pytest.mark.parametrize("ended", ["error", "killed"])
def test_a_job_that_starts_again_keeps_what_it_had_said(tmp_path, ended):
    """Snakemake deletes the log before it starts the job again."""
    log = tmp_path / "job.log"

    def run(words, last):
        start = f"import os, signal; from director.job_log import start; start({str(log)!r})"
        subprocess.run([sys.executable, "-c", f"{start}; print({words!r}, flush=True); {last}"], capture_output=True)
        return log.read_text()

    assert "first life" in run("first life", "os.kill(os.getpid(), signal.SIGKILL)" if ended == "killed" else "1 / 0")
    log.unlink()
    text = run("second life", "")
    assert text.index("first life") < text.index("---- the job starts again") < text.index("second life")
    assert list(tmp_path.iterdir()) == [log], "a job that ended well leaves its log alone"
    assert "life" not in run("anew", "")


def test_a_disk_that_is_full_is_one_line_in_the_log(tmp_path):
    log = tmp_path / "job.log"
    script = SCRIPT.format(log=str(log), error="OSError(28, 'No space left on device', 'out.csv')")
    subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert log.read_text().splitlines()[-1].startswith("error: out.csv: no space left on device; make room")
    assert "Traceback" not in log.read_text()

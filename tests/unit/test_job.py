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

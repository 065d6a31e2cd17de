"""Training curves in MLflow while they grow, where MLFLOW_TRACKING_URI names a server.

A process beside the driver reads what the driver notes of its running jobs, and their logs; nothing waits for it, and
no number of the study comes from it. Its runs are named `<job> · live`; when the study is published, finished runs take
their place (`director.report.tracking.publish` deletes what it did not write).
"""

import contextlib
import logging
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from director.files import read_json
from director.progress import RUNNING, finished_epochs
from director.report.tracking import PATH_TAG, STUDY_TAG, client_of_store, experiment_of, reason_of, study_identity

SECONDS = 5.0  # between two looks
LOG = Path("logs/live.log")
NUMBER = re.compile(r"(\w+) (-?[0-9][0-9.e+-]*)")  # of an epoch's line in a training's log

log = logging.getLogger(__name__)


def start_beside() -> int | None:
    """Start the process where the store is a server, and return its number; it ends when the caller ends, however."""
    if not os.environ.get("MLFLOW_TRACKING_URI", "").startswith(("http://", "https://")):
        return None
    LOG.parent.mkdir(parents=True, exist_ok=True)
    pipe, _ = os.pipe()  # nobody closes the other end: it closes with this process
    with LOG.open("ab") as file:
        command = [sys.executable, "-m", __name__]  # in a session of its own: Ctrl-C is for the driver
        process = subprocess.Popen(command, stdin=pipe, stdout=file, stderr=file, start_new_session=True)
    os.close(pipe)
    return process.pid


class LiveRuns:
    """The runs of the trainings that the driver runs now."""

    def __init__(self, client: Any) -> None:
        self.client, self.study = client, study_identity()
        self.ids: dict[str, str] = {}  # name of a job -> its run
        self.sent: dict[str, int] = {}  # name of a job -> its last epoch that arrived

    def look(self) -> None:
        """Send the epochs that were finished since the last look; a training that ended ends its run."""
        running = {job["name"]: job for job in read_json(RUNNING) if job["epochs"]} if RUNNING.exists() else {}
        for name, job in running.items():
            if name not in self.ids:
                self.ids[name] = self._begin(name, job["experiment"])
        for name, job in running.items():
            self._send(name, job["log"])
        for name in self.ids.keys() - running.keys():
            self.client.set_terminated(self.ids.pop(name))

    def close(self) -> None:
        """End all runs as those of a study that was stopped."""
        for run in self.ids.values():
            self.client.set_terminated(run, status="KILLED")

    def _begin(self, name: str, experiment: str) -> str:
        tags = {STUDY_TAG: self.study, PATH_TAG: f"live: {name}"}
        known = experiment_of(self.client, experiment)
        return self.client.create_run(known, run_name=f"{name} · live", tags=tags).info.run_id

    def _send(self, name: str, log_file: str) -> None:
        from mlflow.entities import Metric

        now, last = int(1000 * time.time()), self.sent.get(name, 0)
        for epoch, numbers in finished_epochs(log_file):
            if epoch > last:
                values = NUMBER.findall(numbers)
                metrics = [Metric(f"training/{key}", float(value), now, epoch) for key, value in values]
                self.client.log_batch(self.ids[name], metrics=metrics)
                self.sent[name] = epoch


def main() -> None:
    """Look until standard input closes. A server that fails is asked again at the next look."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries, each with the address and whatever is in it
    runs, failing = None, False
    while not select.select([sys.stdin], [], [], SECONDS)[0]:
        try:
            runs = runs or LiveRuns(client_of_store())
            runs.look()
            failing = False
        except Exception as error:
            if not failing:  # once for each time that it goes away
                log.warning("training curves do not arrive: %s", reason_of(error))
            failing = True
    with contextlib.suppress(Exception):  # nobody is left to be told
        runs.look()
        runs.close()


if __name__ == "__main__":
    main()

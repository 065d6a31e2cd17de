"""What of a study is done, running and missing: `make status`, or `python workflow/status.py TARGET...`.

Two dry runs say it, which take no lock, and what the driver notes of its running jobs.
"""

import json
import subprocess
import sys

from director.driver import is_in_charge
from director.progress import RUNNING, finished_epochs


def planned(targets: list[str], *words: str) -> dict[str, int]:
    """Rule -> number of jobs that a run would have."""
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules", *words, "--", *targets]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr)
    _, _, table = (ended.stdout + ended.stderr).partition("Job stats:")
    lines = [line.split() for line in table.split("total")[0].splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def main(targets: list[str]) -> None:
    """Print a line per rule, then the running jobs."""
    every, missing = planned(targets, "--forceall"), planned(targets)
    running = json.loads(RUNNING.read_text()) if is_in_charge() and RUNNING.exists() else []
    print(f"{'rule':<24}{'done':>6}{'running':>9}{'missing':>9}")
    for rule, count in every.items():
        if rule in targets:
            continue  # a target is no job
        busy = sum(job["rule"] == rule for job in running)
        due = missing.get(rule, 0)
        print(f"{rule:<24}{count - due:>6}{busy:>9}{due - busy:>9}")
    for job in running:
        epochs = finished_epochs(job["log"])
        print(f"running: {job['name']}" + (f", epoch {epochs[-1][0]}: {epochs[-1][1]}" if epochs else ""))


if __name__ == "__main__":
    main(sys.argv[1:] or ["all"])

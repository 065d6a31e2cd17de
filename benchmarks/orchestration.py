"""How much of a finished study was spent between its jobs: `python benchmarks/orchestration.py --cores 2`.

From the records that Snakemake keeps of jobs in this folder, which must come from one run. What a job needs to start
(Python, torch) is part of the job; it is printed beside it, from starting one here.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def running(records: list[dict[str, float]], cores: int) -> tuple[float, float]:
    """Shares of the time from the first start to the last end: without any job, and of core-time without one."""
    changes = sorted([(job["starttime"], 1) for job in records] + [(job["endtime"], -1) for job in records])
    empty = used = count = 0.0
    for (start, change), (end, _) in itertools.pairwise(changes):
        count += change
        empty += (end - start) * (count == 0)
        used += (end - start) * min(count, cores)
    whole = changes[-1][0] - changes[0][0]
    return empty / whole, 1 - used / (cores * whole)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(), help="of the study; default: this one")
    parser.add_argument("--cores", type=int, required=True, help="that it ran on")
    options = parser.parse_args(words)
    files = (options.folder / ".snakemake/metadata").rglob("*")
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    jobs = {job["job_hash"]: job for job in records if job.get("endtime")}  # a record for each output
    if not jobs:
        raise SystemExit(f"{options.folder} has no records of finished jobs; run the study first")
    empty, idle = running(list(jobs.values()), options.cores)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import director.training.predict_run"], check=True)
    starting = time.perf_counter() - start
    seconds = sum(job["endtime"] - job["starttime"] for job in jobs.values())
    print(f"{len(jobs)} jobs; share of the time without any job {empty:.3f}, of the core-time {idle:.3f}")
    print(f"starting a job that runs a model, here: {starting * len(jobs) / seconds:.3f} of the jobs' time, if all did")


if __name__ == "__main__":
    main()

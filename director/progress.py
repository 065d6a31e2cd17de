"""What a run of the pipeline says while it works: one line per finished job, and on a terminal its running trainings.

A driver tells a `Progress` when jobs start, end and fail; how long they take is learned from jobs of the same kind that
ended before, in this run or an earlier one.
"""

import atexit
import re
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from director.files import write_json
from director.job_log import AGAIN

WIDTH = 160  # of the longest line, in characters; a path in it is not broken
RUNNING = Path(".snakemake/running.json")  # in the working folder: what the driver runs now
EPOCH = re.compile(r"^\S+ (\S+) INFO director\.training\.fit: epoch (\d+), (.*)$", re.MULTILINE)


@dataclass
class Job:
    """A job of a run: rule and the values of its wildcards, its log, and of a training the number of its epochs.

    earlier: seconds that the same job took in an earlier run, if any.
    """

    rule: str
    about: tuple[str, ...] = ()
    log: str = ""
    epochs: int | None = None
    earlier: float | None = None
    began: float | None = field(default=None, init=False)

    def __str__(self) -> str:
        return f"{self.rule} {'/'.join(self.about)}".rstrip()

    def noted(self) -> dict[str, Any]:
        """What other processes are told of it, in RUNNING."""
        experiment = self.about[0] if self.about else ""
        return {"rule": self.rule, "name": str(self), "experiment": experiment, "log": self.log, "epochs": self.epochs}


class Progress:
    """The jobs of a run, and what is said of them.

    jobs: number -> job, all that the run has to do. stream: where it is said. clock: seconds, of any origin.
    `say` writes a line of the driver's own.
    """

    def __init__(self, jobs: Mapping[int, Job], stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.jobs, self.clock = jobs, clock
        self.waiting: set[int] = set(jobs)
        self.running: set[int] = set()
        self.took: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)  # kind of job -> seconds
        self.lock = threading.RLock()
        self.say = _writer(stream, self.trainings)

    def start(self, number: int) -> None:
        """A job begins, perhaps again."""
        with self.lock:
            self.waiting.discard(number)
            self.running.add(number)
            self.jobs[number].began = self.clock()
            self._note()

    def finish(self, number: int) -> None:
        """A job ended well: its line."""
        with self.lock:
            job = self.jobs[number]
            seconds = self.clock() - job.began
            for kind in _kinds(job):
                self.took[kind].append(seconds)
            slots = max(1, len(self.running))
            self.running.discard(number)
            self._note()
            done = len(self.jobs) - len(self.waiting) - len(self.running)
            words = f"{time.strftime('%H:%M:%S')}  {done:>{len(str(len(self.jobs)))}} of {len(self.jobs)}"
            self.say(shortened(f"{words}  {job}  {duration(seconds)}{self._left(slots)}"))

    def fail(self, number: int, reason: str, logs: Sequence[str]) -> None:
        """A job ended with an error, of which `reason` and `logs` say more; it may start again."""
        with self.lock:
            self.running.discard(number)
            self.waiting.add(number)
            self._note()
            where = f"; log: {', '.join(logs)}" if logs else ""
            for line in f"Error in rule {self.jobs[number]}{where}\n{reason}".strip().splitlines():
                self.say("\n".join(textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)))

    def trainings(self) -> list[str]:
        """A line for each training that runs: epoch, loss, validation numbers, time left."""
        with self.lock:
            running = [self.jobs[number] for number in sorted(self.running)]
            return [self._training(job) for job in running if job.epochs]

    def _training(self, job: Job) -> str:
        epochs = finished_epochs(job.log)
        if not epochs:
            return f"{job}  epoch 1 of {job.epochs}"
        number, numbers = epochs[-1]
        seconds = (self.clock() - job.began) / len(epochs) * (job.epochs - number)
        shown = [words for words in numbers.split(", ") if words.startswith(("train_loss", "val_"))]
        return f"{job}  epoch {number} of {job.epochs}  {', '.join(shown)}  about {duration(seconds)} left"

    def _note(self) -> None:
        jobs = [self.jobs[number] for number in sorted(self.running)]
        write_json(RUNNING, [job.noted() for job in jobs])

    def _left(self, slots: int) -> str:
        """Time left, if as many jobs run side by side as now: from jobs of the same kind, else from an earlier run."""
        expected = {number: self._expected(self.jobs[number]) for number in self.waiting | self.running}
        known = {number: seconds for number, seconds in expected.items() if seconds is not None}
        if not known:
            return ""
        now = self.clock()
        gone = {number: now - self.jobs[number].began for number in self.running}
        remaining = [max(0.0, seconds - gone.get(number, 0.0)) for number, seconds in known.items()]
        left = max(*remaining, sum(remaining) / slots)
        return f"  {'about' if len(known) == len(expected) else 'at least'} {duration(left)} left"

    def _expected(self, job: Job) -> float | None:
        ended = next((self.took[kind] for kind in _kinds(job) if kind in self.took), None)
        return sum(ended) / len(ended) if ended else job.earlier


def _kinds(job: Job) -> list[tuple[str, ...]]:
    """What jobs that take as long have in common, the nearest first: experiment and backbone, experiment, rule."""
    return [(job.rule, *job.about[:count]) for count in (2, 1, 0)]


def finished_epochs(log: str | Path) -> list[tuple[int, str]]:
    """Epochs that a training's present start has finished, and their numbers, as its log says."""
    try:
        text = Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not there yet, or on its way to another start
        return []
    return [(int(epoch), numbers) for _, epoch, numbers in EPOCH.findall(text.rpartition(AGAIN)[2])]


def duration(seconds: float) -> str:
    """A time as people say it: 0.4 s, 48 s, 6 min, 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def shortened(line: str) -> str:
    """A line that is not longer than WIDTH, its middle left out."""
    half = (WIDTH - 5) // 2
    return line if len(line) <= WIDTH else f"{line[:half]} ... {line[-half:]}"


def _writer(stream: IO[str], trainings: Callable[[], list[str]]) -> Callable[[str], None]:
    """What writes lines to `stream`; on a terminal those that `trainings` gives stand below them, kept up to date."""
    if not stream.isatty():
        return lambda line: print(line, file=stream, flush=True)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)

    def shown() -> Text:
        width = console.width - 1
        return Text("\n".join(line[:width] for line in trainings()), style="dim")

    live = Live(get_renderable=shown, console=console, refresh_per_second=1, transient=True, redirect_stdout=False)
    live.start()
    atexit.register(live.stop)  # also after an error or Ctrl-C: it gives the cursor back
    return lambda line: console.print(Text(line), soft_wrap=True)

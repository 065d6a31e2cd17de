"""What a run says while it works."""

import io
import json

import pytest

from director.job_log import AGAIN
from director.progress import RUNNING, WIDTH, Job, Progress, duration, finished_epochs, shortened

EPOCH = (
    "2026-12-03 10:00:0{0},123 INFO director.training.fit: epoch {0}, learning_rate 0.01, train_loss 0.5, val_nll 0.4\n"
)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Clock()


def run(clock, jobs):
    said = io.StringIO()
    return Progress(dict(enumerate(jobs)), said, clock), said


def trainings(*seeds, **more):
    return [Job("train_backbone", ("digits", "softmax", str(seed)), **more) for seed in seeds]


def test_one_line_per_finished_job(clock):
    progress, said = run(clock, trainings(0, 1))
    progress.start(0)
    clock.now += 30
    progress.finish(0)
    (line,) = said.getvalue().splitlines()
    assert line[10:] == "1 of 2  train_backbone digits/softmax/0  30 s  about 30 s left"


def test_time_left_is_that_of_jobs_of_the_same_kind(clock):
    """Two side by side halve the rest; the longest job bounds it; what runs has already done its part."""
    progress, said = run(clock, trainings(0, 1, 2, 3))
    progress.start(0)
    progress.start(1)
    clock.now += 60
    progress.finish(0)
    assert said.getvalue().rstrip().endswith("about 60 s left")  # 1 is done by now, 2 and 3 side by side
    progress.start(2)
    clock.now += 20
    progress.finish(1)  # took 80 s: 70 s are expected now, of which job 2 has 50 left and job 3 all
    assert said.getvalue().rstrip().endswith("about 70 s left")


def test_a_kind_that_was_never_measured_makes_it_a_lower_bound(clock):
    progress, said = run(clock, [*trainings(0, 1), Job("tabulate")])
    progress.start(0)
    clock.now += 10
    progress.finish(0)
    assert said.getvalue().rstrip().endswith("at least 10 s left")


def test_an_earlier_run_tells_before_this_one_has_measured(clock):
    progress, said = run(clock, [Job("tabulate"), *trainings(0, earlier=50.0)])
    progress.start(0)
    clock.now += 1
    progress.finish(0)
    assert said.getvalue().rstrip().endswith("tabulate  1.0 s  about 50 s left")


def test_no_line_is_longer_than_a_terminal_likes(clock):
    progress, said = run(clock, [Job("predict", ("a" * 300,)), Job("predict", ("b",))])
    progress.start(0)
    progress.finish(0)
    progress.start(1)
    progress.fail(1, "words " * 100, [f"logs/{number}" for number in range(40)])
    assert all(len(line) <= WIDTH for line in said.getvalue().splitlines())
    assert shortened("x" * WIDTH) == "x" * WIDTH and len(shortened("x" * 999)) <= WIDTH


def test_a_failed_job_is_named_and_still_to_do(clock):
    progress, said = run(clock, trainings(0, 1))
    progress.start(0)
    progress.fail(0, "killed", ["logs/a.log"])
    assert said.getvalue() == "Error in rule train_backbone digits/softmax/0; log: logs/a.log\nkilled\n"
    progress.start(0)
    clock.now += 5
    progress.finish(0)
    assert "1 of 2" in said.getvalue()


def test_running_trainings_say_epoch_loss_validation_and_time_left(clock, tmp_path):
    log = tmp_path / "training.log"
    progress, _ = run(clock, [*trainings(0, log=str(log), epochs=10), Job("tabulate")])
    progress.start(0)
    progress.start(1)
    assert progress.trainings() == ["train_backbone digits/softmax/0  epoch 1 of 10"]
    # a resumed training: its first start had two epochs, this one has made one more in 12 s
    log.write_text(f"{EPOCH.format(1)}{EPOCH.format(2)}{AGAIN}\n{EPOCH.format(3)}")
    clock.now += 12
    (line,) = progress.trainings()
    assert line.endswith("epoch 3 of 10  train_loss 0.5, val_nll 0.4  about 84 s left")
    progress.finish(0)
    assert progress.trainings() == []


def test_what_runs_is_noted_for_other_processes(clock):
    progress, _ = run(clock, trainings(0, log="logs/a.log"))
    progress.start(0)
    expected = {
        "rule": "train_backbone",
        "name": "train_backbone digits/softmax/0",
        "experiment": "digits",
        "log": "logs/a.log",
        "epochs": None,
    }
    assert json.loads(RUNNING.read_text()) == [expected]
    progress.finish(0)
    assert json.loads(RUNNING.read_text()) == []


def test_a_terminal_shows_the_running_trainings_below(clock, monkeypatch):
    monkeypatch.setattr("director.progress.atexit.register", stops := [].append)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    progress = Progress(dict(enumerate(trainings(0, 1, epochs=3))), terminal, clock)
    progress.start(0)
    progress.start(1)
    progress.finish(1)
    stops.__self__[0]()
    shown = terminal.getvalue()
    assert "train_backbone digits/softmax/0  epoch 1 of 3" in shown and "1 of 2" in shown


def test_a_log_that_is_not_there_has_no_epoch(tmp_path):
    assert finished_epochs(tmp_path / "none.log") == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (99, "99 s"), (101, "2 min"), (7500, "2 h 5 min")],
)
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words

"""Trap 24: a training that is killed goes on where it was, and ends as if nothing had happened."""

import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import IMAGE_MODEL, TRAINING, bright_and_dark, changed, history, kep_attention, trained_backbone
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from director.data.augment import epoch_order
from director.training import fit, job, resume
from director.training.job import EARLY, HISTORY, SETTINGS, STATE, WEIGHTS

TRAINING = changed(TRAINING, batch_size=4, weight_decay=1e-3)
# the epoch with the lowest val_nll is the chosen one, or the first where the last is chosen
EPOCHS = {"one": TRAINING, "two": changed(TRAINING, learning_rate=0.3, selection="last")}
STEPS = 9  # 3 epochs of 10 examples in batches of 4


class Killed(Exception):
    pass


class Run:
    """A small training with dropout, noise, BatchNorm statistics and two logged terms, killed at will."""

    def __init__(self, folder, identity=None, training=TRAINING):
        self.training = training
        self.state_file = folder / "state.safetensors"
        self.identity = identity or {"settings": {"depth": 2}, "data": "abc", "seed": 0}
        rng = np.random.default_rng(0)
        self.inputs = rng.normal(size=(10, 3)).astype(np.float32)
        self.labels = rng.integers(0, 2, 10)

    def __len__(self):
        return len(self.labels)

    def epoch_batches(self, batch_size, seed, epoch):
        order = epoch_order(len(self), seed, epoch)
        return [order[start : start + batch_size] for start in range(0, len(self), batch_size)]

    def batch(self, rows, view=None):
        self.rows.append(rows.tolist())
        return self.inputs[rows], self.labels[rows]

    def start(self, kill_at_call=None, kill_at_validation=None):
        """Fresh model, fresh process as far as the loop can tell; returns what must not depend on the kills."""
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))  # the start's random state is not the training's
        model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2))
        for index, parameter in enumerate(model.parameters()):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(index))
        self.rows, calls, ends = [], [], []

        def loss(inputs, labels, generator):
            calls.append(None)
            if len(calls) == kill_at_call:
                raise Killed
            noise = torch.randn(inputs.shape, generator=generator)
            entropy = F.cross_entropy(model(inputs + 0.1 * noise), labels)
            return {"loss": entropy, "noise": noise.mean()}

        def evaluate():
            if len(ends) + 1 == kill_at_validation:
                raise Killed
            ends.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            with torch.no_grad():
                return {
                    "val_nll": F.cross_entropy(
                        model(torch.from_numpy(self.inputs)), torch.from_numpy(self.labels)
                    ).item()
                }

        state = {"state_file": self.state_file, "identity": self.identity, "state_seconds": 0}
        self.outcome = fit.fit(model, loss, evaluate, self, self.training, seed=0, **state)
        epochs = self.outcome.best_epoch, self.outcome.early_epoch
        kept = self.outcome.kept
        return self.outcome.history, epochs, model.state_dict(), kept[epochs[1]], ends[-1] if ends else None


def assert_same(one, other):
    assert one[:2] == other[:2]  # history and both epochs, every float equal
    for first, second in zip(one[2:], other[2:], strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def fresh(tmp_path, name, **options):
    (tmp_path / name).mkdir()
    return Run(tmp_path / name, **options)


@pytest.fixture(params=EPOCHS)
def training(request):
    return EPOCHS[request.param]


def test_killed_at_any_step_ends_as_uninterrupted(tmp_path, training):
    """Trap 24 (snakemake 2407, 509): killed at step k, continues at k."""
    whole = fresh(tmp_path, "whole", training=training)
    expected = whole.start()
    assert (expected[1] == (3, 1)) is (training.selection == "last"), "the weights of two epochs, or of one"
    for k in range(1, STEPS + 1):
        run = fresh(tmp_path, f"step-{k}", training=training)
        with pytest.raises(Killed):
            run.start(kill_at_call=k)
        assert_same(run.start(), expected)
        # it did not start anew, and trap 34 (accelerate 2574): the rest of the epoch's order is the rest
        assert run.rows == whole.rows[k - 1 :]


def test_killed_at_every_step_ends_as_uninterrupted(tmp_path, training):
    """Trap 24: as many starts as steps, one step each."""
    expected = fresh(tmp_path, "whole", training=training).start()
    run = fresh(tmp_path, "pieces", training=training)
    for _ in range(STEPS - 1):
        with pytest.raises(Killed):
            run.start(kill_at_call=2)
    assert_same(run.start(), expected)


def test_killed_in_validation_ends_as_uninterrupted(tmp_path, training):
    """Trap 24: an epoch counts once its validation is done."""
    expected = fresh(tmp_path, "whole", training=training).start()
    for epoch in (1, 2, 3):
        run = fresh(tmp_path, f"epoch-{epoch}", training=training)
        with pytest.raises(Killed):
            run.start(kill_at_validation=epoch)
        assert_same(run.start(), expected)


def test_finished_but_outputs_missing_trains_no_more(tmp_path, training):
    """Trap 24: killed between the last step and the outputs; the state is still there and holds the best weights."""
    run = fresh(tmp_path, "run", training=training)
    expected = run.start()
    again = run.start()
    assert_same(again[:4], expected[:4])
    assert run.rows == []


def test_a_state_holds_the_weights_of_an_epoch_once(tmp_path, training):
    run = fresh(tmp_path, "run", training=training)
    _, epochs, model, *_ = run.start()
    with safe_open(run.state_file, framework="pt") as file:
        kept = sorted(key for key in file.keys() if key.startswith("kept/"))  # noqa: SIM118
    assert kept == sorted(f"kept/{epoch}.{name}" for epoch in set(epochs) for name in model)


def test_seconds_are_summed_over_starts(tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(fit.time, "monotonic", lambda: float(next(clock)))
    run = fresh(tmp_path, "run")
    with pytest.raises(Killed):
        run.start(kill_at_call=5)
    first = next(clock)
    run.start()
    assert run.outcome.seconds > first + 4  # a start of 5 steps reads the clock more than 4 times
    assert run.outcome.seconds < next(clock)


def test_state_of_other_settings_is_not_used_and_the_log_says_what_differs(tmp_path, caplog):
    """Trap 24: resuming the wrong training is worse than starting again."""
    run = fresh(tmp_path, "run")
    with pytest.raises(Killed):
        run.start(kill_at_call=6)
    other = Run(run.state_file.parent, identity={"settings": {"depth": 3}, "data": "abc", "seed": 0})
    with caplog.at_level(logging.WARNING, "director"):
        result = other.start()
    assert "settings.depth: 2, now 3" in caplog.text
    assert len(other.rows) == STEPS
    assert_same(result, fresh(tmp_path, "whole").start())


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "text", "other shapes"])
def test_broken_state_is_not_used_and_the_log_says_so(tmp_path, caplog, damage):
    """Trap 24: a state that a full disk cut off, or another program's file of that name."""
    run = fresh(tmp_path, "run")
    with pytest.raises(Killed):
        run.start(kill_at_call=6)
    whole = run.state_file.read_bytes()
    if damage == "truncated":
        run.state_file.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        run.state_file.write_bytes(b"")
    elif damage == "foreign":
        save_file({"model/weight": torch.zeros(1)}, run.state_file)
    elif damage == "text":
        run.state_file.write_text("no state at all")
    else:
        wide = nn.Linear(4, 4)
        adam = torch.optim.Adam(wide.parameters())
        resume.save_state(run.state_file, run.identity, resume.Progress(3), wide, adam)
    with caplog.at_level(logging.WARNING, "director"):
        result = run.start()
    assert "training starts anew" in caplog.text
    assert str(run.state_file) in caplog.text
    assert_same(result, fresh(tmp_path, "whole").start())


def test_removing_the_state_removes_what_a_kill_left_of_it(tmp_path):
    for name in ("state.safetensors", ".state-x1.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    resume.remove_state(tmp_path / "state.safetensors")
    resume.remove_state(tmp_path / "state.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


# -- a backbone's training, and a real SIGKILL -------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from functools import partial
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_resume import backbone
from director.models import weights
from director.training import job

saves = []

def save_and_kill(*arguments, save_file=weights.save_file, **options):
    save_file(*arguments, **options)
    saves.append(None)
    if len(saves) == 5:  # the state of step 5 has its bytes but not yet its name
        os.kill(os.getpid(), signal.SIGKILL)

weights.save_file = save_and_kill
job.fit = partial(job.fit, state_seconds=0)
backbone(Path(sys.argv[1]))
"""


def backbone(folder):
    """Train a backbone with dropout, noise and penalties, in 9 steps, its last epoch not its early one; its folder."""
    return trained_backbone(
        folder,
        model=changed(IMAGE_MODEL, width=8, mlp_width=8, dropout=0.2),
        training=changed(TRAINING, batch_size=8, selection="last"),
        attention=kep_attention(),
        penalties={"kl": 0.01},
        annealing=0.9,
        seed=0,
    )


def test_sigkill_and_the_plain_call_again(tmp_path, caplog):
    """Trap 24: the training of a backbone, killed by the system while it writes its state, then simply run again."""
    for name in ("killed", "whole"):
        bright_and_dark(tmp_path / name)
    expected = backbone(tmp_path / "whole")

    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", CHILD, str(tmp_path / "killed"), str(tests / "traps"), str(tests)]
    child = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    out = tmp_path / "killed" / "backbone"
    assert (out / STATE).is_file()
    assert not (out / WEIGHTS).exists()

    with caplog.at_level(logging.INFO, "director"):
        backbone(tmp_path / "killed")
    assert "resuming at step 4 of 9" in caplog.text
    for name in (WEIGHTS, EARLY, HISTORY, SETTINGS):
        assert (out / name).read_bytes() == (expected / name).read_bytes()
    assert (out / EARLY).read_bytes() != (out / WEIGHTS).read_bytes()
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in expected.iterdir())


def test_state_goes_only_after_the_outputs_are_written(tmp_path, monkeypatch):
    """Trap 24: a job that fails while writing its last output has not lost its training."""
    bright_and_dark(tmp_path)
    monkeypatch.setattr(job, "fit", partial(job.fit, state_seconds=0))
    state_file = tmp_path / "backbone" / STATE

    def no_space(path, text):
        raise OSError("no space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(job, "write_text", no_space)
        with pytest.raises(OSError, match="no space"):
            backbone(tmp_path)
    assert state_file.is_file()
    monkeypatch.setattr(F, "cross_entropy", pytest.fail)  # nothing is trained again
    assert len(history(backbone(tmp_path))) == 3
    assert not state_file.exists()

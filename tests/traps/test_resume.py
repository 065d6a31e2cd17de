"""Trap 24: a training that is killed goes on where it was, and ends as if nothing had happened."""

import csv
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
from safetensors.torch import save_file
from torch import nn

from director import recipes, training
from director.data.augment import epoch_order
from director.data.dataset import Dataset
from director.resume import remove_state
from director.training import fit

SETTINGS = {
    "seed": 0,
    "epochs": 3,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "weight_decay": 1e-3,
    "warmup_epochs": 1,
    "final_learning_rate": 1e-4,
    "gradient_clip": 1.0,
    "selection": "val_nll",
    "state_seconds": 0,
}
STEPS = 9  # 3 epochs of 10 examples in batches of 4


class Killed(Exception):
    pass


class Run:
    """A small training with dropout, noise, BatchNorm statistics and two logged terms, killed at will."""

    def __init__(self, folder, identity=None):
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

        settings = SETTINGS | {"state_file": self.state_file, "identity": self.identity}
        self.outcome = fit(model, loss, evaluate, self, **settings)
        return self.outcome.history, self.outcome.best_epoch, model.state_dict(), ends[-1] if ends else None


def assert_same(one, other):
    assert one[:2] == other[:2]  # history and best epoch, every float equal
    for first, second in zip(one[2:], other[2:], strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def fresh(tmp_path, name, **options):
    (tmp_path / name).mkdir()
    return Run(tmp_path / name, **options)


def test_killed_at_any_step_ends_as_uninterrupted(tmp_path):
    """Trap 24 (snakemake 2407, 509): killed at step k, continues at k."""
    whole = fresh(tmp_path, "whole")
    expected = whole.start()
    for k in range(1, STEPS + 1):
        run = fresh(tmp_path, f"step-{k}")
        with pytest.raises(Killed):
            run.start(kill_at_call=k)
        assert_same(run.start(), expected)
        # it did not start anew, and trap 34 (accelerate 2574): the rest of the epoch's order is the rest
        assert run.rows == whole.rows[k - 1 :]


def test_killed_at_every_step_ends_as_uninterrupted(tmp_path):
    """Trap 24: as many starts as steps, one step each."""
    expected = fresh(tmp_path, "whole").start()
    run = fresh(tmp_path, "pieces")
    for _ in range(STEPS - 1):
        with pytest.raises(Killed):
            run.start(kill_at_call=2)
    assert_same(run.start(), expected)


def test_killed_in_validation_ends_as_uninterrupted(tmp_path):
    """Trap 24: an epoch counts once its validation is done."""
    expected = fresh(tmp_path, "whole").start()
    for epoch in (1, 2, 3):
        run = fresh(tmp_path, f"epoch-{epoch}")
        with pytest.raises(Killed):
            run.start(kill_at_validation=epoch)
        assert_same(run.start(), expected)


def test_finished_but_outputs_missing_trains_no_more(tmp_path):
    """Trap 24: killed between the last step and the outputs; the state is still there and holds the best weights."""
    run = fresh(tmp_path, "run")
    expected = run.start()
    again = run.start()
    assert_same(again[:3], expected[:3])
    assert run.rows == []


def test_seconds_are_summed_over_starts(tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(training.time, "monotonic", lambda: float(next(clock)))
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
        training.save_state(
            run.state_file, run.identity, training.Progress(3), wide, torch.optim.Adam(wide.parameters())
        )
    with caplog.at_level(logging.WARNING, "director"):
        result = run.start()
    assert "training starts anew" in caplog.text
    assert str(run.state_file) in caplog.text
    assert_same(result, fresh(tmp_path, "whole").start())


def test_removing_the_state_removes_what_a_kill_left_of_it(tmp_path):
    for name in ("state.safetensors", ".state-x1.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    remove_state(tmp_path / "state.safetensors")
    remove_state(tmp_path / "state.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


# -- a backbone's training, and a real SIGKILL -------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_resume import backbone_arguments
from director import recipes, resume

saves = []

def save_and_kill(*arguments, save_file=resume.save_file, **options):
    save_file(*arguments, **options)
    saves.append(None)
    if len(saves) == 5:  # the state of step 5 has its bytes but not yet its name
        os.kill(os.getpid(), signal.SIGKILL)

resume.save_file = save_and_kill
recipes.fit = partial(recipes.fit, state_seconds=0)
recipes.train_backbone(**backbone_arguments(Path(sys.argv[2])))
"""


def backbone_arguments(folder):
    out = folder / "backbone"
    return {
        "dataset_folder": folder / "bright",
        "split_file": folder / "split.npz",
        "model": {
            "image_size": 4,
            "channels": 1,
            "patch": 2,
            "width": 8,
            "depth": 2,
            "heads": 2,
            "mlp_width": 8,
            "classes": 2,
            "dropout": 0.2,
            "kep_layers": 1,
            "kep_rank": 2,
            "kep_multiplier": 2,
        },
        "training": {name: SETTINGS[name] for name in SETTINGS if name not in ("seed", "state_seconds")},
        "penalties": {"kl": 0.01},
        "normalisation": {"scale": 255.0, "mean": [0.5], "std": [0.3]},
        "augmentation": {"padding": 1, "flip": True},
        "seed": 0,
        "about": {"experiment": "kill"},
        "device": "cpu",
        "threads": 1,
        "weights_file": out / "model.safetensors",
        "history_file": out / "history.csv",
        "cost_file": out / "cost.json",
        "settings_file": out / "settings.yaml",
    }


def bright(folder):
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    images = np.clip(rng.normal(90 + 60 * labels[:, None, None, None], 30, (20, 4, 4, 1)), 0, 255).astype(np.uint8)
    Dataset.clean("bright", images, labels).save(folder / "bright")
    np.savez(folder / "split.npz", train=np.arange(10), validation=np.arange(10, 15), test=np.arange(15, 20))
    return backbone_arguments(folder)


def test_sigkill_and_the_plain_call_again(tmp_path, caplog):
    """Trap 24: the training of a backbone, killed by the system while it writes its state, then simply run again."""
    for name in ("killed", "whole"):
        bright(tmp_path / name)
    recipes.train_backbone(**backbone_arguments(tmp_path / "whole"))

    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(tmp_path / "killed")]
    child = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    out, expected = tmp_path / "killed" / "backbone", tmp_path / "whole" / "backbone"
    assert (out / "state.safetensors").is_file()
    assert not (out / "model.safetensors").exists()

    with caplog.at_level(logging.INFO, "director"):
        recipes.train_backbone(**backbone_arguments(tmp_path / "killed"))
    assert "resuming at step 4 of 9" in caplog.text
    for name in ("model.safetensors", "history.csv", "settings.yaml"):
        assert (out / name).read_bytes() == (expected / name).read_bytes()
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in expected.iterdir())


def test_state_goes_only_after_the_outputs_are_written(tmp_path, monkeypatch):
    """Trap 24: a job that fails while writing its last output has not lost its training."""
    arguments = bright(tmp_path)
    monkeypatch.setattr(recipes, "fit", partial(recipes.fit, state_seconds=0))
    state_file = tmp_path / "backbone" / "state.safetensors"
    write_text = recipes.write_text

    def no_space(path, text):
        raise OSError("no space left on device")

    monkeypatch.setattr(recipes, "write_text", no_space)
    with pytest.raises(OSError, match="no space"):
        recipes.train_backbone(**arguments)
    assert state_file.is_file()
    monkeypatch.setattr(recipes, "write_text", write_text)
    monkeypatch.setattr(recipes.F, "cross_entropy", pytest.fail)  # nothing is trained again
    recipes.train_backbone(**arguments)
    assert not state_file.exists()
    assert len(list(csv.DictReader(arguments["history_file"].open()))) == 3

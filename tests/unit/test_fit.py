"""The training loop."""

import io
import logging
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import TRAINING, changed
from pydantic import ValidationError
from torch import nn

from director.data.augment import epoch_order
from director.errors import InputError
from director.settings.training import Training
from director.training.fit import fit, learning_rate_at, penalty_share_at


class Points:
    """Two clouds in the plane; `seen` records the rows and views that were asked for."""

    def __init__(self, count=20):
        rng = np.random.default_rng(0)
        self.labels = np.arange(count) % 2
        self.inputs = (rng.normal(size=(count, 2)) + 2 * self.labels[:, None]).astype(np.float32)
        self.seen = []

    def __len__(self):
        return len(self.labels)

    def epoch_batches(self, batch_size, seed, epoch):
        order = epoch_order(len(self), seed, epoch)
        return [order[start : start + batch_size] for start in range(0, len(self), batch_size)]

    def batch(self, rows, view=None):
        self.seen.append((rows.tolist(), view))
        return self.inputs[rows], self.labels[rows]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


OPTIONS = ("seed", "precision", "compile", "penalties", "annealing")  # of the loop, beside its settings


def train(folder, model=None, train=None, loss=None, evaluate=None, **settings):
    model = model or network()
    points = Points() if train is None else train
    inputs, labels = torch.from_numpy(points.inputs), torch.from_numpy(points.labels)

    def cross_entropy(inputs, labels, generator):
        return {"loss": F.cross_entropy(model(inputs), labels)}

    def validation():
        with torch.no_grad():
            return {"val_nll": F.cross_entropy(model(inputs), labels).item()}

    options = {"seed": 0, "state_file": folder / "state.safetensors", "identity": {}}
    options |= {name: settings.pop(name) for name in OPTIONS if name in settings}
    training = changed(TRAINING, **settings)
    return fit(model, loss or cross_entropy, evaluate or validation, points, training, **options), model


def test_learning_rate_rises_linearly_then_falls_as_a_cosine():
    training = Training(epochs=101, warmup_epochs=10, learning_rate=1.0, final_learning_rate=0.1)
    rates = [learning_rate_at(training, step, steps_per_epoch=1) for step in range(101)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)  # half-way between peak and end, half-way through the cosine
    assert rates[100] == pytest.approx(0.1)
    assert (np.diff(rates[10:]) < 0).all()
    assert learning_rate_at(changed(training, epochs=1, warmup_epochs=0), 0, steps_per_epoch=1) == 1.0
    finer = changed(training, epochs=11, warmup_epochs=1)
    assert (
        learning_rate_at(finer, 4, steps_per_epoch=10) == 0.5
    )  # warm-up is counted in epochs, the rate moves in steps


def test_penalties_rise_linearly_to_their_weights():
    shares = [penalty_share_at(0.5, step, steps=8) for step in range(8)]
    assert shares == [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert [penalty_share_at(0.0, step, steps=8) for step in (0, 7)] == [1.0, 1.0]
    assert penalty_share_at(1.0, 7, steps=8) == 7 / 8


def test_penalties_are_added_with_their_weights_and_logged_without(tmp_path):
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(inputs, labels, generator):
        # neither depends on the weights, but that they are trained
        return {"loss": 1.0 + 0 * model.weight.sum(), "kl": torch.tensor(4.0), "other": torch.tensor(9.0)}

    options = {"loss": loss, "evaluate": lambda: {"val_nll": 0.0}, "epochs": 4, "batch_size": 20, "warmup_epochs": 0}
    outcome, _ = train(tmp_path, model, penalties={"kl": 0.5}, annealing=0.5, **options)
    assert [row["train_loss"] for row in outcome.history] == [1, 2, 3, 3], "shares 0, 1/2, 1, 1 of 0.5 * 4"
    assert {(row["train_kl"], row["train_other"]) for row in outcome.history} == {(4, 9)}


def test_the_gradient_is_that_of_the_loss_with_its_penalties(tmp_path):
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)

    def loss(inputs, labels, generator):
        return {"loss": model.weight[0, 0] * 10.0, "kl": model.weight[0, 1] * 10.0}

    options = {"loss": loss, "evaluate": lambda: {"val_nll": 0.0}, "epochs": 1, "batch_size": 20, "warmup_epochs": 0}
    train(tmp_path, model, penalties={"kl": -1.0}, gradient_clip=None, **options)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[3.0 - 1e-2, 3.0 + 1e-2]]))


def test_every_epoch_sees_every_example_once_under_its_own_view(tmp_path):
    points = Points()
    train(tmp_path, train=points)
    assert [len(rows) for rows, _ in points.seen] == [8, 8, 4] * 3
    assert [view for _, view in points.seen] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    orders = [[row for rows, view in points.seen if view == epoch for row in rows] for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_one_step_is_adam_with_the_l2_term_in_the_gradient(tmp_path):
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    slope = torch.tensor([0.0, 10.0])
    train(
        tmp_path,
        model,
        loss=lambda inputs, labels, generator: {"loss": (model.weight * slope).sum()},
        evaluate=lambda: {"val_nll": 0.0},
        epochs=1,
        batch_size=20,
        warmup_epochs=0,
        weight_decay=0.5,
        gradient_clip=None,
    )
    # gradient 0 + 0.5 * 3 and 10 + 0.5 * 3: Adam's first step is the learning rate times the sign of either.
    # Decoupled decay would have moved the first weight by 0.005 * 3 and not by 0.01.
    torch.testing.assert_close(model.weight.detach(), torch.full((1, 2), 3.0 - 1e-2))


def test_gradient_is_clipped_by_the_norm_of_all_parameters(tmp_path):
    model, norms = nn.Linear(2, 2), []

    def loss(inputs, labels, generator):
        if model.weight.grad is not None:
            norms.append(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])).item())
        return {"loss": 1000 * F.cross_entropy(model(inputs), labels)}

    train(tmp_path, model, loss=loss, gradient_clip=0.25)
    assert norms == pytest.approx([0.25] * len(norms), rel=1e-4)


def test_history_holds_means_over_examples_and_all_terms(tmp_path):
    def loss(inputs, labels, generator):
        # the mean of a batch; over the epoch's 20 examples, batches of 8, 8 and 4 must not count alike
        return {"loss": next(model.parameters()).sum() * 0 + 1.0, "position": inputs[:, 0].mean()}

    model, points = network(), Points()
    outcome, _ = train(tmp_path, model, train=points, loss=loss)
    assert [row["epoch"] for row in outcome.history] == [1, 2, 3]
    assert list(outcome.history[0]) == ["epoch", "learning_rate", "train_loss", "train_position", "val_nll"]
    for row in outcome.history:
        assert row["train_loss"] == 1.0
        assert row["train_position"] == pytest.approx(points.inputs[:, 0].mean(), rel=1e-6)
    assert [row["learning_rate"] for row in outcome.history] == pytest.approx([1e-2, 6.02e-3, 1e-4], abs=2e-3)
    assert outcome.seconds > 0
    assert outcome.peak_memory_bytes > 10**6


@pytest.mark.parametrize(
    ("selection", "values", "best"),
    [("val_accuracy", [0.5, 0.9, 0.9, 0.7], 2), ("val_nll", [0.5, 0.2, 0.2, 0.7], 2), ("val_nll", [0.0] * 4, 1)],
)
def test_model_ends_with_the_first_best_epoch(tmp_path, selection, values, best):
    model, weights, remaining = network(), [], iter(values)

    def evaluate():
        assert not model.training
        weights.append(model[0].weight.detach().clone())
        return {selection: next(remaining)}

    outcome, _ = train(tmp_path, model, evaluate=evaluate, epochs=4, selection=selection)
    assert outcome.best_epoch == best
    assert (outcome.early_epoch, list(outcome.kept)) == (best, [best]), "without a val_nll, too"
    assert torch.equal(model[0].weight, weights[best - 1])
    assert not torch.equal(weights[best - 1], weights[best])
    assert not model.training


def test_the_last_epoch_is_kept_where_none_is_chosen(tmp_path):
    epochs = iter([(0.9, 0.4), (0.95, 0.3), (0.9, 0.5)])

    def evaluate():
        return dict(zip(("val_accuracy", "val_nll"), next(epochs), strict=True))

    outcome, _ = train(tmp_path, network(), evaluate=evaluate, epochs=3, selection="last")
    assert outcome.best_epoch == 3


def test_of_equally_accurate_epochs_the_most_likely_one_is_kept(tmp_path):
    epochs = iter([(0.9, 0.4), (0.95, 0.5), (0.95, 0.3), (0.95, 0.35), (0.9, 0.1)])

    def evaluate():
        return dict(zip(("val_accuracy", "val_nll"), next(epochs), strict=True))

    outcome, _ = train(tmp_path, network(), evaluate=evaluate, epochs=5, selection="val_accuracy")
    assert outcome.best_epoch == 3


@pytest.mark.parametrize(
    ("nlls", "early"),
    [([0.3, 0.2, 0.2, 0.4], 2), ([0.1, 0.2, 0.3, 0.4], 1), ([0.4, 0.3, 0.5, 0.2], 4)],
    ids=["between", "first", "last"],
)
def test_the_epoch_of_the_lowest_nll_is_kept_beside_the_chosen_one(tmp_path, nlls, early):
    model, weights = network(), []

    def evaluate():
        weights.append(model[0].weight.detach().clone())
        return {"val_accuracy": [0.5, 0.6, 0.9, 0.7][len(weights) - 1], "val_nll": nlls[len(weights) - 1]}

    outcome, _ = train(tmp_path, model, evaluate=evaluate, epochs=4, selection="val_accuracy")
    assert (outcome.best_epoch, outcome.early_epoch) == (3, early)
    assert set(outcome.kept) == {3, early}, "and no third one"
    for epoch, state in outcome.kept.items():
        assert torch.equal(state["0.weight"], weights[epoch - 1])
    assert torch.equal(model[0].weight, weights[2]), "the model is the chosen one"


def test_dropout_and_generator_depend_on_seed_and_step_alone(tmp_path):
    def run(seed, disturb=False):
        drawn = []

        def loss(inputs, labels, generator):
            drawn.append((torch.rand(()).item(), torch.rand((), generator=generator).item()))
            return {"loss": model(inputs).sum()}

        def evaluate():
            if disturb:
                torch.rand(5)
            return {"val_nll": 0.0}

        model = network()
        before = torch.random.get_rng_state()
        train(tmp_path, model, loss=loss, evaluate=evaluate, seed=seed)
        assert disturb or torch.equal(torch.random.get_rng_state(), before)  # the caller's state is left alone
        return drawn

    drawn = run(0)
    assert run(0, disturb=True) == drawn
    assert run(1) != drawn
    assert len(set(sum(drawn, ()))) == 2 * len(drawn)  # no number comes twice, and the two streams differ


def test_training_learns(tmp_path):
    outcome, _ = train(tmp_path, epochs=30)
    assert outcome.history[-1]["val_nll"] < 0.5 * outcome.history[0]["val_nll"]


def test_bfloat16_runs_the_loss_in_autocast(tmp_path):
    seen = set()

    def loss(inputs, labels, generator):
        logits = model(inputs)
        seen.add(logits.dtype)
        return {"loss": F.cross_entropy(logits, labels)}

    model = network()
    outcome, _ = train(tmp_path, model, loss=loss, precision="bfloat16")
    assert seen == {torch.bfloat16}
    assert model[0].weight.dtype == torch.float32
    assert math.isfinite(outcome.history[-1]["train_loss"])


def test_compiled_training_is_the_same_training(tmp_path, monkeypatch):
    # traced by torch.compile but run operation by operation: minutes of a C++ compiler would show no more
    compiled = []
    trace = partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or trace(function))
    (plain, one), (traced, other) = train(tmp_path), train(tmp_path, compile=True)
    assert len(compiled) == 1
    assert traced.history == plain.history
    assert torch.equal(one[0].weight, other[0].weight)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_epoch_step_and_remedy(tmp_path, bad):
    calls = []

    def loss(inputs, labels, generator):
        calls.append(None)
        return {"loss": model(inputs).sum() * (bad if len(calls) == 5 else 1.0)}

    model = network()
    with pytest.raises(InputError, match=r"loss no longer finite by epoch 2, step 5 of 9, .* lower learning_rate"):
        train(tmp_path, model, loss=loss)
    assert len(calls) == 5


def test_weights_that_are_not_finite_stop_before_validation(tmp_path):
    def loss(inputs, labels, generator):
        # finite, with an infinite gradient in the last step of the epoch
        return {"loss": (model.weight - model.weight.detach()).abs().sqrt().sum()}

    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="weights no longer finite by epoch 1"):
        train(tmp_path, model, loss=loss, evaluate=pytest.fail, batch_size=20)


def test_a_loss_that_runs_away_but_stays_finite_stops(tmp_path):
    calls = []

    def loss(inputs, labels, generator):
        calls.append(None)
        return {"loss": model(inputs).square().mean() * 0 + 2.0 ** len(calls)}

    model = network()
    with pytest.raises(InputError, match=r"train_loss is .* in epoch \d, over 10 times that of epoch 1; lower"):
        train(tmp_path, model, loss=loss)


def test_a_validation_number_that_is_not_finite_stops(tmp_path):
    with pytest.raises(InputError, match="epoch 1: val_nll is nan; lower learning_rate"):
        train(tmp_path, evaluate=lambda: {"val_nll": float("nan")})


def test_equal_predictions_are_no_error(tmp_path):
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    outcome, _ = train(tmp_path, model, loss=lambda inputs, labels, generator: {"loss": 0 * model(inputs).sum()})
    assert [row["val_nll"] for row in outcome.history] == pytest.approx([math.log(2)] * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, r"epochs\n.*greater than or equal to 1"),
        ({"batch_size": 0}, r"batch_size\n.*greater than or equal to 1"),
        ({"warmup_epochs": -1}, r"warmup_epochs\n.*greater than or equal to 0"),
        ({"warmup_epochs": 3}, "warmup_epochs 3.* does not end before epochs 3"),
        ({"selection": "accuracy"}, r"selection\n.*'val_accuracy', 'val_mcc', 'val_nll' or 'last'"),
        ({"selection": "val_accuracy"}, "selection is 'val_accuracy', but an epoch gives .*train_loss, val_nll"),
        ({"precision": "float16"}, "precision is 'float16'"),
        ({"seed": -1}, "seed is -1"),
        ({"train": Points(0)}, r"there is no training example; raise data\.train"),
    ],
)
def test_settings_out_of_range_are_named(tmp_path, settings, message):
    with pytest.raises((InputError, ValidationError), match=message):
        train(tmp_path, **settings)


def test_log_has_one_plain_line_per_epoch(tmp_path, caplog, capfd):
    with caplog.at_level(logging.INFO, "director"):
        train(tmp_path)
    assert len(caplog.messages) == 3
    assert caplog.messages[1].startswith("epoch 2, learning_rate ")
    assert "val_nll 0." in caplog.messages[1]
    assert capfd.readouterr().err == ""  # no bar where standard error is no terminal


def test_a_terminal_gets_a_progress_bar(tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    train(tmp_path)
    assert "9/9" in terminal.getvalue()

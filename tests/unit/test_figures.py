"""What a figure says in numbers, and that nothing else decides how it looks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from director.errors import InputError
from director.files import write_json
from director.numbers.measure import measure_run
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, manifest_of, write_suites
from director.report.figures import (
    plot_bayes,
    plot_depth,
    plot_noise,
    plot_reliability,
    plot_risk_coverage,
    plot_severity,
)
from director.training.noise_scale import FORMAT

TRUTH = {
    "test": np.array([[0.5, 0.5], [0.9, 0.1], [0.25, 0.75], [1.0, 0.0]]),
    "shifted": np.array([[0.5, 0.5], [0.75, 0.25]]),
}


def predicted(root, method, suites, seed=0, beside=None):
    """The manifest of one method's predictions; suites: suite -> (probabilities [N, C], example)."""
    run = root / f"results/runs/e/softmax/seed-{seed}"
    folder = manifest_of(run, method).parent

    def make(suite):
        probabilities, example = suites[suite]
        about = {"experiment": "e", "method": method, "backbone": "softmax", "suite": suite, "seed": seed}
        logits = np.log(np.maximum(probabilities, 1e-12)).astype(np.float32)
        if beside:
            beside(folder, suite, about)
        labels = None if suite.startswith("ood-") else np.arange(len(logits)) % 2
        return Made(Predictions(logits, labels, np.array(example), about=about), {1: 1.0})

    cost = dict.fromkeys(("parameters", "train_seconds", "device", "threads", "peak_memory_bytes"), 1)
    write_suites(folder, dict.fromkeys(suites, 1), make, lambda: cost, ("depth.npz",) if beside else ())
    return manifest_of(run, method)


@pytest.fixture
def manifests(tmp_path):
    """Two seeds of `mle`, one run of `ensemble`, on `test`."""
    generator = np.random.default_rng(0)
    runs = [("mle", 0), ("mle", 1), ("ensemble", "pooled")]
    return [
        predicted(tmp_path, *run[:1], {"test": (generator.dirichlet([1, 1], 40), range(40))}, run[1]) for run in runs
    ]


def test_divergence_from_the_true_probabilities_is_written_over_each_panel(tmp_path):
    """Examples are found by their number; the truth itself scores 0, a coin flip what is computed by hand."""
    backwards = {suite: np.arange(len(truth))[::-1] for suite, truth in TRUTH.items()}
    truth = {suite: (TRUTH[suite][rows], rows) for suite, rows in backwards.items()}
    coin = {suite: (np.full(TRUTH[suite].shape, 0.5), rows) for suite, rows in backwards.items()}
    files = [predicted(tmp_path, "truth", truth), *(predicted(tmp_path, "coin", coin, seed) for seed in (0, 1))]
    plot_bayes(files, TRUTH, tmp_path / "bayes.svg")
    drawn = (tmp_path / "bayes.svg").read_text()
    entropies = {  # in nats
        "test": [np.log(2), -0.9 * np.log(0.9) - 0.1 * np.log(0.1), -0.25 * np.log(0.25) - 0.75 * np.log(0.75), 0],
        "shifted": [np.log(2), -0.25 * np.log(0.25) - 0.75 * np.log(0.75)],
    }
    for suite, entropy in entropies.items():
        assert f"{suite}, KL 0.000" in drawn
        assert f"{suite}, KL {np.log(2) - np.mean(entropy):.3f}" in drawn
    assert drawn.count("truth (softmax)") == drawn.count("coin (softmax)") == 2


def truthful(tmp_path):
    return [predicted(tmp_path, "truth", {"test": (TRUTH["test"], range(4))})]


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    files = truthful(tmp_path)
    for name in ("one.svg", "two.svg"):
        plot_bayes(files, {"test": TRUTH["test"]}, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_settings_of_the_user_change_no_figure(tmp_path):
    """As a matplotlibrc would."""
    files = truthful(tmp_path)
    plot_bayes(files, {"test": TRUTH["test"]}, tmp_path / "ours.svg")
    with matplotlib.rc_context({"font.size": 40, "lines.linewidth": 9, "boxplot.notch": True, "svg.fonttype": "path"}):
        plot_bayes(files, {"test": TRUTH["test"]}, tmp_path / "theirs.svg")
    assert (tmp_path / "ours.svg").read_bytes() == (tmp_path / "theirs.svg").read_bytes()


@pytest.mark.parametrize(
    ("theirs", "folder", "rc"),
    [
        (
            {"MPLBACKEND": "module://nothing_here", "MPLCONFIGDIR": "set"},
            "set",
            "text.usetex: True\nlines.linewidth: 30\n",
        ),
        (
            {"MPLBACKEND": "nothing", "HOME": "set", "XDG_CONFIG_HOME": ""},
            "set/.config/matplotlib",
            "font.family: \xe9",
        ),
        ({"MATPLOTLIBRC": "set"}, ".", "font.family: nothing\nbackend: nothing\nsavefig.format: pdf\n"),
    ],
    ids=["a notebook's backend", "a backend that is none", "a file in the working folder"],
)
def test_a_job_draws_the_same_whatever_the_user_has_set_for_other_plots(
    manifests, tmp_path, monkeypatch, theirs, folder, rc
):
    """Matplotlib reads the environment and the user's file when it is imported, before anything of ours is called."""
    plot_reliability(manifests, tmp_path / "ours.svg")
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "matplotlibrc").write_text(rc, encoding="latin-1")
    job = f"from director.report.figures import plot_reliability as plot; plot({[*map(str, manifests)]}, 'theirs.svg')"
    changes = {name: str(tmp_path / value) if value == "set" else value for name, value in theirs.items()}
    changes["PYTHONPATH"] = str(Path(__file__).parents[2])
    ended = subprocess.run([sys.executable, "-c", job], env=os.environ | changes, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "ours.svg").read_bytes() == (tmp_path / "theirs.svg").read_bytes()


def test_settings_of_the_user_are_theirs_again_after_a_figure(tmp_path):
    """Also where drawing fails: a notebook goes on with its own plots."""
    files = truthful(tmp_path)
    with matplotlib.rc_context({"font.size": 40, "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        plot_bayes(files, {"test": TRUTH["test"]}, tmp_path / "ours.svg")
        with pytest.raises(InputError):
            plot_reliability([tmp_path / "nothing.json"], tmp_path / "ours.svg")
        assert dict(matplotlib.rcParams) == before
    assert matplotlib.colors.to_hex("b") == "#0000ff", "seaborn gives its own meaning to it"


@pytest.mark.parametrize("plot", [plot_reliability, plot_risk_coverage])
def test_a_figure_names_every_row_once(plot, manifests, tmp_path):
    plot(manifests, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert drawn.count("mle (softmax)") == drawn.count("ensemble (softmax)") == 1
    assert drawn.index("mle (softmax)") < drawn.index("ensemble (softmax)")


def test_the_severity_figure_has_its_rows_in_the_order_asked_for(manifests, tmp_path):
    files = []
    for manifest in (manifests[2], *manifests[:2]):
        run, method = manifest.parents[2], manifest.parts[-3]
        measure_run(run, {method: None}, run / "metrics.json")
        files.append(run / "metrics.json")
    rows = [("e", "softmax", "mle"), ("e", "softmax", "ensemble")]
    for order in (rows, rows[::-1]):
        plot_severity(files, tmp_path / "severity.svg", order)
        drawn = (tmp_path / "severity.svg").read_text()
        first, second = (f"{method} (softmax)" for _, _, method in order)
        assert drawn.count(first) == drawn.count(second) == 1 and drawn.index(first) < drawn.index(second)


def test_the_depth_figure_shows_every_suite_but_the_validation_part(tmp_path):
    """The variance of `val`, which is not finite here, would end the drawing."""

    def beside(folder, suite, about):
        variance = np.full((2, 3), np.nan if suite == "val" else 0.5, np.float32)
        arrays = {"variance": variance, "severity": np.zeros(2, int), "about": np.array(json.dumps(about))}
        np.savez(folder / f"{suite}.depth.npz", **arrays)

    suites = {suite: (TRUTH["shifted"], range(2)) for suite in ("val", "test", "shifted", "ood-a")}
    manifest_of(tmp_path / "results/runs/e/softmax/seed-0", "director").parent.mkdir(parents=True)
    manifest = predicted(tmp_path, "director", suites, beside=beside)
    plot_depth([manifest], tmp_path / "depth.svg")
    drawn = (tmp_path / "depth.svg").read_text()
    assert all(
        drawn.count(f">{name}</text>") == 1 for name in ("clean", "shifted", "ood-a", "director, teacher softmax")
    )
    assert ">val<" not in drawn


def test_the_noise_figure_shows_the_scales_that_were_tried_and_the_roll_outs(tmp_path, manifests):
    about = {"backbone": "softmax", "method": "mle"}
    files = []
    for seed, scale in enumerate((1.5, 3.0)):
        tried = [{"scale": at, "nll": 1 + abs(at - scale), "ece_15": 0.1, "accuracy": 0.9} for at in (0.0, scale, 8.0)]
        files.append(tmp_path / f"noise-{seed}.json")
        write_json(files[-1], {"format": FORMAT, "about": about, "scale": scale, "samples": 4, "tried": tried})
    plot_noise(files, manifests[:2], tmp_path / "noise.svg")
    drawn = (tmp_path / "noise.svg").read_text()
    for words in ("validation", "test", "noise scale", "roll-outs S", "NLL", "ECE-15"):
        assert f">{words}</text>" in drawn
    assert drawn.count(">mle (softmax)</text>") == 2, "one legend for NLL, one for ECE"
    files[0].write_text("{}")
    with pytest.raises(InputError, match=r"noise-0\.json: not a file of noise scales"):
        plot_noise(files, manifests[:2], tmp_path / "again.svg")


def test_predictions_that_were_changed_are_not_drawn(manifests, tmp_path):
    manifests[1].with_name("test.npz").write_bytes(b"other")
    with pytest.raises(InputError, match=r"seed-1/mle/predictions/test\.npz.* make it again"):
        plot_reliability(manifests, tmp_path / "figure.svg")
    assert not (tmp_path / "figure.svg").exists()

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
from director.methods import METHODS
from director.numbers.compare_rows import COLUMNS
from director.numbers.measure import measure_run
from director.numbers.predictions import Predictions
from director.numbers.suites import Made, manifest_of, write_suites
from director.report.charts import plot_comparison, plot_cost, plot_training
from director.report.figures import (
    plot_bayes,
    plot_depth,
    plot_noise,
    plot_out_of_distribution,
    plot_predictions,
    plot_reliability,
    plot_risk_coverage,
    plot_samples,
    plot_severity,
)
from director.report.style import look_of, row_of, save_figure
from director.training.noise_scale import FORMAT

TRUTH = {
    "test": np.array([[0.5, 0.5], [0.9, 0.1], [0.25, 0.75], [1.0, 0.0]]),
    "shifted": np.array([[0.5, 0.5], [0.75, 0.25]]),
}


def words(figure):
    """What is written in a figure, in the order of drawing, each place once."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def predicted(root, method, suites, seed=0, beside=None):
    """The manifest of one method's predictions.

    suites: suite -> (probabilities [N, C], or [S, N, C], example), and shift and severity of each row where there are.
    """
    run = root / f"results/runs/e/softmax/seed-{seed}"
    folder = manifest_of(run, method).parent

    def make(suite):
        probabilities, example, *shifted = suites[suite]
        about = {"experiment": "e", "method": method, "backbone": "softmax", "suite": suite, "seed": seed}
        logits = np.log(np.maximum(probabilities, 1e-12)).astype(np.float32)
        if beside:
            beside(folder, suite, about)
        labels = None if suite.startswith("ood-") else np.arange(logits.shape[-2]) % 2
        return Made(Predictions(logits, labels, np.array(example), *shifted, about=about), {1: 1.0})

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
    drawn = words(plot_bayes(files, TRUTH))
    entropies = {  # in nats
        "test": [np.log(2), -0.9 * np.log(0.9) - 0.1 * np.log(0.1), -0.25 * np.log(0.25) - 0.75 * np.log(0.75), 0],
        "shifted": [np.log(2), -0.25 * np.log(0.25) - 0.75 * np.log(0.75)],
    }
    for suite, entropy in entropies.items():
        assert f"suite {suite}" in drawn
        assert f"coin\n(softmax)\nKL {np.log(2) - np.mean(entropy):.3f}" in drawn
    assert drawn.count("truth\n(softmax)\nKL 0.000") == 2


def truthful(tmp_path):
    return [predicted(tmp_path, "truth", {"test": (TRUTH["test"], range(4))})]


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    files = truthful(tmp_path)
    for name in ("one.svg", "two.svg"):
        save_figure(plot_bayes(files, {"test": TRUTH["test"]}), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_settings_of_the_user_change_no_figure(tmp_path):
    """As a matplotlibrc would."""
    files = truthful(tmp_path)
    save_figure(plot_bayes(files, {"test": TRUTH["test"]}), tmp_path / "ours.svg")
    with matplotlib.rc_context({"font.size": 40, "lines.linewidth": 9, "boxplot.notch": True, "svg.fonttype": "path"}):
        save_figure(plot_bayes(files, {"test": TRUTH["test"]}), tmp_path / "theirs.svg")
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
    save_figure(plot_reliability(manifests), tmp_path / "ours.svg")
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "matplotlibrc").write_text(rc, encoding="latin-1")
    job = "from director.report.figures import plot_reliability; from director.report.style import save_figure\n"
    job += f"save_figure(plot_reliability({[*map(str, manifests)]}), 'theirs.svg')"
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
        save_figure(plot_bayes(files, {"test": TRUTH["test"]}), tmp_path / "ours.svg")
        with pytest.raises(InputError):
            plot_reliability([tmp_path / "nothing.json"])
        assert dict(matplotlib.rcParams) == before
    assert matplotlib.colors.to_hex("b") == "#0000ff", "as Matplotlib has it"


def test_a_figure_names_every_row_once(manifests):
    titles = [text for text in words(plot_reliability(manifests)) if "ECE " in text]
    assert [title.splitlines()[:2] for title in titles] == [["mle", "(softmax)"], ["ensemble", "(softmax)"]]
    curves = [text for text in words(plot_risk_coverage(manifests)) if "(softmax)" in text]
    assert [text.split(":")[0] for text in curves] == ["mle (softmax)", "ensemble (softmax)"]


def test_the_error_in_a_title_is_that_of_the_bins_that_are_drawn(tmp_path):
    """One seed is as much too sure as the other is too little: the seeds' own errors are 20 %."""
    confident = np.tile([[0.7, 0.3]], (20, 1))
    manifests = []
    for seed, right in ((0, 0.5), (1, 0.9)):
        labels = np.arange(20) % 2
        rows = np.where((np.arange(20) < 20 * right)[:, None] == (labels == 0)[:, None], confident, confident[:, ::-1])
        manifests.append(predicted(tmp_path, "mle", {"test": (rows, range(20))}, seed))
    assert "mle\n(softmax)\nECE 0.0 %" in words(plot_reliability(manifests))
    assert "mle\n(softmax)\nECE 20.0 %" in words(plot_reliability(manifests[:1]))


def test_bins_of_a_few_predictions_are_faded(tmp_path):
    certain = np.array([[0.95, 0.05]] * 30 + [[0.6, 0.4]] * 9)
    figure = plot_reliability([predicted(tmp_path, "mle", {"test": (certain, range(39))})])
    bars = {round(bar.get_height()): bar.get_alpha() for bar in figure.axes[1].patches}
    assert set(bars) == {30, 9} and bars[9] < 0.5 < bars[30]
    assert figure.axes[1].get_yscale() == "log"


def test_risk_is_drawn_above_that_of_the_oracle(tmp_path):
    """A perfect ranking lies on 0 whatever its accuracy, and its AURC is not 0."""
    labels = np.arange(40) % 2
    right = np.arange(40) < 30
    confidence = np.where(right, 0.9, 0.6)
    of_label = np.where(right, confidence, 1 - confidence)
    rows = np.where(labels[:, None] == [0, 1], of_label[:, None], 1 - of_label[:, None])
    figure = plot_risk_coverage([predicted(tmp_path, "mle", {"test": (rows, range(40))})])
    assert np.allclose(figure.axes[0].lines[0].get_ydata(), 0)
    oracle = np.mean(np.maximum(0, np.arange(1, 41) - 30) / np.arange(1, 41))
    assert f"mle (softmax):  {1000 * oracle:.1f},  0.0" in words(figure)


def corrupted(root, method, hits, seed=0):
    """Predictions of 20 examples, clean and in two kinds of corruption of one severity; hits: the share that is right
    of clean ones and of each kind."""

    def rows(share):
        labels = np.arange(20) % 2
        of_label = np.where(np.arange(20) < 20 * share, 0.8, 0.2)
        return np.where(labels[:, None] == [0, 1], of_label[:, None], 1 - of_label[:, None])

    kinds, severity = np.repeat(["fog", "gaussian_noise"], 20), np.ones(40, int)
    shifted = np.concatenate([rows(hits["fog"]), rows(hits["gaussian_noise"])])
    suites = {"test": (rows(hits["clean"]), range(20)), "corrupted": (shifted, [*range(20)] * 2, kinds, severity)}
    return predicted(root, method, suites, seed)


def test_severity_shows_differences_to_the_plain_row_by_group(tmp_path):
    hits = {"clean": 0.9, "fog": 0.5, "gaussian_noise": 0.7}
    files = [corrupted(tmp_path, "mle", hits), corrupted(tmp_path, "ensemble", hits | {"fog": 0.75}, "pooled")]
    figure = plot_severity(files, ("softmax", "mle"), replicates=20)
    axes = np.array(figure.axes).reshape(3, 3)  # a line of all kinds, then noise and weather
    level = [line.get_ydata() for line in axes[0, 0].lines]
    assert np.allclose(level, [[0.9, 0.6], [0.9, 0.725]])
    noise, weather = ([line.get_ydata() for line in axis.lines][1] for axis in axes[1:, 0])
    assert np.allclose(noise, [0, 0]) and np.allclose(weather, [0, 0.25])
    assert [axis.get_ylabel().split(":")[0] for axis in axes[1:, 0]] == ["noise", "weather"]
    labels = [text for text in words(figure) if text in ("mle (softmax)", "ensemble (softmax)")]
    assert labels == ["mle (softmax)", "ensemble (softmax)"]
    assert any("95 % bootstrap interval over examples and seeds" in text for text in words(figure))


def test_scores_of_inputs_from_elsewhere(tmp_path):
    sure, unsure = np.tile([[0.95, 0.05]], (20, 1)), np.tile([[0.55, 0.45]], (10, 1))
    suites = {"test": (sure, range(20)), "ood-a": (unsure, range(10)), "ood-b": (sure[:10], range(10))}
    figure = plot_out_of_distribution([predicted(tmp_path, "mle", suites)])
    assert "mle\n(softmax)\nAUROC 100.0 %, 50.0 %" in words(figure)
    assert {"test", "a", "b"} <= set(words(figure))


def test_samples_are_pooled_from_the_first_on(tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.dirichlet([1, 1], (3, 40))
    figure = plot_samples([predicted(tmp_path, "mc_dropout", {"test": (rows, range(40))})])
    labels = np.arange(40) % 2
    expected = [-np.log(rows[:count].mean(0)[np.arange(40), labels]).mean() for count in (1, 2, 3)]
    drawn = figure.axes[0].lines[0]
    assert drawn.get_xdata().tolist() == [1, 2, 3] and np.allclose(drawn.get_ydata(), expected, rtol=1e-5)
    assert "mc_dropout (softmax), S = 3" in words(figure)


def test_a_difference_is_grey_where_its_interval_holds_0(tmp_path):
    lines = [",".join(COLUMNS)]
    lines.append("e,softmax,mle,1,test,nll,softmax/director,2,0.02,0.01,0.03,0.95,,")
    lines.append("e,softmax,ensemble,3,test,nll,softmax/director,1,0.02,-0.01,0.03,0.95,,")
    lines.append("e,softmax,mle,1,ood,auroc,softmax/director,2,-0.1,,,0.95,,")
    lines.append("e,softmax,ensemble,3,ood,auroc,softmax/director,1,0.1,,,0.95,,")
    (tmp_path / "comparison.csv").write_text("\n".join(lines) + "\n")
    figure = plot_comparison(tmp_path / "comparison.csv")
    nll, auroc = figure.axes
    colours = [line.get_color() for line in nll.lines[1:]]
    assert colours[0] == look_of("softmax", "mle").colour and colours[1] == "#aaaaaa"
    assert [line.get_color() for line in auroc.lines[1:]] == ["#aaaaaa"] * 2, "no interval tells nothing apart"
    assert nll.get_xlabel() == "← better" and auroc.get_xlabel() == "better →"


def test_costs_of_several_numbers_of_samples_are_one_line(tmp_path):
    rows = np.random.default_rng(0).dirichlet([1, 1], (4, 40))
    manifest = predicted(tmp_path, "director", {"test": (rows, range(40))})
    cost = json.loads(manifest.with_name("cost.json").read_text())
    cost["device"] = "cpu"
    cost["suites"]["test"]["seconds"] = {"1": 1.0, "4": 3.0}
    write_json(manifest.with_name("cost.json"), cost)
    run = manifest.parents[2]
    measure_run(run, {"director": [1, 4]}, run / "metrics.json")
    figure = plot_cost([run / "metrics.json"], [manifest.with_name("cost.json")], [("e", "softmax", "director")])
    assert "director (softmax), S = 1, 4" in words(figure)
    seconds = figure.axes[2].lines[0].get_xdata()
    assert np.allclose(seconds, [25, 75]), "of 1,000 inputs"


def test_training_curves_mark_the_epoch_that_was_kept(tmp_path):
    folders = [tmp_path / f"e/softmax/seed-{seed}/backbone" for seed in (0, 1)]
    for folder, best in zip(folders, (1, 2), strict=True):
        folder.mkdir(parents=True)
        history = "epoch,train_loss,val_nll,val_accuracy\n1,2.0,1.0,0.5\n2,1.0,0.5,0.75\n"
        (folder / "history.csv").write_text(history)
        write_json(folder / "cost.json", {"best_epoch": best})
    figure = plot_training(folders)
    curve, kept = figure.axes[1].lines
    assert curve.get_ydata().tolist() == [1.0, 0.5]
    assert [*kept.get_xdata()] == [1, 2] and [*kept.get_ydata()] == [1.0, 0.5]
    (folders[0] / "history.csv").write_text("epoch\n1\n")
    with pytest.raises(InputError, match=r"history\.csv: not a training history"):
        plot_training(folders)


# -- the look of a row

NAMES = [
    *METHODS,
    *(
        f"{name}{ending}"
        for name in ("mle_early", "mc_dropout", "kep_svgp", "director")
        for ending in ("_temperature",)
    ),
    "director_noise",
    "director_noise_temperature",
    "director_mse",
]


def test_every_method_has_a_look_of_its_own():
    """Also in grey: what two methods share in colour, they differ by in marker, dash or filling."""
    looks = {name: look_of("softmax", name) for name in NAMES}
    marks = {(look.marker, look.dash, look.filled) for look in looks.values()}
    assert len(set(looks.values())) == len(NAMES) == len(marks)


def test_a_look_says_what_a_method_is_made_of():
    plain, scaled, both = (look_of("softmax", name) for name in ("mle", "temperature", "mle_early_temperature"))
    assert plain.colour == scaled.colour == both.colour and plain.marker == scaled.marker
    assert not plain.dash and plain.filled and not scaled.filled and both.dash[:2] != scaled.dash
    assert look_of("softmax", "director_temperature").dash == scaled.dash
    assert look_of("softmax", "laplace") == look_of("softmax", "laplace"), "also of a name that no table has"
    assert look_of("softmax", "laplace").dash == () and look_of("softmax", "laplace_temperature").dash == scaled.dash


def test_rows_of_another_backbone_are_lighter():
    own, last, other = (
        look_of(*row)
        for row in (("kep_svgp_all", "kep_svgp"), ("kep_svgp_1", "kep_svgp"), ("kep_svgp_all", "director"))
    )
    lightness = [sum(matplotlib.colors.to_rgb(look.colour)) for look in (own, last)]
    assert lightness[0] < lightness[1] and own.marker == last.marker
    assert (
        other.colour != look_of("softmax", "director").colour and other.marker == look_of("softmax", "director").marker
    )


def test_a_row_is_drawn_the_same_in_every_figure(manifests):
    """Whatever other rows there are."""
    for files in (manifests, manifests[2:]):
        lines = plot_risk_coverage(files).axes[0].lines
        assert lines[-1].get_color() == look_of("softmax", "ensemble").colour
        assert lines[-1].get_marker() == look_of("softmax", "ensemble").marker


def test_a_name_tells_the_samples_where_there_are_several():
    assert row_of("softmax", "director", 10).name == "director (softmax), S = 10"
    assert row_of("softmax", "mle").name == "mle (softmax)"
    assert row_of("softmax", "director", 10).title == "director\n(softmax), S = 10"


def test_a_figure_is_written_as_vector_and_as_pixels(tmp_path):
    figure = plot_predictions({"a": Predictions(np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3)})
    save_figure(figure, tmp_path / "a.svg", tmp_path / "a.png")
    assert (tmp_path / "a.svg").read_text().rstrip().endswith("</svg>")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_depth_figure_shows_every_suite_but_the_validation_part(tmp_path):
    """The variance of `val`, which is not finite here, would end the drawing."""

    def beside(folder, suite, about):
        variance = np.full((2, 3), np.nan if suite == "val" else 0.5, np.float32)
        arrays = {"variance": variance, "severity": np.zeros(2, int), "about": np.array(json.dumps(about))}
        np.savez(folder / f"{suite}.depth.npz", **arrays)

    suites = {suite: (TRUTH["shifted"], range(2)) for suite in ("val", "test", "shifted", "ood-a")}
    manifest_of(tmp_path / "results/runs/e/softmax/seed-0", "director").parent.mkdir(parents=True)
    manifest = predicted(tmp_path, "director", suites, beside=beside)
    drawn = words(plot_depth([manifest]))
    assert all(drawn.count(name) == 1 for name in ("clean", "shifted", "ood-a", "director\nteacher softmax"))
    assert "val" not in drawn


def test_uncertainty_along_depth_is_on_one_scale(tmp_path):
    def beside(folder, suite, about):
        about["method"] = folder.parent.name
        variance = np.full((2, 3), {"director": 0.5, "director_mse": 50.0}[about["method"]], np.float32)
        arrays = {"variance": variance, "severity": np.zeros(2, int), "about": np.array(json.dumps(about))}
        np.savez(folder / f"{suite}.depth.npz", **arrays)

    manifests = []
    for method in ("director", "director_mse"):
        manifest_of(tmp_path / "results/runs/e/softmax/seed-0", method).parent.mkdir(parents=True)
        manifests.append(predicted(tmp_path, method, {"test": (TRUTH["shifted"], range(2))}, beside=beside))
    axes = plot_depth(manifests).axes
    assert len(axes) == 2 and axes[0].get_ylim() == axes[1].get_ylim() and axes[0].get_ylim()[1] >= 50


def test_the_noise_figure_shows_the_scales_that_were_tried(tmp_path):
    about = {"backbone": "softmax", "method": "director_noise"}
    files = []
    for seed, scale in enumerate((1.5, 3.0)):
        tried = [{"scale": at, "nll": 1 + abs(at - scale), "ece_15": 0.1, "accuracy": 0.9} for at in (0.0, scale, 8.0)]
        files.append(tmp_path / f"noise-{seed}.json")
        write_json(files[-1], {"format": FORMAT, "about": about, "scale": scale, "samples": 4, "tried": tried})
    figure = plot_noise(files)
    assert {"validation NLL", "validation ECE-15, %", "director_noise (softmax), S = 4"} <= set(words(figure))
    curve, taken = figure.axes[0].lines[:2]
    assert [*curve.get_xdata()] == [0.0], "of the scales that both seeds tried 8 is more than twice the largest taken"
    assert [*taken.get_xdata()] == [1.5, 3.0] and [*taken.get_ydata()] == [1.0, 1.0]
    files[0].write_text("{}")
    with pytest.raises(InputError, match=r"noise-0\.json: not a file of noise scales"):
        plot_noise(files)


def test_predictions_that_were_changed_are_not_drawn(manifests, tmp_path):
    manifests[1].with_name("test.npz").write_bytes(b"other")
    with pytest.raises(InputError, match=r"seed-1/mle/predictions/test\.npz.* make it again"):
        plot_reliability(manifests)

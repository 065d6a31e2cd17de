"""Figures of a study, each of one idea, from its predictions; and one of any predictions.

Every function gives a `Figure`, which `director.report.style.save_figure` writes. What is drawn for a row of the table
is drawn in its own colour, dash and marker (`director.report.style.look_of`). Figures of tables and training curves are
in `director.report.charts`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit, xlogy

from director.files import reading
from director.numbers.comparison import aligned, draw, interval
from director.numbers.curves import by_severity, excess_risk, pooled_reliability
from director.numbers.metrics import BINS, aurc, detection, ece_15, nll
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite, suite_file, suites_of
from director.report.style import (
    WIDTH,
    Axes,
    Figure,
    Line2D,
    Row,
    draw_band,
    legend_of_rows,
    load_rows,
    log_ticks,
    numbered_look,
    own_style,
    percent,
    row_of,
    row_of_run,
    shades,
)
from director.report.tables import group_of
from director.training.noise_scale import read_noise_scale

FEW = 10  # predictions: a bin with fewer is faded, since a handful of them decides
COLUMNS = 4  # panels beside each other
LEAST_COVERAGE = 0.05  # below, a handful of inputs decides
FADED = 0.3
HISTOGRAM_BINS = 24
SEVERITY_METRICS = {"accuracy": "accuracy, points", "nll": "NLL", "ece_15": "ECE-15, points"}


# -- confidence against what came true


@own_style()
def plot_reliability(manifest_files: Iterable[str | Path], bins: int = BINS) -> Figure:
    """Reliability diagrams on the suite `test`, one panel per row: accuracy against confidence, seeds taken together.

    Bands are 95 % bootstrap intervals over the examples. Histograms below: predictions per bin, on a logarithmic axis.
    The ECE of a title is that of the bins that are drawn.
    """
    rows = load_rows(manifest_files, "test")
    figure = Figure(figsize=_reliability_size(len(rows)), layout="constrained")
    _draw_reliability(figure, rows, bins)
    return figure


@own_style()
def plot_risk_coverage(manifest_files: Iterable[str | Path]) -> Figure:
    """Risk above the oracle's among the most confident share of the inputs of `test`, mean over seeds and their range.

    The legend gives the AURC and the part of it above the oracle, the area under the curve, times 1,000.
    """
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    _draw_risk_coverage(figure, load_rows(manifest_files, "test"))
    return figure


@own_style()
def plot_predictions(predictions: Mapping[str, Predictions], bins: int = BINS) -> Figure:
    """The reliability diagrams of any predictions, by what to call them, above their risk-coverage curves."""
    rows = {Row(_plain(name), numbered_look(number)): [run] for number, (name, run) in enumerate(predictions.items())}
    width, height = _reliability_size(len(rows))
    figure = Figure(figsize=(max(width, 7.5), height + 4.2), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[height, 4.2])
    _draw_reliability(upper, rows, bins)
    _draw_risk_coverage(lower, rows)
    return figure


def _plain(name: str) -> str:
    """A name that Matplotlib shows as it is: in lines as wide as a panel, in a legend although it begins with _, and
    without a formula between dollars."""
    text = name.encode("utf-8", "backslashreplace").decode()
    text = f" {text}" if text.startswith("_") else text
    return "\n".join(text[start : start + 28] for start in range(0, len(text), 28)).replace("$", r"\$")


def _grid(panels: int) -> tuple[int, int]:
    """Lines and columns of so many panels."""
    columns = min(panels, COLUMNS)
    return -(-panels // columns), columns


def _reliability_size(panels: int) -> tuple[float, float]:
    lines, columns = _grid(panels)
    return max(WIDTH / COLUMNS * columns, 3.2), 3.5 * lines + 0.3


def _draw_reliability(figure: Any, rows: Mapping[Row, Sequence[Predictions]], bins: int) -> None:
    """figure: or a part of one. rows: each with one run per seed."""
    lines, columns = _grid(len(rows))
    axes = figure.subplots(2 * lines, columns, height_ratios=[3, 1] * lines, sharex=True, sharey="row", squeeze=False)
    for position, (row, runs) in enumerate(rows.items()):
        line, column = divmod(position, columns)
        upper, lower = axes[2 * line : 2 * line + 2, column]
        diagram = pooled_reliability(runs, bins)
        _draw_diagram(upper, row, diagram)
        upper.set_title(f"{row.title}\nECE {100 * diagram.error:.1f} %")
        filled = diagram.count > 0
        centres = (np.arange(bins) + 0.5) / bins
        enough = diagram.count >= FEW
        for chosen, alpha in ((enough, 0.75), (filled & ~enough, FADED)):
            heights = diagram.count[chosen]
            lower.bar(centres[chosen], heights, width=0.9 / bins, color=row.look.colour, alpha=alpha, linewidth=0)
        lower.set(yscale="log", xlabel="confidence, %")
        lower.set_ylim(bottom=0.7)
        if column == 0:
            upper.set_ylabel("accuracy, %")
            lower.set_ylabel("predictions")
    for column in range((len(rows) - 1) % columns + 1, columns):
        axes[-2, column].set_visible(False)
        axes[-1, column].set_visible(False)
        axes[-3, column].tick_params(labelbottom=True)
    several = any(len(runs) > 1 for runs in rows.values())
    figure.supxlabel(
        f"{'All seeds together. ' if several else ''}Band: 95 % bootstrap interval over examples. Vertical lines: gap "
        f"to the diagonal, whose mean by predictions is the ECE.\nFaded: bins of fewer than {FEW} predictions.",
        fontsize=8,
        color="0.3",
    )


def _draw_diagram(axis: Axes, row: Row, diagram: Any) -> None:
    """One reliability diagram."""
    filled = diagram.count > 0
    enough = diagram.count >= FEW
    confidence, accuracy = diagram.confidence, diagram.accuracy
    axis.plot([0, 1], [0, 1], color="0.55", linestyle="--", linewidth=1)
    axis.fill_between(
        confidence[enough],
        diagram.lower[enough],
        diagram.upper[enough],
        color=row.look.colour,
        alpha=0.2,
        linewidth=0,
    )
    few = filled & ~enough
    axis.vlines(
        confidence[few], diagram.lower[few], diagram.upper[few], color=row.look.colour, alpha=FADED, linewidth=1
    )
    for chosen, alpha in ((enough, 0.9), (few, FADED)):
        axis.vlines(confidence[chosen], accuracy[chosen], confidence[chosen], color="0.25", alpha=alpha, linewidth=1)
        axis.plot(confidence[chosen], accuracy[chosen], **row.look.markers(), alpha=alpha)
    axis.plot(confidence[enough], accuracy[enough], color=row.look.colour)
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
    percent(axis.xaxis)
    percent(axis.yaxis)


def _draw_risk_coverage(figure: Any, rows: Mapping[Row, Sequence[Predictions]]) -> None:
    """As `_draw_reliability`."""
    axis = figure.subplots()
    grid = np.linspace(LEAST_COVERAGE, 1, 200)
    for number, (row, runs) in enumerate(rows.items()):
        excesses = [excess_risk(run) for run in runs]
        curves = np.array([np.interp(grid, *excess) for excess in excesses])
        area = 1000 * np.mean([excess.mean() for _, excess in excesses])
        whole = 1000 * np.mean([aurc(run) for run in runs])
        named = row._replace(name=f"{row.name}:  {whole:.1f},  {area:.1f}")
        draw_band(axis, grid, curves, named, markevery=(5 * number % 40, 40))
    axis.set(xlabel="coverage: share of inputs kept, most confident first, %", xlim=(0, 1))
    axis.set_ylabel("error rate among them above the oracle's, points")
    axis.set_ylim(bottom=0)
    percent(axis.xaxis)
    percent(axis.yaxis)
    note = "AURC x1000,  and its part above the oracle"
    if any(len(runs) > 1 for runs in rows.values()):
        note += "\nline: mean over seeds, band: their range"
    figure.legend(loc="outside right upper", title=note, alignment="left", title_fontsize=8.5)


@own_style()
def plot_out_of_distribution(manifest_files: Iterable[str | Path]) -> Figure:
    """Histograms of confidence on `test` and on inputs from elsewhere, one panel per row, seeds taken together.

    The axis of confidence is logit, since most of it is near 100 %. The AUROC of a title is that of the scores that are
    drawn: the probability that a test input has more confidence than one from elsewhere.
    """
    manifest_files = list(manifest_files)
    foreign = [suite for suite in suites_of(manifest_files[0]) if suite.startswith("ood-")]
    rows = load_rows(manifest_files, "test", *foreign)
    lines, columns = _grid(len(rows))
    figure = Figure(figsize=(WIDTH, 2.3 * lines + 0.5), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    scores = {
        row: {
            suite: np.concatenate([run.confidence for run in runs if run.about["suite"] == suite])
            for suite in ("test", *foreign)
        }
        for row, runs in rows.items()
    }
    everything = np.concatenate([values for of_row in scores.values() for values in of_row.values()])
    top = min(everything.max(), 1 - 1e-6)  # a logit axis has no end
    edges = np.linspace(logit(everything.min()), logit(top), HISTOGRAM_BINS + 1)
    dashes = [(0, ()), (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5))]
    for axis, (row, of_row) in zip(axes.flat, scores.items(), strict=False):
        words = []
        for number, (suite, values) in enumerate(of_row.items()):
            counts, _ = np.histogram(np.clip(logit(np.minimum(values, top)), edges[0], edges[-1]), edges)
            shares = counts / counts.sum()
            if suite == "test":
                axis.stairs(shares, edges, fill=True, color="0.75")
            else:
                axis.stairs(shares, edges, color=row.look.colour, linestyle=dashes[(number - 1) % 4], linewidth=1.5)
                words.append(f"{100 * detection(of_row['test'], values)['auroc']:.1f} %")
        axis.set_title(f"{row.title}\nAUROC {', '.join(words)}")
    marks = [mark for mark in (0.2, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if everything.min() <= mark <= top]
    for axis in axes.flat:
        axis.set_xticks(logit(np.array(marks)), [f"{100 * mark:g}" for mark in marks])
        axis.tick_params(axis="x", labelsize=7.5)
        percent(axis.yaxis)
    _finish_grid(axes, len(rows), "confidence, %", "share of inputs, %")
    handles = [Line2D([], [], color="0.75", linewidth=6, label="test")]
    handles += [
        Line2D([], [], color="0.2", linestyle=dashes[number % 4], label=suite.removeprefix("ood-"))
        for number, suite in enumerate(foreign)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _finish_grid(axes: NDArray[Any], panels: int, xlabel: str, ylabel: str) -> None:
    """Labels at the left and under the last panel of each column; panels that are not used are hidden."""
    columns = axes.shape[1]
    for number, axis in enumerate(axes.flat):
        axis.set_visible(number < panels)
        if number % columns == 0:
            axis.set_ylabel(ylabel)
        if panels - columns <= number < panels:
            axis.set_xlabel(xlabel)
            axis.tick_params(labelbottom=True)


# -- other inputs


@own_style()
def plot_severity(
    manifest_files: Iterable[str | Path],
    baseline: tuple[str, str],
    replicates: int = 1000,
    level: float = 0.95,
) -> Figure:
    """Accuracy, NLL and ECE against severity: mean over all kinds, then differences to the row `baseline` by group.

    manifest_files: of every run of every row of one experiment. baseline: (backbone, method) of a row. Severity 0 is
    the suite `test`. Differences come with paired bootstrap intervals over examples and seeds
    (`director.numbers.comparison.interval`).
    """
    metrics = list(SEVERITY_METRICS)
    draws: dict[str, Any] = {}
    values: dict[Row, dict[Any, list[Any]]] = {}
    base: Row | None = None
    groups: dict[str, str] = {}
    for manifest in manifest_files:
        found: dict[Any, Any] = {}
        for suite in ("test", "corrupted"):
            run = load_suite(manifest, suite)
            if suite not in draws:
                draws[suite] = draw(run, replicates, tuple(suite.encode()))
            kinds = dict.fromkeys(np.unique(run.shift).tolist(), "clean") if suite == "test" else group_of(run.shift)
            groups |= kinds if suite == "corrupted" else {}
            found |= by_severity(draws[suite], aligned(draws[suite], run, str(manifest)), metrics, kinds)
        row = row_of_run(run)
        base = row if (run.about["backbone"], run.about["method"]) == tuple(baseline) else base
        for place, numbers in found.items():
            values.setdefault(row, {}).setdefault(place, []).append(numbers)
    names = list(dict.fromkeys(groups.values()))
    severities = sorted({severity for _, group, severity in values[base] if group != "clean"})
    figure = Figure(figsize=(WIDTH, 2.5 + 2.1 * len(names)), layout="constrained")
    axes = figure.subplots(1 + len(names), len(metrics), sharex=True, squeeze=False)
    shares = {group: list(groups.values()).count(group) for group in names}  # kinds in each
    for column, metric in enumerate(metrics):
        for number, (row, of_row) in enumerate(values.items()):
            curves = np.array(of_row[metric, "clean", 0])[:, :1]
            for severity in severities:
                by_group = [np.array(of_row[metric, group, severity])[:, 0] * shares[group] for group in names]
                curves = np.column_stack([curves, sum(by_group) / sum(shares.values())])
            draw_band(axes[0, column], [0, *severities], curves, row)
            offset = 0.6 * (
                (number + 0.5) / len(values) - 0.5
            )  # side by side, so that intervals do not hide each other
            for line, group in enumerate(names, start=1):
                if row == base:
                    axes[line, column].axhline(0, color=row.look.colour, linewidth=1)
                    continue
                places = [(0, "clean"), *((severity, group) for severity in severities)]
                ends = [
                    interval(*(side[metric, of, severity] for side in (of_row, values[base])), level)
                    for severity, of in places
                ]
                _draw_intervals(axes[line, column], [place[0] + offset for place in places], ends, row)
    for column, label in enumerate(SEVERITY_METRICS.values()):
        axes[0, column].set_title(label.replace(", points", ", %"))
        if metrics[column] != "nll":
            for axis in axes[:, column]:
                percent(axis.yaxis)
    axes[0, 0].set_ylabel("all kinds")
    for axis in axes[-1]:
        axis.set(xlabel="severity (0: clean)", xticks=[0, *severities])
    for line, group in enumerate(names, start=1):
        axes[line, 0].set_ylabel(f"{group}:\nminus {base.name}", fontsize=8)
        for column, label in enumerate(SEVERITY_METRICS.values()):
            axes[line, column].set_title(label, fontsize=8, color="0.35")
    note = "Upper line: mean over seeds and their range. Below: difference with its "
    note += f"{100 * level:g} % bootstrap interval over examples and seeds."
    legend_of_rows(figure, values, note)
    return figure


def _draw_intervals(axis: Axes, x: Sequence[float], ends: Sequence[Mapping[str, float | None]], row: Row) -> None:
    middle, lower, upper = (
        np.array([np.nan if end[name] is None else end[name] for end in ends])
        for name in ("difference", "lower", "upper")
    )
    axis.vlines(x, lower, upper, color=row.look.colour, linewidth=1)
    axis.plot(x, middle, **row.look.markers() | {"markersize": 3.2})


@own_style()
def plot_bayes(manifest_files: Iterable[str | Path], truths: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Predicted against true probability of class 1, for labels that were drawn from a known distribution.

    A block of panels for each suite of `truths`, suite -> true probabilities [N, C] by example; a panel for each row of
    the table. At each probability that occurs: median, quartiles and the central 90 % of what is predicted, seeds
    together. KL in a title: mean over inputs and seeds of KL(true || predicted), in nats; 0 for the best possible.
    """
    rows = load_rows(manifest_files, *truths)
    lines, columns = _grid(len(rows))
    figure = Figure(figsize=(WIDTH, (2.15 * lines + 0.4) * len(truths)), layout="constrained")
    blocks = figure.subfigures(len(truths), 1, squeeze=False)[:, 0]
    for block, (suite, truth) in zip(blocks, truths.items(), strict=True):
        block.suptitle(f"suite {suite}", x=0.01, ha="left", fontsize=10)
        axes = block.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axis, (row, runs) in zip(axes.flat, rows.items(), strict=False):
            chosen = [run for run in runs if run.about["suite"] == suite]
            true = np.concatenate([truth[run.example] for run in chosen])  # [seeds * N, C]
            predicted = np.concatenate([run.log_probabilities for run in chosen])
            divergence = max(0.0, (xlogy(true, true) - true * predicted).sum(1).mean())  # rounding gives -0.000
            values = np.unique(true[:, 1])
            parts = [np.exp(predicted[true[:, 1] == value, 1]) for value in values]
            axis.plot([0, 1], [0, 1], color="0.55", linestyle="--", linewidth=1)
            axis.boxplot(
                parts,
                positions=values,
                widths=0.05,
                whis=(5, 95),
                showfliers=False,
                manage_ticks=False,
                patch_artist=True,
                boxprops={"facecolor": row.look.colour, "alpha": 0.45, "linewidth": 0.6},
                whiskerprops={"linewidth": 0.8},
                capprops={"linewidth": 0.8},
                medianprops={"color": "black", "linewidth": 1.5},
            )
            ticks = np.linspace(0, 1, 5)
            axis.set(xlim=(-0.05, 1.05), ylim=(-0.03, 1.03), xticks=ticks, yticks=ticks)
            percent(axis.xaxis)
            percent(axis.yaxis)
            axis.set_title(f"{row.title}\nKL {divergence:.3f}", fontsize=8.5)
        _finish_grid(axes, len(rows), "true probability, %", "predicted, %")
    return figure


# -- samples, and the student's noise


@own_style()
def plot_samples(manifest_files: Iterable[str | Path]) -> Figure:
    """NLL and ECE-15 on `test` over the number of samples S: the first S of each file, mean over seeds and their range.

    manifest_files: of rows with several samples.
    """
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes = figure.subplots(1, 2)
    rows = load_rows(manifest_files, "test")
    for row, runs in rows.items():
        counts = _numbers_of_samples(min(len(run.logits) for run in runs))
        for axis, metric in zip(axes, (nll, ece_15), strict=True):
            curves = np.array([[metric(run.first(count)) for count in counts] for run in runs])
            draw_band(axis, counts, curves, row)
    axes[0].set_title("NLL")
    axes[1].set_title("ECE-15, %")
    percent(axes[1].yaxis)
    for axis in axes:
        axis.set(xlabel="samples S", xscale="log")
        ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50, 100) if tick <= axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{tick}" for tick in ticks])
        axis.minorticks_off()
    legend_of_rows(figure, rows, "Line: mean over seeds, band: their range.")
    return figure


def _numbers_of_samples(most: int) -> list[int]:
    """1 to 10, then ever fewer up to `most`."""
    return sorted({*range(1, min(most, 10) + 1), *np.geomspace(1, most, 20).round().astype(int).tolist()})


@own_style()
def plot_noise(noise_files: Iterable[str | Path]) -> Figure:
    """NLL and ECE-15 on validation data over the scale of a student's noise, mean over seeds and their range.

    noise_files: of `director.training.noise_scale`; a dot is the scale that was taken for a seed. Scales of more than
    twice the largest that was taken are left out.
    """
    figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    axes = figure.subplots(1, 2)
    fitted: dict[Row, list[dict[str, Any]]] = {}
    for path in noise_files:
        content = read_noise_scale(path)
        row = row_of(content["about"]["backbone"], content["about"]["method"], content["samples"])
        fitted.setdefault(row, []).append(content)
    for row, runs in fitted.items():
        shared = sorted(set.intersection(*({tried["scale"] for tried in run["tried"]} for run in runs)))
        limit = 2 * max(1.0, *(run["scale"] for run in runs))
        shared = [scale for scale in shared if scale <= limit]
        for axis, metric in zip(axes, ("nll", "ece_15"), strict=True):
            values = [{tried["scale"]: tried[metric] for tried in run["tried"]} for run in runs]
            curves = np.array([[value[scale] for scale in shared] for value in values])
            draw_band(axis, shared, curves, row, marker="")
            chosen = [run["scale"] for run in runs]
            heights = [value[scale] for value, scale in zip(values, chosen, strict=True)]
            axis.plot(chosen, heights, **row.look.markers())
    axes[0].set_title("validation NLL")
    axes[1].set_title("validation ECE-15, %")
    percent(axes[1].yaxis)
    for axis in axes:
        axis.axvline(1, color="0.55", linestyle="--", linewidth=1)
        axis.set_xlabel("noise scale (1: as trained)")
    legend_of_rows(figure, fitted, "Line: mean over seeds, band: their range. Marks: the scale taken for each seed.")
    return figure


@own_style()
def plot_depth(manifest_files: Iterable[str | Path]) -> Figure:
    """The student's predicted variance at each step of its path, one panel per student; mean and range over seeds.

    manifest_files: of the students' predictions; what is drawn lies beside each suite but `val`, as <suite>.depth.npz.
    All panels have one scale.
    """
    curves: dict[str, dict[str, list[NDArray[Any]]]] = {}  # student -> inputs -> one [L] per seed
    predicted = [(manifest, suite) for manifest in manifest_files for suite in suites_of(manifest) if suite != "val"]
    for path in [suite_file(manifest, suite, "depth.npz") for manifest, suite in predicted]:
        remedy = "delete it and the manifest beside it, and run the same command again"
        with reading(path, "a file of uncertainty along the depth", remedy), np.load(path, allow_pickle=False) as file:
            variance, severity, about = file["variance"], file["severity"], json.loads(str(file["about"]))
            suite, student = about["suite"], f"{about['method']}\nteacher {about['backbone']}"
            if variance.ndim != 2 or severity.shape != variance.shape[:1]:
                raise ValueError(f"variance is {variance.shape}, severity {severity.shape}")
        has_own_curve = suite == "shifted" or suite.startswith("ood-")
        for level in np.unique(severity):
            inputs = suite if has_own_curve else f"severity {level}" if level else "clean"
            of_inputs = curves.setdefault(student, {}).setdefault(inputs, [])
            of_inputs.append(variance[severity == level].mean(0, dtype=float))
    looks = _looks_of_inputs(sorted({name for of_student in curves.values() for name in of_student}))
    lines, columns = _grid(len(curves))
    figure = Figure(figsize=(max(WIDTH / COLUMNS * columns, 6), 3.2 * lines + 0.5), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis, (student, of_student) in zip(axes.flat, curves.items(), strict=False):
        for name, look in looks.items():
            if name in of_student:
                runs = np.array(of_student[name])
                steps = np.arange(1, runs.shape[1] + 1)
                axis.plot(steps, runs.mean(0), **look, label=name)
                axis.fill_between(steps, runs.min(0), runs.max(0), color=look["color"], alpha=0.12, linewidth=0)
        axis.set(title=student, xticks=steps)
    axes[0, 0].set_yscale("log")
    log_ticks(axes[0, 0].yaxis)
    _finish_grid(axes, len(curves), "step of the path", "predicted variance")
    handles = [Line2D([], [], **look, label=name) for name, look in looks.items()]
    note = "Line: mean over seeds, band: their range."
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), title=note)
    return figure


def _looks_of_inputs(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How kinds of inputs are drawn: corrupted ones the darker the more severe, other sets with a dash of their own."""
    severities = [name for name in names if name.startswith("severity")]
    foreign = [name for name in names if name.startswith("ood-")]
    looks: dict[str, dict[str, Any]] = {"clean": {"color": "#0072B2", "marker": "o", "linewidth": 2}}
    for name, colour in zip(severities, shades(len(severities)), strict=True):
        looks[name] = {"color": colour, "marker": "."}
    if "shifted" in names:
        looks["shifted"] = {"color": "#CC79A7", "marker": "s", "linestyle": (0, (5, 1.5))}
    for number, name in enumerate(foreign):
        looks[name] = {"color": "#222222", "marker": "v^<>"[number % 4], "linestyle": (0, (4, 1.5, 1, 1.5))}
    return {name: {"linestyle": "-"} | look for name, look in looks.items() if name in names}

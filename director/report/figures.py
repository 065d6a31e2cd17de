"""Figures of a study, each of one idea, from manifests of predictions or metrics files; and one of any predictions."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import xlogy

from director.files import reading
from director.numbers.metrics import ece_15, nll, reliability, risk_coverage
from director.numbers.predictions import Predictions
from director.numbers.suites import suite_file, suites_of
from director.report.style import Axes, Figure, dash, load_rows, log_ticks, own_style, row_name, save_figure, sns
from director.report.tables import in_order, long_table
from director.training.noise_scale import read_noise_scale


@own_style()
def plot_reliability(manifest_files: Iterable[str | Path], out_file: str | Path, bins: int = 15) -> None:
    """Reliability diagrams, one panel per method: accuracy against confidence in `bins` equal-width bins, seeds pooled.

    The bars below show the share of predictions in a bin; the ECE in a panel's title is the mean over seeds.
    """
    rows = load_rows(manifest_files, "test")
    figure = Figure(figsize=_reliability_size(rows), layout="constrained")
    _draw_reliability(figure, rows, bins)
    save_figure(figure, out_file)


@own_style()
def plot_risk_coverage(manifest_files: Iterable[str | Path], out_file: str | Path) -> None:
    """Risk-coverage curves: error among the most confident share of the inputs, mean over seeds and their range."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    _draw_risk_coverage(figure, load_rows(manifest_files, "test"))
    save_figure(figure, out_file)


@own_style()
def plot_predictions(predictions: Mapping[str, Predictions], out_file: str | Path, bins: int = 15) -> None:
    """The reliability diagrams of any predictions, by what to call them, above their risk-coverage curves."""
    rows = {_plain(name): [run] for name, run in predictions.items()}
    width, height = _reliability_size(rows)
    # dots per inch count for a PNG alone
    figure = Figure(figsize=(max(width, 6.4), height + 4.2), layout="constrained", dpi=200)
    upper, lower = figure.subfigures(2, 1, height_ratios=[height, 4.2])
    _draw_reliability(upper, rows, bins)
    _draw_risk_coverage(lower, rows)
    save_figure(figure, out_file)


def _plain(name: str) -> str:
    """A name that Matplotlib shows as it is: in lines as wide as a panel, in a legend although it begins with _, and
    without a formula between dollars."""
    text = name.encode("utf-8", "backslashreplace").decode()
    text = f" {text}" if text.startswith("_") else text
    return "\n".join(text[start : start + 28] for start in range(0, len(text), 28)).replace("$", r"\$")


def _diagrams(rows: Mapping[str, Any]) -> tuple[int, int]:
    """How many reliability diagrams are beside, and above each other."""
    columns = min(len(rows), 4)
    return columns, -(-len(rows) // columns)


def _reliability_size(rows: Mapping[str, Any]) -> tuple[float, float]:
    columns, diagrams = _diagrams(rows)
    return 3.2 * columns, 4.2 * diagrams


def _draw_reliability(figure: Figure, rows: Mapping[str, Sequence[Predictions]], bins: int) -> None:
    """figure: or a part of one. rows: what to call them -> one per seed."""
    columns, diagrams = _diagrams(rows)
    axes = figure.subplots(2 * diagrams, columns, height_ratios=[3, 1] * diagrams, sharex=True, squeeze=False)
    for position, (name, runs) in enumerate(rows.items()):
        upper, lower = axes[2 * (position // columns) : 2 * (position // columns) + 2, position % columns]
        parts = [reliability(run, bins) for run in runs]  # each: confidence, accuracy, count per bin
        counts = np.array([count for _, _, count in parts], float)
        total = counts.sum(0)
        filled = total > 0
        confidence, accuracy = (
            np.nansum([np.where(part[2] > 0, part[which], 0) * part[2] for part in parts], 0)[filled] / total[filled]
            for which in (0, 1)
        )
        upper.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
        upper.vlines(confidence, accuracy, confidence, color="C3", alpha=0.5, linewidth=3)
        upper.plot(confidence, accuracy, marker="o", markersize=4, color="C0")
        upper.set(
            title=f"{name}\nECE-15 {100 * np.mean([ece_15(run) for run in runs]):.1f} %", xlim=(0, 1), ylim=(0, 1)
        )
        upper.title.set_fontsize(11)
        lower.bar((np.arange(bins) + 0.5) / bins, total / total.sum(), width=0.9 / bins, color="C0", alpha=0.6)
        lower.set(xlabel="confidence", ylim=(0, 1))
        if position % columns == 0:
            upper.set(ylabel="accuracy")
            lower.set(ylabel="share")
    for unused in range(len(rows), diagrams * columns):
        for axis in axes[2 * (unused // columns) : 2 * (unused // columns) + 2, unused % columns]:
            axis.set_visible(False)


def _draw_risk_coverage(figure: Figure, rows: Mapping[str, Sequence[Predictions]]) -> None:
    """As `_draw_reliability`."""
    axis = figure.subplots()
    grid = np.linspace(0.05, 1, 200)  # below, a handful of inputs decides
    for number, (name, runs) in enumerate(rows.items()):
        curves = np.array([np.interp(grid, *risk_coverage(run)) for run in runs])
        axis.plot(grid, curves.mean(0), color=f"C{number}", linestyle=dash(number), label=name)
        axis.fill_between(grid, curves.min(0), curves.max(0), color=f"C{number}", alpha=0.15, linewidth=0)
    axis.set(xlabel="coverage: share of inputs kept, most confident first", ylabel="error rate among them", xlim=(0, 1))
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)


@own_style()
def plot_severity(
    metrics_files: Iterable[str | Path],
    out_file: str | Path,
    rows: Sequence[tuple[str, str, str]] | None = None,
) -> None:
    """Accuracy, NLL and ECE against severity, mean over the kinds of corruption; band: standard deviation over seeds.

    metrics_files: of every run folder; severity 0 is the suite `test`, the others are `corrupted`. rows: the order of
    the curves, (experiment, backbone, method); without it, that of the files.
    """
    metrics = {"accuracy": "accuracy", "nll": "NLL", "ece_15": "ECE-15"}
    long = long_table(metrics_files)
    long = long if rows is None else in_order(long, rows)
    of_suites = long["suite"].isin(["test", "corrupted"])
    cells = long[of_suites & long["metric"].isin(metrics) & (long["shift"] != "overall")]
    most = cells.groupby(["backbone", "method"])["samples"].transform("max")  # of a row measured with several S
    cells = cells[cells["samples"] == most]
    runs = cells.groupby(["backbone", "method", "seed", "metric", "severity"], sort=False)["value"].mean()
    runs = runs.reset_index()
    runs["row"] = list(map(row_name, runs["backbone"], runs["method"]))
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, len(metrics))
    for axis, (metric, label) in zip(axes, metrics.items(), strict=True):
        sns.lineplot(
            runs[runs["metric"] == metric],
            x="severity",
            y="value",
            hue="row",
            style="row",
            errorbar="sd",
            markers=True,
            ax=axis,
        )
        axis.set(xlabel="severity (0: clean)", ylabel=label, xticks=sorted(set(runs["severity"])))
        axis.get_legend().remove()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)
    save_figure(figure, out_file)


@own_style()
def plot_bayes(
    manifest_files: Iterable[str | Path], truths: Mapping[str, NDArray[np.float64]], out_file: str | Path
) -> None:
    """Predicted against true probability of class 1, for labels that were drawn from a known distribution.

    Panels: from left to right the rows of the table, from top to bottom the suites of `truths`, suite -> true
    probabilities [N, C] by example. At each probability that occurs: median, quartiles and the central 90 % of what is
    predicted, seeds pooled. KL in a title: mean over inputs and seeds of KL(true || predicted), in nats; 0 for the best
    possible.
    """
    rows = load_rows(manifest_files, *truths)
    boxes = {"widths": 0.045, "whis": (5, 95), "showfliers": False, "manage_ticks": False, "patch_artist": True}
    boxes |= {"boxprops": {"facecolor": "C0", "alpha": 0.5}, "medianprops": {"color": "C3", "linewidth": 2}}
    figure = Figure(figsize=(2.9 * len(rows), 3.1 * len(truths)), layout="constrained")
    axes = figure.subplots(len(truths), len(rows), sharex=True, sharey=True, squeeze=False)
    for panels, (suite, truth) in zip(axes, truths.items(), strict=True):
        for axis, (name, runs) in zip(panels, rows.items(), strict=True):
            chosen = [run for run in runs if run.about["suite"] == suite]
            true = np.concatenate([truth[run.example] for run in chosen])  # [seeds * N, C]
            predicted = np.concatenate([run.log_probabilities for run in chosen])
            divergence = max(0.0, (xlogy(true, true) - true * predicted).sum(1).mean())  # rounding gives -0.000
            values = np.unique(true[:, 1])
            parts = [np.exp(predicted[true[:, 1] == value, 1]) for value in values]
            axis.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
            axis.boxplot(parts, positions=values, **boxes)
            axis.set(xlim=(-0.04, 1.04), ylim=(-0.02, 1.02), xticks=np.linspace(0, 1, 6))
            axis.set_title(f"{name}\n{suite}, KL {divergence:.3f}", fontsize=11)
        panels[0].set(ylabel="predicted probability")
    for axis in axes[-1]:
        axis.set(xlabel="true probability")
    save_figure(figure, out_file)


@own_style()
def plot_depth(manifest_files: Iterable[str | Path], out_file: str | Path) -> None:
    """The student's predicted variance at each step of its path, one panel per student; mean and deviation over seeds.

    manifest_files: of the students' predictions; what is drawn lies beside each suite but `val`, as <suite>.depth.npz.
    """
    lines = []
    predicted = [(manifest, suite) for manifest in manifest_files for suite in suites_of(manifest) if suite != "val"]
    for path in [suite_file(manifest, suite, "depth.npz") for manifest, suite in predicted]:
        remedy = "delete it and the manifest beside it, and run the same command again"
        with reading(path, "a file of uncertainty along the depth", remedy), np.load(path, allow_pickle=False) as file:
            variance, severity, about = file["variance"], file["severity"], json.loads(str(file["about"]))
            suite, student, seed = about["suite"], f"{about['method']}, teacher {about['backbone']}", about["seed"]
            if variance.ndim != 2 or severity.shape != variance.shape[:1]:
                raise ValueError(f"variance is {variance.shape}, severity {severity.shape}")
        has_own_curve = suite == "shifted" or suite.startswith("ood-")
        for level in np.unique(severity):
            inputs = suite if has_own_curve else f"severity {level}" if level else "clean"
            steps = enumerate(variance[severity == level].mean(0), start=1)
            run = {"student": student, "seed": seed, "inputs": inputs}
            lines += [run | {"step": step, "variance": value} for step, value in steps]
    table = pd.DataFrame(lines)
    students, inputs = table["student"].unique(), sorted(table["inputs"].unique())
    corrupted = [name for name in inputs if name.startswith("severity")]
    colours = {"clean": "0.35"} | dict(zip(corrupted, sns.color_palette("flare", len(corrupted)), strict=True))
    colours |= {name: "C1" for name in inputs if name == "shifted"}
    colours |= {name: "C0" for name in inputs if name.startswith("ood-")}
    dashes = {name: (4, 2) if name.startswith("ood-") else "" for name in colours}
    figure = Figure(figsize=(4.6 * len(students), 3.8), layout="constrained")
    axes = figure.subplots(1, len(students), squeeze=False)
    for axis, student in zip(axes[0], students, strict=True):
        part = table[table["student"] == student]
        lines_by_inputs = {
            "hue": "inputs",
            "hue_order": list(colours),
            "palette": colours,
            "style": "inputs",
            "dashes": dashes,
        }
        sns.lineplot(part, x="step", y="variance", errorbar="sd", ax=axis, **lines_by_inputs)
        axis.set(title=student, ylabel="predicted variance", xticks=part["step"].unique())
        log_ticks(axis)
        axis.get_legend().remove()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    save_figure(figure, out_file)


@own_style()
def plot_noise(noise_files: Iterable[str | Path], manifest_files: Iterable[str | Path], out_file: str | Path) -> None:
    """NLL and ECE-15 over the scale of a student's noise (validation, left) and over the number of roll-outs (test).

    noise_files: of `director.training.noise_scale`; a dot is the scale that was taken. manifest_files: of the students,
    with the noise as it was trained and scaled. A line per row, mean over seeds and their range; scales of more than
    twice the largest that was taken are left out.
    """
    metrics = {"nll": (nll, "NLL"), "ece_15": (ece_15, "ECE-15")}
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    axes = figure.subplots(len(metrics), 2, sharex="col", squeeze=False)
    fitted: dict[str, list[dict[str, Any]]] = {}
    for path in noise_files:
        content = read_noise_scale(path)
        fitted.setdefault(row_name(content["about"]["backbone"], content["about"]["method"]), []).append(content)
    colours = {name: f"C{number}" for number, name in enumerate(fitted)}
    for name, runs in fitted.items():
        shared = sorted(set.intersection(*({row["scale"] for row in run["tried"]} for run in runs)))
        limit = 2 * max(1.0, *(run["scale"] for run in runs))
        shared = [scale for scale in shared if scale <= limit]
        for axis, metric in zip(axes[:, 0], metrics, strict=True):
            values = [{row["scale"]: row[metric] for row in run["tried"]} for run in runs]
            curves = np.array([[value[scale] for scale in shared] for value in values])
            _draw_band(axis, shared, curves, colours[name], name)
            chosen = [run["scale"] for run in runs]
            heights = [value[scale] for value, scale in zip(values, chosen, strict=True)]
            axis.plot(chosen, heights, "o", color=colours[name])
    for name, runs in load_rows(manifest_files, "test").items():
        counts = np.arange(1, min(len(run.logits) for run in runs) + 1)
        colour = colours.setdefault(name, f"C{len(colours)}")
        for axis, (metric, _) in zip(axes[:, 1], metrics.values(), strict=True):
            curves = np.array([[metric(run.first(int(count))) for count in counts] for run in runs])
            _draw_band(axis, counts, curves, colour, name)
    for row, (_, label) in zip(axes, metrics.values(), strict=True):
        row[0].set_ylabel(label)
        row[1].legend(frameon=False)
    axes[0, 0].set_title("validation")
    axes[0, 1].set_title("test")
    axes[-1, 0].set_xlabel("noise scale")
    axes[-1, 1].set_xlabel("roll-outs S")
    save_figure(figure, out_file)


def _draw_band(axis: Axes, x: Any, curves: NDArray[np.float64], colour: str, label: str) -> None:
    """The mean of the curves [runs, points] and their range."""
    axis.plot(x, curves.mean(0), color=colour, label=label, marker=".")
    axis.fill_between(x, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)

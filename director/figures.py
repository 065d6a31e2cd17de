"""Figures of a study, as SVG: each takes prediction or metrics files and draws one idea."""

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import xlogy

matplotlib.use("svg")  # no display on a cluster
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.ticker import LogLocator, NullLocator

from director.files import replacing
from director.metrics import ece_15, reliability, risk_coverage
from director.predictions import Predictions
from director.tables import long_table

# seaborn 0.13.2 calls pandas and matplotlib in ways they have since deprecated; nothing a reader of a log can act on
warnings.filterwarnings("ignore", module="seaborn")
LINES = ("-", "--", "-.", ":")  # curves that lie on each other stay visible
STYLE = {"svg.hashsalt": "director", "svg.fonttype": "none", "figure.dpi": 100, "savefig.bbox": "tight"}


def _load(files: Iterable[str | Path]) -> dict[str, list[Predictions]]:
    """Prediction files by row of the table (`backbone, method`), in the order given, one per seed."""
    rows: dict[str, list[Predictions]] = {}
    for file in files:
        predictions = Predictions.load(file)
        rows.setdefault(f"{predictions.about['method']} ({predictions.about['backbone']})", []).append(predictions)
    return rows


def _save(figure: plt.Figure, path: str | Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, metadata={"Date": None})  # no date: the same numbers give the same bytes
    plt.close(figure)


def _style() -> None:
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", rc=STYLE)


def plot_reliability(files: Iterable[str | Path], out_file: str | Path, bins: int = 15) -> None:
    """Reliability diagrams, one panel per method: accuracy against confidence in `bins` equal-width bins, seeds pooled.

    The bars below show the share of predictions in a bin; the ECE in a panel's title is the mean over seeds.
    """
    _style()
    rows = _load(files)
    columns = min(len(rows), 4)
    lines = -(-len(rows) // columns)
    figure, axes = plt.subplots(
        2 * lines,
        columns,
        figsize=(3.2 * columns, 4.2 * lines),
        height_ratios=[3, 1] * lines,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
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
    for unused in range(len(rows), lines * columns):
        for axis in axes[2 * (unused // columns) : 2 * (unused // columns) + 2, unused % columns]:
            axis.set_visible(False)
    _save(figure, out_file)


def plot_risk_coverage(files: Iterable[str | Path], out_file: str | Path) -> None:
    """Risk-coverage curves: error among the most confident share of the inputs, mean over seeds and their range."""
    _style()
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    grid = np.linspace(0.05, 1, 200)  # below, a handful of inputs decides
    for number, (name, runs) in enumerate(_load(files).items()):
        curves = np.array([np.interp(grid, *risk_coverage(run)) for run in runs])
        axis.plot(grid, curves.mean(0), color=f"C{number}", linestyle=LINES[number % len(LINES)], label=name)
        axis.fill_between(grid, curves.min(0), curves.max(0), color=f"C{number}", alpha=0.15, linewidth=0)
    axis.set(xlabel="coverage: share of inputs kept, most confident first", ylabel="error rate among them", xlim=(0, 1))
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    _save(figure, out_file)


def plot_severity(files: Iterable[str | Path], out_file: str | Path) -> None:
    """Accuracy, NLL and ECE against severity, mean over the kinds of corruption; band: standard deviation over seeds.

    `files` are the metrics of the test suite (severity 0) and, where there is one, of the corrupted suite.
    """
    _style()
    metrics = {"accuracy": "accuracy", "nll": "NLL", "ece_15": "ECE-15"}
    long = long_table(files)
    cells = long[long["metric"].isin(metrics) & (long["shift"] != "overall")]
    most = cells.groupby(["backbone", "method"])["samples"].transform("max")  # of a row measured with several S
    cells = cells[cells["samples"] == most]
    runs = cells.groupby(["backbone", "method", "seed", "metric", "severity"], sort=False)["value"].mean()
    runs = runs.reset_index()
    runs["row"] = runs["method"] + " (" + runs["backbone"] + ")"
    figure, axes = plt.subplots(1, len(metrics), figsize=(12, 3.8), layout="constrained")
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
    _save(figure, out_file)


def plot_bayes(files: Iterable[str | Path], truths: Mapping[str, NDArray[np.float64]], out_file: str | Path) -> None:
    """Predicted against true probability of class 1, for labels that were drawn from a known distribution.

    One column of panels per row of the table, one line of panels per suite of `truths`: suite -> true probabilities
    [N, C] by example. At each probability that occurs: median, quartiles and the central 90 % of what is predicted,
    seeds pooled. KL in a title: mean over inputs and seeds of KL(true || predicted), in nats; 0 for the best possible.
    """
    _style()
    rows = _load(files)
    size = (2.9 * len(rows), 3.1 * len(truths))
    look = {"widths": 0.045, "whis": (5, 95), "showfliers": False, "manage_ticks": False, "patch_artist": True}
    look |= {"boxprops": {"facecolor": "C0", "alpha": 0.5}, "medianprops": {"color": "C3", "linewidth": 2}}
    figure, axes = plt.subplots(
        len(truths), len(rows), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for line, (suite, truth) in zip(axes, truths.items(), strict=True):
        for axis, (name, runs) in zip(line, rows.items(), strict=True):
            chosen = [run for run in runs if run.about["suite"] == suite]
            true = np.concatenate([truth[run.example] for run in chosen])  # [seeds * N, C]
            predicted = np.concatenate([run.log_probabilities for run in chosen])
            divergence = max(0.0, (xlogy(true, true) - true * predicted).sum(1).mean())  # rounding gives -0.000
            values = np.unique(true[:, 1])
            parts = [np.exp(predicted[true[:, 1] == value, 1]) for value in values]
            axis.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
            axis.boxplot(parts, positions=values, **look)
            axis.set(xlim=(-0.04, 1.04), ylim=(-0.02, 1.02), xticks=np.linspace(0, 1, 6))
            axis.set_title(f"{name}\n{suite}, KL {divergence:.3f}", fontsize=11)
        line[0].set(ylabel="predicted probability")
    for axis in axes[-1]:
        axis.set(xlabel="true probability")
    _save(figure, out_file)


def plot_depth(files: Iterable[str | Path], out_file: str | Path) -> None:
    """The student's predicted variance at each step of its path, one panel per student; mean and deviation over seeds.

    `files` are the .depth.npz files of `director.prediction.predict_suite` on every suite.
    """
    _style()
    lines = []
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            variance, severity, about = file["variance"], file["severity"], json.loads(str(file["about"]))
        suite = about["suite"]
        elsewhere = suite == "shifted" or suite.startswith("ood-")
        for level in np.unique(severity):
            inputs = suite if elsewhere else f"severity {level}" if level else "clean"
            steps = enumerate(variance[severity == level].mean(0), start=1)
            run = {
                "student": f"{about['method']}, teacher {about['backbone']}",
                "seed": about["seed"],
                "inputs": inputs,
            }
            lines += [run | {"step": step, "variance": value} for step, value in steps]
    table = pd.DataFrame(lines)
    students, inputs = table["student"].unique(), sorted(table["inputs"].unique())
    corrupted = [name for name in inputs if name.startswith("severity")]
    colours = {"clean": "0.35"} | dict(zip(corrupted, sns.color_palette("flare", len(corrupted)), strict=True))
    colours |= {name: "C1" for name in inputs if name == "shifted"}
    colours |= {name: "C0" for name in inputs if name.startswith("ood-")}
    dashes = {name: (4, 2) if name.startswith("ood-") else "" for name in colours}
    size = (4.6 * len(students), 3.8)
    figure, axes = plt.subplots(1, len(students), figsize=size, squeeze=False, layout="constrained")
    for axis, student in zip(axes[0], students, strict=True):
        part = table[table["student"] == student]
        look = {
            "hue": "inputs",
            "hue_order": list(colours),
            "palette": colours,
            "style": "inputs",
            "dashes": dashes,
        }
        sns.lineplot(part, x="step", y="variance", errorbar="sd", ax=axis, **look)
        axis.set(title=student, yscale="log", ylabel="predicted variance", xticks=part["step"].unique())
        low, high = axis.get_ylim()
        if high < 100 * low:  # powers of ten alone would leave one or two ticks
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_locator(NullLocator())
        axis.get_legend().remove()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    _save(figure, out_file)

"""Figures of a study's tables: what rows differ by, what they cost, and how their models were trained."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from director.files import read_json, reading
from director.methods import ATTENTIONS
from director.report.style import (
    WIDTH,
    Figure,
    Line2D,
    Row,
    draw_band,
    legend_of_rows,
    log_ticks,
    look_of,
    own_style,
    percent,
    row_of,
)
from director.report.tables import (
    COST,
    LOWER_IS_BETTER,
    READABLE,
    ROW,
    column_of,
    cost_table,
    in_order,
    long_table,
    main_table,
    read_comparison,
    row_name,
)

MOST_COLUMNS = 5  # panels beside each other
UNDECIDED = "#aaaaaa"  # the colour of a difference whose interval holds 0
COST_LABELS = {
    "parameters": "parameters",
    "train_seconds": "training, s",
    "predict_seconds_per_1000": "prediction of 1,000 inputs, s",
}
CURVES = {"train_loss": "training loss", "val_nll": "validation NLL", "val_accuracy": "validation accuracy, %"}


@own_style()
def plot_comparison(comparison_file: str | Path) -> Figure:
    """A forest plot: the difference of every row to the reference row in the columns of the readable table.

    comparison_file: of `director.numbers.compare_rows`. Rows whose interval holds 0 are grey.
    """
    table = read_comparison(comparison_file)
    table = table.assign(column=[column_of(line) for line in table.itertuples()])
    shown = [entry for entry in READABLE if (table["column"] == entry[1]).any()]
    places = table[ROW[1:]].drop_duplicates().itertuples(index=False, name=None)
    rows = {row_of(*place): place[:2] for place in places}
    lines = -(-len(shown) // MOST_COLUMNS)
    columns = -(-len(shown) // lines)
    figure = Figure(figsize=(WIDTH + 1, (0.2 * len(rows) + 0.75) * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
    heights = np.arange(len(rows))[::-1]
    for axis, (heading, column, factor, _) in zip(axes.flat, shown, strict=False):
        cells = table[table["column"] == column].set_index(["backbone", "method"])
        axis.axvline(0, color="0.4", linewidth=1)
        for height, (row, place) in zip(heights, rows.items(), strict=True):
            middle, lower, upper = factor * cells.loc[place, ["difference", "lower", "upper"]].astype(float)
            look = row.look if lower > 0 or upper < 0 else replace(row.look, colour=UNDECIDED)
            axis.hlines(height, lower, upper, color=look.colour, linewidth=1.5)
            axis.plot(middle, height, **look.markers())
        better = "left" if column.endswith(LOWER_IS_BETTER) else "right"
        axis.set_title(re.sub("^(corrupted|shifted|OOD) ", r"\1\n", heading).replace(" %", ", points"), fontsize=8.5)
        arrow = "← better" if better == "left" else "better →"
        axis.set_xlabel(arrow, loc=better, fontsize=8, color="0.35")
        axis.set_yticks(heights, [row.name for row in rows])
        axis.grid(axis="y", visible=False)
        axis.margins(y=0.04)
        axis.locator_params(axis="x", nbins=4)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    level = 100 * float(table["level"].iloc[0])
    reference = table["reference"].iloc[0]
    figure.suptitle(
        f"Row minus {reference}. Lines: {level:g} % bootstrap interval over examples and seeds; grey where it holds 0.",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    return figure


@own_style()
def plot_cost(
    metrics_files: Iterable[str | Path],
    cost_files: Iterable[str | Path],
    rows: Sequence[tuple[str, str, str]],
) -> Figure:
    """NLL and ECE-15 on `test` against parameters, seconds of training and of prediction; a mark per row of the table.

    Numbers of samples of one row are joined by a line. Bars: standard deviation over seeds. rows: (experiment,
    backbone, method) of one experiment, in their order.
    """
    table = main_table(in_order(long_table(metrics_files), rows), cost_table(cost_files), {})
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    axes = figure.subplots(2, len(COST), sharex="col", sharey="row")
    shown: dict[Row, None] = {}
    for (backbone, method), part in table.groupby(ROW[1:3], sort=False):
        *fewer, most = part["samples"]
        name = row_name(backbone, method, most).replace("S = ", f"S = {''.join(f'{number}, ' for number in fewer)}")
        row = Row(name, look_of(backbone, method))
        shown[row] = None
        for line, metric in zip(axes, ("nll", "ece_15"), strict=True):
            for axis, cost in zip(line, COST, strict=True):
                look = row.look.line() | {"linewidth": 1}
                axis.errorbar(part[cost], part[metric], part[f"{metric}_std"].fillna(0), elinewidth=0.8, **look)
    for axis, cost in zip(axes[1], COST, strict=True):
        axis.set(xlabel=COST_LABELS[cost], xscale="log")
        log_ticks(axis.xaxis, prefixes=cost == "parameters")
    axes[0, 0].set_ylabel("NLL")
    axes[1, 0].set_ylabel("ECE-15, %")
    percent(axes[1, 0].yaxis)
    note = "Mean over seeds, bars: their standard deviation. A line joins the numbers of samples S of a row."
    legend_of_rows(figure, shown, note, columns=3)
    return figure


@own_style()
def plot_training(folders: Iterable[str | Path]) -> Figure:
    """Training loss, validation NLL and accuracy over the epochs of each model, mean over seeds and their range.

    folders: results/runs/<experiment>/<backbone>/seed-<n>/<backbone or student>, with `history.csv` and `cost.json`.
    A mark is the epoch whose weights were kept. Losses have terms of their own, so they compare within a model alone.
    """
    models: dict[Row, list[tuple[Mapping[str, Any], int]]] = {}
    for folder in map(Path, folders):
        backbone, name = folder.parts[-3], folder.parts[-1]
        look = look_of(backbone, _plain_method(backbone) if name == "backbone" else name)
        run = _history(folder / "history.csv"), read_json(folder / "cost.json")["best_epoch"]
        models.setdefault(Row(f"{name} ({backbone})", look), []).append(run)
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes = figure.subplots(1, len(CURVES))
    for axis, (curve, label) in zip(axes, CURVES.items(), strict=True):
        for row, runs in models.items():
            curves = np.array([history[curve] for history, _ in runs])
            epochs = np.arange(1, curves.shape[1] + 1)
            draw_band(axis, epochs, curves, row, marker="", linewidth=1.2)
            kept = [best for _, best in runs]
            values = [values[best - 1] for values, best in zip(curves, kept, strict=True)]
            axis.plot(kept, values, **row.look.markers())
        axis.set(title=label, xlabel="epoch")
    axes[0].set_yscale("log")
    percent(axes[2].yaxis)
    handles = [Line2D([], [], **row.look.line(), label=row.name) for row in models]
    note = "Line: mean over seeds, band: their range. Marks: the epoch that was kept for each seed."
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), title=note)
    return figure


def _plain_method(backbone: str) -> str:
    """The method whose look a backbone's own training has: that predicts with it as it is."""
    attention = backbone.rpartition("_")[0]
    return attention if attention in ATTENTIONS else "mle"


def _history(path: Path) -> Mapping[str, list[float]]:
    with reading(path, "a training history", "delete it and run the same command again"), path.open() as file:
        lines = list(csv.DictReader(file))
        return {curve: [float(line[curve]) for line in lines] for curve in CURVES}

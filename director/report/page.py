"""The tables of a study as one page of HTML that needs nothing but itself: sortable, with what the intervals carry."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from director.files import reading, write_text
from director.numbers.measure import read_metrics
from director.report.tables import FITTED, LOWER_IS_BETTER, READABLE, ROW, column_of, read_comparison, row_name

BEGIN, END = '<body class="study">', "</body>"
MOST_DECIMALS = 6
SIGNIFICANT = 0.05  # an adjusted p-value below it is counted
DEFINITIONS = {
    "accuracy": "how often the most probable class is right. A calibration method must not pay with it.",
    "mcc": "Matthews correlation of predicted and true classes; 0 for any guessing, 100 for no error.",
    "nll": "negative log-likelihood of the label in nats: the whole predicted distribution. Lower is more truthful.",
    "brier": "squared distance of the predicted distribution to the label, in [0, 2]. Lower is better.",
    "ece_15": "gap between stated confidence and what came true, in 15 bins of equal width. Lower is better.",
    "aurc": "mean error rate as the least confident inputs are left out one by one. Lower is better.",
    "auroc": "probability that a right answer has more confidence than a wrong one; 50 for a coin.",
    "ood_auroc": "probability that a test input has more confidence than one from elsewhere; 50 for a coin.",
    "temperature": "what logits are divided by, fitted on validation data.",
    "noise_scale": "what the noise of the roll-outs is multiplied by, fitted on validation data.",
}
SUITES = {
    "corrupted": "the same on corrupted copies of test inputs, mean over kinds and severities.",
    "shifted": "the same on other examples of the task, which train nothing.",
}
STYLE = """
.study { font: 14px/1.45 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: none; }
.study table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6em 0 1.4em; font-size: 13px; }
.study th, .study td { padding: .25em .6em; border-bottom: 1px solid #e2e2e2; text-align: right; vertical-align: top;
  white-space: nowrap; }
.study th { position: sticky; top: 0; background: #f4f4f4; border-bottom: 2px solid #bbb; font-weight: 600; }
.study thead th { cursor: pointer; white-space: normal; max-width: 7em; }
.study thead th::after { content: " \\2195"; color: #999; }
.study th:first-child, .study td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
.study thead th:first-child { background: #f4f4f4; z-index: 1; }
.study td small { display: block; color: #777; font-size: 11px; }
.study td.best { font-weight: 700; } .study td.best small { font-weight: 400; }
.study small.better { color: #00714f; } .study small.worse { color: #b34700; }
.study small.better::before { content: "\\25B2 "; } .study small.worse::before { content: "\\25BC "; }
.study .wide { overflow-x: auto; }
.prose:has(.study) { max-width: none; } .grow:has(.study), .py-2:has(.study) { min-width: 0; }
.items-start:has(.study) { flex-wrap: wrap; } .h-screen:has(.study) { align-items: flex-start; }
.study h1 { font-size: 1.5em; } .study h2 { font-size: 1.25em; margin-top: 1.6em; } .study h3 { font-size: 1.05em; }
.study dt { font-weight: 600; } .study dd { margin: 0 0 .3em 1.2em; } .study li { margin: .25em 0; }
"""
# sorts by the heading that was clicked, a second click turns the order; rows without a number come last
SORT = (
    "var h=event.target.closest('thead th');if(h){var b=this.tBodies[0],i=h.cellIndex,"
    "s=h.dataset.turned==='1'?-1:1;h.dataset.turned=s>0?'1':'0';"
    "Array.from(b.rows).sort(function(p,q){var x=p.cells[i].dataset.value,y=q.cells[i].dataset.value;"
    "if(x===''||y==='')return (x==='')-(y==='');"
    "return s*(i?x-y:x.localeCompare(y))}).forEach(function(r){b.appendChild(r)})}"
)


def write_page(
    path: str | Path, tables: str | Path, metrics_files: Iterable[str | Path], methods: Mapping[str, str]
) -> None:
    """Write a page of main.csv and comparison.csv in the folder `tables`.

    metrics_files: of the runs, which say the commit that made the predictions. methods: what each is, in words.
    """
    tables = Path(tables)
    comparison = read_comparison(tables / "comparison.csv")
    with reading(tables / "main.csv", "a main table", "delete it and run the same command again"):
        main = pd.read_csv(tables / "main.csv")
        parts = [f"<style>{STYLE}</style>", "<h1>Results</h1>", _provenance(metrics_files)]
        for experiment, rows in main.groupby("experiment", sort=False):
            compared = comparison[comparison["experiment"] == experiment]
            parts += [f"<h2>{escape(experiment)}</h2>", _table(rows, compared), _findings(compared)]
        parts += ["<h2>What the columns mean</h2>", _definitions(main), "<h2>Methods</h2>", _list(methods)]
    head = '<meta charset="utf-8"><title>director: results</title>'
    body = "\n".join(parts)
    write_text(path, f'<!doctype html>\n<html lang="en"><head>{head}</head>\n{BEGIN}\n{body}\n{END}</html>\n')


def body_of(path: str | Path) -> str:
    """What stands on a page that `write_page` wrote, for a place in another page."""
    with reading(path, "a page of results", "delete it and run the same command again"):
        _, begin, rest = Path(path).read_text(encoding="utf-8").partition(BEGIN)
        body, end, _ = rest.partition(END)
        if not (begin and end):
            raise ValueError("it has no body")
        return f'<div class="study">{body}</div>'


def _provenance(metrics_files: Iterable[str | Path]) -> str:
    suites = [suite for path in metrics_files for method in read_metrics(path).values() for suite in method.values()]
    commits = {suite["about"].get("commit") for suite in suites} - {None}
    short = sorted({commit[:10] + "-dirty" * commit.endswith("-dirty") for commit in commits})
    return f"<p>Predictions were made by commit {escape(', '.join(short) or 'unknown')}.</p>"


def _table(rows: pd.DataFrame, comparison: pd.DataFrame) -> str:
    """The rows of one experiment: mean ± standard deviation, and below it the interval of the difference."""
    shown = [entry for entry in READABLE if rows[entry[1]].notna().any()]
    lines = {(line.backbone, line.method, line.samples, column_of(line)): line for line in comparison.itertuples()}
    head = "".join(f"<th>{escape(heading)}</th>" for heading in ("row", "S", "seeds", *(entry[0] for entry in shown)))
    best = {column: _best(rows[column], column) for _, column, _, _ in shown}
    body = []
    for row in rows.to_dict("records"):
        name = escape(row_name(row["backbone"], row["method"]))
        cells = [f'<td data-value="{of}">{of}</td>' for of in (name, row["samples"], row["seeds"])]
        for entry in shown:
            line = lines.get((row["backbone"], row["method"], row["samples"], entry[1]))
            cells.append(_cell(row, entry, line, row[entry[1]] == best[entry[1]]))
        body.append(f"<tr>{''.join(cells)}</tr>")
    lines_of_html = "\n".join(body)  # a line each, as docutils refuses long ones
    table = f'<table onclick="{escape(SORT)}"><thead><tr>{head}</tr></thead>\n<tbody>{lines_of_html}</tbody></table>'
    note = "Mean ± standard deviation over seeds. Bold: the best mean of a column, told apart from others or not."
    if lines:
        note += f" Small: difference to {_reference(comparison)}, with its {_level(comparison)} interval;"
        note += " ▲ better and ▼ worse where the interval excludes 0. Click a heading to sort."
    return f'<p>{note}</p>\n<div class="wide">{table}</div>'


def _best(values: pd.Series, column: str) -> float:
    """The best value of a column; none of a number that was fitted."""
    if column in FITTED:
        return float("nan")
    return values.min() if column.endswith(LOWER_IS_BETTER) else values.max()


def _cell(row: Mapping[str, Any], entry: tuple[str, str, float, int], line: Any, is_best: bool) -> str:
    _, column, factor, decimals = entry
    if pd.isna(row[column]):
        return '<td data-value="">–</td>'
    text = f"{factor * row[column]:.{decimals}f}"
    if not pd.isna(row[f"{column}_std"]):
        text += f" ± {factor * row[f'{column}_std']:.{decimals}f}"
    if line is not None and not pd.isna(line.lower):
        kind = _verdict(line)
        text += f'<small class="{kind}">{_difference(line, factor, decimals)}</small>'
    mark = ' class="best"' if is_best else ""
    return f'<td{mark} data-value="{row[column]:.10g}">{text}</td>'


def _findings(comparison: pd.DataFrame) -> str:
    """In words what each interval carries; nothing where there is only one row."""
    entries = {entry[1]: entry for entry in READABLE}
    known = comparison.assign(column=[column_of(line) for line in comparison.itertuples()]).dropna(subset=["lower"])
    known = known[known["column"].isin(entries)]
    if known.empty:
        return ""
    items = []
    for (backbone, method, samples), part in known.groupby(ROW[1:], sort=False):
        words: dict[str, list[str]] = {"better": [], "worse": [], "same": []}
        for line in part.itertuples():
            heading, _, factor, decimals = entries[line.column]
            name = re.sub(r" (%|x\d+)$", "", heading)
            kind = _verdict(line)
            words[kind].append(name if kind == "same" else f"{name} ({_difference(line, factor, decimals)})")
        said = {"better": "better in ", "worse": "worse in ", "same": "not told apart in "}
        text = "; ".join(said[kind] + ", ".join(names) for kind, names in words.items() if names)
        items.append(f"<li><b>{escape(row_name(backbone, method, samples))}</b>: {escape(text)}.</li>")
    apart = sum(_verdict(line) != "same" for line in known.itertuples())
    firm = int((known["p_holm"] < SIGNIFICANT).sum())
    chance = f"{1 - known['level'].iloc[0]:.0%}"
    note = f"Row against {_reference(comparison)}, by {_level(comparison)} bootstrap intervals over test examples and "
    note += f"seeds. {apart} of {len(known)} exclude 0; if nothing differed, {chance} of them would. "
    note += f"Tests over seeds, adjusted for their number (Holm), are below {SIGNIFICANT:g} for {firm}."
    return f"<h3>What the intervals carry</h3>\n<p>{note}</p>\n<ul>\n" + "\n".join(items) + "\n</ul>"


def _verdict(line: Any) -> str:
    """`better` or `worse` than the reference, `same` where the interval holds 0."""
    if not (line.lower > 0 or line.upper < 0):
        return "same"
    return "better" if (line.difference < 0) is line.metric.endswith(LOWER_IS_BETTER) else "worse"


def _difference(line: Any, factor: float, decimals: int) -> str:
    """With as many decimals as it takes to see on which side of 0 an interval is."""
    values = [factor * value for value in (line.difference, line.lower, line.upper)]
    nearest = min(map(abs, values))
    while _verdict(line) != "same" and decimals < MOST_DECIMALS and round(nearest, decimals) == 0:
        decimals += 1
    middle, lower, upper = (f"{value:+.{decimals}f}" for value in values)
    return f"{middle} [{lower}, {upper}]".replace("-", "−")


def _reference(comparison: pd.DataFrame) -> str:
    backbone, method = comparison["reference"].iloc[0].split("/")
    return escape(row_name(backbone, method))


def _level(comparison: pd.DataFrame) -> str:
    return f"{100 * float(comparison['level'].iloc[0]):g} %"


def _definitions(main: pd.DataFrame) -> str:
    """Of the columns that some row has a number for."""
    headings = {column: heading for heading, column, _, _ in READABLE if main[column].notna().any()}
    known = {headings[column]: words for column, words in DEFINITIONS.items() if column in headings}
    for suite, words in SUITES.items():
        if any(column.startswith(f"{suite}_") for column in headings):
            known[f"{suite} ..."] = words
    return _list(known)


def _list(entries: Mapping[str, str]) -> str:
    lines = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in entries.items())
    return f"<dl>{lines}</dl>"

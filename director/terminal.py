"""The main table on a terminal: an experiment at a time, in blocks that fit, the best of each column marked."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from director.errors import InputError
from director.files import reading
from director.report.tables import READABLE

WIDTH = 100  # characters of a block
GAP = 2  # between its columns
# metric, the end of its column's name -> which is better: the larger (1) or the smaller (-1); others have no best
BETTER = {"accuracy": 1, "mcc": 1, "auroc": 1, "nll": -1, "brier": -1, "ece_15": -1, "aurc": -1}
ARROWS = {1: "↑", -1: "↓", 0: ""}
SUITES = ("corrupted", "shifted", "OOD")


def print_table(file: str | Path, stream: IO[str]) -> None:
    """Print the main table: mean ± standard deviation over seeds, an arrow to the better side, the best bold.

    Columns that an experiment has no number for are left out. InputError for a file that is not such a table.
    """
    console = Console(file=stream, width=WIDTH, highlight=False)
    with reading(file, "a main table", "make it: snakemake --cores 8 results/tables/main.csv"):
        table = pd.read_csv(file)
        experiments = [(name, list(_blocks(rows))) for name, rows in table.groupby("experiment", sort=False)]
    if not experiments:
        raise InputError(f"{file}: the table has no row")
    for name, blocks in experiments:
        console.print(f"\n{name}", style="bold underline", markup=False)
        for block in blocks:
            console.print(block, "")


def _blocks(rows: pd.DataFrame) -> Iterator[Table]:
    """Tables of one experiment, none wider than WIDTH, each with the columns that name its rows."""
    headings = {"backbone": "backbone", "method": "method", "samples": "S"}
    names = [[Text(heading), *map(Text, rows[key].astype(str))] for key, heading in headings.items()]
    block = list(names)
    for column in filter(None, (_column(rows, *entry) for entry in READABLE)):
        if _width([*block, column]) > WIDTH and len(block) > len(names):
            yield _table(block)
            block = list(names)
        block.append(column)
    yield _table(block)


def _column(rows: pd.DataFrame, heading: str, name: str, factor: float, decimals: int) -> list[Text] | None:
    """Heading and cells of a column; None if no row has a number in it."""
    values = rows[name] * factor
    if values.isna().all():
        return None
    spread = rows[f"{name}_std"] * factor
    sign = next((sign for metric, sign in BETTER.items() if name.endswith(metric)), 0)
    shown = [f"{value:.{decimals}f}" for value in values]
    best = f"{(sign * values).max() * sign:.{decimals}f}" if sign else None  # rows that read the same are equals
    cells = []
    for value, std, text in zip(values, spread, shown, strict=True):
        over_seeds = "" if pd.isna(std) else f" ± {std:.{decimals}f}"
        cells.append(Text("-" if pd.isna(value) else text + over_seeds, style="bold" if text == best else ""))
    first, _, rest = heading.partition(" ")
    over = f"{first}\n{rest}" if first in SUITES else heading  # a suite's name stands above that of the metric
    return [Text(f"{over} {ARROWS[sign]}".rstrip()), *cells]


def _width(columns: list[list[Text]]) -> int:
    return sum(max(len(line) for cell in column for line in cell.plain.split("\n")) + GAP for column in columns) - GAP


def _table(columns: list[list[Text]]) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    for number, (heading, *_) in enumerate(columns):
        justify = "left" if number < 2 else "right"
        table.add_column(heading, justify=justify, no_wrap=True, header_style="dim", vertical="bottom")
    for cells in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*cells)
    return table

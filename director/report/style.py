"""How every figure looks, what it calls a row of the table, and how it is saved."""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# What the user has set for other plots is not ours, and a backend named in a notebook may not even be installed here.
# Matplotlib reads both when it is imported; figures take it from here.
os.environ["MPLBACKEND"] = "svg"
os.environ["MATPLOTLIBRC"] = os.devnull

import matplotlib
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from director.files import replacing
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite

# seaborn 0.13.2 calls pandas and matplotlib in ways they have since deprecated; nothing a reader of a log can act on
warnings.filterwarnings("ignore", module="seaborn")
DASHES = ("-", "--", "-.", ":")  # curves that lie on each other stay visible
SETTINGS = {"svg.hashsalt": "director", "svg.fonttype": "none", "figure.dpi": 100, "savefig.bbox": "tight"}


@contextmanager
def own_style() -> Iterator[None]:
    """The settings of this module and no others while a figure is drawn and saved; the caller's come back after it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", color_codes=False, rc=SETTINGS)
        yield


def dash(number: int) -> str:
    """The dash of curve `number`."""
    return DASHES[number % len(DASHES)]


def log_ticks(axis: Axes) -> None:
    """A logarithmic y axis with ticks between the powers of ten, where these alone would be one or two."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high < 100 * low:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_locator(NullLocator())


def row_name(backbone: str, method: str) -> str:
    """What figures call a row of the table."""
    return f"{method} ({backbone})"


def load_rows(manifest_files: Iterable[str | Path], *suites: str) -> dict[str, list[Predictions]]:
    """Predictions on these suites by row of the table, in the order given, one per seed and suite."""
    rows: dict[str, list[Predictions]] = {}
    for manifest in manifest_files:
        for suite in suites:
            run = load_suite(manifest, suite)
            rows.setdefault(row_name(run.about["backbone"], run.about["method"]), []).append(run)
    return rows


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure atomically; the same numbers give the same bytes."""
    with replacing(path) as temporary:
        figure.savefig(temporary, metadata={"Date": None})

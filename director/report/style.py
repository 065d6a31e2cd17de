"""How every figure looks, what it calls a row of the table, and how it is saved."""

import warnings
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("svg")  # no display on a cluster
import matplotlib.pyplot as plt
import seaborn as sns

from director.files import replacing
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite

# seaborn 0.13.2 calls pandas and matplotlib in ways they have since deprecated; nothing a reader of a log can act on
warnings.filterwarnings("ignore", module="seaborn")
DASHES = ("-", "--", "-.", ":")  # curves that lie on each other stay visible
SETTINGS = {"svg.hashsalt": "director", "svg.fonttype": "none", "figure.dpi": 100, "savefig.bbox": "tight"}


def set_style() -> None:
    """Give figures the settings of this module and no others, whatever the user's own are; call it first in each."""
    matplotlib.rcdefaults()
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", rc=SETTINGS)


def dash(number: int) -> str:
    """The dash of curve `number`."""
    return DASHES[number % len(DASHES)]


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


def save_figure(figure: plt.Figure, path: str | Path) -> None:
    """Write a figure atomically; the same numbers give the same bytes."""
    with replacing(path) as temporary:
        figure.savefig(temporary, metadata={"Date": None})
    plt.close(figure)

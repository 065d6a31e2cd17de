"""How every figure looks, what it calls a row of the table and how it draws it, and how it is saved."""

import colorsys
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# What the user has set for other plots is not ours, and a backend named in a notebook may not even be installed here.
# Matplotlib reads both when it is imported; figures take it from here.
os.environ["MPLBACKEND"] = "svg"
os.environ["MATPLOTLIBRC"] = os.devnull

import matplotlib
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from director.files import replacing
from director.methods import ATTENTIONS, ENSEMBLE_PATTERN, METHODS, NOISE, STUDENT, TEMPERATURE
from director.numbers.predictions import Predictions
from director.numbers.suites import load_suite
from director.report.tables import row_name

# What a method is at heart -> its colour (of Okabe and Ito 2008, told apart by colour-blind readers) and its marker,
# which says the same in grey. Any other gets one of SPARE by its name.
FAMILIES = {
    "mle": ("#222222", "o"),
    "mc_dropout": ("#CC79A7", "s"),
    "ensemble": ("#009E73", "^"),
    "kep_svgp": ("#0072B2", "D"),
    "sgpa": ("#56B4E9", "v"),
    "laplace": ("#E69F00", "X"),
    STUDENT.name: ("#D55E00", "P"),
}
SPARE = (("#882255", "p"), ("#999933", "h"), ("#44AA99", ">"), ("#AA4499", "<"))
# what is made of a method -> the stroke that it adds to the line, in points; a method as it is has a solid one
STROKES = {"early": 3.0, "temperature": 6.0, "noise": 1.0}
GAP = 1.6
# a row of another backbone is lighter: share of white at most
WHITE = 0.6
# sizes in inches: a page is as wide as the text of a report, and a figure as high as it needs
WIDTH = 10.0
# what differs from seaborn's whitegrid for papers
SETTINGS = {
    "axes.edgecolor": "0.7",
    "axes.linewidth": 0.8,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.dpi": 150,  # of a PNG
    "figure.labelsize": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],  # the first comes with Matplotlib
    "font.size": 9,
    "grid.color": "0.9",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.title_fontsize": 9,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "director",
    "xtick.bottom": True,
    "xtick.major.size": 3,
    "xtick.major.width": 0.8,
    "xtick.color": "0.4",
    "xtick.labelcolor": "0.15",
    "xtick.labelsize": 8.5,
    "ytick.left": True,
    "ytick.major.size": 3,
    "ytick.major.width": 0.8,
    "ytick.color": "0.4",
    "ytick.labelcolor": "0.15",
    "ytick.labelsize": 8.5,
}


@dataclass(frozen=True)
class Look:
    """How one row is drawn, wherever it is drawn.

    dash: lengths of strokes and gaps in points, none for a solid line. filled: whether the markers are.
    """

    colour: str
    marker: str
    dash: tuple[float, ...] = ()
    filled: bool = True

    def markers(self) -> dict[str, Any]:
        """Keywords of `Axes.plot` and `Axes.errorbar` for markers alone."""
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": face, "linestyle": "none"}

    def line(self) -> dict[str, Any]:
        """The same for a line with markers."""
        return self.markers() | {"linestyle": (0, self.dash) if self.dash else "-"}


class Row(NamedTuple):
    """A row of the table: what figures call it, and how they draw it."""

    name: str
    look: Look

    @property
    def title(self) -> str:
        """The name over a panel: a method of ours in two lines, its backbone and samples in the second."""
        return re.sub(r" (\([a-z0-9_]+\)(, S = \d+)?)$", r"\n\1", self.name)


def row_of(backbone: str, method: str, samples: int = 1) -> Row:
    """The row of a method with so many samples S on a backbone."""
    return Row(row_name(backbone, method, samples), look_of(backbone, method))


def look_of(backbone: str, method: str) -> Look:
    """How a method on a backbone is drawn: a function of the two names, whatever else is in the figure.

    Colour and marker say the family, strokes what was made of it, hollow markers that a temperature was. Rows of
    another backbone than the usual one of their family are lighter.
    """
    family, variant, made = _parts(method)
    colour, marker = FAMILIES.get(family) or SPARE[_number(family) % len(SPARE)]
    if variant:
        colour, marker = _varied(colour, variant)
    colour = _lighter(colour, WHITE * _distance(backbone, family))
    dash = tuple(length for stroke in made for length in (STROKES[stroke], GAP))
    return Look(colour, marker, dash, filled="temperature" not in made)


def numbered_look(number: int) -> Look:
    """How something that is no method of ours is drawn, by its number in the figure."""
    looks = [*FAMILIES.values(), *SPARE]
    colour, marker = looks[number % len(looks)]
    strokes = list(STROKES.values())
    dash = (strokes[number // len(looks) % len(strokes)], GAP) if number >= len(looks) else ()
    return Look(colour, marker, dash)


def shades(number: int) -> list[tuple[float, float, float]]:
    """So many colours from light to dark, for what grows."""
    return list(sns.color_palette("flare", number))


def _parts(method: str) -> tuple[str, str, tuple[str, ...]]:
    """Family of a method, its variant of the student if it is one, and what was made of it (keys of STROKES)."""
    if method.endswith(TEMPERATURE):
        family, variant, made = _parts(method.removesuffix(TEMPERATURE))
        return family, variant, (*made, "temperature")
    if method.endswith(NOISE):
        family, variant, made = _parts(method.removesuffix(NOISE))
        return family, variant, (*made, "noise")
    if few := re.fullmatch(ENSEMBLE_PATTERN, method):
        return "ensemble", few[2], _parts(few[1])[2]
    entry = METHODS.get(method)
    if entry and entry.scales:
        family, variant, made = _parts(entry.scales)
        return family, variant, (*made, "temperature")
    if entry and entry.pools:
        return "ensemble", "", _parts(entry.pools)[2]
    if entry and entry.weights == "early":
        return "mle", "", ("early",)
    if method.startswith(f"{STUDENT.name}_"):
        return STUDENT.name, method.removeprefix(f"{STUDENT.name}_"), ()
    return method, "", ()


def _distance(backbone: str, family: str) -> float:
    """How far a backbone is from the usual one of a family, in [0, 1]: from softmax, or of a posterior from its own
    attention in all layers."""
    attention, _, layers = backbone.rpartition("_")
    if attention not in ATTENTIONS:
        return 0.0 if backbone == "softmax" else 0.5
    share = 1.0 if layers == "all" else int(layers) / (int(layers) + 1)
    return 1 - share if family == attention else share


def _number(name: str) -> int:
    return zlib.crc32(name.encode())


def _varied(colour: str, variant: str) -> tuple[str, str]:
    """Another shade and marker of the same family, by the variant's name."""
    markers = "Xph><*dH8"
    number = _number(variant)
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    shares = [(number >> shift & 255) / 255 for shift in (8, 16)]
    hue, lightness = (hue + 0.11 * (shares[0] - 0.4)) % 1, lightness * (0.6 + 0.8 * shares[1])
    return to_hex(colorsys.hls_to_rgb(hue, lightness, saturation)), markers[number % len(markers)]


def _lighter(colour: str, white: float) -> str:
    return to_hex([part + (1 - part) * white for part in to_rgb(colour)])


@contextmanager
def own_style() -> Iterator[None]:
    """The settings of this module and no others while a figure is drawn and saved; the caller's come back after it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        sns.set_theme(context="paper", style="whitegrid", color_codes=False, rc=SETTINGS)
        yield


def percent(axis: Any) -> None:
    """Ticks of an x or y axis in percent of shares in [0, 1]; the sign stands in the label."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 9):g}"))


def log_ticks(axis: Any, prefixes: bool = False) -> None:
    """Ticks of a logarithmic x or y axis: between the powers of ten, too, where these alone would be one or two.

    prefixes: 200k for 200000.
    """
    low, high = axis.get_view_interval()
    subs = (1, 1.5, 2, 3, 5, 7) if high < 8 * low else (1, 2, 5) if high < 100 * low else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(EngFormatter(sep="") if prefixes else "{x:g}")
    axis.set_minor_locator(NullLocator())


def draw_band(axis: Axes, x: Any, curves: Any, row: Row, **line: Any) -> None:
    """The mean of the curves [runs, points] with their range."""
    axis.plot(x, curves.mean(0), **row.look.line() | line, label=row.name)
    if len(curves) > 1:
        axis.fill_between(x, curves.min(0), curves.max(0), color=row.look.colour, alpha=0.1, linewidth=0)


def legend_of_rows(figure: Figure, rows: Iterable[Row], note: str = "", columns: int = 4) -> None:
    """One legend of all rows under the panels, and what bands and marks mean under it."""
    handles = [Line2D([], [], **row.look.line(), label=row.name) for row in rows]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns), title=note or None)


def load_rows(manifest_files: Iterable[str | Path], *suites: str) -> dict[Row, list[Predictions]]:
    """Predictions on these suites by row of the table, in the order given, one per seed and suite."""
    rows: dict[Row, list[Predictions]] = {}
    for manifest in manifest_files:
        for suite in suites:
            run = load_suite(manifest, suite)
            rows.setdefault(row_of_run(run), []).append(run)
    return rows


def row_of_run(run: Predictions) -> Row:
    return row_of(run.about["backbone"], run.about["method"], run.about.get("samples", len(run.logits)))


@own_style()
def save_figure(figure: Figure, *paths: str | Path) -> None:
    """Write a figure atomically, in the format of each path's ending; the same numbers give the same bytes."""
    for path in paths:
        with replacing(path) as temporary:
            kind = {"metadata": {"Date": None}} if Path(path).suffix.lower() == ".svg" else {}
            figure.savefig(temporary, **kind)

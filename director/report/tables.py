"""Tables of a study: from the records of its runs to main.csv and its companions."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from director.errors import InputError
from director.files import reading, replacing, write_json, write_text
from director.numbers.compare_rows import COLUMNS, COMPARED, OOD
from director.numbers.comparison import spread
from director.numbers.measure import FITTED, read_metrics
from director.numbers.suites import read_cost

ROW = ["experiment", "backbone", "method", "samples"]  # what a row of a table is
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("fog", "frost", "snow", "spatter"),
    "digital": ("brightness", "contrast", "elastic_transform", "jpeg_compression", "pixelate", "saturate"),
}
# column of the main table: (suite, metric); a suite `ood` is the mean over the out-of-distribution sets
MAIN = {
    name if suite == "test" else f"{suite}_{name}": (suite, f"ood_{name}" if suite == OOD else name)
    for suite, names in COMPARED.items()
    for name in names
}
COST = ["parameters", "train_seconds", "predict_seconds_per_1000"]
PUBLISHED = ["published_accuracy", "published_mcc", "published_ece_15"]
LOWER_IS_BETTER = ("nll", "brier", "ece_15", "aurc", "fpr95")  # of metrics, and of columns that end with one
# readable table: heading, column, factor, decimals; the scale stands in the heading, files keep raw units
READABLE = [
    ("accuracy %", "accuracy", 100, 1),
    ("MCC x100", "mcc", 100, 1),
    ("NLL", "nll", 1, 3),
    ("Brier", "brier", 1, 3),
    ("ECE-15 %", "ece_15", 100, 1),
    ("AURC x1000", "aurc", 1000, 1),
    ("AUROC %", "auroc", 100, 1),
    ("corrupted accuracy %", "corrupted_accuracy", 100, 1),
    ("corrupted NLL", "corrupted_nll", 1, 3),
    ("corrupted ECE-15 %", "corrupted_ece_15", 100, 1),
    ("shifted accuracy %", "shifted_accuracy", 100, 1),
    ("shifted MCC x100", "shifted_mcc", 100, 1),
    ("shifted NLL", "shifted_nll", 1, 3),
    ("shifted ECE-15 %", "shifted_ece_15", 100, 1),
    ("OOD AUROC %", "ood_auroc", 100, 1),
    ("T", "temperature", 1, 2),
    ("tau", "noise_scale", 1, 2),
]


def row_name(backbone: str, method: str, samples: int = 1) -> str:
    """What figures and pages call a row of the table."""
    return f"{method} ({backbone})" + (f", S = {samples}" if samples > 1 else "")


def column_of(line: Any) -> str:
    """The column of the main table that a line of a comparison is about."""
    return line.metric if line.suite == "test" else f"{line.suite}_{line.metric}"


def long_table(metrics_files: Iterable[str | Path]) -> pd.DataFrame:
    """Every metric of every run, one number per line.

    Columns: experiment, backbone, method, samples, seed, suite, generated (whether its inputs were made here rather
    than published), shift, severity, pooling, n, metric, value; value is empty where the metric is undefined. What was
    fitted (FITTED) is a metric of the suite `test`. Rows in the order of the files, a run folder each.
    """
    lines = []
    for path in metrics_files:
        for measured in [measured for suites in read_metrics(path).values() for measured in suites.values()]:
            notes = measured["about"]
            about = {key: notes[key] for key in ("experiment", "backbone", "method", "seed", "suite")}
            about["generated"] = notes.get("generated", False)
            fitted = {key: notes[key] for key in FITTED if key in notes} if about["suite"] == "test" else {}
            for record in measured["records"]:
                cell = {key: record[key] for key in ("samples", "shift", "severity", "pooling", "n")}
                metrics = {key: value for key, value in record.items() if key not in cell} | fitted
                lines += [about | cell | {"metric": key, "value": value} for key, value in metrics.items()]
    order = [*ROW, "seed", "suite", "generated", "shift", "severity", "pooling", "n", "metric", "value"]
    return pd.DataFrame(lines, columns=order).astype({"value": float, "seed": str})


def in_order(long: pd.DataFrame, rows: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """The lines of a long table of these rows, (experiment, backbone, method), in their order, and by seed.

    Lines of one run stay as they were. Raises InputError for a row that has none.
    """
    number = {tuple(row): index for index, row in enumerate(rows)}
    present = list(long[ROW[:3]].itertuples(index=False, name=None))
    if missing := number.keys() - set(present):
        raise InputError(f"no metrics of {'/'.join(min(missing))}; delete the metrics.json of its runs and run again")
    seeds = pd.to_numeric(long["seed"], errors="coerce")  # `pooled` has no number and comes last
    lines = long.assign(position=list(map(number.get, present)), seed_number=seeds).dropna(subset="position")
    ordered = lines.sort_values(["position", "seed_number"], kind="stable", ignore_index=True)
    return ordered.drop(columns=["position", "seed_number"])


def per_run(long: pd.DataFrame) -> pd.DataFrame:
    """The numbers of the main table for each run: index ROW + seed, columns MAIN and FITTED; NaN where undefined."""
    overall = long[long["shift"].isin(["clean", "overall"]) | long["suite"].str.startswith("ood-")]
    suite = overall["suite"].where(~overall["suite"].str.startswith("ood-"), OOD)
    # a mean over several out-of-distribution sets is undefined if it is undefined on one of them
    values = overall.assign(suite=suite).groupby([*ROW, "seed", "suite", "metric"], sort=False)["value"]
    wide = values.agg(lambda numbers: numbers.mean(skipna=False)).unstack(["suite", "metric"])
    places = MAIN | {name: ("test", name) for name in FITTED}
    return pd.DataFrame({column: wide.get(place, float("nan")) for column, place in places.items()}, index=wide.index)


def with_spread(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Number of seeds, and each column's mean and standard deviation over them (`comparison.spread`)."""
    lines = {}
    for key, group in runs.groupby(keys, sort=False):
        lines[key] = line = {"seeds": len(group)}
        for column in runs.columns:
            values = [None if pd.isna(value) else value for value in group[column]]
            line[column], line[f"{column}_std"] = spread(values)
    table = pd.DataFrame.from_dict(lines, orient="index")
    table.index = pd.MultiIndex.from_tuples(list(lines), names=keys)
    return table.astype({column: float for column in table.columns if column != "seeds"})


def cost_table(cost_files: Iterable[str | Path]) -> pd.DataFrame:
    """What each row cost, mean over seeds (memory: the largest): index ROW.

    Seconds are those of predicting the suite `test` with the row's own number of samples. A run's path is its identity:
    .../<experiment>/<backbone>/seed-<n>/<method>/predictions/cost.json.
    """
    lines = []
    for path in map(Path, cost_files):
        experiment, backbone, _, method = path.parts[-6:-2]
        cost = read_cost(path, ["test"])
        row = {"experiment": experiment, "backbone": backbone, "method": method}
        shared = {key: cost[key] for key in ("parameters", "train_seconds", "device", "threads", "peak_memory_bytes")}
        test = cost["suites"]["test"]
        for samples, seconds in test["seconds"].items():
            per_thousand = 1000 * seconds / test["examples"]
            lines.append(row | {"samples": int(samples)} | shared | {"predict_seconds_per_1000": per_thousand})
    how = {
        **dict.fromkeys([*COST, "threads"], "mean"),
        "peak_memory_bytes": "max",
        "device": lambda kinds: "/".join(sorted(set(kinds))),
    }
    return pd.DataFrame(lines).groupby(ROW, sort=False).agg(how)


def main_table(long: pd.DataFrame, cost: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """One row per (experiment, backbone, method, samples); a metric is followed by its standard deviation over seeds.

    Raw units. `generated` names the suites whose inputs were made here rather than published. `published` maps
    experiment -> backbone -> method -> {accuracy, mcc, ece_15, source}; they stand at the row of the most samples.
    """
    table = with_spread(per_run(long), ROW).reset_index()
    table = table.merge(cost.reset_index()[[*ROW, *COST]], on=ROW, how="left", validate="one_to_one")
    made = long[long["generated"]].groupby("experiment")["suite"].unique().map(" ".join)
    table.insert(len(ROW) + 1, "generated", [made.get(experiment, "") for experiment in table["experiment"]])
    most = table.groupby(ROW[:3])["samples"].transform("max") == table["samples"]
    known = [
        (published.get(experiment, {}).get(backbone, {}).get(method) or {}) if quoted else {}
        for (experiment, backbone, method, _), quoted in zip(table[ROW].itertuples(index=False), most, strict=True)
    ]
    for column in PUBLISHED:
        table[column] = [numbers.get(column.removeprefix("published_")) for numbers in known]
    return table.astype(dict.fromkeys(PUBLISHED, float))


def group_of(kinds: Iterable[str]) -> dict[str, str]:
    """Kind of corruption -> its group of GROUPS, in the order of these; `other` for one that has none."""
    known = {kind: group for group, members in GROUPS.items() for kind in members}
    present = set(map(str, kinds))
    listed = [kind for kind in known if kind in present]
    return {kind: known[kind] for kind in listed} | dict.fromkeys(sorted(present - set(listed)), "other")


def corruption_table(long: pd.DataFrame) -> pd.DataFrame:
    """Accuracy, NLL and ECE per corruption, mean over its severities, and per group of corruptions."""
    cells = long[
        (long["suite"] == "corrupted") & (long["severity"] > 0) & long["metric"].isin(["accuracy", "nll", "ece_15"])
    ]
    cells = cells.assign(group=cells["shift"].map(group_of(cells["shift"])))
    keys = [*ROW, "generated", "group", "shift", "seed"]
    runs = cells.groupby([*keys, "metric"], sort=False)["value"].mean().unstack("metric")
    groups = runs.reset_index("shift", drop=True).groupby([*ROW, "generated", "group", "seed"], sort=False).mean()
    groups = pd.concat({"all": groups}, names=["shift"]).reorder_levels(keys)
    return with_spread(pd.concat([runs, groups]), keys[:-1]).reset_index()


def ood_table(long: pd.DataFrame) -> pd.DataFrame:
    """AUROC, AUPR and FPR95 against each out-of-distribution set, for each score."""
    cells = long[long["suite"].str.startswith("ood-")]
    parts = cells["metric"].str.extract(r"ood_(?P<metric>auroc|aupr_in|aupr_out|fpr95)_?(?P<score>.*)")
    cells = cells.assign(metric=parts["metric"], score=parts["score"].replace("", "max_softmax"))
    runs = (
        cells.groupby([*ROW, "suite", "generated", "score", "seed", "metric"], sort=False)["value"]
        .mean()
        .unstack("metric", sort=False)
    )
    return with_spread(runs, [*ROW, "suite", "generated", "score"]).reset_index()


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The main table for the eye: mean ± standard deviation, the scale in the heading, a dash where undefined.

    Columns that no row has a number for are left out.
    """

    def cell(row: pd.Series, column: str, factor: float, decimals: int) -> str:
        mean, std = row[column] * factor, row[f"{column}_std"] * factor
        if pd.isna(mean):
            return "-"
        return f"{mean:.{decimals}f}" + ("" if pd.isna(std) else f" ± {std:.{decimals}f}")

    shown = table[[*ROW, "seeds"]].copy()
    for heading, column, factor, decimals in READABLE:
        if table[column].isna().all():
            continue
        shown[heading] = [cell(row, column, factor, decimals) for _, row in table.iterrows()]
    if table["generated"].any():
        shown["generated"] = table["generated"].replace("", "-")
    return shown


def nested(table: pd.DataFrame) -> dict[str, Any]:
    """The main table as a tree, for `dvc metrics`: experiment -> "backbone/method/samples" -> column -> number."""
    tree: dict[str, Any] = {}
    for row in table.to_dict("records"):
        name = "/".join(str(row[key]) for key in ROW[1:])
        numbers = {key: value for key, value in row.items() if key not in ROW and not pd.isna(value)}
        tree.setdefault(row["experiment"], {})[name] = numbers
    return tree


def markdown(table: pd.DataFrame) -> str:
    """A table of text as aligned Markdown."""
    cells = [list(table.columns), *table.astype(str).to_numpy().tolist()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def read_comparison(path: str | Path) -> pd.DataFrame:
    """What `director.numbers.comparison.compare_rows` wrote; InputError for a file that is not that."""
    with reading(path, "a file of comparisons", "delete it and run the same command again"):
        table = pd.read_csv(path)
        if tuple(table.columns) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(table.columns)}")
        numbers = ["samples", "runs", "difference", "lower", "upper", "level", "p", "p_holm"]
        if wrong := [name for name in numbers if not pd.api.types.is_numeric_dtype(table[name])]:
            raise ValueError(f"its column {wrong[0]} holds more than numbers")
        return table


def write_tables(
    folder: str | Path,
    metrics_files: Iterable[str | Path],
    cost_files: Iterable[str | Path],
    comparison_files: Iterable[str | Path],
    published: Mapping[str, Any],
    rows: Sequence[tuple[str, str, str]],
) -> None:
    """Write main, all, corruption, ood, cost and comparison (.csv), and main as .json, .md and .tex, into `folder`.

    metrics_files: of every run folder. cost_files: of every method in them. rows: (experiment, backbone, method) in the
    order of the tables.
    """
    folder = Path(folder)
    long = in_order(long_table(metrics_files), rows)
    cost = cost_table(cost_files)
    main = main_table(long, cost, published)
    tables = {
        "main": main,
        "all": long,
        "corruption": corruption_table(long),
        "ood": ood_table(long),
        "cost": cost.reset_index(),
        "comparison": pd.concat([read_comparison(path) for path in comparison_files], ignore_index=True),
    }
    for name, table in tables.items():
        with replacing(folder / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=False)
    shown = readable(main)
    write_json(folder / "main.json", nested(main))
    write_text(folder / "main.md", markdown(shown))
    write_text(folder / "main.tex", shown.to_latex(index=False, escape=True))

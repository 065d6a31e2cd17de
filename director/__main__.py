"""The command line: `python -m director <verb> ...`."""

import argparse
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

from director.errors import InputError


def measure(arguments: argparse.Namespace) -> None:
    """Print every metric of a predictions file."""
    from director.numbers.metrics import ood_summary, records
    from director.numbers.predictions import Predictions

    predictions = Predictions.load(arguments.file, arguments.probabilities)
    measured = records(predictions, arguments.pooling, arguments.samples)
    detected = None
    if arguments.ood:
        outside = Predictions.load(arguments.ood, arguments.probabilities)
        detected = ood_summary(predictions, outside, arguments.pooling, arguments.samples)
    if arguments.json:
        print(json.dumps({"records": measured, "ood": detected} if detected else measured, indent=1))
        return
    print(_record_table(measured))
    if detected:
        lines = [[score, *values.values()] for score, values in detected.items() if values]
        print(f"\nagainst {arguments.ood}, in-distribution as positive")
        print(_aligned([["score", *detected["max_softmax"]], *lines]))


def check(arguments: argparse.Namespace) -> None:
    """Validate a predictions file and say what it holds."""
    from director.numbers.predictions import Predictions

    predictions = Predictions.load(arguments.file, arguments.probabilities)
    samples, rows, classes = predictions.logits.shape
    shifts = sorted({shift for shift, _ in predictions.cells()})
    shown = ", ".join(shifts[:3]) + (f" and {len(shifts) - 3} more" if len(shifts) > 3 else "")
    labels = "no labels" if predictions.labels is None else "labelled"
    plural = "s" * (len(shifts) > 1)
    print(f"{arguments.file}: S = {samples}, N = {rows}, C = {classes}, {labels}, shift{plural} {shown}")


def options(arguments: argparse.Namespace) -> None:
    """Write what is generated from the schema of the settings: JSON schemas and docs/options.md."""
    from director.files import write_text
    from director.settings.pages import generated_files

    for path, text in generated_files().items():
        write_text(path, text)
        print(path)


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status, 2 for input that cannot be used."""
    for stream in (sys.stdout, sys.stderr):  # a console that lacks a character of a path or a shift shows its number
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(words)
    try:
        arguments.verb(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the program that reads the output, such as `head`, has closed it
        sys.stdout = None
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m director", description="Calibrated uncertainty from transformers.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    file = argparse.ArgumentParser(add_help=False)
    file.add_argument("file", metavar="FILE.npz", help="arrays `logits` [N, C] or [S, N, C] and `labels` [N]")
    file.add_argument(
        "--probabilities",
        action="store_true",
        help="the file's array `probabilities`, or `logits`, holds probabilities",
    )

    verb = verbs.add_parser(
        "measure", parents=[file], help="print every metric of a predictions file", description=measure.__doc__
    )
    verb.set_defaults(verb=measure)
    verb.add_argument(
        "--json", action="store_true", help="print records, or with --ood an object of `records` and `ood`"
    )
    verb.add_argument(
        "--pooling", choices=("softmax", "logits"), default="softmax", help="what is averaged over samples"
    )
    verb.add_argument("--samples", type=int, metavar="K", help="use the first K samples only")
    verb.add_argument(
        "--ood",
        metavar="OUT.npz",
        help="also: detection of these out-of-distribution predictions; with --probabilities, probabilities too",
    )

    verb = verbs.add_parser(
        "check", parents=[file], help="validate a predictions file and say what it holds", description=check.__doc__
    )
    verb.set_defaults(verb=check)

    verb = verbs.add_parser("options", help="write JSON schemas and docs/options.md", description=options.__doc__)
    verb.set_defaults(verb=options)
    return parser


def _record_table(records: list[dict[str, Any]]) -> str:
    """One record as lines of name and value; several as a table, without the columns that are undefined in all."""
    if len(records) == 1:
        return _aligned([[name, value] for name, value in records[0].items()])
    names = [name for name in records[0] if any(record[name] is not None for record in records)]
    samples, pooling = (records[0][name] for name in ("samples", "pooling"))
    names = [name for name in names if name not in ("samples", "pooling")]
    heading = f"samples {samples}, pooling {pooling}"
    return f"{heading}\n" + _aligned([names, *([record[name] for name in names] for record in records)])


def _aligned(rows: list[list[Any]]) -> str:
    """Columns two spaces apart: the first to the left, the others to the right."""
    texts = [
        ["-" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in texts
    )


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `director <verb> ...`, or `python -m director <verb> ...`."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from director.errors import InputError, listed

if TYPE_CHECKING:
    from director.numbers.predictions import Predictions


def measure(arguments: argparse.Namespace) -> None:
    """Print every metric of predictions; of several files one line each, of shifted inputs the mean over shifts."""
    from director.numbers.metrics import ood_summary, records

    if arguments.ood and len(arguments.files) > 1:
        raise InputError(f"--ood {arguments.ood}: belongs to one file, there are {len(arguments.files)}; give one")
    measured, detected = [], None
    for file, predictions in _labelled(arguments):
        try:
            of_file = records(predictions, arguments.pooling, arguments.samples)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
        measured += of_file if len(arguments.files) == 1 else [{"file": file, **record} for record in of_file]
    if arguments.ood:
        ((_, outside),) = _read(arguments, [arguments.ood], labelled=False)
        detected = ood_summary(predictions, outside, arguments.pooling, arguments.samples)
    if arguments.json:
        print(json.dumps({"records": measured, "ood": detected} if detected else measured, indent=1))
        return
    if len(arguments.files) > 1:
        means = {record["file"] for record in measured if record["shift"] == "overall"}
        measured = [record for record in measured if record["file"] not in means or record["shift"] == "overall"]
    print(_record_table(measured))
    if detected:
        lines = [[score, *values.values()] for score, values in detected.items() if values]
        print(f"\nagainst {arguments.ood}, in-distribution as positive")
        print(_aligned([["score", *detected["max_softmax"]], *lines]))


def check(arguments: argparse.Namespace) -> None:
    """Validate files of predictions and say what they hold."""
    from director.foreign import class_names

    found = []
    for file, predictions in _read(arguments, arguments.files):
        samples, rows, classes = predictions.logits.shape
        shifts = sorted({shift for shift, _ in predictions.cells()})
        names = class_names(predictions)
        labelled = predictions.labels is not None
        found.append({"file": file, "samples": samples, "rows": rows, "classes": classes, "labelled": labelled})
        found[-1] |= {"shifts": shifts, "class_names": names}
        if not arguments.json:
            some = ", ".join(shifts[:3]) + (f" and {len(shifts) - 3} more" if len(shifts) > 3 else "")
            of = f" ({listed(names)})" if names else ""
            labels, plural = "labelled" if labelled else "no labels", "s" * (len(shifts) > 1)
            print(f"{file}: S = {samples}, N = {rows}, C = {classes}{of}, {labels}, shift{plural} {some}")
    if arguments.json:
        print(json.dumps(found, indent=1))


def compare(arguments: argparse.Namespace) -> None:
    """Print the metrics of two files with the same examples, and A minus B with its paired bootstrap interval.

    Each replicate draws examples with replacement, the same ones for both files; examples are paired by the column or
    array `example`, or else by row.
    """
    from director.foreign import class_names
    from director.numbers.comparison import compare_pair

    (_, first), (_, second) = _labelled(arguments)
    names = [class_names(side) for side in (first, second)]
    if all(names) and names[0] != names[1]:
        a, b = next(pair for pair in zip_longest(*names, fillvalue="none") if pair[0] != pair[1])
        raise InputError(
            f"{' and '.join(arguments.files)} have different classes, {a} and {b} at the first that differs: give both "
            "the same columns in the same order, or name them with --classes a,b,c"
        )
    how = {"replicates": arguments.replicates, "level": arguments.level, "seed": arguments.seed}
    lines = compare_pair(first, second, **how, names=tuple(arguments.files))
    examples = len(set(first.example.tolist()))
    if arguments.json:
        sides = dict(zip(("first", "second"), arguments.files, strict=True))
        print(json.dumps({**sides, "examples": examples, **how, "metrics": lines}, indent=1))
        return
    print(f"A is {arguments.files[0]}\nB is {arguments.files[1]}")
    print(f"{examples} examples, intervals at level {arguments.level:g} from {arguments.replicates} replicates")
    print(_aligned([["metric", "A", "B", "A - B", "lower", "upper"], *([*line.values()] for line in lines)]))


def plot(arguments: argparse.Namespace) -> None:
    """Draw the reliability diagram of every file, and below them all risk-coverage curves."""
    if Path(arguments.out).suffix.lower() not in (".svg", ".png"):
        raise InputError(f"--out {arguments.out}: a figure is an .svg or a .png, give one of these suffixes")
    predictions = dict(_labelled(arguments))
    names = [Path(file).name for file in predictions]
    if len({*names}) < len(names):  # files of one name in several folders
        names = [*predictions]
    from director.report.figures import plot_predictions
    from director.report.style import save_figure

    save_figure(plot_predictions(dict(zip(names, predictions.values(), strict=True))), arguments.out)
    print(arguments.out)


def distil(arguments: argparse.Namespace) -> None:
    """Make a student of a fine-tuned classifier, and print what both say of the validation data.

    The classifier stays as it is; the student is written into a folder, and needs the classifier to predict.
    """
    from director.checkpoint import Classifier, distil
    from director.numbers.metrics import accuracy, ece_15, nll
    from director.reconfigure import TRAINING

    classifier = Classifier.load(arguments.model, max_length=arguments.max_length, device=arguments.device)
    columns = {"text": arguments.text, "label": arguments.label}
    train = classifier.read(arguments.train, **columns, shuffle=True)
    validation = classifier.read(arguments.validation, **columns)
    training = TRAINING.model_copy(update={"epochs": arguments.epochs}) if arguments.epochs else TRAINING
    part = {"last": arguments.last, "states_every": arguments.states_every}
    options = {**part, "samples": arguments.samples, "seed": arguments.seed, "training": training}
    found = distil(classifier, train, validation, arguments.out, **options)
    numbers = [[name, accuracy(made), nll(made), ece_15(made)] for name, made in found.items()]
    print(_aligned([["validation", "accuracy", "nll", "ece_15"], *numbers]))
    print(arguments.out)


def predict(arguments: argparse.Namespace) -> None:
    """Predict with a student that `director distil` wrote: class probabilities and uncertainty of every input.

    A table has a column p_<class> for each class, predictive_entropy, expected_entropy and mutual_information in nats,
    and the label where there is one; an .npz the logits of every roll-out.
    """
    from director.checkpoint import load_student, writable_suffix, write_predictions

    writable_suffix(arguments.out)
    student, classifier = load_student(arguments.student, arguments.model, arguments.device)
    data = classifier.read(arguments.data, text=arguments.text, label=arguments.label)
    found = student.predictions(data, arguments.samples, arguments.seed, labelled=data.labels is not None)
    write_predictions(arguments.out, found, classifier.classes)
    print(arguments.out)


def table(arguments: argparse.Namespace) -> None:
    """Print the main table by experiment: mean ± standard deviation over seeds, the best of each column bold."""
    from director.terminal import print_table

    print_table(arguments.file, sys.stdout)


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


# -- files


def _read(
    arguments: argparse.Namespace, files: Sequence[str], labelled: bool = True
) -> Iterator[tuple[str, "Predictions"]]:
    """Each file and what it holds, one after the other; `InputError` for options of another kind of files."""
    from director.foreign import TABLES, read

    options = {name: getattr(arguments, name) for name in ("labels", "label", "classes")}
    suffixes = {Path(file).suffix.lower() for file in (*arguments.files, *files)}
    for option, kinds in (("labels", (".npy",)), ("label", TABLES), ("classes", TABLES)):
        if options[option] is not None and suffixes.isdisjoint(kinds):
            raise InputError(f"--{option} is for {', '.join(kinds)}, and {files[0]} is none of these; leave it out")
    for file in files:
        yield file, read(file, arguments.probabilities, **options, labelled=labelled)


def _labelled(arguments: argparse.Namespace) -> Iterator[tuple[str, "Predictions"]]:
    """As `_read`, the files of a verb that needs labels."""
    remedies = {".npz": "add an array labels [N]", ".npy": "give those of its rows with --labels FILE.npy"}
    for file, predictions in _read(arguments, arguments.files):
        if predictions.labels is None:
            remedy = remedies.get(Path(file).suffix.lower(), "call their column label, or name it with --label")
            raise InputError(f"{file}: no labels; {remedy}")
        yield file, predictions


def _class_names(text: str) -> list[str]:
    """Names with commas between them; one that contains a comma stands in double quotes, as in a CSV."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} lacks a name: give a,b,c, or a pattern such as 'p_*'")
    return names


# -- words


class _Version(argparse.Action):
    """Prints the version of the installed package, which is looked up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"director {version('director')}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("director", description="Calibrated uncertainty from transformers.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    read = argparse.ArgumentParser(add_help=False)
    read.add_argument(
        "--probabilities", action="store_true", help="files hold probabilities: an .npz in the array of this name"
    )
    read.add_argument("--labels", metavar="FILE.npy", help="labels [N] of .npy files")
    read.add_argument("--label", metavar="NAME", help="column of labels in tables; else label, labels or y")
    read.add_argument(
        "--classes",
        type=_class_names,
        metavar="A,B,C",
        help="columns of classes in tables, or patterns such as 'p_*'; else all columns of numbers but the label's",
    )
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=".npz (arrays `logits` [N, C] or [S, N, C] and `labels` [N]), .npy (logits alone), or a table with a "
        "column per class: .csv, .tsv, .parquet",
    )
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument("--json", action="store_true", help="print JSON")

    verb = verbs.add_parser(
        "measure", parents=[files, read, machine], help="print every metric of predictions", description=measure.__doc__
    )
    verb.set_defaults(verb=measure)
    verb.add_argument(
        "--pooling", choices=("softmax", "logits"), default="softmax", help="what is averaged over samples"
    )
    verb.add_argument("--samples", type=int, metavar="K", help="use the first K samples only")
    verb.add_argument(
        "--ood",
        metavar="OUT",
        help="also: detection of these out-of-distribution predictions; with --probabilities, probabilities too",
    )

    verb = verbs.add_parser(
        "check",
        parents=[files, read, machine],
        help="validate files of predictions and say what they hold",
        description=check.__doc__,
    )
    verb.set_defaults(verb=check)

    verb = verbs.add_parser(
        "compare",
        parents=[read, machine],
        help="print the differences of two files of predictions, with intervals",
        description=compare.__doc__,
    )
    verb.set_defaults(verb=compare)
    verb.add_argument("files", nargs=2, metavar=("A", "B"), help="as FILE of `director measure`")
    verb.add_argument("--replicates", type=int, default=1000, metavar="R", help="draws of the examples (default 1000)")
    verb.add_argument("--level", type=float, default=0.95, metavar="P", help="level of the intervals (default 0.95)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default 0)")

    verb = verbs.add_parser(
        "plot",
        parents=[files, read],
        help="draw reliability diagrams and risk-coverage curves",
        description=plot.__doc__,
    )
    verb.set_defaults(verb=plot)
    verb.add_argument("--out", required=True, metavar="FIGURE", help="the figure to write, .svg or .png")

    inputs = argparse.ArgumentParser(add_help=False)
    inputs.add_argument("--text", default="text", metavar="NAME", help="column of texts in a table (default text)")
    inputs.add_argument("--label", metavar="NAME", help="column of labels in a table; else label, labels or y")
    inputs.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto: a GPU where there is one"
    )

    verb = verbs.add_parser(
        "distil", parents=[inputs], help="make a student of a fine-tuned classifier", description=distil.__doc__
    )
    verb.set_defaults(verb=distil)
    verb.add_argument(
        "model", metavar="MODEL", help="checkpoint of timm or transformers: a folder, or a name on the hub"
    )
    for name in ("train", "validation"):
        verb.add_argument(
            name,
            metavar=name.upper(),
            help="a table of texts (.csv, .tsv, .parquet), or a folder of images with a sub-folder for each class",
        )
    verb.add_argument("--out", required=True, metavar="FOLDER", help="where the student is written")
    verb.add_argument("--last", type=int, metavar="K", help="layers at the end that are replaced (default a third)")
    verb.add_argument(
        "--states-every", type=int, default=1, metavar="M", help="layers that become one step (default 1)"
    )
    verb.add_argument("--samples", type=int, default=10, metavar="S", help="roll-outs of a prediction (default 10)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, order and noise (default 0)")
    verb.add_argument("--epochs", type=int, metavar="E", help="at most so many (default 10)")
    verb.add_argument("--max-length", type=int, default=128, metavar="T", help="tokens of a text (default 128)")

    verb = verbs.add_parser(
        "predict", parents=[inputs], help="predict with a student that distil made", description=predict.__doc__
    )
    verb.set_defaults(verb=predict)
    verb.add_argument("student", metavar="STUDENT", help="folder that `director distil` wrote")
    verb.add_argument("data", metavar="DATA", help="as TRAIN of `director distil`; labels are not needed")
    verb.add_argument("--out", required=True, metavar="FILE", help="what is written: .csv, .parquet or .npz")
    verb.add_argument("--samples", type=int, metavar="S", help="roll-outs (default: as distilled)")
    verb.add_argument("--seed", type=int, metavar="N", help="of the noise (default: as distilled)")
    verb.add_argument("--model", metavar="MODEL", help="where the classifier lies now, if it was moved")

    verb = verbs.add_parser("table", help="print the main table of a study", description=table.__doc__)
    verb.set_defaults(verb=table)
    verb.add_argument(
        "file", nargs="?", default="results/tables/main.csv", metavar="FILE", help="default: results/tables/main.csv"
    )

    verb = verbs.add_parser("options", help="write JSON schemas and docs/options.md", description=options.__doc__)
    verb.set_defaults(verb=options)
    return parser


def _record_table(records: list[dict[str, Any]]) -> str:
    """One record as lines of name and value; several as a table, without the columns that are undefined in all."""
    if len(records) == 1:
        return _aligned([[name, value] for name, value in records[0].items()])
    once = ("samples", "pooling", "shift", "severity") if "file" in records[0] else ("samples", "pooling")
    once = [name for name in once if len({record[name] for record in records}) == 1]
    names = [name for name in records[0] if name not in once and any(record[name] is not None for record in records)]
    heading = ", ".join(f"{name} {records[0][name]}" for name in once)
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

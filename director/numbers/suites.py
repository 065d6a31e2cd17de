"""The predictions of one method in one run folder, <run folder>/<method>/predictions/.

<suite>.npz         the predictions of a suite (`director.numbers.predictions`)
<suite>.<name>      what a method writes beside them, such as <suite>.depth.npz
<suite>.cost.json   how long they took; the last file of a suite: without it the suite is made again
cost.json           what the method cost, all suites together
manifest.json       the suites, with the size and the checksum of every file; the last file of all
"""

import logging
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from director.errors import AccessError, InputError
from director.files import file_digest, read_json, reading, write_json
from director.numbers.predictions import Predictions
from director.provenance import fingerprint

FORMAT = "director predictions 1"
COST_KINDS = {
    "parameters": int,
    "train_seconds": int | float,
    "device": str,
    "threads": int,
    "peak_memory_bytes": int,
    "suites": dict,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """What a job gives for one suite. seconds: wall-clock time of predicting all its rows, by the number of samples."""

    predictions: Predictions
    seconds: Mapping[int, float]


def manifest_of(run_folder: str | Path, method: str) -> Path:
    """The manifest of a method's predictions."""
    return Path(run_folder, method, "predictions", "manifest.json")


def write_suites(
    folder: str | Path,
    identities: Mapping[str, Any],
    make: Callable[[str], Made],
    cost: Callable[[], Mapping[str, Any]],
    beside: Sequence[str] = (),
) -> None:
    """Make every suite that is not there yet, then write `cost.json` and last `manifest.json` into `folder`.

    identities: suite -> everything its predictions depend on, as JSON. A suite whose files are whole and were made from
    the same is kept, so a job that was killed, or that got one more suite, makes only what is missing. make: called
    with the name of a suite, gives its predictions; if `beside` holds names, it writes the files <suite>.<name> into
    `folder` itself. cost: called after the last suite, gives what `read_cost` describes, without `suites`.

    Files of suites that `identities` does not name stay in the folder, but the manifest does not list them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)  # it must not list files that are about to change
    costs, entries = {}, {}
    for suite, identity in identities.items():
        made_from = fingerprint(identity)
        names = [f"{suite}.npz", *(f"{suite}.{name}" for name in beside)]
        suite_cost = _earlier_cost(folder, suite, names, made_from)
        if suite_cost is None:
            suite_cost = _make_suite(folder, suite, made_from, make)
        else:
            log.info("%s: kept, as an earlier job made it from the same", folder / names[0])
        costs[suite] = {key: suite_cost[key] for key in ("examples", "seconds")}
        files = {
            name: {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size} for name in names
        }
        entries[suite] = {"rows": suite_cost["examples"], "files": files}
    write_json(folder / "cost.json", {**cost(), "suites": costs})
    write_json(folder / "manifest.json", {"format": FORMAT, "suites": entries})


def _make_suite(folder: Path, suite: str, made_from: str, make: Callable[[str], Made]) -> dict[str, Any]:
    """Write the files of a suite and give its cost; a function, so that its arrays are freed before the next one's."""
    cost_file = folder / f"{suite}.cost.json"
    cost_file.unlink(missing_ok=True)  # from here until it is written again, the suite counts as unfinished
    made = make(suite)
    about = {**made.predictions.about, "made_from": made_from}
    replace(made.predictions, about=about).save(folder / f"{suite}.npz")
    seconds = {str(samples): number for samples, number in made.seconds.items()}
    cost = {"made_from": made_from, "examples": made.predictions.logits.shape[1], "seconds": seconds}
    write_json(cost_file, cost)
    return cost


def _earlier_cost(folder: Path, suite: str, names: Sequence[str], made_from: str) -> dict[str, Any] | None:
    """The cost of a suite that an earlier job finished from the same; None for one that has to be made."""
    try:
        cost = read_json(folder / f"{suite}.cost.json")
        if not _is_suite_cost(cost) or cost.get("made_from") != made_from:
            return None
        predictions = Predictions.load(folder / names[0])
    except InputError:  # there is no such file, or it is broken
        return None
    same = predictions.about.get("made_from") == made_from and predictions.logits.shape[1] == cost["examples"]
    return cost if same and all(_is_undamaged(folder / name) for name in names[1:]) else None


def _is_undamaged(path: Path) -> bool:
    """Whether the file is there and, of an .npz, every array agrees with its checksum."""
    if path.suffix != ".npz":
        return path.is_file()
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return False


def suites_of(manifest_file: str | Path) -> list[str]:
    """Names of the suites, in the order in which they were made."""
    return list(_entries(manifest_file))


def suite_file(manifest_file: str | Path, suite: str, beside: str | None = None) -> Path:
    """The predictions file of a suite, or the file <suite>.<beside>, compared with its checksum.

    Raises InputError with the name of the file if it is not listed, not there, or not what was written.
    """
    entries = _entries(manifest_file)
    name = f"{suite}.{beside or 'npz'}"
    if suite not in entries or name not in entries[suite]["files"]:
        raise InputError(f"{manifest_file} lists no {name}; it has the suites {', '.join(entries)}")
    path = Path(manifest_file).with_name(name)
    expected = entries[suite]["files"][name]["sha256"]
    if not path.is_file() or file_digest(path) != expected:
        fault = "differs from its checksum" if path.is_file() else "is missing"
        raise InputError(f"{path}: {fault}; delete {manifest_file} and run the same command again to make it again")
    return path


def load_suite(manifest_file: str | Path, suite: str) -> Predictions:
    """The predictions of a suite; raises InputError as `suite_file`."""
    return Predictions.load(suite_file(manifest_file, suite))


def is_whole(manifest_file: str | Path) -> bool:
    """Whether `cost.json`, the manifest and every file that it lists are there, each of the listed size.

    The content of the listed files is not read. Raises AccessError for a manifest that may not be read.
    """
    try:
        entries = _entries(manifest_file)
    except AccessError:
        if not Path(manifest_file).exists():
            return False
        raise
    except InputError:
        return False
    listed = [file for entry in entries.values() for file in entry["files"].items()]
    sizes = {Path(manifest_file).with_name(name): about["bytes"] for name, about in listed}
    cost_file = Path(manifest_file).with_name("cost.json")
    return cost_file.is_file() and all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def read_cost(cost_file: str | Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """What a method's predictions cost.

    parameters, train_seconds (of all that was trained for them), device, threads, peak_memory_bytes, and `suites`:
    suite -> examples, and `seconds` by the number of samples. Raises InputError for a file that is not that, or that
    lacks one of the suites `needed`.
    """
    cost = read_json(cost_file)
    entries = cost if isinstance(cost, dict) else {}
    wrong = [key for key, kind in COST_KINDS.items() if not isinstance(entries.get(key), kind)]
    if "suites" not in wrong:
        wrong += [f"suites.{suite}" for suite, entry in entries["suites"].items() if not _is_suite_cost(entry)]
    if wrong:
        raise InputError(
            f"{cost_file}: not a file of costs ({', '.join(wrong)} missing or of another kind); delete it and run the "
            "same command again"
        )
    if missing := [suite for suite in needed if suite not in cost["suites"]]:
        raise InputError(f"{cost_file}: no cost of {', '.join(missing)}; delete it and run the same command again")
    return cost


def _is_suite_cost(entry: Any) -> bool:
    """Whether it holds `examples`, 1 or more, and `seconds` by the number of samples, one or more."""
    if not isinstance(entry, dict) or not isinstance(entry.get("seconds"), dict) or not entry["seconds"]:
        return False
    numbers = all(key.isdecimal() and isinstance(value, int | float) for key, value in entry["seconds"].items())
    return numbers and isinstance(entry.get("examples"), int) and entry["examples"] > 0


def largest(seconds: Mapping[str, float]) -> float:
    """The seconds at the largest number of samples, of `seconds` by the number of samples as in `read_cost`."""
    return seconds[max(seconds, key=int)]


def _entries(manifest_file: str | Path) -> dict[str, Any]:
    """The manifest's table of suites; InputError for a file that is no manifest."""
    manifest = read_json(manifest_file)
    with reading(manifest_file, f"a manifest of predictions, {FORMAT}", "delete it and run the same command again"):
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}")
        for suite, entry in manifest["suites"].items():
            files = entry["files"].values()
            known = isinstance(entry["rows"], int) and all(isinstance(file["bytes"], int) for file in files)
            if not known or not all(isinstance(file["sha256"], str) for file in files):
                raise ValueError(f"a number or a checksum of {suite} is of another kind")
        return manifest["suites"]

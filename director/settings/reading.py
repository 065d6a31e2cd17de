"""Reading the settings of a study: what is wrong in a file is one line, with file, key, value and remedy."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from director.errors import InputError
from director.schema import Schema
from director.settings.experiment import Configuration, Experiment, merged
from director.settings.notation import read_words, read_yaml

RESERVED = ("tables", "figures")  # names of other things in results and in MLflow
# How a value is written, by the type of pydantic's error.
SPELLING = {
    "int_type": "; write it in decimal digits, as 10",
    "float_type": "; write it in decimal digits, as 0.001 or 1e-3",
    "bool_type": "; write true or false",
    "string_type": "; write it in quotes",
}


def load_configuration(config: Mapping[str, Any], file: str | Path) -> tuple[Configuration, dict[str, Experiment]]:
    """Check the configuration and read its experiments, from the folder `experiments` beside `file`.

    config: what `--config` says, over `file` or without it. Snakemake reads `file` too, but by other rules, so that the
    file is read here (`director.settings.notation`) and has to be right by itself.
    Raises InputError with one line per problem: file, key, value, remedy.
    """
    content = read_yaml(file)
    _check(Configuration, content, file)
    configuration = _check(Configuration, merged(content, read_words(config)), f"--config over {file}")
    folder = Path(file).parent / "experiments"
    for name in configuration.experiments:
        if name in RESERVED or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise InputError(
                f"{file}: experiments: {name!r} cannot name a folder of results; "
                "use another name of letters, digits, - and _"
            )
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    for name in configuration.experiments:
        if name not in known:
            raise InputError(
                f"{file}: experiments: {name!r} is no file {folder / name}.yaml; known: {', '.join(known)}"
            )
    return configuration, {name: load_experiment(folder / f"{name}.yaml") for name in configuration.experiments}


def load_experiment(path: str | Path) -> Experiment:
    """Read one experiment file; InputError as `load_configuration`."""
    return _check(Experiment, read_yaml(path), path)


def _check(schema: type[Schema], content: Any, source: str | Path) -> Any:
    if not isinstance(content, Mapping):
        raise InputError(f"{source}: holds {type(content).__name__}, not a table of settings; see docs/options.md")
    try:
        return schema.model_validate(dict(content))
    except ValidationError as error:
        raise InputError("\n".join(_line(source, schema, problem) for problem in error.errors())) from error


def _line(source: str | Path, schema: type[Schema], problem: Mapping[str, Any]) -> str:
    keys, allowed = _walk(schema, problem["loc"])
    key = ".".join(keys) or "(whole file)"
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(problem["loc"][-1]), allowed, 1)
        remedy = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(allowed)}"
        return f"{source}: {key}: unknown key; {remedy}"
    if problem["type"] == "missing":
        return f"{source}: {key}: missing; add it (docs/options.md describes it)"
    if problem["type"] == "value_error":
        return f"{source}: {key}: {problem['msg'].removeprefix('Value error, ')}"
    remedy = SPELLING.get(problem["type"], "")
    return f"{source}: {key}: {problem['input']!r} refused: {problem['msg'].lower()}{remedy} (docs/options.md)"


def _walk(schema: Any, location: tuple) -> tuple[list[str], list[str]]:
    """The keys of a place as the file has them, and those that are known in the table where it ends.

    Where a key may hold one of several tables, pydantic puts between the keys the `kind` that it took.
    """
    keys, choices, kinds = [], [], {}
    for part in location:
        if part in kinds:
            schema, kinds = kinds[part], {}
            continue
        keys.append(str(part))
        fields = getattr(schema, "model_fields", {})
        choices = list(fields)
        if part in fields:
            tables = [c for c in _candidates(fields[part].annotation) if isinstance(c, type) and issubclass(c, Schema)]
            if fields[part].discriminator:
                kinds = {table.model_fields["kind"].annotation.__args__[0]: table for table in tables}
            else:
                schema = next(iter(tables), None)
    return keys, choices


def _candidates(annotation: Any) -> list[Any]:
    arguments = getattr(annotation, "__args__", ())
    return [annotation, *(found for argument in arguments for found in _candidates(argument))]

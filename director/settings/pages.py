"""What is written from the schema of the settings: JSON schemas for editors, and the option page for readers."""

import json
from collections.abc import Iterator
from typing import Any

from director.schema import Schema
from director.settings.experiment import Configuration, Experiment

SCHEMAS = {"config/config.schema.json": Configuration, "config/experiment.schema.json": Experiment}
PLACES = ("", "<name>.", "<backbone>.<method>.")  # keys that the user chooses, by how many there are
PAGE = "docs/options.md"


def generated_files() -> dict[str, str]:
    """Path -> text of every file that is generated from the schema; `python -m director options` writes them."""
    schemas = {path: json.dumps(schema.model_json_schema(), indent=1) + "\n" for path, schema in SCHEMAS.items()}
    return schemas | {PAGE: option_page()}


def option_page() -> str:
    """Every option with type, default and meaning, as Markdown."""
    lines = [
        "# Options",
        "",
        "Generated from `director/settings/` by `python -m director options`; edit there.",
        "A key that is not listed here is refused, and so is a value of another type. Numbers are finite and written",
        "in decimal digits (`10`, `0.001`, `1e-3`), integers without a point; switches are `true` or `false`;",
        "any other word but `null` is text, as is everything in quotes.",
    ]
    for title, schema in (("config/config.yaml", Configuration), ("config/experiments/<name>.yaml", Experiment)):
        lines += ["", f"## {title}", "", schema.__doc__ or ""]
        lines += ["", "| key | type | default | meaning |", "|---|---|---|---|", *_rows([schema])]
    return "\n".join(lines) + "\n"


def _rows(schemas: list[type[Schema]], prefix: str = "") -> Iterator[str]:
    """The options of a table; of several, where it may be one of several kinds."""
    known = {name: field for schema in reversed(schemas) for name, field in schema.model_fields.items()}
    for name in sorted(known, key=[*dict.fromkeys(n for schema in schemas for n in schema.model_fields)].index):
        field, owners = known[name], [schema for schema in schemas if name in schema.model_fields]
        default = "required" if field.is_required() else f"`{_plain(field.default)}`"
        kind = " | ".join(dict.fromkeys(_type(owner.model_json_schema()["properties"][name]) for owner in owners))
        only = "" if len(owners) == len(schemas) else f"kind {owners[0].model_fields['kind'].annotation.__args__[0]}: "
        meaning = only + (field.description or "")
        yield f"| `{prefix}{name}` | {_escaped(kind)} | {default} | {_escaped(meaning)} |"
        if inner := _inner(field.annotation):
            yield from _rows(inner, f"{prefix}{name}.{PLACES[_depth(field.annotation)]}")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _depth(annotation: Any) -> int:
    """How many mappings lie around what an annotation ends in."""
    if getattr(annotation, "__origin__", None) is not dict:
        return 0
    return 1 + _depth(annotation.__args__[1])


def _inner(annotation: Any) -> list[type[Schema]]:
    if isinstance(annotation, type) and issubclass(annotation, Schema):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _inner(part)]


def _plain(default: Any) -> str:
    if isinstance(default, Schema):
        return "as below"
    return json.dumps(default)


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "prefixItems" in schema:
        return "[" + ", ".join(_type(part) for part in schema["prefixItems"]) + "]"
    if "$ref" in schema or "oneOf" in schema or schema.get("type") == "object":
        return "table"
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {schema[key]:g}" for key, sign in bounds.items() if key in schema)
    return schema.get("type", "any") + (f" ({limits})" if limits else "")

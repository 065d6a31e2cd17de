"""How settings are written: YAML, of whose readings only those are kept that nobody mistakes.

YAML 1.1, which Python and Snakemake read, takes 010 for 8, 1:30 for 90 and `on` for true, and fails at 30 February.
Here a word is a number, a switch or nothing only if it looks like one to everybody; any other is text, which the
schema refuses where it expects something else.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from director.errors import InputError
from director.files import reading

WORDS: dict[str, Callable[[str], Any]] = {
    r"|~|null|Null|NULL": lambda word: None,
    r"true|True|TRUE|false|False|FALSE": lambda word: word.lower() == "true",
    r"[-+]?(0|[1-9][0-9]*)": int,
    r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?": float,
    r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)": lambda word: float(word.replace(".", "")),
}


def read_yaml(path: str | Path) -> Any:
    """What a file of settings says; InputError in one line for a file that is not there, not YAML or ambiguous."""
    with reading(path, "a file of settings", "write it as UTF-8 text"):
        text = Path(path).read_text(encoding="utf-8")
        try:
            return yaml.load(text, _Loader)
        except yaml.YAMLError as error:
            raise InputError(f"not readable as YAML: {' '.join(str(error).split())}") from error


def read_words(table: Any) -> Any:
    """A table with its text read as in a file; text in lists, which are names, stays as it is.

    Snakemake gives every value inside the brackets of --config 'compute={threads: 2}' as text.
    """
    if isinstance(table, Mapping):
        return {key: read_words(value) for key, value in table.items()}
    return _read_word(table) if isinstance(table, str) else table


def _read_word(word: str) -> Any:
    return next((read(word) for pattern, read in WORDS.items() if re.fullmatch(pattern, word)), word)


class _Loader(yaml.BaseLoader):
    """Reads words by `WORDS`, and refuses what would be lost or changed without a word: equal keys, merges, tags."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in (self.DEFAULT_SCALAR_TAG, self.DEFAULT_SEQUENCE_TAG, self.DEFAULT_MAPPING_TAG):
            raise _fault(node, f"the tag {node.tag} is not read; leave it out")
        return super().construct_object(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        text = super().construct_scalar(node)
        return text if node.style else _read_word(text)  # a style is a kind of quotes

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep)
            if key == "<<":
                raise _fault(key_node, "the merge key << is not read; write out the keys that it would bring")
            if key in keys:
                raise _fault(key_node, f"key {key!r} stands twice; keep it once")
            keys.append(key)
        return super().construct_mapping(node, deep)


def _fault(node: yaml.Node, what: str) -> InputError:
    return InputError(f"line {node.start_mark.line + 1}: {what}")

"""The official Python batches of CIFAR-10 and CIFAR-100, which are pickles, without running them.

A pickle is a program for a machine with a stack. Its instructions are taken one by one, and those that put numbers,
words, lists and mappings together are followed; what it would call is noted and never called. So no file can do
anything, and the array of pixels is the notes of how NumPy would have been called. Only a file with the publisher's
MD5 is looked at in the first place.
"""

import hashlib
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from director.data.sources import PUBLISHED
from director.errors import InputError
from director.files import accessing

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TEXT_OR_NUMBER = ("SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "BININT", "BININT1", "BININT2")


@dataclass
class _Call:
    """What the program would have called, with what, and the state that it would have given to the result."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_batch(path: Path, md5: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [N, 3072] and labels int64 [N], those under the key `labels`, of a batch with this MD5.

    Raises InputError for any other file, before a byte of it is interpreted.
    """
    with accessing(path):
        content = path.read_bytes()
    if (digest := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise InputError(f"{path}: MD5 {digest}, not the publisher's {md5}; {PUBLISHED}")
    try:
        batch = _content(content)
        return _pixels(batch["data"]), np.array(batch[labels], np.int64)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a batch of images ({error}); {PUBLISHED}") from error


def _content(program: bytes) -> Any:
    """What the program leaves on its stack, a `_Call` for each object; raises ValueError for other instructions."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def taken(start: int) -> list[Any]:
        items = stack[start:]
        del stack[start:]
        return items

    for instruction, argument, _ in pickletools.genops(program):
        match instruction.name:
            case name if name in TEXT_OR_NUMBER or name == "GLOBAL":
                stack.append(argument)
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(taken(marks.pop())))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(taken(len(stack) - int(name[-1]))))
            case "APPENDS":
                items = taken(marks.pop())
                stack[-1].extend(items)
            case "SETITEMS":
                items = taken(marks.pop())
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "REDUCE":
                stack.append(_Call(*taken(len(stack) - 2)))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case "PROTO" | "STOP":
                pass
            case name:
                raise ValueError(f"the instruction {name}")
    return stack[-1]


def _pixels(array: Any) -> np.ndarray:
    """The array that NumPy would have put together: its state holds shape, type, order and bytes."""
    if not isinstance(array, _Call) or array.name != "numpy.core.multiarray _reconstruct":
        raise ValueError(f"in place of pixels, {getattr(array, 'name', type(array).__name__)}")
    _, shape, kind, by_columns, values = array.state
    if (kind.name, kind.arguments[0], by_columns) != ("numpy dtype", "u1", False):
        raise ValueError(f"pixels of the type {kind.arguments[0]}")
    return np.frombuffer(values.encode("latin1"), np.uint8).reshape(shape)

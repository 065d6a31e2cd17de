"""The digest of code follows the meaning of what a job reaches: edits of small packages, and of the real one."""

import ast
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import tokenize

import pytest

from director.code_digest import PACKAGE, code_digest
from director.errors import InputError

SCRIPTS = PACKAGE.parent / "workflow" / "scripts"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write files of a package `director`, given as module file -> text, and use it in place of the real one."""
    folder = tmp_path / "director"
    monkeypatch.setattr("director.code_digest.PACKAGE", folder)

    clock = itertools.count(10**18)  # two edits within one tick of the file system's clock would look the same

    def write(files):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, ns=(0, next(clock)))

    return write


# -- one definition: does an edit change the digest of director.m:f?

TEXT = '''"""A module."""

import logging
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from director.far import Row

log = logging.getLogger(__name__)
REMEDY = "delete it"
OTHER = 0
LIMIT: int = 3


def told(value):
    return f"<{value}>"


def shown(value):
    return str(value)


@dataclass
class Point:
    """A point."""

    x: int = 0

    def norm(self) -> float:
        """Its norm."""
        return abs(self.x)


class Options(BaseModel):
    rate: float = Field(0.1, gt=0, description="learning rate")


def f(rows: "list[Row]", path: str = "a") -> int:
    """What it does."""
    # why
    point, options, found = Point(len(rows)), Options(), "x"
    count: int = math.floor(point.norm())
    remedy = f"remove {told(path)}"
    mode = "fast"
    log.info("%d rows", len(rows))
    warnings.warn(f"few rows in {path}", stacklevel=2)
    if count > LIMIT:
        raise ValueError(f"{shown(path)}: too many; {remedy}", count)
    try:
        count += 1
    except OSError as error:
        raise KeyError("no " + "row") from error
    return count * options.rate + len(mode) + len(found)
'''
WITHOUT_MEANING = {
    "docstring of the module": ("A module.", "Some module."),
    "docstring of a function": ("What it does.", "Something."),
    "a docstring gone": ('    """What it does."""\n', ""),
    "docstring of a class and of a method": ("A point.", "Some point."),
    "comment": ("# why", "# because"),
    "layout": ("count > LIMIT", "(count>LIMIT)"),
    "annotation of an argument": ('rows: "list[Row]"', 'rows: "tuple[Row]"'),
    "annotation of a return value": (") -> int:", ") -> float:"),
    "annotation of a local variable": ("count: int =", "count: float ="),
    "annotation gone": ("    count: int =", "    count ="),
    "what a type checker imports": ("from director.far import Row", "from director.near import Row"),
    "what an error says": ("too many;", "not so many;"),
    "what an error says without f": ('"no "', '"not a "'),
    "names in what an error says": ("{shown(path)}: too", "{path!r}: too"),
    "a function used only in what an error says": ("return str(value)", "return repr(value)"),
    "a local variable used only there": ('remedy = f"remove', 'remedy = f"throw away'),
    "a function used only in that": ('return f"<{value}>"', 'return f"[{value}]"'),
    "a log": ('log.info("%d rows", len(rows))', 'log.info("%s", rows)'),
    "a warning": ('f"few rows in {path}", stacklevel=2', 'f"{path} has few rows", stacklevel=3'),
    "description of a field": ('description="learning rate"', 'description="of the optimiser"'),
    "a constant that is not reached": ("OTHER = 0", "OTHER = 1"),
    "a new definition": ("OTHER = 0", "OTHER = 0\n\n\ndef g():\n    return 0\n"),
    "an import that is not used": ("import math", "import json\nimport math"),
    "order of definitions": ("OTHER = 0\nLIMIT: int = 3\n", "LIMIT: int = 3\nOTHER = 0\n"),
}
WITH_MEANING = {
    "an expression": ("len(mode) + len(found)", "len(mode) - len(found)"),
    "a number that is equal": ("gt=0", "gt=0.0"),
    "order of statements": ('    mode = "fast"\n    log.info("%d rows", len(rows))\n',
                            '    log.info("%d rows", len(rows))\n    mode = "fast"\n'),
    "a default": ('path: str = "a"', 'path: str = "b"'),
    "a string that is no message": ('mode = "fast"', 'mode = "slow"'),
    "a string that is no message, in a tuple": ('Options(), "x"', 'Options(), "yy"'),
    "which error": ("raise ValueError", "raise TypeError"),
    "what else an error carries": ("{remedy}\", count)", "{remedy}\", count + 1)"),
    "when an error is raised": ("count > LIMIT", "count >= LIMIT"),
    "a constant": ("LIMIT: int = 3", "LIMIT: int = 4"),
    "annotation of a field": ("x: int = 0", "x: float = 0"),
    "annotation of a pydantic field": ("rate: float", "rate: int"),
    "another argument of a field": ("gt=0", "ge=0"),
    "a method": ("return abs(self.x)", "return self.x"),
    "a decorator": ("@dataclass\n", "@dataclass(frozen=True)\n"),
    "a base": ("class Options(BaseModel)", "class Options(BaseModel, extra=1)"),
    "where a library's name comes from": ("from pydantic import BaseModel, Field",
                                          "from pydantic import BaseModel\nfrom dataclasses import field as Field"),
    "a library under the same name": ("import math", "import cmath as math"),
    "a second statement of a constant": ("LIMIT: int = 3", "LIMIT: int = 3\nLIMIT += 1"),
}  # fmt: skip


def edited(text, edit):
    old, new = edit
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.parametrize("edit", WITHOUT_MEANING.values(), ids=WITHOUT_MEANING)
def test_what_does_not_count(package, edit):
    package({"m.py": TEXT})
    before = code_digest("director.m:f")
    package({"m.py": edited(TEXT, edit)})
    assert code_digest("director.m:f") == before


@pytest.mark.parametrize("edit", WITH_MEANING.values(), ids=WITH_MEANING)
def test_what_counts(package, edit):
    package({"m.py": TEXT})
    before = code_digest("director.m:f")
    package({"m.py": edited(TEXT, edit)})
    assert code_digest("director.m:f") != before


@pytest.mark.parametrize(
    "use",
    [
        "log.info(note)\n    return note",
        "return locals()",
        "note += str(x)\n    raise ValueError(note)",
        "class C:\n        text = note\n    return C",
        "raise ValueError(len(x)) from OSError(note)",
        "return lambda: note",
        "global note",
    ],
)
def test_a_string_that_more_than_messages_use_counts(package, use):
    digests = set()
    for text in ("a", "b"):
        package({"m.py": f'import logging as log\n\n\ndef f(x):\n    note = "{text}"\n    {use}\n'})
        digests.add(code_digest("director.m:f"))
    assert len(digests) == 2


# -- several modules: which roots change with an edit?

FILES = {
    "__init__.py": "",
    "far.py": "VALUE = 1\nUNUSED = 1\n\n\ndef give():\n    return VALUE\n",
    "near.py": "from director.far import give\n\n\ndef near():\n    return give()\n",
    "renamed.py": "from director.far import give as fetch\n\n\ndef use():\n    return fetch()\n",
    "as_module.py": "from director import far\n\n\ndef use():\n    return far.give()\n",
    "as_alias.py": "import director.far as f\n\n\ndef use():\n    return f.give()\n",
    "as_path.py": "import director.far\n\n\ndef use():\n    return director.far.give()\n",
    "inside.py": "def use():\n    from director.far import give\n    return give()\n",
    "in_class.py": "class C:\n    import director.far as f\n    x = f.give()\n",
    "whole.py": "from director import far\n\n\ndef use(name):\n    return getattr(far, name)\n",
    "starred.py": "from director.far import *\n\n\ndef use():\n    return give()\n",
    "relative.py": "from .far import give\n\n\ndef use():\n    return give()\n",
    "relative_module.py": "from . import far\n\n\ndef use():\n    return far.give()\n",
    "sub/__init__.py": "from director.sub import deep\nfrom director.sub.deep import deep as deep\n",
    "sub/deep.py": "from ..far import give\n\n\ndef deep():\n    return give()\n",
    "via_module.py": "from director.near import give\n\n\ndef use():\n    return give()\n",
    "via_package.py": "from director.sub import deep\n\n\ndef use():\n    return deep()\n",
    "lonely.py": "def use():\n    return 1\n",
    "bare/x.py": "from director.far import give\n",
    "namespace.py": "import director.bare.x\n\n\ndef use():\n    return director.bare.x.give()\n",
    "field.py": 'import director.far as far\n\n\nclass Row:\n    value: "list[far.VALUE]"\n',
    "messages.py": 'from director import far\n\n\ndef use():\n    raise ValueError(f"{far.give()}")\n',
    "circle.py": "from director import circle2\n\n\ndef use():\n    return circle2.back()\n",
    "circle2.py": "from director import circle, far\n\n\ndef back():\n    return circle.use() or far.give()\n",
}
MODULES = "renamed as_module as_alias as_path inside whole starred relative relative_module via_module via_package"
REACH_VALUE = {f"{module}:use" for module in (*MODULES.split(), "namespace", "circle")}
REACH_VALUE |= {"near:near", "in_class:C", "sub.deep:deep", "field:Row"}
REACH_NOTHING = {"lonely:use", "messages:use"}


def changed(package, file, edit, roots):
    """Those of `roots` whose digest an edit of one file changes."""
    before = {root: code_digest(f"director.{root}") for root in roots}
    package({file: edited(FILES[file], edit)})
    return {root for root in roots if code_digest(f"director.{root}") != before[root]}


@pytest.mark.parametrize(
    ("file", "edit", "expected"),
    [
        ("far.py", ("VALUE = 1\nU", "VALUE = 2\nU"), REACH_VALUE),
        ("far.py", ("return VALUE", "return -VALUE"), REACH_VALUE - {"field:Row"}),
        ("far.py", ("UNUSED = 1", "UNUSED = 2"), {"whole:use", "starred:use"}),
        # statements that run on import belong to every definition, and to all that imports the module
        ("far.py", ("UNUSED = 1", "UNUSED = 1\nprint()"), REACH_VALUE | {"messages:use"}),
        ("__init__.py", ("", "print()"), REACH_VALUE | REACH_NOTHING),
        ("sub/__init__.py", ("import deep\nf", "import deep\nprint()\nf"), {"sub.deep:deep", "via_package:use"}),
        ("near.py", ("far import give", "renamed import use as give"), {"near:near", "via_module:use"}),
        ("lonely.py", ("return 1", "return 2"), {"lonely:use"}),
    ],
)  # fmt: skip
def test_an_edit_changes_what_reaches_it(package, file, edit, expected):
    package(FILES)
    assert changed(package, file, edit, REACH_VALUE | REACH_NOTHING) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "print(VALUE)",
        'TABLE["b"] = VALUE',
        "TABLE.b = VALUE",
        "a.b = c = VALUE",
        "if TABLE:\n    TABLE = VALUE",
        "for x in range(VALUE):\n    pass",
        "try:\n    VALUE()\nexcept OSError:\n    pass",
        "with VALUE:\n    pass",
    ],
)
def test_other_statements_belong_to_all_definitions_and_bring_what_they_reach(package, statement):
    text = f"from director.far import VALUE\n\nTABLE = {{}}\n{statement}\n\n\ndef f():\n    return 1\n"
    seen = set()
    for files in (
        {"far.py": "VALUE = 1\n", "m.py": text.replace(statement, "")},
        {"far.py": "VALUE = 1\n", "m.py": text},
        {"far.py": "VALUE = 2\n", "m.py": text},
        {"far.py": "VALUE = 2\n", "m.py": text.replace("VALUE", "abs")},
    ):
        package(files)
        seen.add(code_digest("director.m:f"))
    assert len(seen) == 4


def test_definitions_in_blocks_are_found(package):
    text = "try:\n    from director.far import VALUE\nexcept ImportError:\n    VALUE = 0\n"
    text += "if VALUE:\n    def f():\n        return 1\n"
    user = "from director.m import f\n\n\ndef g():\n    return f()\n"
    package({"far.py": "VALUE = 1\n", "m.py": text, "user.py": user})
    before = code_digest("director.user:g")
    package({"m.py": text.replace("return 1", "return 2")})
    middle = code_digest("director.user:g")
    package({"far.py": "VALUE = 2\n"})
    assert len({before, middle, code_digest("director.user:g")}) == 3


def test_several_names_of_one_statement(package):
    package({"m.py": "A, (B, *C) = D = 1, (2, 3)\n\n\ndef f():\n    return C\n"})
    before = code_digest("director.m:f")
    package({"m.py": "A, (B, *C) = D = 1, (2, 4)\n\n\ndef f():\n    return C\n"})
    assert code_digest("director.m:f") != before


def test_a_script_counts_as_a_whole(package, tmp_path):
    script = tmp_path / "script.py"
    main = 'if __name__ == "__main__":\n    use()\n'
    text = f"from director.lonely import use\n\nX = 1\n\n\ndef f():\n    return 2\n\n\nprint(3)\n{main}"
    package(FILES)

    def digest(*edit):
        script.write_text(edited(text, edit) if edit else text)
        return code_digest(script)

    before = digest()
    assert digest("X = 1", "# why\nX = 1") == before
    edits = [("X = 1", "X = 2"), ("return 2", "return 3"), ("print(3)", "print(4)"), ("use()", "use(5)")]
    assert len({before, *(digest(*edit) for edit in edits)}) == 5
    digest()
    package({"lonely.py": "def use():\n    return 2\n"})
    assert code_digest(script) != before
    assert code_digest(str(script)) == code_digest(script)


def test_what_a_module_does_as_a_script_counts_for_no_other(package, tmp_path):
    text = 'def f():\n    return 1\n\n\nif __name__ == "__main__":\n    f()\n'
    package({"m.py": text})
    before, as_script = code_digest("director.m:f"), code_digest(tmp_path / "director" / "m.py")
    package({"m.py": edited(text, ("    f()\n", "    print(f())\n"))})
    assert code_digest("director.m:f") == before
    assert code_digest(tmp_path / "director" / "m.py") != as_script


# -- entries of tables

TABLES = {
    "catalogue.py": "from director import digits, cifar\n\n"
    "DATASETS = {d.name: d for d in (digits.DATASET, cifar.DATASET)}\n\n\n"
    "def fetch(name):\n    return DATASETS[name]\n",
    "digits.py": "SIDE = 8\nDATASET = SIDE\n",
    "cifar.py": "SIDE = 32\nDATASET = SIDE\n",
    "lonely.py": "def use():\n    return 1\n",
}
TABLE = "director.catalogue:DATASETS"
DIGITS, CIFAR = "director.digits:DATASET", "director.cifar:DATASET"


@pytest.mark.parametrize(
    ("entries", "changes_with"),
    [
        (None, {"digits", "cifar", "catalogue"}),
        ({TABLE: DIGITS}, {"digits"}),
        ({TABLE: CIFAR}, {"cifar"}),
        ({TABLE: [DIGITS, CIFAR]}, {"digits", "cifar"}),
        ({TABLE: ()}, set()),
    ],
)
def test_an_entry_stands_for_its_table(package, entries, changes_with):
    found = set()
    for module, edit in {
        "digits": ("8", "9"),
        "cifar": ("32", "64"),
        "catalogue": ("d.name: d", "d.name: (d,)"),
    }.items():
        package(TABLES)
        before = code_digest("director.catalogue:fetch", entries)
        package({f"{module}.py": edited(TABLES[f"{module}.py"], edit)})
        found |= {module} if code_digest("director.catalogue:fetch", entries) != before else set()
    assert found == changes_with


def test_entries_count_only_where_their_table_is_reached(package):
    package(TABLES)
    assert code_digest("director.lonely:use", {TABLE: DIGITS}) == code_digest("director.lonely:use")
    digests = {
        code_digest("director.catalogue:fetch", {TABLE: entry}) for entry in (DIGITS, CIFAR, [DIGITS, CIFAR], ())
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("source", "entries", "named"),
    [
        ("director.catalogue:fetch", {"director.catalogue:NOTHING": DIGITS}, "director.catalogue:NOTHING"),
        ("director.catalogue:fetch", {TABLE: [DIGITS, "director.nowhere:DATASET"]}, "director.nowhere:DATASET"),
        ("director.catalogue:fetch", {TABLE: "director.digits"}, "director.digits"),
        ("director.catalogue:nothing", None, "director.catalogue:nothing"),
        ("director.nowhere:fetch", None, "director.nowhere:fetch"),
        ("json:loads", None, "json:loads"),
    ],
)
def test_what_is_not_defined_is_named(package, source, entries, named):
    package(TABLES)
    with pytest.raises(InputError, match=re.escape(named)):
        code_digest(source, entries)


# -- the real package: scripts are parsed, never run


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the real package and its scripts, and the digests of the scripts in it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "director", ignore=ignored)
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=ignored)
    monkeypatch.setattr("director.code_digest.PACKAGE", tmp_path / "director")
    return tmp_path


def digests(checkout):
    return {path.stem: code_digest(path) for path in sorted((checkout / "scripts").glob("*.py"))}


def rewrite(folder, edits_of):
    """Replace parts of all files below `folder`; edits_of: text -> (start, end, new part). How many there were."""
    count = 0
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        for start, end, part in sorted(edits_of(text), reverse=True):
            text, count = text[:start] + part + text[end:], count + 1
        path.write_text(text)
    return count


def offsets(text):
    """Function from (line, column in characters) to the position in a text."""
    lines = [0, *(found.end() for found in re.finditer("\n", text))]
    return lambda line, column: lines[line - 1] + column


def raised_words(text):
    """The words of every string in the arguments of a raise, replaced; what stands in braces stays code."""
    at = offsets(text)
    spans = [
        (argument.lineno, argument.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        for argument in (*node.exc.args, *(keyword.value for keyword in node.exc.keywords))
        if isinstance(argument, ast.JoinedStr)
        or (isinstance(argument, ast.Constant) and isinstance(argument.value, str))
    ]
    starts = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        inside = any(first <= token.start[0] and token.end[0] <= last for first, last in spans)
        if inside and token.type == tokenize.STRING:  # an f-string too, up to Python 3.11
            opened = token.string.index(token.string[-1])
            new = token.string[: opened + 1] + "other words" + token.string[-1]
            starts[at(*token.start)] = (at(*token.start), at(*token.end), new)
        elif inside and token.type == getattr(tokenize, "FSTRING_MIDDLE", None) and token.string.strip():
            starts[at(*token.start)] = (at(*token.start), at(*token.end), "other words")
    return starts.values()


def docstrings_and_comments(text):
    at = offsets(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            string = node.body[0].value
            lines = text.splitlines()
            last = len(lines[string.end_lineno - 1].encode()[: string.end_col_offset].decode())
            yield at(string.lineno, string.col_offset), at(string.end_lineno, last), '"Something else."'
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.start != (1, 0):
            yield at(*token.start), at(*token.end), "# something else"


@pytest.mark.parametrize("edits_of", [raised_words, docstrings_and_comments])
def test_no_words_of_the_real_package_count(checkout, edits_of):
    before = digests(checkout)
    assert rewrite(checkout / "director", edits_of) > 100
    assert digests(checkout) == before and len(before) > 10


def test_the_words_that_are_rewritten_are_those_of_errors():
    text = 'X = "a"\nif X:\n    raise E(\n        f"b {X}", "c"\n        "d", X\n    )\ny = f("e")\n'
    for start, end, new in sorted(raised_words(text), reverse=True):
        text = text[:start] + new + text[end:]
    assert (
        '"a"' in text and '"e"' in text and ", X\n" in text and not {"b ", "c", "d"} & set(re.findall(r'"(.*?)"', text))
    )


def test_the_numbers_of_the_real_package_count(checkout):
    """The same rewriting of something that counts changes every digest."""
    before = digests(checkout)

    def zeros(text):
        at = offsets(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NUMBER and token.string == "0":
                yield at(*token.start), at(*token.end), "7"

    rewrite(checkout / "director", zeros)
    after = digests(checkout)
    assert [name for name in before if after[name] == before[name]] == []


def test_the_real_jobs_depend_on_what_they_use(checkout):
    """A metric that no job watches while it trains reruns measuring, and no training."""
    before = digests(checkout)
    path = checkout / "director" / "numbers" / "metrics.py"
    path.write_text(path.read_text() + "\n\nMETRICS = METRICS | {'zero': lambda predictions: 0.0}\n")
    after = digests(checkout)
    changed = {name for name in before if after[name] != before[name]}
    assert "measure" in changed
    assert not changed & {"train_backbone", "train_student", "cache_trajectory", "predict", "fetch_dataset", "scale"}


def test_digests_are_cheap_to_import():
    """The Snakefile computes digests each time it is read."""
    loaded = "import sys, director.code_digest; assert not {'numpy', 'torch', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True, cwd=PACKAGE.parent)

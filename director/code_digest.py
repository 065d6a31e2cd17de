"""Digest of what code does, by which Snakemake knows when the output of a job is to be made again.

The digest covers definitions, not files: a root (a script, or one definition) and every top-level function, class and
constant of this package that it reaches by name. So a new metric reruns no training, and a reworded error message
reruns nothing. In doubt it counts too much: a name is taken for the top-level definition of that name even where a
local variable hides it, and a module that is used other than by `module.name` counts as a whole.
"""

import ast
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from director.errors import InputError

PACKAGE = Path(__file__).parent
# A target is what a name means: a module and a definition in it, or one of these in place of the definition.
Target = tuple[str, str]
WHOLE = "(whole module)"
STATEMENTS = "(statements)"  # what is neither a definition nor an import; it runs when the module is imported
MAIN = "(main)"  # what is under `if __name__ == "__main__":`
LIBRARY = "(library)"  # of another package: noted, but not followed

# How a job starts, ends and speaks decides no number.
SILENT = ("director.job_log", "director.driver", "director.errors")
LOGGERS = ("log", "logger", "logging")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
SAYING = {"warnings.warn", *(f"{logger}.{level}" for logger in LOGGERS for level in LEVELS)}


def code_digest(source: str | Path, entries: Mapping[str, str | Sequence[str]] | None = None) -> str:
    """Digest of what `source` does, with every definition of this package that it reaches: 16 hexadecimal digits.

    source: a Python file, or one definition as "director.training.fit:fit". entries: for a table such as
    "director.data.catalogue:DATASETS" the definition ("module:NAME"), or several or none, that this job takes out of
    it; where the table is reached, they count in its place. Raises InputError for a definition that does not exist.
    What does not count is said in `_Reader`.
    """
    package = _package(tuple(_files()))
    chosen = {
        package.definition(table): [package.definition(name) for name in ([names] if isinstance(names, str) else names)]
        for table, names in (entries or {}).items()
    }
    if isinstance(source, str) and ":" in source:
        script, waiting = None, [package.definition(source)]
    else:
        script, waiting = _parse(_File.now(Path(source).absolute())), [("", WHOLE), ("", MAIN)]
    notes: dict[Target, tuple] = {}
    while waiting:
        target = waiting.pop()
        if target in notes or target[1] == LIBRARY or target[0] in SILENT:
            continue
        if target in chosen:
            notes[target], reached = (), chosen[target]
        else:
            notes[target], reached = package.read(package.module(target[0]) or script, target[1])
        waiting += reached
    noted = sorted((target, note) for target, note in notes.items() if note)
    return hashlib.sha256(repr(noted).encode()).hexdigest()[:16]


class _File(NamedTuple):
    """A file of Python as it is on disk now, and the module that it is; a script is no module."""

    path: Path
    modified_ns: int
    size: int
    module: str = ""
    folder: str = ""  # the package that it lies in

    @classmethod
    def now(cls, path: Path, module: str = "", folder: str = "") -> "_File":
        state = path.stat()
        return cls(path, state.st_mtime_ns, state.st_size, module, folder)


def _files() -> Iterator[_File]:
    """All files of this package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        yield _File.now(path, folder if path.stem == "__init__" else f"{folder}.{path.stem}", folder)


@cache
def _package(files: tuple[_File, ...]) -> "_Package":
    return _Package({file.module: file for file in files})


@cache
def _parse(file: _File) -> "_Module":
    tree = ast.parse(file.path.read_text(encoding="utf-8"), filename=str(file.path))
    return _Module(tree, file.module, file.folder)


class _Package:
    """The modules of this package, by name, and what names mean in them."""

    def __init__(self, files: Mapping[str, _File]) -> None:
        self.files = files
        self.found: dict[str, set[Target]] = {}
        self.underway: set[tuple[_Module, str]] = set()
        self.known: dict[tuple[_Module, str], tuple[tuple, set[Target]]] = {}

    def module(self, name: str) -> "_Module | None":
        return _parse(self.files[name]) if name in self.files else None

    def definition(self, name: str) -> Target:
        """The definition that "module:NAME" means."""
        module, _, attribute = name.partition(":")
        targets = self.find(f"{module}.{attribute}") if module in self.files and attribute else set()
        targets = [target for target in targets if target[1] not in (WHOLE, LIBRARY)]
        if not targets:
            raise InputError(f"{name}: {PACKAGE} has no such definition; write module:NAME of one at top level")
        return targets[0]

    def find(self, name: str) -> set[Target]:
        """Where what has this full name is defined (director.numbers.metrics.nll), whichever module hands it on.

        The whole of the last module on its way, if that has no such name.
        """
        if name not in self.found:
            modules = self.modules_of(name)
            last = {(modules[0].name, WHOLE) if modules else (name, LIBRARY)}
            meant = (self.meant(module, name.removeprefix(module.name)[1:]) for module in modules)
            self.found[name] = next(filter(None, meant), last)
        return self.found[name]

    def modules_of(self, name: str) -> "list[_Module]":
        """The modules on the way of a full `name`, the last one first; none if it is a library's."""
        parts = name.split(".")
        modules = (self.module(".".join(parts[:count])) for count in range(len(parts), 0, -1))
        return [module for module in modules if module]

    def meant(self, module: "_Module", name: str, imports: Mapping[str, set[str]] | None = None) -> set[Target]:
        """What a name, dotted or not, means in a module, with further `imports` of a function."""
        first, *rest = name.split(".")
        targets = {(module.name, first)} if first in module.definitions else set()
        if (module, first) not in self.underway:  # else a package imports it from itself
            self.underway.add((module, first))
            for full_name in module.imports.get(first, set()) | (imports or {}).get(first, set()):
                targets |= self.find(".".join([full_name, *rest]))
            self.underway.remove((module, first))
        return targets

    def read(self, module: "_Module", name: str) -> tuple[tuple, set[Target]]:
        """What the digest notes of a target, and the targets that it reaches."""
        if (module, name) not in self.known:
            self.known[module, name] = self._contents(module) if name == WHOLE else self._read(module, name)
        return self.known[module, name]

    def _contents(self, module: "_Module") -> tuple[tuple, set[Target]]:
        content = {(module.name, part) for part in (*module.definitions, STATEMENTS)}
        return (), content.union(*map(self.find, module.handed_on))

    def _read(self, module: "_Module", name: str) -> tuple[tuple, set[Target]]:
        reader = module.reader(name)
        uses = set().union(*(self.meant(module, used, reader.imports) for used in (*reader.names, "*")))
        # an import runs the statements of a module, of the packages around it, and of all that it imports itself
        imported = reader.imported | ({module.name, *module.imported} if name == STATEMENTS else set())
        runs = {(run.name, STATEMENTS) for full_name in imported for run in self.modules_of(full_name)}
        return (reader.digest, sorted(uses)) if reader.digest else (), uses | runs | {(module.name, STATEMENTS)}


class _Module:
    """One file: its top-level definitions, its other statements, and what it imports: name -> full names."""

    def __init__(self, tree: ast.Module, name: str, folder: str) -> None:
        self.tree, self.name, self.folder = tree, name, folder
        self.definitions: defaultdict[str, list[ast.stmt]] = defaultdict(list)
        self.others: dict[str, list[ast.stmt]] = {STATEMENTS: [], MAIN: []}
        self.readers: dict[str, _Reader] = {}
        for statement in tree.body:
            names = _defined_by(statement)
            for defined in names:
                self.definitions[defined].append(statement)
            if not names:
                is_main = isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"
                self.others[MAIN if is_main else STATEMENTS].append(statement)
        self.imports, self.imported = self.reader(STATEMENTS).imports, self.reader(STATEMENTS).imported

    def reader(self, name: str) -> "_Reader":
        """What a definition, or the statements beside them, do."""
        if name not in self.readers:
            statements = self.others[name] if name in self.others else self.definitions[name]
            reader = _Reader(statements, self.folder)
            self.readers[name] = _Reader(statements, self.folder, reader.only_said) if reader.only_said else reader
        return self.readers[name]

    @cached_property
    def handed_on(self) -> set[str]:
        """Full names of what is imported and not mentioned again: others import it from here."""
        mentioned = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        return set().union(*(full_names for name, full_names in self.imports.items() if name not in mentioned))


def _defined_by(statement: ast.stmt) -> list[str]:
    """Names that a top-level statement defines, if it does nothing else."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        nodes = [node for target in targets for node in ast.walk(target) if not isinstance(node, ast.expr_context)]
        if all(isinstance(node, ast.Name | ast.Tuple | ast.List | ast.Starred) for node in nodes):
            return [node.id for node in nodes if isinstance(node, ast.Name)]
    return []


class _Reader(ast.NodeVisitor):
    """What some statements do, and the names that they use: each `visit` says what does not count.

    only_said: local variables that only messages read.
    """

    def __init__(self, statements: Iterable[ast.stmt], folder: str, only_said: frozenset[str] = frozenset()) -> None:
        self.folder, self.silent = folder, only_said
        self.words: list[str] = []  # the code, without what does not count
        self.names: set[str] = set()  # used names, with the attributes behind them
        self.imports: defaultdict[str, set[str]] = defaultdict(set)  # imported name -> full names
        self.imported: set[str] = set()  # full names of all that is imported
        self.texts: set[str] = set()  # local variables that a string is assigned to
        self.read: set[str] = set()  # names that are read other than in messages
        self.in_function = self.in_message = False
        for statement in statements:
            self.visit(statement)
        self.digest = hashlib.sha256("\n".join(self.words).encode()).hexdigest() if self.words else ""

    @property
    def only_said(self) -> frozenset[str]:
        """Local variables that hold the text of a message and nothing else."""
        return frozenset() if self.read & {"locals", "vars", "eval", "exec"} else frozenset(self.texts - self.read)

    def generic_visit(self, node: ast.AST) -> None:
        self.words.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            # Without what a function is annotated to return, and without fields that are empty: newer Pythons add some.
            if value is not None and value != [] and field not in ("ctx", "kind", "type_comment", "returns"):
                self.words.append(field)
                for part in value if isinstance(value, list) else [value]:
                    self.visit(part) if isinstance(part, ast.AST) else self.words.append(repr(part))
        self.words.append("end")

    def visit_Expr(self, node: ast.Expr) -> None:
        """Docstrings, and any string that stands alone, do not count."""
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        """The annotation of an argument does not count."""
        self.words.append(f"arg {node.arg}")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The annotation of a local variable does not count; that of a field does, dataclasses and pydantic read it."""
        if self.in_function:
            self.visit(ast.Assign([node.target], node.value) if node.value else node.target)
            return
        for part in ast.walk(node.annotation):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.names.update(re.findall(r"[A-Za-z_][\w.]*", part.value))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """What only a type checker runs does not count."""
        if _dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """What an error says does not count: strings in its arguments, with the names in them."""
        if isinstance(node.exc, ast.Call):
            self.visit(node.exc.func)
            self.in_message = True
            for argument in (*node.exc.args, *node.exc.keywords):
                self.visit(argument)
            self.in_message = False
            node = ast.Raise(None, node.cause)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if self.in_message and _is_text(node):
            self.words.append("message")
        else:
            self.generic_visit(node)

    visit_JoinedStr = visit_Constant

    def visit_Call(self, node: ast.Call) -> None:
        """What logs and warnings say does not count, nor the description of a pydantic field."""
        called = _dotted(node.func)
        arguments, keywords = ([], []) if called in SAYING else (node.args, node.keywords)
        if called.split(".")[-1] == "Field":
            keywords = [keyword for keyword in keywords if keyword.arg != "description"]
        self.generic_visit(ast.Call(node.func, arguments, keywords))

    def visit_Assign(self, node: ast.Assign) -> None:
        """The text of a message does not count where a local variable holds it either."""
        if self.in_function and _is_text(node.value) and [*map(type, node.targets)] == [ast.Name]:
            self.texts.add(node.targets[0].id)
            if node.targets[0].id in self.silent:
                return
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.read.add(_dotted(node.target))
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.read.update(node.names)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outside, self.in_function = self.in_function, not isinstance(node, ast.ClassDef)
        self.generic_visit(node)
        self.in_function = outside

    visit_Nonlocal = visit_Global
    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute | ast.Name) -> None:
        """`module.name` uses what the module defines by that name, not the module."""
        dotted = _dotted(node)
        if not dotted:
            self.generic_visit(node)
            return
        self.words.append(f"name {dotted}")
        self.names.add(dotted)
        if not self.in_message and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            self.read.add(dotted.split(".")[0])

    visit_Name = visit_Attribute

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """How a top-level import is written does not count, but what the names that are used mean."""
        parts = self.folder.split(".")
        origin = parts[: len(parts) - node.level + 1] if getattr(node, "level", 0) else []  # of a relative import
        origin += [node.module] if getattr(node, "module", None) else []
        for alias in node.names:
            full_name = ".".join([*origin, alias.name]).removesuffix(".*")
            self.imported.add(full_name)
            is_whole = isinstance(node, ast.Import) and not alias.asname  # `import a.b` gives the name a
            name = full_name.split(".")[0] if is_whole else alias.asname or alias.name
            self.imports[name].add(name if is_whole else full_name)
        if self.in_function:
            self.generic_visit(node)

    visit_ImportFrom = visit_Import


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; "" for what is not a name with attributes."""
    if isinstance(node, ast.Attribute):
        value = _dotted(node.value)
        return value and f"{value}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""

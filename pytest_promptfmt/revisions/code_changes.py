"""The code behind the functions and classes that a task names: its statements, their differences, and whether they ran.

Code is read and never run. Docstrings, annotations and layout do not count. Imports are followed within the tree.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.source_imports import syntax_tree
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.inputs.code_inputs import folder_above, imported

_DYNAMIC: Final = frozenset({"globals", "locals", "vars", "getattr", "eval", "exec", "__import__", "import_module"})
"""Names that find other code by name: then everything in the module counts."""

CLASS_VERSIONS: Final = ("VERSION", "version")
"""The attributes of a task class that hold its version, which is compared separately."""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Statement(NamedTuple):
    """A statement without those inside it, as comparable text; one of its lines, `start` to `end`, runs if it runs.

    `attribute` is the name that it binds in the body of a class, which runs when the module is imported.
    """

    form: str
    start: int = 0
    end: int = 0
    node: ast.AST | None = None
    attribute: str = ""


@dataclass(frozen=True)
class Definition:
    """The statements that define one name at the top level of a module; the whole module for the name "".

    `file` is below the tree, with slashes. `unread` is the text of a module that is not Python.
    """

    file: str
    name: str
    nodes: tuple[ast.stmt, ...]
    unread: str = ""

    @property
    def key(self) -> str:
        """Return the name of the definition on both sides, also if its folder was moved."""
        return f"{self.file.rpartition('/')[2]}:{self.name}"

    def __str__(self) -> str:
        """Return `utils.py:12 doc_to_text`."""
        line = f":{self.nodes[0].lineno}" if self.nodes and self.name else ""
        return f"{self.file}{line} {self.name}".rstrip()

    @cached_property
    def pieces(self) -> tuple[Statement, ...]:
        """Return its statements."""
        return (
            *(piece for node in self.nodes for piece in _pieces(node)),
            *([Statement(self.unread)] * bool(self.unread)),
        )

    @property
    def runs_when_called(self) -> bool:
        """Return whether its lines run when the task is rendered, not when its module is imported."""
        return bool(self.nodes) and all(isinstance(node, _Def) for node in self.nodes)


Closure = Mapping[str, Definition]
"""Definitions by their key."""


def closure_of(file: Path, name: str, top: Path) -> Closure:
    """Return the definition of the function `name` of a file, and all definitions of the tree `top` that it uses."""
    found: dict[str, Definition] = {}
    waiting = [(file, name)]
    while waiting:
        path, wanted = waiting.pop()
        module = _module(path, top)
        for definition in module.means(wanted):
            if definition.key not in found:
                found[definition.key] = definition
                waiting += module.uses(definition)
    return found


@lru_cache(maxsize=4096)
def _module(file: Path, top: Path) -> _Module:
    return _Module(file, top)


class _Module:
    """A file of Python code: its definitions, and the files that it imports."""

    def __init__(self, file: Path, top: Path) -> None:
        self._file, self._top = file, top
        self._shown = file.relative_to(top).as_posix() if file.is_relative_to(top) else file.name
        self._text, tree = "", ast.Module(body=[], type_ignores=[])
        self._is_read = True
        try:
            self._text = gate.read_bytes(file).decode("utf-8", "replace")
            tree = _Plain().visit(syntax_tree(self._text))
        except (OSError, SyntaxError, ValueError, RecursionError):
            self._is_read = False
        self._defined: dict[str, list[ast.stmt]] = {}
        self._loose: list[ast.stmt] = []
        self._sort(tree.body)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self._is_dynamic = not _DYNAMIC.isdisjoint(names)

    def _sort(self, body: Sequence[ast.stmt]) -> None:
        """Sort the statements by the names that they bind, also those within `if`, `try` and the like."""
        for node in body:
            bound = _bound(node)
            for name in bound:
                self._defined.setdefault(name, []).append(node)
            if not bound and isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                self._loose.append(node)
            if not isinstance(node, _Def):
                for block in ("body", "orelse", "finalbody"):
                    self._sort(getattr(node, block, []))
                for handler in getattr(node, "handlers", []):
                    self._sort(handler.body)

    def means(self, name: str) -> Iterator[Definition]:
        """Yield the definition of a name; all of the module for "", an unknown name, and dynamic code."""
        if not self._is_read:
            yield Definition(self._shown, "", (), unread=self._text)
            return
        whole = name == "" or name not in self._defined or self._is_dynamic
        for each in self._defined if whole else (name,):
            yield Definition(self._shown, each, tuple(self._defined[each]))
        if self._loose:
            yield Definition(self._shown, "", tuple(self._loose))

    def uses(self, definition: Definition) -> Iterator[tuple[Path, str]]:
        """Yield the names that a definition uses, after their files."""
        for top_level in definition.nodes:
            own = _own_names(top_level)
            for node in ast.walk(top_level):
                if isinstance(node, ast.Name) and node.id in self._defined and node.id not in own:
                    yield self._file, node.id
                for level, parts in imported(node):
                    if module := self._imported(level, parts):
                        yield module, ""
                    elif module := self._imported(level, parts[:-1]):
                        yield module, "" if parts[-1] == "*" else parts[-1]

    def _imported(self, level: int, parts: Sequence[str]) -> Path | None:
        """Return the file of the tree that the name of a module means, None for a module outside the tree."""
        folder = Path(folder_above(str(self._file), max(level, 1)))
        above = [folder] if level else [each for each in (folder, *folder.parents) if each.is_relative_to(self._top)]
        for place in above if parts else ():
            for path in (place.joinpath(*parts[:-1], f"{parts[-1]}.py"), place.joinpath(*parts, "__init__.py")):
                if path != self._file and path.is_file():
                    return path
        return None


def _bound(node: ast.stmt) -> Sequence[str]:
    if isinstance(node, _Def):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.If | ast.Try | ast.With):
        return []  # their blocks are read one by one
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _own_names(node: ast.stmt) -> frozenset[str]:
    """Return the local names of a function: they do not mean names of the module."""
    if not isinstance(node, _FUNCTIONS):
        return frozenset()
    arguments = node.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    inside = [inner for part in node.body for inner in ast.walk(part)]
    if any(isinstance(part, (*_FUNCTIONS, ast.Lambda, ast.Global)) for part in inside):  # names of several scopes
        return frozenset()
    stored = {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    outside = (inner for part in (*arguments.defaults, *node.decorator_list) for inner in ast.walk(part))
    before = {part.id for part in outside if isinstance(part, ast.Name)}
    return frozenset({*(each.arg for each in given if each is not None), *stored} - before)


# -- statements --------------------------------------------------------------------------------------------------------


class _Plain(ast.NodeTransformer):
    """Removes docstrings and annotations, which do not change the behaviour of code, from a tree that is only read."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, _FUNCTIONS):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_idle(each)] or body[:1]  # type: ignore[attr-defined]
        return self.generic_visit(node)


def _is_idle(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Pass) or (isinstance(node, ast.AnnAssign) and node.value is None)


def _pieces(node: ast.stmt) -> Iterator[Statement]:
    """Yield a statement and those inside it, the outer ones without the inner ones."""
    if _is_idle(node):
        return
    blocks: dict[str, list[Any]] = {name: value for name, value in ast.iter_fields(node) if _is_block(value)}
    if not blocks:
        yield Statement(ast.dump(node), node.lineno, node.end_lineno or node.lineno, node)
        return
    first = next(iter(blocks.values()))[0]
    end = getattr(first, "lineno", node.lineno + 1) - 1
    shell = type(node)(**{name: [] if name in blocks else value for name, value in ast.iter_fields(node)})
    last = node.end_lineno or node.lineno
    yield Statement(
        ast.dump(shell), node.lineno, last if isinstance(node, _Def | ast.Try) else max(node.lineno, end), shell
    )
    for value in blocks.values():
        for each in value:
            if isinstance(node, ast.ClassDef) and isinstance(each, ast.Assign | ast.AnnAssign):
                [attribute, *_] = [*_bound(each), ""]
                if attribute not in CLASS_VERSIONS:
                    yield from (piece._replace(attribute=attribute) for piece in _pieces(each))
            elif isinstance(each, ast.stmt):
                yield from _pieces(each)
            else:  # a handler, or a case of a match
                head = type(each)(**{name: [] if name == "body" else part for name, part in ast.iter_fields(each)})
                yield Statement(ast.dump(head), each.body[0].lineno, each.body[0].lineno, head)
                for inner in each.body:
                    yield from _pieces(inner)


def _is_block(value: object) -> bool:
    return (
        isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt | ast.ExceptHandler | ast.match_case)
    )


# -- names in tasks ----------------------------------------------------------------------------------------------------


def places_of(ref: FunctionRef, top: Path) -> Iterator[FunctionRef]:
    """Yield the places of a function: next to its file, and for a package's module below each folder up to `top`."""
    yield ref
    if "." in ref.module:
        yield from _above(ref, top)


def file_of(ref: FunctionRef, top: Path) -> Path:
    """Return the file of a function; if it is missing, the path next to the file that names it."""
    return next((place.file for place in places_of(ref, top) if place.file.is_file()), ref.file)


def class_refs(config: Mapping[Any, Any], path: Path, top: Path) -> Iterator[FunctionRef]:
    """Yield the places of the class of a task file: next to the file, and below each folder up to `top`."""
    written = config.get("class")
    if isinstance(written, FunctionRef):
        yield from places_of(written, top)
    elif isinstance(written, str):
        module, _, name = written.partition(":")
        ref = FunctionRef(module, name, path.parent, Position(path))
        if name:
            yield ref
            yield from _above(ref, top)


def _above(ref: FunctionRef, top: Path) -> Iterator[FunctionRef]:
    for folder in ref.directory.parents:
        if folder.is_relative_to(top):
            yield replace(ref, directory=folder)


def classes_of(path: Path) -> Iterator[FunctionRef]:
    """Yield the classes at the top level of a Python file; none if it cannot be read."""
    try:
        module = syntax_tree(gate.read_bytes(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield FunctionRef(path.stem, node.name, path.parent, Position(path, node.lineno))


# -- changes -----------------------------------------------------------------------------------------------------------

Lines = Mapping[str, Set[int]]
"""The lines that ran, from 1, by path below the tree."""


@dataclass(frozen=True)
class CodeChange:
    """A definition that differs, on each side; None if a side does not use a definition of that name."""

    old: Definition | None
    new: Definition | None

    @property
    def shown(self) -> Definition:
        """Return the definition to show in a message."""
        found = self.new or self.old
        assert found is not None
        return found

    def changed_pieces(self) -> tuple[list[Statement], list[Statement]]:
        """Return the statements that only one side has, for each side."""
        old, new = self.old.pieces if self.old else (), self.new.pieces if self.new else ()
        matcher = SequenceMatcher(None, [piece.form for piece in old], [piece.form for piece in new], autojunk=False)
        blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
        gone = [piece for _, start, end, _, _ in blocks for piece in old[start:end]]
        return gone, [piece for _, _, _, start, end in blocks for piece in new[start:end]]

    def constants(self) -> Iterator[str]:
        """Yield the texts in the statements that differ, then those of the rest, which may decide whether these run."""
        whole = (side.pieces for side in (self.old, self.new) if side is not None)
        for piece in chain(*self.changed_pieces(), *whole):
            for node in ast.walk(piece.node) if piece.node is not None else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def code_changes(old: Closure, new: Closure) -> list[CodeChange]:
    """Return the definitions that differ between two closures."""
    changes = [CodeChange(old.get(key), new.get(key)) for key in sorted({*old, *new})]
    return [change for change in changes if any(change.changed_pieces()) and not _is_import(change.shown)]


def _is_import(definition: Definition) -> bool:
    """Return whether it only imports: the imported code of the tree is compared itself."""
    return bool(definition.nodes) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in definition.nodes)


def not_reached(change: CodeChange, closures: tuple[Closure, Closure], lines: tuple[Lines, Lines]) -> str:
    """Return a statement that differs and did not run on its side, "" if all did."""
    for side, pieces, closure, ran in zip(
        (change.old, change.new), change.changed_pieces(), closures, lines, strict=True
    ):
        if side is None:
            continue
        if not side.runs_when_called:
            if pieces and not _is_used(side, closure, ran, set()):
                return str(side)
            continue
        own = ran.get(side.file, frozenset())
        for piece in pieces:
            if piece.attribute and _is_read(piece.attribute, closure, ran):
                continue
            if own.isdisjoint(range(piece.start, piece.end + 1)):
                return f"{side.file}:{piece.start} in {side.name}"
    return ""


def _has_run(nodes: Iterable[ast.expr], lines: Set[int]) -> bool:
    return any(not lines.isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1)) for node in nodes)


def _is_used(definition: Definition, closure: Closure, ran: Lines, seen: set[str]) -> bool:
    """Return whether a statement ran that uses this name, or a name made of it."""
    seen.add(definition.key)
    for other in closure.values():
        own = ran.get(other.file, frozenset())
        for top_level in other.nodes:
            uses = _uses(top_level, lambda node: isinstance(node, ast.Name) and node.id == definition.name)
            if other.runs_when_called:
                if _has_run(uses, own):
                    return True
            elif uses and other.key not in seen and _is_used(other, closure, ran, seen):
                return True
    return False


def _is_read(attribute: str, closure: Closure, ran: Lines) -> bool:
    """Return whether a statement ran that reads this attribute of any object."""
    return any(
        _has_run(
            _uses(top_level, lambda node: isinstance(node, ast.Attribute) and node.attr == attribute),
            ran.get(other.file, frozenset()),
        )
        for other in closure.values()
        for top_level in other.nodes
    )


def _uses(node: ast.AST, is_meant: Callable[[ast.AST], bool]) -> list[ast.expr]:
    return [part for part in ast.walk(node) if isinstance(part, ast.expr) and is_meant(part)]

"""The code behind a function of a task, read and never run: what it uses, and which statements of it differ.

Docstrings, annotations and layout do not count. Imports are followed as far as they lead to files of the same tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_promptfmt.core import gate

_DYNAMIC: Final = frozenset({"globals", "locals", "vars", "getattr", "eval", "exec", "__import__", "import_module"})
"""Names of what finds other code by its name: then everything in the module counts."""

CLASS_VERSIONS: Final = ("VERSION", "version")
"""The attributes of a task class that hold its version, which is compared by itself."""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Statement(NamedTuple):
    """A statement without those inside it: as comparable text, and the lines of which one runs where it does.

    `attribute` is what it binds in the body of a class, which runs when the module is imported.
    """

    form: str
    start: int = 0
    end: int = 0
    node: ast.AST | None = None
    attribute: str = ""


@dataclass(frozen=True)
class Definition:
    """What one name at the top level of a module means; the whole module for the name "".

    `file` is below the tree, with slashes. `unread` is the text of a module that is not Python.
    """

    file: str
    name: str
    nodes: tuple[ast.stmt, ...]
    unread: str = ""

    @property
    def key(self) -> str:
        """Return what the definition is called on both sides, also where its folder was moved."""
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
    """Return what the function `name` of a file is and everything of the tree `top` that it uses, found by reading."""
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
            tree = ast.parse(self._text)
        except (OSError, SyntaxError, ValueError, RecursionError):
            self._is_read = False
        self._defined: dict[str, list[ast.stmt]] = {}
        self._loose: list[ast.stmt] = []
        self._sort(tree.body)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self._is_dynamic = not _DYNAMIC.isdisjoint(names)

    def _sort(self, body: Sequence[ast.stmt]) -> None:
        """Take the statements by the names that they bind, also those within `if`, `try` and the like."""
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
        """Yield what a name means; everything of the module for "", for no such name, and for code not understood."""
        if not self._is_read:
            yield Definition(self._shown, "", (), unread=self._text)
            return
        whole = name == "" or name not in self._defined or self._is_dynamic
        for each in self._defined if whole else (name,):
            yield Definition(self._shown, each, tuple(self._defined[each]))
        if self._loose:
            yield Definition(self._shown, "", tuple(self._loose))

    def uses(self, definition: Definition) -> Iterator[tuple[Path, str]]:
        """Yield what a definition uses, as files with names in them."""
        for top_level in definition.nodes:
            own = _own_names(top_level)
            for node in ast.walk(top_level):
                if isinstance(node, ast.Name) and node.id in self._defined and node.id not in own:
                    yield self._file, node.id
                elif isinstance(node, ast.Import):
                    paths = (self._imported(self._file.parent, alias.name) for alias in node.names)
                    yield from ((path, "") for path in paths if path is not None)
                elif isinstance(node, ast.ImportFrom):
                    yield from self._named_by(node)

    def _named_by(self, node: ast.ImportFrom) -> Iterator[tuple[Path, str]]:
        folder = self._file.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        path = self._imported(folder, node.module, is_relative=bool(node.level)) if node.module else None
        for alias in node.names:
            inner = f"{node.module}.{alias.name}" if node.module else alias.name
            module = self._imported(folder, inner, is_relative=bool(node.level))
            if module is not None:
                yield module, ""
            elif path is not None:
                yield path, "" if alias.name == "*" else alias.name

    def _imported(self, folder: Path, name: str, *, is_relative: bool = False) -> Path | None:
        """Return the file of the tree that a module's name means, None where it is none of the tree."""
        parts = name.split(".")
        above = (
            [folder] if is_relative else [each for each in (folder, *folder.parents) if each.is_relative_to(self._top)]
        )
        for place in above:
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
        return []  # their blocks are looked at one by one
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _own_names(node: ast.stmt) -> frozenset[str]:
    """Return the names that a function has for itself: there they mean nothing of the module."""
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
    """Leaves out what does not change what code does: docstrings and annotations."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, _FUNCTIONS):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_idle(each)]  # type: ignore[attr-defined]
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
        yield Statement(_form(node), node.lineno, node.end_lineno or node.lineno, node)
        return
    first = next(iter(blocks.values()))[0]
    end = getattr(first, "lineno", node.lineno + 1) - 1
    shell = type(node)(**{name: [] if name in blocks else value for name, value in ast.iter_fields(node)})
    last = node.end_lineno or node.lineno
    yield Statement(
        _form(shell), node.lineno, last if isinstance(node, _Def | ast.Try) else max(node.lineno, end), shell
    )
    for value in blocks.values():
        for each in value:
            if isinstance(node, ast.ClassDef) and isinstance(each, ast.Assign | ast.AnnAssign):
                yield from (piece for piece in map(_of_class, _pieces(each)) if piece.attribute not in CLASS_VERSIONS)
            elif isinstance(each, ast.stmt):
                yield from _pieces(each)
            else:  # a handler, or a case of a match
                head = type(each)(**{name: [] if name == "body" else part for name, part in ast.iter_fields(each)})
                yield Statement(_form(head), each.body[0].lineno, each.body[0].lineno, head)
                for inner in each.body:
                    yield from _pieces(inner)


def _of_class(piece: Statement) -> Statement:
    names = _bound(piece.node) if isinstance(piece.node, ast.stmt) else ()
    return piece._replace(attribute=next(iter(names), ""))


def _is_block(value: object) -> bool:
    return (
        isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt | ast.ExceptHandler | ast.match_case)
    )


def _form(node: ast.AST) -> str:
    # Of a copy, for the transformer changes what it visits.
    return ast.dump(_Plain().visit(_copied(node)))


def _copied(node: Any) -> Any:
    if isinstance(node, list):
        return [_copied(each) for each in node]
    if isinstance(node, ast.AST):
        return type(node)(**{name: _copied(value) for name, value in ast.iter_fields(node)})
    return node

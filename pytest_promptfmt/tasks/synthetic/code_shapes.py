"""The columns that a Python function uses of its doc, and how: read from its source, as template_shapes.py does.

Only functions that may run get here, and none is called. Code that is not understood is left out: the docs are tried
on the function afterwards.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, Final

from pytest_promptfmt.tasks.synthetic.shapes import ELEMENT, SAME_TEXT_METHODS, Fact, Kind, Path

_MAX_DEPTH: Final = 3
"""Calls of helpers that are followed."""

_MAX_OPTIONS: Final = 200
_MOST_DRAWN: Final = 4
"""Keys of which a function takes those that a doc has: `for letter in "ABCDEFGH" if letter in doc`."""

_READERS: Final = frozenset({"eval", "literal_eval", "loads"})
_SAME: Final = frozenset({"str", "list", "tuple", "sorted", "reversed", "set"})
_NUMBERS: Final = frozenset({"int", "float", "round", "abs", "chr"})
_PARTED: Final = frozenset({"index", "rindex", "find", "split", "rsplit", "partition"})
_OF_MAPPINGS: Final = frozenset({"items", "keys", "values"})
_ARITHMETIC: Final = (ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
_ORDER: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def code_facts(function: Any) -> tuple[Fact, ...]:
    """Return how a function uses the doc that is its first argument; nothing where its source is missing."""
    facts: list[Fact] = []
    with suppress(RecursionError):
        _read(function, [()], facts, 0)
    return tuple(dict.fromkeys(facts))


def _constant(node: ast.AST | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _read(function: Any, paths: Sequence[Path | None], facts: list[Fact], depth: int) -> Path | None:
    """Add how a function uses its arguments, whose paths in the doc are given, None for something else.

    Returns the part of the doc that it ends by returning, None where that is something else.
    """
    known: dict[str, Any] = {}
    while isinstance(function, partial):
        known = {**function.keywords, **known}
        paths = [*[None] * len(function.args), *paths]
        function = function.func
    node = _parsed(function) if inspect.isfunction(function) else None
    if node is not None:
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        bound = {name: path for name, path in zip(names, paths, strict=False) if path is not None}
        walk = _Walk(bound, {**getattr(function, "__globals__", {}), **known}, facts, depth)
        for statement in node.body:
            walk.visit(statement)
        last = node.body[-1]
        return walk.path_of(last.value) if isinstance(last, ast.Return) and last.value is not None else None
    return None


@lru_cache(maxsize=256)
def _parsed(function: FunctionType) -> ast.FunctionDef | None:
    try:
        [node] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    return node if isinstance(node, ast.FunctionDef) else None


class _Walk(ast.NodeVisitor):
    """One pass over a function: `bound` are names of parts of the doc, `known` those of other values."""

    def __init__(self, bound: dict[str, Path], known: Mapping[str, Any], facts: list[Fact], depth: int) -> None:
        self.bound = bound
        self.known = dict(known)
        self.facts = facts
        self.depth = depth
        self.members: dict[str, Path] = {}
        """Names of lists that the function makes, to the part of the doc that is in them."""
        self.drawn: dict[str, Sequence[Any]] = {}
        """Names that loop over constants, to these."""
        self.keys: dict[str, Path] = {}
        """Names of keys, to the mapping of the doc that has them."""
        self.sets: dict[str, ast.AST] = {}

    def note(self, path: Path | None, kind: Kind, argument: Any = None) -> None:
        """Add a fact about a part of the doc."""
        if path:
            with suppress(TypeError):
                hash(argument)
                self.facts.append(Fact(path, kind, argument))

    def path_of(self, node: ast.AST) -> Path | None:
        """Return which part of the doc an expression is, None where it is something else."""
        match node:
            case ast.Name(id=name):
                return self.bound.get(name)
            case ast.Subscript(value=value, slice=ast.Slice()):
                return self.path_of(value)
            case ast.Subscript(value=value, slice=key):
                path = self.path_of(value)
                if path is None:
                    return None
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    return (*path, key.value)
                return (*path, ELEMENT) if path else None
            case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str(key)), *_]):
                path = self.path_of(value)
                return None if path is None else (*path, key)
            case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in _READERS | _SAME:
                return self.path_of(inner)
            case ast.Call(func=ast.Attribute(attr=name), args=[inner, *_]) if name in _READERS:
                return self.path_of(inner)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in SAME_TEXT_METHODS:
                return self.path_of(value)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._returned(self.known.get(name), arguments)
        return None

    def options_of(self, node: ast.AST) -> Any:
        """Return the constant mapping, list or text that an expression is, None where it is something else."""
        if isinstance(node, ast.IfExp):
            return self.options_of(node.body) or self.options_of(node.orelse)
        value = self.known.get(node.id) if isinstance(node, ast.Name) else None
        if value is None:
            with suppress(ValueError, TypeError, SyntaxError):
                value = ast.literal_eval(node)
        if isinstance(value, set | frozenset):
            value = sorted(value, key=str)
        fits = isinstance(value, Mapping | list | tuple | str) and 0 < len(value) <= _MAX_OPTIONS
        return value if fits else None

    # -- statements --------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        """Follow names that are given to parts of the doc, and to constants."""
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._name(target.id, node.value)

    def _name(self, name: str, value: ast.AST) -> None:
        for names in (self.bound, self.known, self.members, self.drawn, self.keys, self.sets):
            names.pop(name, None)
        path = self.path_of(value)
        if isinstance(value, ast.Subscript) and (mapping := self._keys_in(value.value)) is not None:
            self.keys[name] = mapping
        elif isinstance(value, ast.Set):
            self.sets[name] = value
        elif path is not None:
            self.bound[name] = path
        elif (options := self.options_of(value)) is not None:
            self.known[name] = options
        elif (member := self._member_of(value)) is not None:
            self.members[name] = member

    def _member_of(self, node: ast.AST) -> Path | None:
        """Return which part of the doc is in a list that the function makes."""
        match node:
            case ast.Name(id=name):
                return self.members.get(name)
            case ast.List(elts=[first, *_]):
                return self.path_of(first)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._member_of(left) or self._member_of(right)
        return None

    def _keys_in(self, node: ast.AST) -> Path | None:
        """Return the mapping of which an expression is a list of keys: `list(doc["translation"])`."""
        match node:
            case ast.ListComp(
                elt=ast.Name(id=name), generators=[ast.comprehension(target=ast.Name(id=own), iter=mapping)]
            ):
                return self._keys_in(mapping) if name == own else None
            case ast.Call(func=ast.Name(id="list" | "sorted"), args=[inner]):
                return self._keys_in(inner)
            case ast.Call(func=ast.Attribute(value=value, attr="keys")):
                return self.path_of(value)
        return None

    def visit_For(self, node: ast.For | ast.comprehension) -> None:
        """Follow the elements of a list."""
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    visit_comprehension = visit_For

    def generic_visit(self, node: ast.AST) -> None:
        """Visit what is below a node, the loops of a comprehension before what they make."""
        for part in sorted(ast.iter_child_nodes(node), key=lambda part: not isinstance(part, ast.comprehension)):
            self.visit(part)

    def _loop(self, target: ast.AST, iterated: ast.AST) -> None:
        names: Sequence[ast.AST] = [target]
        sources: Sequence[ast.AST] = [iterated]
        if isinstance(target, ast.Tuple) and isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name):
            names = target.elts if iterated.func.id == "zip" else target.elts[1:]
            sources = iterated.args if iterated.func.id in ("zip", "enumerate") else []
        for name, source in zip(names, sources, strict=False):
            path = self.path_of(source)
            if path and not isinstance(name, ast.Tuple):
                self.note(path, "list", 0)
                if isinstance(name, ast.Name):
                    self.bound[name.id] = (*path, ELEMENT)
            elif isinstance(name, ast.Name) and (member := self._member_of(source)):
                self.bound[name.id] = member
            elif isinstance(name, ast.Name) and isinstance(options := self.options_of(source), list | tuple | str):
                self.drawn[name.id] = options

    # -- expressions -------------------------------------------------------------------------------------------------

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Note lists, mappings, and columns that are looked up in a constant."""
        self.generic_visit(node)
        path = self.path_of(node.value)
        if path is None:
            self._looked_up(node.value, node.slice)
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            self.note(path, "mapping")
            self.note((*path, node.slice.value), "used")
        elif not isinstance(node.slice, ast.Slice):
            least = 0
            with suppress(ValueError, TypeError, SyntaxError):
                at = ast.literal_eval(node.slice)
                least = at + 1 if at >= 0 else -at
            self.note(path, "list", least)
            self.note(self.path_of(node.slice), "index of", path)

    def _looked_up(self, container: ast.AST, key: ast.AST) -> None:
        path, options, first = self.path_of(key), self.options_of(container), 0
        if isinstance(key, ast.BinOp) and isinstance(shift := _constant(key.right), int):
            first = shift if isinstance(key.op, ast.Sub) else -shift
            key = key.left
        if isinstance(key, ast.Call) and isinstance(key.func, ast.Name) and key.func.id == "int" and key.args:
            key = key.args[0]
        path = path or self.path_of(key)
        mapping = self.keys.get(key.id) if isinstance(key, ast.Name) else None
        if mapping and isinstance(options, Mapping):
            known = {fact.path[-1] for fact in self.facts if fact.path[:-1] == mapping}
            if not known & set(options):
                self.note((*mapping, str(next(iter(options)))), "used")
        if path and isinstance(options, Mapping):
            self.note(path, "one of", tuple(options))
        elif path and isinstance(options, list | tuple):
            self.note(path, "range", (first, first + len(options)))

    def visit_Call(self, node: ast.Call) -> None:
        """Note what methods and functions show about their owner and arguments; follow helpers."""
        self.generic_visit(node)
        first = self.path_of(node.args[0]) if node.args else None
        match node.func:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _READERS and first:
                self.note(first, "literal")
            case ast.Name(id=name) if name in _NUMBERS and first:
                self.note(first, "number")
            case ast.Name(id="ord") if first:
                self.note(first, "one of", tuple("ABCD"))
            case ast.Name(id=name):
                self._returned(self.known.get(name), node.args)
            case ast.Attribute(value=ast.Name(id="re")):
                for argument in node.args:
                    self.note(self.path_of(argument), "text")
            case ast.Attribute(value=owner, attr=name) if name in _PARTED and (path := self.path_of(owner)):
                if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                    self.note(path, "parts", (node.args[0].value, 2))
                elif name == "index" and first:
                    self.note(path, "list", 0)
                    self.note(first, "member of", path)
            case ast.Attribute(value=owner, attr=name):
                self._method(owner, name, first)

    def _method(self, owner: ast.AST, name: str, first: Path | None) -> None:
        path, options = self.path_of(owner), self.options_of(owner)
        if path and name in _OF_MAPPINGS:
            self.note(path, "mapping")
        elif path and hasattr(list, name) and not hasattr(str, name):
            self.note(path, "list", 0)
        elif first and name in ("index", "get") and options is not None:
            self.note(first, "one of", tuple(options))

    def _returned(self, function: Any, arguments: Sequence[ast.AST]) -> Path | None:
        """Return what a helper returns, where that is a part of the doc; how it uses the doc is added."""
        paths = [self.path_of(argument) for argument in arguments]
        if self.depth < _MAX_DEPTH and inspect.isfunction(function) and any(path is not None for path in paths):
            return _read(function, paths, self.facts, self.depth + 1)
        return None

    def visit_Compare(self, node: ast.Compare) -> None:
        """Note constants that a column is compared with."""
        self.generic_visit(node)
        self._named(node)
        for path, operator, other in self._compared(node):
            if isinstance(operator, ast.In | ast.NotIn):
                options = self.options_of(other)
                if isinstance(options, Mapping | list | tuple):
                    self.note(path, "one of", tuple(options))
            elif isinstance(operator, _ORDER) or isinstance(getattr(other, "value", None), int | float):
                self.note(path, "number")

    def _named(self, node: ast.Compare) -> None:
        """Note keys that a mapping has to have, the length of a list, and a set of columns that is another one."""
        this, operator, other = node.left, node.ops[0], node.comparators[0]
        if isinstance(operator, ast.In):
            match other:
                case ast.Call(func=ast.Attribute(value=owner, attr="keys")):
                    path = self.path_of(owner)
                case _:
                    path = () if self.path_of(other) == () else None  # a column may be a text
            names = [_constant(this)] if not isinstance(this, ast.Name) else self.drawn.get(this.id, ())[:_MOST_DRAWN]
            for name in names if path is not None else ():
                if isinstance(name, str):
                    self.note((*(path or ()), name), "used")
        elif isinstance(operator, ast.Eq):
            match self.sets.get(this.id, this) if isinstance(this, ast.Name) else this, _constant(other):
                case ast.Call(func=ast.Name(id="len"), args=[inner]), int(length):
                    self.note(self.path_of(inner), "list", length)
                case ast.Set(elts=members), _ if isinstance(options := self.options_of(other), list):
                    for number, member in enumerate(members):
                        self.note(self.path_of(member), "one of", (*options[number:], *options[:number]))

    def _compared(self, node: ast.Compare) -> Iterator[tuple[Path, ast.cmpop, ast.AST]]:
        if len(node.ops) == 1:
            for this, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                terms = [this.left, this.right] if isinstance(this, ast.BinOp) else [this]
                for path in map(self.path_of, terms):
                    if path:
                        yield path, node.ops[0], other

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Note columns that are calculated with."""
        self.generic_visit(node)
        for this, other in ((node.left, node.right), (node.right, node.left)):
            path, is_constant = self.path_of(this), isinstance(other, ast.Constant)
            is_number = is_constant and isinstance(getattr(other, "value", None), int | float)
            if path and is_number and isinstance(node.op, (*_ARITHMETIC, ast.Add)):
                self.note(path, "number")


class ReadDoc(dict[str, Any]):
    """A doc that records the names it is read by, of columns it has or lacks, in `names` in that order.

    Who takes the whole doc has read all of it. Copies are ordinary docs.
    """

    def __init__(self, doc: Mapping[str, Any], names: dict[str, None]) -> None:
        """Take the columns of a doc, and where to note their names."""
        super().__init__(doc)
        self._names = names

    def _note(self, names: Iterable[Any]) -> None:
        self._names.update(dict.fromkeys(name for name in names if isinstance(name, str)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to copy it: as an ordinary doc."""
        return dict, (self.copy(),)

    @staticmethod
    def _noting(method: str) -> Any:
        """Return a method of `dict` that notes the name that it is given, else all names."""
        own = getattr(dict, method)

        def noting(self: ReadDoc, *given: Any) -> Any:
            self._note(given[:1] or dict.keys(self))
            return own(self, *given)

        return noting

    __getitem__, __contains__, get, pop = map(_noting, ("__getitem__", "__contains__", "get", "pop"))
    __iter__, items, values, copy = map(_noting, ("__iter__", "items", "values", "copy"))

"""How a Jinja template uses its docs: one pass over its syntax tree, into the facts of shapes.py.

Nothing is rendered and no values are made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal

from jinja2 import Environment, TemplateError, nodes
from jinja2.visitor import NodeVisitor

from pytest_promptfmt.tasks.synthetic.shapes import (
    CASTS,
    ELEMENT,
    SAME_TEXT_METHODS,
    Fact,
    Kind,
    Names,
    Path,
    Shapes,
    between,
    constant_of,
    names_of,
    options_of,
    split_call,
)

_TEXT_FILTERS: Final = names_of("text filters")
_LIST_FILTERS: Final = names_of("list filters")
_NUMBER_FILTERS: Final = names_of("number filters")
_MAPPING_FILTERS: Final = names_of("mapping filters")
_NUMBER_TESTS: Final = names_of("number tests")
_MAPPING_METHODS: Final = names_of("mapping methods")
_MAX_DEPTH: Final = 16
_MAX_LENGTH: Final = 64
_MAX_CUT: Final = 400


@lru_cache(maxsize=16384)
def template_shapes(source: str) -> Shapes:
    """Return what the template needs of its docs; nothing when it does not parse (rendering reports why)."""
    if "{" not in source:
        return Shapes()
    try:
        # Its own parse: jinja2.meta.find_undeclared_variables folds constants in place and destroys the tree.
        tree = Environment().parse(source)
        walk = _Walk()
        walk.visit_all(tree.body)
    except (TemplateError, RecursionError):
        return Shapes()
    whole = _whole_expression(tree)
    return Shapes(
        facts=tuple(dict.fromkeys(walk.facts)),
        alone=walk.names.path_of(whole) if whole is not None else None,
        literal_length=len(whole.items) if isinstance(whole, nodes.List | nodes.Tuple) else None,
    )


def _whole_expression(tree: nodes.Template) -> nodes.Node | None:
    """Return the one expression that the template prints, if it prints nothing else."""
    outputs = [node for node in tree.body if isinstance(node, nodes.Output)]
    if len(outputs) != len([node for node in tree.body if not isinstance(node, nodes.Assign)]):
        return None
    printed = [
        child
        for output in outputs
        for child in output.nodes
        if not (isinstance(child, nodes.TemplateData) and not child.data.strip())
    ]
    return printed[0] if len(printed) == 1 else None


class _Walk(NodeVisitor):
    """One pass over a syntax tree; names are resolved and facts gathered in order."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.names = Names()
        self._guarded: list[Path] = []

    # -- facts -------------------------------------------------------------------------------------------------

    def note(self, node: nodes.Node | None, kind: Kind, argument: Any = None) -> None:
        """Add a fact about the value that `node` names, if it names one."""
        self._add(self.names.path_of(node), kind, argument)

    def _add(self, path: Path | None, kind: Kind, argument: Any = None) -> None:
        if path is None or len(path) > _MAX_DEPTH:
            return
        with suppress(TypeError):  # an unhashable constant cannot be a doc's value in a comparison that holds
            hash(argument)
            self.facts.append(Fact(path, kind, argument))

    # -- statements --------------------------------------------------------------------------------------------

    def visit_all(self, found: Iterable[nodes.Node]) -> None:
        for node in found:
            self.visit(node)

    def visit_Name(self, node: nodes.Name) -> None:
        if node.ctx == "load":
            self.note(node, "used")

    def visit_Assign(self, node: nodes.Assign) -> None:
        self.visit(node.node)
        if isinstance(node.target, nodes.Name):
            self.names.bound[node.target.name] = self.names.peeled(node.node)[0]
        else:
            self.names.hide(node.target)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> None:
        self.visit_all(node.body)
        self.names.hide(node.target)

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> None:
        if isinstance(node, nodes.Macro):
            self.names.bound[node.name] = None
        else:
            self.visit(node.call)
        before = dict(self.names.bound)
        for argument in node.args:
            self.names.hide(argument)
        self.visit_all(node.body)
        self.names.bound = before

    visit_CallBlock = visit_Macro

    def visit_For(self, node: nodes.For) -> None:
        self.visit(node.iter)
        before = dict(self.names.bound)
        self.names.hide(node.target)
        iterated: nodes.Node | None = node.iter
        while isinstance(iterated, nodes.Filter) and iterated.name in ("list", "sort", "reverse", "unique"):
            iterated = iterated.node
        path = self.names.path_of(iterated)
        self._add(path, "list", 0)
        if path is not None and isinstance(node.target, nodes.Name):
            self.names.bound[node.target.name] = (*path, ELEMENT)
        if node.test is not None:
            self.visit(node.test)
        self.visit_all(node.body)
        self.names.bound = before
        self.visit_all(node.else_)

    def visit_If(self, node: nodes.If | nodes.CondExpr) -> None:
        self.visit(node.test)
        guards = [
            path
            for found in [node.test, *node.test.find_all(nodes.Filter)]
            if isinstance(found, nodes.Filter) and found.name in ("length", "count")
            if (path := self.names.path_of(found.node)) is not None
        ]
        self._guarded += guards
        if isinstance(node, nodes.If):
            self.visit_all(node.body)
            self.visit_all(node.elif_)
        else:
            self.visit(node.expr1)
        del self._guarded[len(self._guarded) - len(guards) :]
        if isinstance(node, nodes.If):
            self.visit_all(node.else_)
        elif node.expr2 is not None:
            self.visit(node.expr2)

    visit_CondExpr = visit_If

    # -- expressions -------------------------------------------------------------------------------------------

    def visit_Getattr(self, node: nodes.Getattr) -> None:
        self.visit(node.node)
        self.note(node.node, "mapping")
        self.note(node, "used")

    def visit_Getitem(self, node: nodes.Getitem) -> None:
        self.visit(node.node)
        if isinstance(node.arg, nodes.Slice):
            self._slice(node.node, node.arg)
            return
        self.visit(node.arg)
        key = constant_of(node.arg)
        if isinstance(key, int):
            self._indexed(node.node, key)
        elif isinstance(key, str):
            self.note(node.node, "mapping")
        else:
            self._looked_up(node)
        self.note(node, "used")

    def _slice(self, sliced: nodes.Node, bounds: nodes.Slice) -> None:
        self.note(sliced, "text")
        cut = constant_of(bounds.start)
        if isinstance(cut, int) and 0 < cut <= _MAX_CUT:
            self.note(sliced, "cut", cut)
        for bound in (bounds.start, bounds.stop):
            if bound is not None:
                self.visit(bound)
        self.note(bounds.start, "start")
        self.note(bounds.stop, "end")

    def _indexed(self, container: nodes.Node, index: int) -> None:
        length = index + 1 if index >= 0 else -index
        if isinstance(container, nodes.Call) and (split := split_call(container)) is not None:
            text, separator = split
            self.note(text, "parts", (separator, min(length, _MAX_LENGTH)))
        path = self.names.path_of(container)
        self._add(path, "list", length if path not in self._guarded and length <= _MAX_LENGTH else 0)

    def _looked_up(self, node: nodes.Getitem) -> None:
        path, shift = self.names.peeled(node.arg)
        options = options_of(node.node)
        if options is None:
            self.note(node.node, "list", 0)
            container = self.names.path_of(node.node)
            if container is not None:
                self._add(path, "index of", container)
        elif isinstance(options, Mapping):
            self._add(path, "one of", tuple(options))
        elif options:
            self._add(path, "range", (shift, len(options) + shift))

    def visit_Call(self, node: nodes.Call) -> None:
        self.visit_all([*node.args, *node.kwargs])
        if not isinstance(node.node, nodes.Getattr):
            self.visit(node.node)
            if isinstance(node.node, nodes.Name) and node.node.name == "range":
                for bound in node.args:
                    self.note(bound, "number")
            return
        owner, method = node.node.node, node.node.attr
        self.visit(owner)
        if method == "index" and node.args:
            self._index_call(owner, node.args[0])
        elif method in _MAPPING_METHODS:
            self.note(owner, "mapping")
        elif (split := split_call(node)) is not None and split[1].strip():
            self.note(owner, "parts", (split[1], 2))
        elif hasattr(str, method) and method != "count":
            self.note(owner, "text")
        elif hasattr(list, method):
            self.note(owner, "list", 0)

    def _index_call(self, container: nodes.Node, wanted: nodes.Node) -> None:
        options = options_of(container)
        prefix = suffix = ""
        if isinstance(wanted, nodes.Add) and isinstance(text := constant_of(wanted.left), str):
            prefix, wanted = text, wanted.right
        elif isinstance(wanted, nodes.Add) and isinstance(text := constant_of(wanted.right), str):
            suffix, wanted = text, wanted.left
        path = self.names.peeled(wanted)[0]
        if options is not None:
            self._add(path, "one of", tuple(between(options, prefix, suffix)))
            return
        self.note(container, "list", 0)
        owner = self.names.path_of(container)
        if owner is not None and path is not None:
            self._add(path, "member of", owner)
        elif isinstance(constant := constant_of(wanted), str | int | float):
            self._add(owner, "contains", constant)

    def visit_Filter(self, node: nodes.Filter) -> None:
        if node.node is None:  # a filter block
            self.visit_all([*node.args, *node.kwargs])
            return
        self.visit_all([node.node, *node.args, *node.kwargs])
        name = node.name
        if name in _TEXT_FILTERS:
            self.note(node.node, "text")
        elif name in _NUMBER_FILTERS | CASTS:
            self.note(node.node, "number")
        elif name in ("length", "count"):
            self.note(node.node, "sized")
        elif name in _MAPPING_FILTERS:
            self.note(node.node, "mapping")
        elif name in _LIST_FILTERS:
            self.note(node.node, "list", 0)
            self._attribute_filter(node)

    def _attribute_filter(self, node: nodes.Filter) -> None:
        path = self.names.path_of(node.node)
        wanted = [constant_of(pair.value) for pair in node.kwargs if pair.key == "attribute"]
        if node.name in ("selectattr", "rejectattr", "groupby") and node.args:
            wanted.append(constant_of(node.args[0]))
        for attribute in wanted:
            if path is not None and isinstance(attribute, str):
                self._add((*path, ELEMENT), "mapping")
                self._add((*path, ELEMENT, *attribute.split(".")), "used")

    def visit_Test(self, node: nodes.Test) -> None:
        is_named = isinstance(node.node, nodes.Name) and self.names.path_of(node.node) is not None
        if node.name in ("defined", "undefined") and is_named:
            return  # only tested for presence; its use is noted elsewhere
        self.visit_all(node.iter_child_nodes())
        if node.name in _NUMBER_TESTS:
            self.note(node.node, "number")
        elif node.name == "mapping":
            self.note(node.node, "mapping")

    def visit_Compare(self, node: nodes.Compare) -> None:
        self.visit(node.expr)
        for operand in node.ops:
            self.visit(operand.expr)
        if len(node.ops) != 1:
            return
        operator, right = node.ops[0].op, node.ops[0].expr
        for this, other in ((node.expr, right), (right, node.expr)):
            path, shift = self.names.peeled(this)
            constant = constant_of(other)
            if operator in ("eq", "ne") and constant is not None:
                self._add(path, "equals", constant if shift == 0 or isinstance(constant, str) else constant + shift)
            elif operator in ("lt", "lteq", "gt", "gteq") and isinstance(constant, int | float) and path is not None:
                self.note(this, "number")
            elif operator in ("in", "notin") and this is node.expr and (options := options_of(other)):
                self._add(path, "one of", tuple(options))

    def visit_Add(self, node: nodes.Add) -> None:
        self.visit_all([node.left, node.right])
        for side, other in ((node.left, node.right), (node.right, node.left)):
            kind = self._kind(other)
            if kind is not None:
                self.note(side, kind)

    def _kind(self, node: nodes.Node) -> Literal["text", "number"] | None:
        """Return what an operand of + is, where the template shows it."""
        if isinstance(node, nodes.Const):
            return "text" if isinstance(node.value, str) else "number"
        if isinstance(node, nodes.Add):
            return self._kind(node.left) or self._kind(node.right)
        if isinstance(node, nodes.Concat | nodes.TemplateData):
            return "text"
        if isinstance(node, nodes.Sub | nodes.Mul | nodes.Div | nodes.FloorDiv | nodes.Neg):
            return "number"
        if isinstance(node, nodes.Filter):
            if node.name in _TEXT_FILTERS | {"string", "join", "tojson"}:
                return "text"
            return "number" if node.name in _NUMBER_FILTERS | CASTS | {"length", "count", "sum"} else None
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            return "text" if node.node.attr in SAME_TEXT_METHODS | {"replace", "join", "format"} else None
        return None

    def visit_Sub(self, node: nodes.BinExpr) -> None:
        self.visit_all([node.left, node.right])
        if isinstance(node, nodes.Mod) and isinstance(constant_of(node.left), str):
            return  # "%s" % value
        self.note(node.left, "number")
        self.note(node.right, "number")

    visit_Mul = visit_Div = visit_FloorDiv = visit_Mod = visit_Pow = visit_Sub

    def visit_Neg(self, node: nodes.UnaryExpr) -> None:
        self.visit(node.node)
        self.note(node.node, "number")

    visit_Pos = visit_Neg

"""Code whose result may depend on the order of a set, which differs between processes, found by reading."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

_MAKERS: Final = frozenset({"set", "frozenset"})
_PER_PROCESS: Final = frozenset({"hash", "id"})
"""Functions whose value differs between processes."""

_ORDERLESS: Final = _MAKERS | {"sorted", "len", "any", "all", "bool", "isinstance", "min", "max"}
"""Functions whose result is the same for each order of an argument, if they have no `key`."""

_CHANGING: Final = frozenset(
    {"add", "clear", "difference_update", "discard", "intersection_update", "remove", "update"}
    | {"isdisjoint", "issubset", "issuperset", "symmetric_difference_update"}
)
"""Methods of sets that return nothing, or a truth value."""

_MAKING: Final = frozenset({"copy", "difference", "intersection", "symmetric_difference", "union"})
"""Methods of sets that return another set."""

_OPERATORS: Final = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)


def depends_on_order(nodes: Sequence[ast.AST]) -> bool:
    """Return whether the result of a module's nodes may depend on the order of a set, or on hashes of strings."""
    orders = _Orders(nodes)
    return any(orders.shows(node) for node in nodes)


def shares_sets(module: ast.Module) -> bool:
    """Return whether a module has a set that other modules can import."""
    values = (node.value for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value)
    return any(
        isinstance(value, ast.Set | ast.SetComp) or (isinstance(value, ast.Call) and _name_of(value.func) in _MAKERS)
        for value in values
    )


class _Orders:
    """The nodes of one module, with the node that each is a part of."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._above = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
        self._loads: dict[str, list[ast.Name]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads[node.id].append(node)
        self._followed: set[str] = set()

    def shows(self, node: ast.AST) -> bool:
        """Return whether a node makes a set whose order may be seen, or a value that differs between processes."""
        if isinstance(node, ast.Set | ast.SetComp):
            return not self._is_orderless(node)
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            return False
        call = self._above.get(id(node))
        is_called = isinstance(call, ast.Call) and call.func is node
        if node.id in _PER_PROCESS:
            return is_called
        if node.id not in _MAKERS:
            return False
        if is_called:
            assert isinstance(call, ast.Call)
            return not self._is_orderless(call)
        return not self._is_type(node)

    def _is_type(self, node: ast.Name) -> bool:
        """Return whether `set` is written as a type: in an annotation, or for isinstance."""
        above: ast.AST | None = self._above.get(id(node))
        while isinstance(above, ast.Subscript | ast.BinOp | ast.Tuple):
            above = self._above.get(id(above))
        is_annotation = isinstance(above, ast.arg | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef)
        return is_annotation or (isinstance(above, ast.Call) and _name_of(above.func) == "isinstance")

    def _is_orderless(self, node: ast.AST) -> bool:
        """Return whether no use of an expression that is a set shows its order."""
        above = self._above.get(id(node))
        match above:
            case ast.Compare() | ast.Expr() | ast.Assert() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.If(test=test) | ast.While(test=test) if test is node:
                return True
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _ORDERLESS:
                return True
            case ast.Call(func=ast.Name(id="list" | "tuple"), keywords=[]):
                return self._is_orderless(above)
            case ast.Attribute(attr=name) if name in _CHANGING:
                return True
            case ast.Attribute(attr=name) if name in _MAKING:
                return self._is_orderless(self._above.get(id(above), above))
            case ast.BinOp(op=operator) if isinstance(operator, _OPERATORS):
                return self._is_orderless(above)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _CHANGING | _MAKING:
                return True  # of another set, which is looked at itself
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                return self._name_is_orderless(name)
            case ast.AugAssign(target=ast.Name(id=name)):
                return self._name_is_orderless(name)
        return False

    def _name_is_orderless(self, name: str) -> bool:
        if name in self._followed:
            return True
        self._followed.add(name)
        return all(map(self._is_orderless, self._loads[name]))


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""

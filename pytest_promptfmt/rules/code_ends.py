"""With which literal text Python code begins and ends the question or the answer that it makes; nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Final

from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules.task_code import definitions, hook_of
from pytest_promptfmt.study import Study

_PRINTED: Final = re.compile(r"%(?:\(\w+\))?[sd]")


def literal_end(study: Study, key: str) -> str:
    """Return the literal text with which the function of a key ends what it returns, "" where that is not known."""
    return _edge(study, key, at_end=True)


def literal_start(study: Study, key: str) -> str:
    """Return the literal text with which the function of a key begins what it returns, "" where that is not known."""
    return _edge(study, key, at_end=False)


def _edge(study: Study, key: str, *, at_end: bool) -> str:
    written, named = getattr(study.written, key), study.given.config.get("class")
    if isinstance(written, FunctionRef):
        node = next(definitions(written), None)
    else:
        node = hook_of(named, key) if isinstance(named, FunctionRef) else None
    returns = [one for one in ast.walk(node) if isinstance(one, ast.Return)] if node is not None else []
    if node is None or len(returns) != 1 or returns[0] is not node.body[-1]:
        return ""
    return _literal(returns[0].value, node.body[:-1], at_end=at_end) or ""


def _literal(value: ast.expr | None, before: Sequence[ast.stmt], *, at_end: bool) -> str | None:
    """Return the literal text at one end of an expression; `before` are the statements that ran before it."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[*parts]) if parts:
            return _literal(parts[-1 if at_end else 0], before, at_end=at_end)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _literal(right if at_end else left, before, at_end=at_end)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _PRINTED.split(text)[-1 if at_end else 0]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text.rpartition("}")[2] if at_end else text.partition("{")[0]
        case ast.Name(id=name):
            return _of_name(name, before, at_end=at_end)
    return None


def _of_name(name: str, before: Sequence[ast.stmt], *, at_end: bool) -> str | None:
    """Return the literal text at one end of a variable, where nothing but plain statements give it its value."""
    for number in range(len(before) - 1, -1, -1):
        statement = before[number]
        if not any(_stores(each, name) for each in ast.walk(statement)):
            continue
        match statement:
            case ast.Assign(targets=[ast.Name()], value=value):
                return _literal(value, before[:number], at_end=at_end)
            case ast.AugAssign(target=ast.Name(), op=ast.Add(), value=value) if at_end:
                return _literal(value, before[:number], at_end=True)
            case ast.AugAssign(target=ast.Name(), op=ast.Add()):
                continue
        return None
    return None


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)

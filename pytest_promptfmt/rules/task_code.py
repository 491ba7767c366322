"""Rules about the Python code of a task: missing functions, hooks of task classes, chance, missing values."""

from __future__ import annotations

import ast
import os
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import did_you_mean, display_path
from pytest_promptfmt.core.source_imports import syntax_tree
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import reads_names
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.tasks import functions_of, missing_for

_PRINTED: Final = re.compile(r"%(?:\(\w+\))?[sd]")


@reads_names
@rule("PF104", "missing-function", severity=Severity.ERROR, family=Family.CONFIG)
def missing_function(study: Study) -> Iterator[Finding]:
    """Report a `!function` that the file next to the YAML does not define.

    Why: rendering a prompt does not need metrics, filters or result functions. So if one of them is missing, nobody
    notices until lm-eval builds the task. This rule parses the Python file, and does not run it.

    Fix: define or import the function in that file.

    Real: lm-evaluation-harness 0.4.11 and 0.4.12: an import that looked unused was removed, and 175 AfriMMLU tasks no
    longer loaded.
    """
    for function in functions_of(study.written):
        file = function.file
        names = _names_in(file, function.name)
        if names is not None and function.name not in names:
            do = did_you_mean(function.name, names) or f"define {function.name} in {display_path(file)}"
            yield finding(f"{file.name} does not define this function", str(function), function.position, do=do)


@lru_cache(maxsize=4096)
def _names_in(file: Path, wanted: str) -> frozenset[str] | None:
    """Return the names that a Python file defines, where a wanted one is not plainly among them; None if unknown."""
    try:
        source = gate.read_bytes(file, limit=MAX_BYTES)
        name = re.escape(wanted.encode())
        if re.search(rb"^(?:[ \t]*(?:async +)?(?:def|class) +%b\b|%b *=[^=])" % (name, name), source, re.MULTILINE):
            return None  # without parsing the file
        status = os.stat(file)
        return _defined_in(_parsed(file, (status.st_mtime_ns, status.st_size)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=16)
def _defined_in(tree: ast.Module) -> frozenset[str] | None:
    """Return the names that a module defines; None if code defines others."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add((alias.asname or alias.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "setattr"):
            return None
    return None if "__getattr__" in names else frozenset(names)


def parsed(function: FunctionRef) -> ast.Module | None:
    """Return the parsed file next to the YAML that a function is looked up in; None if it cannot be read."""
    try:
        file = function.file
        status = os.stat(file)
        return _parsed(file, (status.st_mtime_ns, status.st_size))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=16)
def _parsed(file: Path, _stamp: tuple[int, int]) -> ast.Module:
    return syntax_tree(gate.read_bytes(file, limit=MAX_BYTES))  # tasks of one folder share their module


@reads_names
@rule("PF114", "missing-package", severity=Severity.INFO, family=Family.CONFIG)
def missing_package(study: Study) -> Iterator[Finding]:
    """Report Python code of a task that imports a missing package.

    Why: this plugin imports the task's module without the package, so that it can lint the prompts. Code that uses the
    package, mostly scoring, is not tested. lm-eval itself does not load such a task at all.

    Fix: install the package in the environment that runs the tests.

    Real: lm-evaluation-harness's minerva_math and leaderboard_math, which score with sympy and math_verify.
    """
    if study.failure is not None:
        return  # which reports what is missing
    found = next(filter(None, map(missing_for, functions_of(study.given))), None)
    if found is not None:
        yield finding(
            "the code of the task imports a package that is not installed",
            found.cause or found.message,
            "doc_to_text",
            do=found.hint or "",
        )


def definitions(named: object) -> Iterator[ast.FunctionDef]:
    """Yield the function that a task file names with `!function`, as it is written; nothing for other values."""
    if isinstance(named, FunctionRef) and (tree := parsed(named)) is not None:
        yield from _functions_of(tree).get(named.name, ())


@lru_cache(maxsize=16)
def _functions_of(tree: ast.Module) -> Mapping[str, Sequence[ast.FunctionDef]]:
    """Return the functions of a module by name, nested ones as well."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def literal_end(study: Study) -> str:
    """Return the literal text with which the function for the question ends what it returns, "" if that is unknown."""
    node = next(definitions(study.written.doc_to_text), None)
    returns = [one for one in ast.walk(node) if isinstance(one, ast.Return)] if node is not None else []
    is_last = node is not None and len(returns) == 1 and returns[0] is node.body[-1]
    return _last_text(returns[0].value, node.body[:-1]) if node is not None and is_last else ""


def _last_text(value: ast.expr | None, before: Sequence[ast.stmt]) -> str:
    """Return the literal text at the end of an expression; `before` are the statements that ran before it."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[*_, last]):
            return _last_text(last, before)
        case ast.BinOp(op=ast.Add(), right=right):
            return _last_text(right, before)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _PRINTED.split(text)[-1]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text.rpartition("}")[2]
        case ast.Name(id=name):
            stored = [number for number, each in enumerate(before) if f"'{name}', ctx=Store" in ast.dump(each)]
            match before[stored[-1]] if stored else None:
                case ast.Assign(targets=[ast.Name()], value=given) | ast.AugAssign(op=ast.Add(), value=given):
                    return _last_text(given, before[: stored[-1]])
    return ""


def tokens_of(file: Path, node: ast.FunctionDef) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a function, without comments and newlines inside of brackets."""
    source = gate.read_bytes(file, limit=MAX_BYTES).decode("utf-8", "replace")
    lines = source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    with suppress(tokenize.TokenError, IndentationError):
        tokens = tokenize.generate_tokens(StringIO("if True:\n" + "".join(lines)).readline)
        yield from (token for token in tokens if token.type not in (tokenize.NL, tokenize.COMMENT))

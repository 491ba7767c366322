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
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import around, finding
from pytest_promptfmt.tasks import functions_of, missing_for

_PRINTED: Final = re.compile(r"%(?:\(\w+\))?[sd]")
_MISSING: Final = re.compile(r"(?<![\w.])(None|nan|NaN)(?![\w.])")


@rule("PF104", "missing-function", severity=Severity.ERROR, family=Family.CONFIG)
def missing_function(study: Study) -> Iterator[Finding]:
    """Report a `!function` that the file next to the YAML does not define.

    Why: prompts render without metrics, filters and result functions. A missing function is only noticed when lm-eval
    builds the task. To find it here, the file is parsed, not run.

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
        if re.search(rb"^[ \t]*(?:async +)?(?:def|class) +%b\b" % re.escape(wanted.encode()), source, re.MULTILINE):
            return None  # without parsing the file
        tree = syntax_tree(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
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


def _method(classes: Mapping[str, ast.ClassDef], name: str, hook: str) -> ast.FunctionDef | None:
    """Return a method of a class of the file, or of its bases there."""
    node = classes.get(name)
    for part in node.body if node is not None else ():
        if isinstance(part, ast.FunctionDef) and part.name == hook:
            return part
    others = {key: value for key, value in classes.items() if key != name}
    bases = (base.id for base in (node.bases if node is not None else ()) if isinstance(base, ast.Name))
    return next(filter(None, (_method(others, base, hook) for base in bases)), None)


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


@rule("PF114", "missing-package", severity=Severity.INFO, family=Family.CONFIG)
def missing_package(study: Study) -> Iterator[Finding]:
    """Report Python code of a task that imports a missing package.

    Why: the module is imported without the package, so that prompts can be linted. Code that uses the package is not
    tested; most often this is scoring. lm-eval does not load the task at all.

    Fix: install the package where the task is tested.

    Real: minerva_math and leaderboard_math of lm-evaluation-harness need sympy and math_verify to score.
    """
    if study.failure is not None:
        return  # which reports what is missing
    found = next(filter(None, map(missing_for, functions_of(study.given))), None)
    if found is not None:
        yield finding(
            "a package that the code of the task imports is not installed",
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


@also("PF221", severity=Severity.ERROR)
def missing_value_in_code(study: Study) -> Iterator[Finding]:
    """Report code or a template that turns a missing value into the word None or nan."""
    for instance in study.real_instances:
        empty = [name for name, value in instance.doc.items() if value is None or value != value]
        if not empty:
            continue
        if instance.target in ("None", "nan") or (instance.target is None and "doc_to_target" in study.config):
            message = "the gold answer is a missing value (None or nan)"
            yield finding(message, str(instance.target), "doc_to_target", instance)
            return
        whole = " ".join(str(value) for value in instance.doc.values() if value is not None)
        for span in instance.prompts[0].spans if study.asks_by_code and instance.prompts else ():
            found = _MISSING.search(span.text) if span.origin.shot is None and span.origin.field is None else None
            if found is not None and found[0] not in whole:
                message = f'code prints a missing value as the word "{found[0]}"'
                saw = f"{around(span.text, found, 30, 10)}; column {empty[0]!r} is empty"
                yield finding(message, saw, "doc_to_text", instance, field=empty[0])
                return


def literal_end(study: Study, key: str) -> str:
    """Return the literal text with which the function of a key ends what it returns, "" where that is not known."""
    return _edge(study, key, at_end=True)


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


def hook_of(named: FunctionRef, hook: str) -> ast.FunctionDef | None:
    """Return a hook of the class that a task file names, as it is written in that file; None for an inherited one."""
    tree = parsed(named)
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} if tree else {}
    return _method(classes, named.name, hook)


def refuses_shots(study: Study) -> bool:
    """Return whether a hook of a class takes the doc alone: lm-eval 0.4.13 passes more for few-shot examples."""
    named = study.given.config.get("class")
    hooks = [hook_of(named, key) for key in ("doc_to_text", "doc_to_target")] if isinstance(named, FunctionRef) else []
    return any(_takes_doc_alone(node) for node in hooks if node is not None)


def _takes_doc_alone(hook: ast.FunctionDef) -> bool:
    """Return whether a hook takes no second argument by its place, as lm-eval gives it, after `self`."""
    is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in hook.decorator_list)
    taken = len(hook.args.posonlyargs) + len(hook.args.args) + is_static
    return hook.args.vararg is None and taken < 3


def literal_start(study: Study, key: str) -> str:
    """Return the literal text with which the function of a key begins what it returns, "" where that is not known."""
    return _edge(study, key, at_end=False)


def tokens_of(file: Path, node: ast.FunctionDef) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a function, without comments and newlines inside of brackets."""
    source = gate.read_bytes(file, limit=MAX_BYTES).decode("utf-8", "replace")
    lines = source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    with suppress(tokenize.TokenError, IndentationError):
        tokens = tokenize.generate_tokens(StringIO("if True:\n" + "".join(lines)).readline)
        yield from (token for token in tokens if token.type not in (tokenize.NL, tokenize.COMMENT))

"""The filters, metrics, aggregations and tasks that the modules of a harness register, read without an import."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.source_imports import syntax_tree

_FORMATTING: Final = re.compile(r"#[^\n]*|[\s,\"'()]+")


@dataclass(frozen=True, slots=True)
class Registration:
    """Where a harness registers a filter, metric, aggregation or task: the class or function, and its arguments.

    `digest` is that of its code, without what formatters change.
    """

    file: Path
    object: str
    arguments: Mapping[str, Any]
    digest: str = ""


@lru_cache(maxsize=64)
def registered_in(content: bytes, path: Path, kind: str) -> Sequence[tuple[str, Registration]]:
    """Return the names that decorators of a module's classes and functions register, with where that is."""
    found: list[tuple[str, Registration]] = []
    with suppress(SyntaxError, ValueError, RecursionError):
        nodes, lines = syntax_tree(content).body, content.splitlines(keepends=True)
        for node in (each for each in nodes if isinstance(each, ast.ClassDef | ast.FunctionDef)):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == f"register_{kind}":
                    given = {each.arg: each.value for each in call.keywords}
                    plain = {k: v.value for k, v in given.items() if k is not None and isinstance(v, ast.Constant)}
                    names = [each.value for each in call.args if isinstance(each, ast.Constant)]
                    names += [plain[key] for key in (kind, "name") if key in plain]
                    code = _FORMATTING.sub("", _source_of(node, lines)).encode()
                    made = Registration(path, node.name, plain, blake2b(code, digest_size=6).hexdigest())
                    found += [(str(name), made) for name in names]
    return found


def _source_of(node: ast.ClassDef | ast.FunctionDef, lines: Sequence[bytes]) -> str:
    """Return the source of a top-level node; `ast.get_source_segment` splits the whole file again for each."""
    last = node.end_lineno or node.lineno
    return b"".join([*lines[node.lineno - 1 : last - 1], lines[last - 1][: node.end_col_offset]]).decode()

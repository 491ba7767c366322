"""Python code that is not run: its tree, and the names in it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from types import CodeType


def syntax_tree(source: str | bytes) -> ast.Module:
    """Return the tree of Python code without warnings, such as those about escapes; raises as `ast.parse`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that compiled code mentions, with those of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)

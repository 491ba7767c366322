"""Faces of packages whose names are loaded when they are first used, from the modules that imports for types name.

It is imported before the plugin: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from linecache import getlines
from typing import Any


@cache
def modules_of(face: str) -> Mapping[str, str]:
    """Return the module of each name, as the `if TYPE_CHECKING` of a file says."""
    blocks = (node for node in ast.parse("".join(getlines(face))).body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: str(each.module) for each in imports for alias in each.names}


def loaded(face: dict[str, Any], name: str) -> Any:
    """Return the object of a name, given the globals of the face, which then have it; raises AttributeError."""
    module = modules_of(face["__file__"]).get(name)
    if module is None:
        raise AttributeError(f"module {face['__name__']!r} has no attribute {name!r}")
    value = face[name] = getattr(import_module(module), name)
    return value

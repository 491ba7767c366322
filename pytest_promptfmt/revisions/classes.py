"""Task classes as they are written: what YAML or a module names, found by reading and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef


def class_refs(config: Mapping[Any, Any], path: Path, top: Path) -> Iterator[FunctionRef]:
    """Yield where the class of a task file may be: beside the file, and below each folder up to the tree's `top`."""
    written = config.get("class")
    if isinstance(written, FunctionRef):
        yield written
    elif isinstance(written, str):
        module, _, name = written.partition(":")
        for folder in (path.parent, *path.parent.parents):
            if name and folder.is_relative_to(top):
                yield FunctionRef(module, name, folder, Position(path))


def classes_of(path: Path) -> Iterator[FunctionRef]:
    """Yield the classes at the top of a Python file; none of one that cannot be read."""
    try:
        module = ast.parse(gate.read_bytes(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield FunctionRef(path.stem, node.name, path.parent, Position(path, node.lineno))

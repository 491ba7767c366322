"""Which files of a tree the functions and classes that a task names may be in, found by reading and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef


def places_of(ref: FunctionRef, top: Path) -> Iterator[FunctionRef]:
    """Yield where a function is looked for: beside its file, and a package's module below each folder up to `top`."""
    yield ref
    if "." in ref.module:
        yield from _above(ref, top)


def file_of(ref: FunctionRef, top: Path) -> Path:
    """Return the file of a function, beside the one that names it where there is none."""
    return next((place.file for place in places_of(ref, top) if place.file.is_file()), ref.file)


def class_refs(config: Mapping[Any, Any], path: Path, top: Path) -> Iterator[FunctionRef]:
    """Yield where the class of a task file may be: beside the file, and below each folder up to the tree's `top`."""
    written = config.get("class")
    if isinstance(written, FunctionRef):
        yield from places_of(written, top)
    elif isinstance(written, str):
        module, _, name = written.partition(":")
        ref = FunctionRef(module, name, path.parent, Position(path))
        if name:
            yield ref
            yield from _above(ref, top)


def _above(ref: FunctionRef, top: Path) -> Iterator[FunctionRef]:
    for folder in ref.directory.parents:
        if folder.is_relative_to(top):
            yield replace(ref, directory=folder)


def classes_of(path: Path) -> Iterator[FunctionRef]:
    """Yield the classes at the top of a Python file; none of one that cannot be read."""
    try:
        module = ast.parse(gate.read_bytes(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield FunctionRef(path.stem, node.name, path.parent, Position(path, node.lineno))

"""The images and sound of a doc as a snapshot names them: what a column holds, files with a digest of their content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.task import FunctionRef, Task

MEDIA_KEYS: Final = ("doc_to_image", "doc_to_audio", "doc_to_visual", "doc_to_messages")
"""Keys of lm-eval and lmms-eval that give images or sound."""

_LONGEST_NAME: Final = 200


def media_notes(task: Task, docs: TaskDocs, doc: Doc) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the notes of an instance about its media, one for each key that names columns; none of synthetic docs.

    Functions are named, not called: they make objects of other packages.
    """
    if docs.kind != "given":
        return ()
    written = ((key, task.config.get(key)) for key in MEDIA_KEYS)
    return tuple((key, tuple(_lines(value, task, doc))) for key, value in written if value is not None)


def _lines(written: Any, task: Task, doc: Doc) -> Iterator[str]:
    for name in written if isinstance(written, list | tuple) else (written,):
        if not isinstance(name, str):
            yield f"!function {name}" if isinstance(name, FunctionRef) else type(name).__name__
        elif name in doc:
            values = doc[name] if isinstance(doc[name], list | tuple) else [doc[name]]
            yield from (f"{name}: {_shown(value, task)}" for value in values if value is not None)
        else:
            yield f"{name}: not a column"


def _shown(value: Any, task: Task) -> str:
    """Return a file with the digest of its content, a short text, or the digest of anything else."""
    if isinstance(value, Mapping) and ("bytes" in value or "path" in value):  # as Hugging Face datasets stores both
        path, value = value.get("path"), value.get("bytes") or value.get("path")
        return _shown(value, task) if path in (None, value) else f"{path}, {_shown(value, task)}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes, sha256 {sha256(value).hexdigest()[:12]}"
    if isinstance(value, str) and len(value) <= _LONGEST_NAME:
        if task.path is None or "://" in value:
            return value
        try:
            content = gate.read_bytes(gate.named(task.path.parent, value))
        except (OSError, ValueError):
            return f"{value}, no file here"
        return f"{value}, sha256 {sha256(content).hexdigest()[:12]}"
    text = (
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=lambda each: type(each).__name__)
    )
    return f"{type(value).__name__}, sha256 {sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"

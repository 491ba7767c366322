"""A rendered document against the stored file: equal, only the header differs, changed, damaged or missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pytest_promptfmt.core.errors import Position, SnapshotError
from pytest_promptfmt.snapshots.changes import Change, changes
from pytest_promptfmt.snapshots.document import Document, body_of, read_document, write_document

State = Literal["equal", "header-only", "changed", "damaged", "missing"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing.

    `text` is what the file should hold; `stored` what it holds, as far as it can be decoded; `old` and `new` are the
    documents where both could be read and differ; `error` is what is damaged.
    """

    state: State
    text: str
    stored: str | None = None
    old: Document | None = None
    new: Document | None = None
    error: SnapshotError | None = None

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Return what changed in the docs, found once; nothing where there are not two documents."""
        return () if self.old is None or self.new is None else changes(self.old, self.new)


def compare(stored: bytes | None, rendered: Document, path: Path, *, narrowed_run: bool = False) -> Comparison:
    """Return how the file's bytes (None: there is no file) relate to the rendered document.

    In a `narrowed_run`, which rendered fewer docs than it usually would, stored docs that were not rendered are kept
    and not compared.
    """
    text = write_document(rendered)
    if stored is None:
        return Comparison(state="missing", text=text, new=rendered)
    if stored == text.encode():
        return Comparison(state="equal", text=text)
    try:
        known = _decode(stored, path)
        old = read_document(known, path)
    except SnapshotError as error:
        return Comparison(state="damaged", text=text, stored=stored.decode(errors="replace"), new=rendered, error=error)
    if narrowed_run:
        rendered = narrowed(rendered, old)
        text = write_document(rendered)
        if text == known:
            return Comparison(state="equal", text=text)
    state: State = "header-only" if body_of(text) == body_of(known) else "changed"
    return Comparison(state=state, text=text, stored=known, old=old, new=rendered)


def narrowed(rendered: Document, stored: Document) -> Document:
    """Return `rendered` with the stored docs that were not rendered, and the stored facts about docs."""
    numbers = {doc.number for doc in rendered.docs}
    kept = [doc for doc in stored.docs if doc.number not in numbers]
    if not kept:
        return rendered
    header = {
        key: stored.header.get(key, value) if key in ("docs", "shots") else value
        for key, value in rendered.header.items()
    }
    return Document(header, tuple(sorted([*rendered.docs, *kept], key=lambda doc: doc.number)))


def _decode(stored: bytes, path: Path) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        line = stored.count(b"\n", 0, error.start) + 1
        raise SnapshotError(
            f"byte {stored[error.start]:#04x} is not UTF-8",
            position=Position(path, line),
            hint="something changed the file's encoding; see `git log` and `git diff` for it, then rewrite it with "
            "--snapshot-update",
        ) from None

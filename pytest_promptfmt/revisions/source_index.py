"""What is kept of task files and Python modules from one comparison to the next, by the content of their files.

Nothing is read again of a file whose content, and that of its includes, is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.files import cache_directory
from pytest_promptfmt.engine.contents import digest_of
from pytest_promptfmt.engine.store import Store
from pytest_promptfmt.revisions.unaffected import TASK_SUFFIXES, ModuleText, TaskSource

_SOURCES: Final = "sources 3"
_MODULES: Final = "modules 1"

Blobs = Mapping[str, str]
"""The files of one side, below its top, each with an id of its content."""


class SourceIndex:
    """The index of one repository, in the user's cache folder; without one it knows nothing."""

    def __init__(self, top: Path) -> None:
        cache = cache_directory()
        name = digest_of(str(top).encode("utf-8", "surrogateescape"))
        self._store = Store(cache / "diff" / name) if cache is not None else None
        self._known: dict[str, dict[str, Any]] = {}

    def sources(self, blobs: Blobs) -> dict[str, TaskSource | None]:
        """Return what is known of the task files of a side; None for a file that defines no task."""
        found: dict[str, TaskSource | None] = {}
        for name, row in self._rows(_SOURCES, (name for name in blobs if name.endswith(TASK_SUFFIXES))):
            try:
                if all(blobs.get(part) == blob for part, blob in row["parts"]):
                    found[name] = _source(row["source"])
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def parts(self, names: Collection[str]) -> set[str]:
        """Return what some task files were made of when they were read last, whatever they are now."""
        rows = (row for _, row in self._rows(_SOURCES, names) if isinstance(row, dict))
        return {str(part[0]) for row in rows for part in row.get("parts", ()) if isinstance(part, list) and part}

    def modules(self, blobs: Blobs) -> dict[str, ModuleText]:
        """Return what is known of the Python files of a side."""
        found: dict[str, ModuleText] = {}
        for name, row in self._rows(_MODULES, (name for name in blobs if name.endswith(".py"))):
            try:
                if row["blob"] == blobs[name]:
                    found[name] = ModuleText(tuple(map(str, row["ends"])), bool(row["reads"]))
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def keep(self, blobs: Blobs, sources: Mapping[str, TaskSource | None]) -> None:
        """Keep what was read of task files."""
        for name, source in sources.items():
            parts = sorted(source.parts | {name}) if source is not None else [name]
            if self._store is not None and _can_be_kept(name) and all(part in blobs for part in parts):
                row = {"parts": [[part, blobs[part]] for part in parts], "source": _row(source)}
                self._store.put(_SOURCES, name, row)

    def keep_modules(self, blobs: Blobs, modules: Mapping[str, ModuleText]) -> None:
        """Keep what was read of Python files."""
        for name, text in modules.items():
            if self._store is not None and _can_be_kept(name) and name in blobs:
                row = {"blob": blobs[name], "ends": text.ends, "reads": text.reads_files}
                self._store.put(_MODULES, name, row)

    def write(self) -> None:
        """Write what was kept."""
        if self._store is not None:
            self._store.write()

    def _rows(self, kind: str, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        if kind not in self._known:
            self._known[kind] = self._store.rows(kind) if self._store is not None else {}
        for name in names:
            if self._known[kind].get(name) is not None:
                yield name, self._known[kind][name]


def _can_be_kept(name: str) -> bool:
    """Return whether a path is text; one that is not is read again each time."""
    return name.encode("utf-8", "replace").decode("utf-8") == name


def _row(source: TaskSource | None) -> list[Any] | None:
    if source is None:
        return None
    sets = (source.parts, source.modules, source.texts, source.labels)
    return [source.name, *(sorted(each) for each in sets)]


def _source(row: Any) -> TaskSource | None:
    """Return what a row says; raises TypeError or ValueError for one that says nothing."""
    if row is None:
        return None
    name, *sets = row
    parts, modules, texts, labels = (frozenset(map(str, each)) for each in sets)
    return TaskSource(str(name), parts, modules, texts, labels)

"""The rows of outcomes in the store: the states of each file's inputs with their counts, and for each the items."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.inputs.cached_files import CachedFile, ItemResults
from pytest_promptfmt.inputs.cached_folders import FOLDERS, folder_of
from pytest_promptfmt.inputs.places import Places
from pytest_promptfmt.inputs.store import Store, mapping
from pytest_promptfmt.inputs.task_inputs import Node, WatchedFile, name_of

_OUTCOMES: Final = "outcomes"
_ITEMS: Final = "items"
"""Rows of a file: the inputs and counts of the outcomes of each variant, and for one variant each item's result."""

_REFUSED: Final = "refused"
"""The reason why the outcomes of a file are not cached."""

ENTRIES: Final = "entries"
"""Rows of the index, which do not depend on the context."""

BY_CONTEXT: Final = (_OUTCOMES, _ITEMS, _REFUSED)

_VARIANT: Final = "?"
"""Between the path of a file and the digest of its inputs."""

_MOST_VARIANTS: Final = 6
"""The states of a file whose outcomes are side by side, such as those of several branches."""


class OutcomeRows:
    """The outcomes of files in a store; `found` has the rows of those that hold, or were made by this run."""

    def __init__(self, store: Store, places: Places) -> None:
        self._store = store
        self._places = places
        self.found: dict[str, Mapping[str, Any]] = {}

    def variants(self, name: str) -> list[Mapping[str, Any]]:
        """Return the rows of a file for the states of its inputs, the newest first."""
        rows = self._store.row(_OUTCOMES, name)
        return [mapping(row) for row in rows[:_MOST_VARIANTS]] if isinstance(rows, list) else []

    def knows(self, name: str) -> bool:
        """Return whether an earlier run stored outcomes of a file, or a reason for none."""
        return any(self._store.row(kind, name) for kind in (_OUTCOMES, _REFUSED))

    def refusal(self, name: str) -> list[Any]:
        """Return why the outcomes of a file are not cached and the digest of its inputs, empty without a reason."""
        row = self._store.row(_REFUSED, name)
        return row if isinstance(row, list) else []

    def refuse(self, name: str, reason: str, row: Mapping[str, Any] | None) -> None:
        """Store why the outcomes of a file are not cached."""
        refusal = [reason, None if row is None else self.digest(row)]
        if self.refusal(name) != refusal:
            self._store.put(_REFUSED, name, refusal)

    def digest(self, row: Mapping[str, Any]) -> str:
        """Return the digest of the inputs of a row, the same in each checkout."""
        return self._places.digest(
            (row["context"], row["inputs"], [list(each) for each in row["asked"]], row["introduces"])
        )

    def file(self, path: Path, row: Mapping[str, Any]) -> CachedFile | None:
        """Return the cached outcomes of a row, None for invalid ones, and for those of other inputs."""
        try:
            read = partial(self._store.packed_row, _ITEMS, _of_variant(path, row["made"]))
            return CachedFile.of(row, read, self._store) if row["made"] == self.digest(row) else None
        except Exception:  # invalid data of any kind
            return None

    def keep(self, name: str, watched: WatchedFile, row: dict[str, Any]) -> None:
        """Store the outcomes of a file; `row` has their inputs."""
        about = {"tasks": watched.tasks, "claims": watched.claims, "profiles": sorted(watched.profiles)}
        about |= watched.results.summary
        made = self.digest(row)
        self.found[name] = {"made": made, **row, **about}
        others = [each for each in self.variants(name) if each.get("made") not in (None, made)]
        self._store.put(_OUTCOMES, name, [self.found[name], *others[: _MOST_VARIANTS - 1]])
        self._store.put(_REFUSED, name, None)
        self._store.put_packed(_ITEMS, _of_variant(name, made), watched.results.packed)
        for other in others[_MOST_VARIANTS - 1 :]:
            self._store.put(_ITEMS, _of_variant(name, str(other["made"])), None)

    def remove_missing(self) -> set[str]:
        """Remove the rows of files and folders that no longer exist; return the inputs of the others."""
        is_missing = cache(lambda path: not os.path.lexists(path))  # a file has several rows
        for kind in (*BY_CONTEXT, ENTRIES):
            for path in self._store.paths(kind):
                if is_missing(path.partition(_VARIANT)[0]):
                    self._store.put(kind, path, None)
        for key in self._store.paths(FOLDERS):
            if is_missing(folder_of(key)):
                self._store.put(FOLDERS, key, None)
        rows = (row for name in self._store.paths(_OUTCOMES) for row in self.variants(name))
        return {key for row in rows for key in row.get("inputs", ())}


class PlannedItems:
    """The items of this run by their files: those that were offered, and those that remained after selection."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._offered: dict[str, set[str]] = defaultdict(set)

    def offer(self, node: Node, children: Iterable[Node]) -> None:
        """Note the children of a file or task: all of them have to run, also those that `-k` deselects."""
        offered = self._offered[str(node.path)]
        offered.discard(name_of(node))
        offered.update(map(name_of, children))

    def select(self, items: Iterable[Node]) -> None:
        """Note the items after selection."""
        self._counts = Counter(str(item.path) for item in items)

    def may_show(self, item: Node, file: CachedFile) -> bool:
        """Return whether the cached result of an item may be shown: some rules use the other items of the run."""
        return file.size == self._counts[str(item.path)]

    def pack(self, name: str, results: ItemResults, pack: Callable[[str], bytes]) -> None:
        """Pack the results of a file once all of its items ran; drop them if some were not selected."""
        offered = self._offered[name]
        if self._counts[name] != len(offered):
            results.items.clear()
        elif results.items.keys() == offered:
            results.pack(pack)
            del self._offered[name]


def _of_variant(path: Path | str, made: str) -> str:
    return f"{path}{_VARIANT}{made}"

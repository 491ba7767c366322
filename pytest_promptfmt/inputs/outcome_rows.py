"""The rows of outcomes in the store: the states of each file's inputs with their counts, and for each the items."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

from pytest_promptfmt.inputs.cached_files import CachedFile, Shown, problems, summary
from pytest_promptfmt.inputs.places import Places
from pytest_promptfmt.inputs.store import Store, mapping
from pytest_promptfmt.inputs.task_inputs import Node, WatchedFile, name_of

_OUTCOMES: Final = "outcomes"
_ITEMS: Final = "items"
"""Rows of a file: its states, each with the inputs and counts of its outcomes, and for one state each item's result."""

_REFUSED: Final = "refused"
"""The reason why the outcomes of a file are not cached."""

ENTRIES: Final = "entries"
"""Rows of the index."""

_STATE: Final = "?"
"""Between the path of a file and the digest of its inputs."""

_MOST_STATES: Final = 8
"""The states of a file whose outcomes are side by side, such as those of several branches, settings and Pythons."""


class OutcomeRows:
    """The outcomes of files in a store; one that is not `is_valid` is not used."""

    def __init__(self, store: Store, places: Places, is_valid: Callable[[Shown], bool]) -> None:
        self._store = store
        self._places = places
        self._is_valid = is_valid

    def states(self, name: str) -> list[Mapping[str, Any]]:
        """Return the rows of a file for the states of its inputs, the newest first."""
        rows = self._store.row(_OUTCOMES, name)
        return [mapping(row) for row in rows[:_MOST_STATES]] if isinstance(rows, list) else []

    def file(self, name: str, row: Mapping[str, Any]) -> CachedFile:
        """Return the cached outcomes of one state of a file; raises any error for invalid data."""
        if row["made"] != digest_of_inputs(row, self._places):
            raise ValueError("the outcomes belong to other inputs")
        key = f"{name}{_STATE}{row['made']}"
        return CachedFile.of(row, lambda: self._store.text(_ITEMS, key), self._is_valid)

    def knows(self, name: str) -> bool:
        """Return whether an earlier run stored outcomes of a file, or a reason for none."""
        return any(self._store.row(kind, name) for kind in (_OUTCOMES, _REFUSED))

    def refusal(self, name: str) -> str:
        """Return why the outcomes of a file are not cached, "" without a reason."""
        return str(self._store.row(_REFUSED, name) or "")

    def refuse(self, name: str, reason: str) -> None:
        """Store why the outcomes of a file are not cached."""
        if self.refusal(name) != reason:
            self._store.put(_REFUSED, name, reason)

    def keep(self, name: str, watched: WatchedFile, row: dict[str, Any]) -> None:
        """Store the outcomes of a file; `row` has the context and the inputs."""
        made = digest_of_inputs(row, self._places)
        about = {"tasks": watched.tasks, "claims": watched.claims, "profiles": sorted(watched.profiles)}
        about |= {"brings_profiles": watched.brings_profiles, **summary(watched.items)}
        others = [each for each in self.states(name) if each.get("made") not in (None, made)]
        self._keep_states(name, [{"made": made, **row, **about}, *others])
        self._store.put(_ITEMS, f"{name}{_STATE}{made}", watched.items)
        if self.refusal(name):
            self._store.put(_REFUSED, name, None)

    def _keep_states(self, name: str, rows: list[Mapping[str, Any]], most: int = _MOST_STATES) -> None:
        """Store the first rows of a file, and remove the items of the others."""
        self._store.put(_OUTCOMES, name, rows[:most] or None)
        for row in rows[most:]:
            self._store.put(_ITEMS, f"{name}{_STATE}{row.get('made')}", None)

    def shrink(self, kept: Iterable[str]) -> set[str]:
        """Keep one state of each file that exists, the one that this run `kept` or the newest; return its inputs."""
        is_missing = cache(lambda path: not os.path.lexists(path))
        inputs: set[str] = set()
        for kind in (_REFUSED, ENTRIES):
            for path in filter(is_missing, self._store.paths(kind)):
                self._store.put(kind, path, None)
        for path in {*self._store.paths(_OUTCOMES)} - {*kept}:
            rows = self.states(path)
            self._keep_states(path, rows, most=not is_missing(path))
            inputs.update(key for row in rows[:1] for key in row.get("inputs", ()))
        return inputs


class PlannedItems:
    """The items of this run by their files: those that were offered, and those that remained after selection."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._offered: dict[str, set[str]] = defaultdict(set)
        self._unexplained: set[Node] = set()

    def offer(self, node: Node, children: Iterable[Node]) -> None:
        """Note the children of a file or task: all of them have to run, also those that `-k` deselects."""
        offered = self._offered[str(node.path)]
        offered.discard(name_of(node))
        offered.update(map(name_of, children))

    def select(self, items: Iterable[Node]) -> None:
        """Note the items after selection."""
        self._counts = Counter(str(item.path) for item in items)
        self._unexplained.clear()

    def explain(self, items: Iterable[Node], shown: Callable[[Node], Shown | None]) -> None:
        """Note the items that run although their results are cached.

        A failure that repeats an earlier one is stored without its text: if no item before it has the text, it runs.
        """
        explained: set[tuple[str, str]] = set()
        for item in items:
            for problem, has_text in problems(shown(item) or {"reports": ()}):
                if not has_text and problem not in explained:
                    self._unexplained.add(item)  # it gets the text, for the same inputs fail in the same way
                explained.add(problem)

    def may_show(self, item: Node, file: CachedFile) -> bool:
        """Return whether the cached result of an item may be shown: some rules use the other items of the run."""
        return item not in self._unexplained and file.size == self._counts[str(item.path)]

    def is_whole(self, name: str, watched: WatchedFile) -> bool:
        """Return whether all items of a file ran."""
        return watched.items.keys() == self._offered[name] and len(watched.items) == self._counts[name] > 0


def digest_of_inputs(row: Mapping[str, Any], places: Places) -> str:
    """Return the digest of the inputs of a row, the same in each checkout."""
    return places.digest((row["context"], row["inputs"], [list(each) for each in row["asked"]], row["introduces"]))

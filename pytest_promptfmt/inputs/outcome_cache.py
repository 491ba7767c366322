"""The cache of outcomes: those that still hold are shown again, and their tests do not run.

An outcome holds as long as all its inputs are the same: the file with its includes, the code of its functions, docs,
the snapshot, the names in its folder, the answers of the index, the files that a worker opened, settings and versions.
An outcome that depends on anything else is not cached. A stale outcome is the worst bug possible here, so a test with
an unknown input runs again. A row is untrusted: it holds only if its inputs include the file, its folder and its
snapshots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.inputs import facts
from pytest_promptfmt.inputs.cached_files import CachedFile, Shown, read_entry, written_entry
from pytest_promptfmt.inputs.contents import OTHER, Contents
from pytest_promptfmt.inputs.folders import Folders
from pytest_promptfmt.inputs.outcome_rows import ENTRIES, OutcomeRows, PlannedItems
from pytest_promptfmt.inputs.places import Places, digest_of
from pytest_promptfmt.inputs.store import Store, StoredInputs, mapping
from pytest_promptfmt.inputs.task_inputs import Node, RunInputs, SharedInputs, WatchedFile, WatchedFiles, name_of
from pytest_promptfmt.snapshots.paths import Tree, take_written
from pytest_promptfmt.tasks import IndexEntry

SAME: Final = "all its inputs are the same"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a run does with a file, and why: `run` its tests, `show` cached outcomes again, or `skip` it.

    It is skipped if all tests passed: they are only counted. `file` has the cached outcomes, None to run.
    """

    action: Literal["run", "show", "skip"]
    reason: str
    file: CachedFile | None = None

    def __str__(self) -> str:
        """Return the line of `promptfmt why`, without the file."""
        return f"{'runs' if self.file is None else 'shown again'}: {self.reason}"


class OutcomeCache:
    """The outcomes of earlier runs, if the run `shows` them, and those of this one; without a `folder` it is off."""

    def __init__(
        self,
        run: RunInputs,
        folders: Folders,
        folder: Path | None,
        tree: Tree,
        *,
        shows: bool,
        is_valid: Callable[[Shown], bool],
    ) -> None:
        places = Places(run.rootdir)
        self._folders, self._tree = folders, tree
        self.store = Store(folder, places)
        self._shows = shows and self.store.is_on
        self._contents = Contents(places)
        self._inputs = StoredInputs(self.store, self._contents)
        self._rows = OutcomeRows(self.store, places, is_valid)
        self.shared = SharedInputs(run, folders, self._contents, self._inputs)
        self.watched = WatchedFiles(self.shared, folders, self._contents)
        self.decisions: dict[str, Decision] = {}
        self.planned = PlannedItems()
        self._answers: dict[tuple[str, str, int], str] = {}

    @property
    def is_on(self) -> bool:
        """Return whether this run reads and writes the cache."""
        return self.store.is_on

    # -- cached outcomes -----------------------------------------------------------------------------------------------

    def decision(self, path: Path, introduces: Collection[str] | None = None) -> Decision:
        """Return what to do with a task file: its cached outcomes hold if all its inputs are the same.

        `introduces` are the profiles about which the file reports the findings in this run, None if that is unknown.
        """
        known = self.decisions.get(str(path))
        if known is None or (known.file is not None and introduces not in (None, known.file.introduces)):
            known = self.decisions[str(path)] = self._decide(path, introduces)
        return known

    def _decide(self, path: Path, introduces: Collection[str] | None) -> Decision:
        if not self._shows:
            return Decision("run", "nothing is cached in this run")
        context = self._context(path)
        refusal = self._rows.refusal(str(path))
        reasons = [f"it runs each time because of {refusal}"] if refusal else []
        for row in self._rows.states(str(path)):
            try:
                found = self._same(path, row, context, introduces)
            except _DifferentError as difference:
                reasons.append(str(difference))
            except Exception:  # invalid data of any kind
                reasons.append("its cache entry is damaged")
            else:
                return Decision("skip" if found.is_quiet else "show", SAME, found)
        return Decision("run", reasons[0] if reasons else "it has no cached outcomes")

    def knows(self, path: Path) -> bool:
        """Return whether an earlier run tested a file, so that there are outcomes, or a reason for none."""
        return self._rows.knows(str(path))

    def _context(self, path: Path) -> str:
        """Return the digest of the inputs that a file shares with the others of its folder; `OTHER` if unknown."""
        try:
            return self.shared.digest(self._folders.settings_for(path))
        except SettingsError:
            return OTHER

    def _same(self, path: Path, row: Mapping[str, Any], context: str, introduces: Collection[str] | None) -> CachedFile:
        """Return the cached outcomes of a row; raises _DifferentError, or any error for invalid data."""
        if context == OTHER or row["context"] != context:
            raise _DifferentError("the settings of its folder changed")
        for key in row["inputs"]:
            if not self._inputs.is_same(key):
                raise _DifferentError(f"{self._shown(key)} changed")
        if not all(self._answered(question, about) == answer for question, about, answer in row["asked"]):
            raise _DifferentError("the tasks whose names it uses changed")
        if introduces is not None and set(introduces) != set(row["introduces"]):
            raise _DifferentError("the file that first uses one of its profiles changed")
        found = self._rows.file(str(path), row)
        known = {*map(self._inputs.path, row["inputs"])}
        if not known.issuperset(self._contents.without_implied(self._own_paths(path, found.claims))):
            raise _DifferentError("its cache entry is damaged")
        return found

    def _shown(self, key: str) -> str:
        """Return the path of an input, or the name of a fact, for a message."""
        try:
            path = self._inputs.path(key)
        except TypeError:
            return "an input"
        return facts.shown(path) if facts.is_fact(path) else display_path(Path(path))

    def _own_paths(self, path: Path, claims: Iterable[tuple[str, str]]) -> set[str]:
        """Return the paths that are inputs of each outcome of a file."""
        return {str(path), f"{path.parent}/", *(str(self._tree.path(path, *claim)) for claim in claims)}

    def _answered(self, question: str, about: str) -> str:
        """Return the digest of the index's answer to a question, as long as no folder is added to the index.

        Some answers are long, and given to many files.
        """
        index = self._folders.index
        key = question, about, len(index.roots)
        if key not in self._answers:
            self._answers[key] = self._contents.places.digest(index.answer(question, about))
        return self._answers[key]

    def shown(self, item: Node) -> Shown | None:
        """Return the cached result of an item, if it holds and can be shown."""
        decision = self.decisions.get(str(item.path))
        cached = decision.file if decision is not None else None
        if cached is None or not self.planned.may_show(item, cached):
            return None
        shown = cached.items.get(name_of(item))
        return shown if shown is not None and shown["introduces"] == sorted(self._introduced_by(item)) else None

    def _introduced_by(self, item: Node) -> Iterable[str]:
        """Return the keys of the profiles about which an item has the findings."""
        return map(self.shared.profile_key, getattr(item, "introduces", None) or ())

    # -- the index -----------------------------------------------------------------------------------------------------

    def get(self, path: Path) -> tuple[IndexEntry | None] | None:
        """Return the entry of a file in the index as a tuple of one, None if it is unknown."""
        row = mapping(self.store.row(ENTRIES, str(path)))
        try:
            if not row or not all(map(self._contents.is_same, row["inputs"])):
                return None
            return (None if row["entry"] is None else read_entry(row["entry"]),)
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, path: Path, entry: IndexEntry | None, made_of: Iterable[str]) -> None:
        """Store the entry of a file in the index."""
        inputs = self._contents.all(made_of) if self.is_on else None
        if inputs is not None:
            written = None if entry is None else written_entry(entry)
            self.store.put(ENTRIES, str(path), {"inputs": inputs, "entry": written})

    # -- outcomes of this run ------------------------------------------------------------------------------------------

    def plan(self, items: Iterable[Node]) -> None:
        """Note the items of the run after selection."""
        planned = list(items)
        self.planned.select(planned)
        introduced: dict[Path, set[str]] = defaultdict(set)
        for item in planned:
            if str(item.path) in self.decisions:
                introduced[item.path].update(self._introduced_by(item))
        for path, profiles in introduced.items():
            self.decision(path, profiles)
        self.planned.explain(planned, self.shown)

    def write(self) -> None:
        """Store the outcomes of this run for the files whose items all ran."""
        if not self.is_on:
            return
        for path, content in take_written().items():  # by this process, such as a lock
            self._contents.wrote(path, digest_of(content))
        self.watched.share_traces()
        kept: dict[str, Mapping[str, Any]] = {}
        for name, watched in self.watched.files.items():
            if not watched.items and name in self.decisions and self.decisions[name].file is not None:
                continue  # its cached items were shown
            if watched.refused:
                self._rows.refuse(name, watched.refused)
            elif self.planned.is_whole(name, watched) and (row := self._row(name, watched)) is not None:
                self._rows.keep(name, watched, row)
                kept[name] = row
        if self.store.is_changed and self.store.is_large:
            own = (key for row in kept.values() for key in row["inputs"])
            self._inputs.keep_only(self._rows.shrink(kept).union(own))
        self.store.write()

    def _row(self, name: str, watched: WatchedFile) -> dict[str, Any] | None:
        """Return the inputs of a file's outcomes, None if one is unknown, or may have changed during this run."""
        asked, context = sorted(watched.asked), self.shared.digest(watched.settings)
        paths = watched.paths | {path for question in asked for path in self._folders.index.files_in(*question)}
        paths.update(self._own_paths(Path(name), watched.claims))  # absent ones, too
        inputs = self._contents.all(paths)
        if inputs is None or context == OTHER:
            return None
        return {
            "context": context,
            "inputs": [self._inputs.keep(each) for each in inputs],
            "asked": [[*question, self._answered(*question)] for question in asked],
            "introduces": sorted(watched.introduces),
        }


class _DifferentError(Exception):
    """The inputs of a row are not those of now; its text names one."""

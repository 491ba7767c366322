"""The cache of outcomes: those that still hold are shown again, and their tests do not run.

An outcome holds as long as all its inputs are the same: the file with its includes, the code of its functions, docs,
the snapshot, the names in its folder, the answers of the index, the files that a worker opened, settings and versions.
An outcome that depends on anything else is not cached. A stale outcome is the worst bug possible here, so a test with
an unknown input runs again. A row is untrusted: it holds only if its inputs include the file, its folder and its
snapshots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.inputs import facts
from pytest_promptfmt.inputs.cached_files import CachedFile, Shown, read_entry, written_entry
from pytest_promptfmt.inputs.cached_folders import FOLDERS, CachedFolders, FileResult
from pytest_promptfmt.inputs.contents import OTHER, Contents
from pytest_promptfmt.inputs.folders import Folders
from pytest_promptfmt.inputs.outcome_rows import BY_CONTEXT, ENTRIES, OutcomeRows, PlannedItems
from pytest_promptfmt.inputs.places import Places, digest_of
from pytest_promptfmt.inputs.store import Store, StoredInputs, mapping
from pytest_promptfmt.inputs.task_inputs import Node, RunInputs, SharedInputs, WatchedFile, WatchedFiles, name_of
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.paths import Tree, take_written
from pytest_promptfmt.tasks import IndexEntry

VARYING: Final = "the order of a set, on which the file's prompts depend"
SAME: Final = "nothing that the file uses has changed"


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
        return f"{'will be tested' if self.file is None else 'cached'}: {self.reason}"


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
    ) -> None:
        places = Places(run.rootdir)
        self._run, self._folders, self._tree = run, folders, tree
        self.store = Store(folder, places, by_context=(*BY_CONTEXT, FOLDERS), context=lambda: self._context)
        self._contents = Contents(places)
        self._inputs = StoredInputs(self.store, self._contents)
        self._rows = OutcomeRows(self.store, places)
        self.shared = SharedInputs(run, folders, self._contents, self._inputs)
        self.folders = CachedFolders(
            run, self.store, self._inputs, self._contents, self.shared, folders, shows=shows and self.store.is_on
        )
        self.watched = WatchedFiles(self.shared, folders, self._contents)
        self.decisions: dict[str, Decision] = {}
        self.planned = PlannedItems()

    @property
    def is_on(self) -> bool:
        """Return whether this run reads and writes the cache."""
        return self.store.is_on

    @cached_property
    def _context(self) -> str:
        """Return the inputs shared by all tasks of the rootdir; outcomes of several contexts are side by side."""
        return self.shared.digest(self._folders.settings)

    # -- cached outcomes -----------------------------------------------------------------------------------------------

    def decision(self, path: Path, introduces: Set[str] | None = None) -> Decision:
        """Return what to do with a task file: its cached outcomes hold if all its inputs are the same.

        If it is known already, `introduces` are the profiles about which the file has the findings in this run.
        """
        name = str(path)
        known = self.decisions.get(name)
        if known is not None and (known.file is None or introduces in (None, known.file.introduces)):
            return known
        found = None
        reasons = [] if self.folders.shows else ["this run uses no cache"]
        for variant in self._rows.variants(name) if self.folders.shows else ():
            try:
                found = self._same(path, variant, introduces)
                break
            except _DifferentError as difference:
                reasons.append(str(difference))
            except Exception:  # invalid data of any kind
                reasons.append("the cache entry of the file is damaged")
        if found is not None:
            made = Decision("skip" if found.is_quiet else "show", SAME, found)
        else:
            refusal = self._rows.refusal(name)
            none = f"its results are never cached, because of {refusal[0]}" if refusal else "no results are cached"
            made = Decision("run", next(iter(reasons), "") or none)
            self._rows.found.pop(name, None)
        self.decisions[name] = made
        return made

    def knows(self, path: Path) -> bool:
        """Return whether an earlier run tested a file, so that there are outcomes, or a reason for none."""
        return self._rows.knows(str(path))

    def _same(self, path: Path, row: Mapping[str, Any], introduces: Set[str] | None) -> CachedFile:
        """Return the cached outcomes of a row; raises _DifferentError, or any error for invalid data."""
        context = self.shared.digest(self._folders.settings_for(path))
        if context == OTHER or row["context"] != context:
            raise _DifferentError("the settings of the folder changed")
        for key in row["inputs"]:
            if not self._inputs.is_same(key):
                raise _DifferentError(f"{self._shown(key)} changed")
        if not self._has_same_answers(row):
            raise _DifferentError("a task or group that the file refers to changed")
        if introduces is not None and introduces != frozenset(row["introduces"]):
            raise _DifferentError(
                "findings about a profile belong to the first file that uses it, and another file is the first now"
            )
        found = self._rows.file(path, row)
        known = {*map(self._inputs.path, row["inputs"])}
        own = self._own_paths(path, found.claims if found is not None else ())
        if found is None or not known.issuperset(self._contents.without_implied(own, known)):
            raise _DifferentError("the cache entry of the file is damaged")
        if found.is_partial and self._run.needs_snapshots():
            raise _DifferentError("the last run made no snapshots")
        self._rows.found[str(path)] = row
        return found

    def _shown(self, key: str) -> str:
        """Return the path of an input, or the name of a fact, for a message."""
        try:
            path = self._inputs.path(key)
        except TypeError:
            return "an input"
        if facts.is_fact(path):
            return facts.shown(path)
        shown = display_path(Path(path))
        return f"the list of files in {shown}" if path.endswith("/") else shown

    def _own_paths(self, path: Path, claims: Iterable[tuple[str, str]]) -> set[str]:
        """Return the paths that are inputs of each outcome of a file."""
        return {str(path), f"{path.parent}/", *(str(self._tree.path(path, *claim)) for claim in claims)}

    def file_with(self, path: Path, made: str) -> CachedFile | None:
        """Return the cached outcomes of a file with this digest of inputs, None if the stored ones have another."""
        row = next((each for each in self._rows.variants(str(path)) if each.get("made") == made), {})
        found = self._rows.file(path, row)
        return None if found is not None and found.is_partial and self._run.needs_snapshots() else found

    def _has_same_answers(self, row: Mapping[str, Any]) -> bool:
        """Return whether the whole index is the same, or each of its answers to the file."""
        if not row["asked"] or (row["names"] and row["names"] == self._names()):
            return True
        return all(self._answered(question, about) == answer for question, about, answer in row["asked"])

    def _names(self) -> str | None:
        """Return the digest of the whole index, None if unknown."""
        return self.folders.digest_of_names() if len(self._folders.index.roots) == 1 else None

    def _answered(self, question: str, about: str) -> str:
        """Return the digest of the index's answer to a question; some answers are long, and given to many files."""
        return self._contents.places.digest(self._folders.index.answer(question, about))

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
        self._contents.take(f"{path.parent}/")
        row = mapping(self.store.row(ENTRIES, str(path)))
        try:
            if not row or not all(map(self._contents.is_same, row["inputs"])):
                return None
            return (None if row["entry"] is None else read_entry(row["entry"]),)
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, path: Path, entry: IndexEntry | None, paths: Iterable[str]) -> None:
        """Store the entry of a file in the index."""
        inputs = self._contents.all(paths) if self.is_on else None
        if inputs is not None:
            written = None if entry is None else written_entry(entry)
            self.store.put(ENTRIES, str(path), {"inputs": inputs, "entry": written})

    def below(self, folder: Path) -> list[IndexEntry] | None:
        """Return the entries of all files below a folder, None if one may have changed."""
        return self.folders.entries_below(folder)

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

    def settle(self, item: Node, shown: Shown, seen: Mapping[str, Any]) -> None:
        """Take the result of an item, and the trace of its worker; the results of a whole file need little memory."""
        results = self.watched.settle(item, shown, seen)
        if results is not None:
            self.planned.pack(str(item.path), results, self.store.packed)

    def write(self, expected: ExpectedSnapshots, *, is_cut: bool) -> list[Path]:
        """Store the outcomes of this run for the files whose items all ran; `expected` are their snapshots.

        Returns the files whose outcomes depend on the order of a set; if the run `is_cut` or without code, those that
        may are not tried, and not stored.
        """
        if not self.is_on:
            return []
        for path, content in take_written().items():  # by this process, such as a lock
            self._contents.wrote(path, digest_of(content))
        self.watched.share_traces()
        rows: dict[str, dict[str, Any]] = {}
        tries = not is_cut and self._run.can_try_orders()
        for name, watched in self.watched.files.items():
            if watched.results.is_empty and name in self.decisions and self.decisions[name].file is not None:
                continue  # its cached items were shown
            self._rows.found.pop(name, None)
            context = self.shared.digest(watched.settings)
            is_settled = not watched.refused and context != OTHER and (tries or not watched.may_vary)
            row = self._row(name, watched) if is_settled and watched.results.packed else None
            if row is not None:
                rows[name] = {"context": context, **row}
        varied = self._refuse_varying(rows)
        for name, watched in self.watched.files.items():
            if name in rows and not watched.refused:
                self._rows.keep(name, watched, rows[name])
            elif watched.refused:
                self._rows.refuse(name, watched.refused, rows.get(name))
        found = {name: self._result_of(name) for name in {*self.watched.files, *self._rows.found}}
        self.folders.write(found, expected)
        self.store.keep_context()
        if self.store.has_to_shrink:
            self.store.forget_others()
            self._inputs.keep_only(self._rows.remove_missing())
        self.store.write()
        return varied

    def _refuse_varying(self, rows: Mapping[str, Mapping[str, Any]]) -> list[Path]:
        """Refuse the files whose outcomes depend on the order of a set, and return them; each state is tried once."""
        suspects = [name for name in rows if self.watched.files[name].may_vary]
        known = {name for name in suspects if self._rows.refusal(name) == [VARYING, self._rows.digest(rows[name])]}
        found = {*map(Path, known), *self._run.varying([Path(name) for name in suspects if name not in known])}
        for path in found:
            self.watched.files[str(path)].refuse(VARYING)
        return sorted(found)

    def _row(self, name: str, watched: WatchedFile) -> dict[str, Any] | None:
        """Return the inputs of a file's outcomes, None if one of them may have changed during this run."""
        asked = sorted(watched.asked)
        paths = watched.paths | {path for question in asked for path in self._folders.index.files_in(*question)}
        paths.update(self._own_paths(Path(name), watched.claims))  # absent ones, too
        inputs = self._contents.all(paths)
        if inputs is None:
            return None
        return {
            "inputs": [self._inputs.keep(each) for each in inputs],
            "asked": [[*question, self._answered(*question)] for question in asked],
            "names": self._names() if asked else None,
            "introduces": sorted(watched.introduces),
        }

    def _result_of(self, name: str) -> FileResult:
        if name not in self._rows.found:
            return FileResult(is_open=not self.watched.files[name].refused)
        row = self._rows.found[name]
        return FileResult(row["made"], [self._inputs.path(key) for key in row["inputs"]], row)


class _DifferentError(Exception):
    """The inputs of a row are not those of now; its text names one."""

"""The settings, rules and profiles of each folder, and the tasks by name below the folders of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.rule_registry import Scope, known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.settings.profiles import task_profiles
from pytest_promptfmt.tasks import IndexEntry, TaskIndex

KnownTask = tuple[str, Path, int | None, int | None]
"""A task as id, file, line and column."""

INDEXED: Final = ".yaml"
"""The ending of the files whose tasks the index knows."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A task of an unchanged file, which this run does not read."""

    path: Path
    line: int | None
    column: int | None

    def position(self, *_keys: str) -> Position:
        """Return the place of the task."""
        return Position(self.path, self.line, self.column)


class Folders:
    """The settings of a run by folder, read once each. Methods raise SettingsError for an invalid file.

    `settings` are those of the rootdir; `index` holds the names of tasks and groups below the folders of the run.
    `know_profiles` is called with all names of profiles when a folder defines more. `overtaken` are unchanged files
    that were noted before their turn: another file, which comes before them, defines one of their tasks.
    """

    def __init__(self, tree: SettingsTree, know_profiles: Callable[[Iterable[str]], None]) -> None:
        self.settings = tree.root
        self.index = TaskIndex()
        self._tree = tree
        self._know_profiles = know_profiles
        self._rules = known_rules(() if tree.root.no_code else tree.root.rules)
        self._selections: dict[int, tuple[Settings, Selection]] = {}
        self._roots: dict[Path, Path] = {}
        self._first_named: dict[Path, dict[str, Task | Unread]] = defaultdict(dict)
        self._unchanged: dict[Path, set[Path]] = defaultdict(set)
        self._sorted: tuple[int, dict[str, dict[str | Path, list[IndexEntry]]]] = 0, {}
        self.overtaken: set[Path] = set()
        self._select(tree.root)

    def settings_for(self, file: Path) -> Settings:
        """Return the settings for a task file."""
        folder = file.parent
        settings = self._tree.of(folder, self._roots.get(folder, folder))
        self._select(settings)
        return settings

    def settings_of(self, task: Task) -> Settings:
        """Return the settings for a task, as for its file."""
        return self.settings if task.path is None else self.settings_for(task.path)

    def rules_for(self, file: Path) -> Selection:
        """Return the rules that check a task file, and the ignored ones."""
        return self._select(self.settings_for(file))

    def codes_for(self, file: Path) -> dict[str, Scope]:
        """Return the codes of the rules that check a task file, with their scope."""
        codes = {rule.code: rule.scope for rule in self.rules_for(file).chosen}
        if self.settings_for(file).lint:
            return codes
        return {code: scope for code, scope in codes.items() if scope in ("scoring", "model")}

    def _select(self, settings: Settings) -> Selection:
        known = self._selections.get(id(settings))
        if known is None:
            known = self._selections[id(settings)] = settings, Selection.of(settings, self._rules)
            self._know_profiles(name for each, _ in self._selections.values() for name in each.defined)
        return known[1]

    def unmatched_globs(self, matched: Iterable[str]) -> Iterator[str]:
        """Yield the per-file ignores that match no file; `matched` match one."""
        known = set(matched)
        for settings, selection in self._selections.values():
            if settings.lint:
                yield from selection.globs_of_nothing(known)

    def profiles_for(self, task: Task) -> tuple[Profile, ...]:
        """Return the profiles of a task; raises SettingsError also for an unknown one that it names."""
        if task.assembly.brings_profiles:
            return task.assembly.profiles
        settings = self.settings_of(task)
        if settings.has_chosen_profiles or "profiles" not in task.own_metadata:
            return settings.profiles
        return task_profiles(task, settings.profiles, settings.defined)

    def root_of(self, file: Path, is_named: Callable[[Path], bool]) -> Path:
        """Return the folder of the command line above a file, else the file's own folder.

        Names are looked up below it, and two definitions of one name below it are a mistake. `is_named` states whether
        the command line names a folder.
        """
        folder = file.parent
        root = self._roots.get(folder)
        if root is None:
            root = self._roots[folder] = next(filter(is_named, file.parents), folder)
            self.index.add(root)
        return root

    def earlier_definition(self, task: Task, root: Path) -> Task | Unread | None:
        """Return the earlier task of the same name in another file below the same root, if any."""
        if task.assembly.brings_profiles and task.path is not None:
            root = task.path.parent  # folders of models name their files alike
        named = self._first_named[root]
        if task.id not in named:
            entries = self._indexed("name").get(task.id, ()) if self._unchanged[root] else ()
            for each in entries:
                if each.path is not None and each.path.parent in self._unchanged[root] and each.path != task.path:
                    place = each.position or Position(each.path)
                    named.setdefault(task.id, Unread(each.path, place.line, place.column))
        first = named.setdefault(task.id, task)
        if isinstance(first, Unread) and task.path is not None and task.path.parts < first.path.parts:
            self.overtaken.add(first.path)
            first = self._first_named[root][task.id] = task
        return first if first.path != task.path else None

    def is_first(self, task_id: str, file: Path, root: Path) -> bool:
        """Return whether no earlier file defines a task of an unchanged file."""
        known = self._first_named[root].get(task_id)
        return known is None or known.path == file

    def add_known(self, root: Path, tasks: Iterable[KnownTask]) -> None:
        """Add tasks of unchanged files."""
        for task_id, path, line, column in tasks:
            self._first_named[root].setdefault(task_id, Unread(path, line, column))

    def add_folder(self, root: Path, folder: Path, others: Sequence[KnownTask]) -> bool:
        """Add the tasks of an unchanged folder: those of the index, and `others`; return whether all are first."""
        named = self._first_named[root]
        entries = self._indexed("folder").get(folder, ()) if named else ()
        is_first = all(self.is_first(task_id, path, root) for task_id, path, *_ in others)
        if not is_first or any(each.name in named for each in entries):
            return False
        self.add_known(root, others)
        self._unchanged[root].add(folder)
        return True

    def is_indexed(self, name: str, file: Path) -> bool:
        """Return whether the index has a name for this file."""
        return any(each.path == file for each in self._indexed("name").get(name, ()))

    def _indexed(self, key: Literal["name", "folder"]) -> Mapping[str | Path, Sequence[IndexEntry]]:
        """Return the entries of the index by their names, or by the folders of their files."""
        entries = self.index.entries
        if len(entries) != self._sorted[0]:
            found: dict[str, dict[str | Path, list[IndexEntry]]] = {"name": {}, "folder": {}}
            for each in entries:
                if each.path is not None:
                    found["name"].setdefault(each.name, []).append(each)
                    found["folder"].setdefault(each.path.parent, []).append(each)
            self._sorted = len(entries), found
        return self._sorted[1].get(key, {})

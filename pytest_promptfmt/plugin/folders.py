"""What holds for the task files of each folder: settings, rules, profiles, and where names are looked up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.rule_registry import Scope, known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.settings.profiles import task_profiles
from pytest_promptfmt.tasks import TaskIndex

Known = tuple[str, Path, int | None, int | None]
"""A task as id, file, and where in it, line and column."""

INDEXED: Final = ".yaml"
"""The ending of the files whose tasks the index knows."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A task that is known from an earlier run: the file that defines it, and where."""

    path: Path
    line: int | None
    column: int | None

    def position(self, *_keys: str) -> Position:
        """Return where the task is written."""
        return Position(self.path, self.line, self.column)


class Folders:
    """The settings of a run by folder, read once each. Methods raise SettingsError for a file that makes no sense.

    `settings` are those of the rootdir; `index` holds the names of tasks and groups below the folders of the run.
    `know_profiles` is called with all names of profiles whenever a folder defines more. As long as `names_are_indexed`,
    the index knows all tasks that were met by their ids. `overtaken` are files of which nothing has changed, and that
    were met before their turn: another file, which comes before them, defines a task of theirs.
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
        self._passed_over: list[tuple[Path, Callable[[], Iterable[Known]]]] = []
        self.names_are_indexed = True
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
        """Return the rules that look at a task file, and what is ignored there."""
        return self._select(self.settings_for(file))

    def codes_for(self, file: Path) -> dict[str, Scope]:
        """Return the codes of the rules that look at a task file, and what they look at."""
        codes = {check.code: check.scope for check in self.rules_for(file).chosen}
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
        """Yield the per-file ignores that match no file; `matched` are known to match one."""
        known = set(matched)
        for settings, selection in self._selections.values():
            if settings.lint:
                yield from selection.globs_of_nothing(known)

    def profiles_for(self, task: Task) -> tuple[Profile, ...]:
        """Return the profiles that a task is rendered for; raises SettingsError also for one that it names wrongly."""
        if task.assembly.brings_profiles:
            return task.assembly.profiles
        settings = self.settings_of(task)
        if settings.has_chosen_profiles or "profiles" not in task.own_metadata:
            return settings.profiles
        return task_profiles(task, settings.profiles, settings.defined)

    def root_of(self, file: Path, session: pytest.Session) -> Path:
        """Return the folder named on the command line that a file was found below, else the file's own folder.

        Names are looked up below it, and two definitions of one name below it are a mistake.
        """
        folder = file.parent
        root = self._roots.get(folder)
        if root is None:
            named = (above for above in file.parents if session.isinitpath(above))
            root = self._roots[folder] = next(named, folder)
            self.index.add(root)
        return root

    def earlier_definition(self, task: Task, root: Path) -> Task | Unread | None:
        """Return the task of the same name in another file that was met before below the same root, if any."""
        self._meet_passed_over()
        if task.assembly.brings_profiles and task.path is not None:
            root = task.path.parent  # folders of models name their files alike
        self.names_are_indexed &= task.id == task.name and task.path is not None and task.path.suffix == INDEXED
        first = self._first_named[root].setdefault(task.id, task)
        if isinstance(first, Unread) and task.path is not None and task.path.parts < first.path.parts:
            self.overtaken.add(first.path)
            first = self._first_named[root][task.id] = task
        return first if first.path != task.path else None

    def is_first(self, task_id: str, file: Path, root: Path) -> bool:
        """Return whether no other file defines the task, which is not read, for nothing of it has changed."""
        self._meet_passed_over()
        known = self._first_named[root].get(task_id)
        return known is None or known.path == file

    def meet(self, root: Path, tasks: Iterable[Known]) -> None:
        """Take note of tasks that are known from an earlier run."""
        named = self._first_named[root]
        for task_id, path, line, column in tasks:
            self.names_are_indexed &= path.suffix == INDEXED
            if task_id not in named:
                named[task_id] = Unread(path, line, column)

    def pass_over(self, root: Path, tasks: Callable[[], Iterable[Known]]) -> None:
        """Take note of tasks that are not looked at one by one, for where they are the index says what it said before.

        `tasks` is called once it matters which they are.
        """
        self._passed_over.append((root, tasks))

    def _meet_passed_over(self) -> None:
        waiting, self._passed_over = self._passed_over, []
        for root, tasks in waiting:
            self.meet(root, tasks())

"""The settings, rules and profiles of each folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.rule_registry import Scope, known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.settings.profiles import task_profiles
from pytest_promptfmt.tasks import TaskIndex


class Folders:
    """The settings of a run by folder, read once each. Methods raise SettingsError for an invalid file.

    `settings` are those of the rootdir; `index` holds the names of tasks and groups below the folders of the run.
    `know_profiles` is called with all names of profiles when a folder defines more.
    """

    def __init__(self, tree: SettingsTree, know_profiles: Callable[[Iterable[str]], None]) -> None:
        self.settings = tree.root
        self.index = TaskIndex()
        self._tree = tree
        self._know_profiles = know_profiles
        self._rules = known_rules(() if tree.root.no_code else tree.root.rules)
        self._selections: dict[int, tuple[Settings, Selection]] = {}
        self._roots: dict[Path, Path] = {}
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

    def enter(self, folder: Path, is_named: Callable[[Path], bool]) -> None:
        """Let names be looked up below the folder of the command line above a folder, else below the folder itself.

        `is_named` states whether the command line names a folder.
        """
        if folder not in self._roots:
            self._roots[folder] = root = next(filter(is_named, (folder, *folder.parents)), folder)
            self.index.add(root)

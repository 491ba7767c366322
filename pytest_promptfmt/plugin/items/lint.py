"""The pytest items of the checks: one for each task@format and profile, and one for a file without tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_promptfmt.checks.running import Checked, check_view
from pytest_promptfmt.checks.views import FileView
from pytest_promptfmt.core.errors import PromptfmtError, UnavailableError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.plugin.items.base import PLUGIN, ItemFailedError, PromptItem, TaskItem
from pytest_promptfmt.plugin.selection import Selectable

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.session import PromptfmtPlugin


class LintItem(TaskItem):
    """One task@format as one profile sees it, looked at by the checks.

    The item of the first profile looks at the task itself as well, that of a file's first task also at the file.
    """

    marker = "promptfmt_lint"
    kind = "Checks"

    def __init__(self, *, profile: Profile, is_first: bool, file: FileView | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.profile = profile
        self.is_first = is_first
        self.file = file

    def runtest(self) -> None:
        """Check; what stops rendering is an error, except where something is withheld."""
        plugin = self.config.stash[PLUGIN]
        profile_id = plugin.settings_of(self.tested).run_id(self.profile.name)
        item = Outcome(task=self.tested.id, file=str(self.path), profile=profile_id)
        try:
            checked = plugin.pipeline.checked(
                self.tested,
                plugin.checks_for(self.path),
                file=self.file,
                profile=self.profile,
                profile_id=profile_id,
                is_first=self.is_first,
            )
        except PromptfmtError as error:
            self.fail_with(error, item)
        if checked.failure is None:
            item = replace(item, rendered=True, linted=("", profile_id) if self.is_first else (profile_id,))
        self.outcome = outcome = _with_findings(plugin, item, checked)
        if isinstance(checked.failure, UnavailableError) and not self.is_first:
            self.outcome = item.skipped(checked.failure.reason)
            pytest.skip(str(checked.failure))
        if checked.failure is not None and not isinstance(checked.failure, UnavailableError):
            self.fail_with(checked.failure, outcome)
        _raise_errors(plugin, outcome)


class FileLintItem(PromptItem):
    """A file without tasks of its own, such as a plain group, looked at by the checks."""

    marker = "promptfmt_lint"
    kind = "Checks"

    def __init__(self, *, view: FileView, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.view = view
        self.subject = view.file.names[0] if view.file.names else self.path.name
        self.selectable = Selectable(name=self.subject, id=self.subject)

    def runtest(self) -> None:
        """Check."""
        plugin = self.config.stash[PLUGIN]
        checked = check_view(plugin.checks_for(self.path), path=self.path, name=self.subject, file=self.view)
        outcome = Outcome(task=self.subject, file=str(self.path), rendered=True, linted=("",))
        self.outcome = _with_findings(plugin, outcome, checked)
        _raise_errors(plugin, self.outcome)


def _with_findings(plugin: PromptfmtPlugin, item: Outcome, checked: Checked) -> Outcome:
    file = Path(item.file)
    globs = plugin.checks_for(file).per_file_ignores(file)
    item = replace(item, globs=tuple(globs), used_globs=checked.used_globs)
    item = plugin.baseline.judge_findings(item, plugin.wanted(checked, file))
    errors = item.errors
    if not errors:
        return item
    key = "\0".join(sorted({"|".join(error.cluster) for error in errors}))
    return replace(
        item, category="finding", key=key, title=errors[0].message, detail="\n".join(str(error) for error in errors)
    )


def _raise_errors(plugin: PromptfmtPlugin, outcome: Outcome) -> None:
    if outcome.category != "finding":
        return
    first = plugin.tally.first_item(outcome)
    if first is not None:
        codes = ", ".join(dict.fromkeys(error.code for error in outcome.errors))
        raise ItemFailedError(f"{outcome.task}: {codes}, as {first}")
    raise ItemFailedError(outcome.detail)

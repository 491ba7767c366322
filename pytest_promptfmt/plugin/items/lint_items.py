"""The pytest items of the rules: one for each task@format, one for how it scores, and one for a file without tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core.errors import PromptfmtError, UnavailableError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.plugin.items.item import ItemFailedError, PromptItem, Selectable, TaskItem
from pytest_promptfmt.plugin.items.task_node import Kind, TaskNode
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.plugin.unchanged import Unchanged
from pytest_promptfmt.results.failures import repeated_findings
from pytest_promptfmt.rules.linter import LintResult, check_file, check_scoring
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.study import seen_by

_LINTED: Final = pytest.StashKey[set[pytest.Collector | None]]()
"""The tasks whose lint items are in the run."""


class RuleItem(TaskItem):
    """The base of the items of the rules."""

    repeats = "findings"


class LintItem(RuleItem):
    """One task@format, checked by the rules: the task, its prompts in each profile, and its file if it is the first."""

    marker = "promptfmt_lint"
    kind = "Checks"

    def __init__(self, *, profiles: Sequence[Profile], file: FileView | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.profiles = profiles
        self.met = () if self.tested.assembly.brings_profiles else profiles
        self.file = file

    def check(self) -> LintResult:
        """Return the findings of the rules; raises PromptfmtError."""
        run = self.run
        study = self.study
        views = [seen_by(study, profile, study.settings.run_id(profile.name)) for profile in self.profiles]
        rules = run.folders.rules_for(self.path)
        new = None if self.introduces is None else {study.settings.run_id(each.name) for each in self.introduces}
        return run.linter.check(study, rules, views, file=self.file, introduces=new)

    def runtest(self) -> None:
        """Check; an error of rendering fails the item, unless something is unavailable."""
        run = self.run
        item = Outcome(task=self.tested.id, file=str(self.path))
        try:
            checked = self.check()
        except PromptfmtError as error:
            self.fail_with(error, item)
        if checked.failure is None:
            item = replace(item, rendered=True, linted=("", *checked.profiles))
        self.outcome = outcome = with_findings(run, item, checked)
        if checked.failure is not None and not isinstance(checked.failure, UnavailableError):
            self.fail_with(checked.failure, outcome)
        raise_errors(self, outcome)


class ScoringItem(RuleItem):
    """The rules about how one task@format scores."""

    marker = "promptfmt_scoring"
    kind = "Answers"

    def runtest(self) -> None:
        """Score synthetic answers; skip where something is unavailable."""
        run = self.run
        item = Outcome(task=self.tested.id, file=str(self.path))
        with self.failures_of(item):
            checked = check_scoring(
                self.study, run.folders.rules_for(self.path), is_linted=self.parent in self.session.stash[_LINTED]
            )
        self.outcome = with_findings(run, replace(item, rendered=True, scored=True), checked)
        raise_errors(self, self.outcome)


class FileLintItem(PromptItem):
    """A file without tasks that can be tested, such as a plain group, checked by the rules."""

    marker = "promptfmt_lint"
    kind = "Checks"

    def __init__(self, *, view: FileView, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.view = view
        self.selectable = Selectable(name=view.name, id=view.name)

    def runtest(self) -> None:
        """Check."""
        run = self.run
        checked = check_file(self.view, run.folders.rules_for(self.path))
        outcome = Outcome(task=self.view.name, file=str(self.path), rendered=True, linted=("",))
        self.outcome = with_findings(run, outcome, checked)
        raise_errors(self, self.outcome)


def wanted(run: Run, checked: LintResult, file: Path) -> tuple[Reported, ...]:
    """Return the findings of a task file to report: infos only with -v, or where the rule was selected."""
    rules = run.folders.rules_for(file)
    return tuple(
        finding
        for finding in checked.findings
        if finding.severity is not Severity.INFO or run.config.get_verbosity() > 0 or rules.is_asked_for(finding.code)
    )


def with_findings(run: Run, item: Outcome, checked: LintResult) -> Outcome:
    """Return the outcome with the findings to be reported, apart from those that the baseline accepts."""
    item = replace(item, globs=checked.globs, used_globs=checked.used_globs)
    item = run.baseline.judge_findings(item, wanted(run, checked, Path(item.file)))
    errors = item.errors
    if not errors:
        return item
    key = "\0".join(sorted({"|".join(error.cluster) for error in errors}))
    return replace(
        item, category="finding", key=key, title=errors[0].message, detail="\n".join(str(error) for error in errors)
    )


def raise_errors(item: PromptItem, outcome: Outcome) -> None:
    """Fail the item if findings are errors; the text is short if an earlier item had the same."""
    if outcome.category != "finding":
        return
    first = item.run.tally.first_item(outcome, item.nodeid)
    raise ItemFailedError(outcome.detail if first is None else repeated_findings(outcome, first))


class LintKind(Kind):
    """The findings of the rules about a task, and about a file without tasks."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield the item of the task."""
        if node.settings.lint and not node.is_variant:
            yield node.make(LintItem, "lint", profiles=node.profiles, file=node.file)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Report profile-level findings once, on the first item that uses the profile; unchanged files have theirs."""
        shown = {key for item in session.items if isinstance(item, Unchanged) for key in item.introduces}
        known: list[Profile] = []
        session.stash[_LINTED] = linted = set[pytest.Collector | None]()
        for item in session.items:
            if isinstance(item, LintItem):
                linted.add(item.parent)
                item.introduces = new = [profile for profile in item.met if profile not in known]
                known += new
                if shown:
                    item.introduces = [each for each in new if self.run.cache.shared.profile_key(each) not in shown]

    def file_items(self, node: pytest.File, view: FileView, /) -> Iterator[pytest.Item]:
        """Yield the item of the file."""
        if self.run.folders.settings_for(node.path).lint:
            yield FileLintItem.from_parent(node, name="lint", view=view)

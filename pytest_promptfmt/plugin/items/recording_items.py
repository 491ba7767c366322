"""The pytest items about runs that a task's own file recorded: the prompts that were sent, and what was answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.plugin.items.item import ItemFailedError, TaskItem
from pytest_promptfmt.plugin.items.kind import Kind, TaskLike
from pytest_promptfmt.results.failures import scores_lines, some_errors
from pytest_promptfmt.snapshots.paths import SnapshotPath
from pytest_promptfmt.snapshots.snapshot_verdicts import RECORDED, recorded_document


class RecordedPromptsItem(TaskItem):
    """The prompts that a run recorded, compared with ours byte for byte."""

    marker = "promptfmt_recorded"
    kind = "Recording"

    def runtest(self) -> None:
        """Compare; raises ItemFailedError with the first differences and the states that cannot be used."""
        item = Outcome(task=self.tested.id, file=str(self.path), profile="recorded prompts")
        with self.failures_of(item):
            found = self.tested.assembly.recorded_prompts()
        self.outcome = item
        self.add_report_section("call", "promptfmt", found.summary)
        if not found.different and not found.bad:
            return
        title = found.summary if found.different else found.bad[0].message
        shown = [found.summary, *map(str, found.differences), *some_errors(found.bad)]
        self.outcome = replace(item.misread("recorded prompts", title), detail="\n".join(shown))
        raise ItemFailedError(self.outcome.detail)


class RecordedScoresItem(TaskItem):
    """The completions that a run recorded, scored by today's rules and compared with their snapshot."""

    marker = "promptfmt_recorded"
    kind = "Recording"

    def __init__(self, *, place: SnapshotPath, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place

    def runtest(self) -> None:
        """Score and compare; raises ItemFailedError, also for states that cannot be scored."""
        run = self.run
        assembly = self.tested.assembly
        run_id = run.folders.settings_of(self.tested).run_id(RECORDED)
        item = Outcome(task=self.tested.id, file=str(self.path), profile=run_id)
        with self.failures_of(item):
            found = assembly.recorded_scores()
        header = {"task": self.tested.id, "profile": run_id, **assembly.facts}
        document = recorded_document(header, found)
        verdict, self.outcome = self.compared(self.place, document, item)
        text = "\n".join(scores_lines(self.tested.id, found.bad, verdict, command=self.accept_command))
        if found.bad:
            self.outcome = self.outcome.misread("recorded scores", found.bad[0].message)
        if text:
            self.outcome = replace(self.outcome, detail=text)
            raise ItemFailedError(text)


class RecordedKind(Kind):
    """The run that a task's own file recorded, made again."""

    def items(self, node: TaskLike) -> Iterator[pytest.Item]:
        """Yield an item for recorded prompts, and one for recorded answers."""
        assembly = node.task.assembly
        if assembly.has_recorded_prompts:
            yield node.make(RecordedPromptsItem, "recorded[prompts]")
        if assembly.has_recorded_answers:
            yield node.make_with_snapshot(RECORDED, RecordedScoresItem, "recorded[scores]")

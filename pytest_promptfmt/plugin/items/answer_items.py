"""The pytest items about answers: how they are read and scored, recordings of real ones, and a run in a task's file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.answers.battery import try_answers
from pytest_promptfmt.answers.phrasing_verdicts import SLOW, PhrasingRow, Tried
from pytest_promptfmt.answers.recordings import recording_name, recordings_of
from pytest_promptfmt.answers.replaying import transcribed
from pytest_promptfmt.core.errors import ScoringError, display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.plugin.items.item import AnswersItem, ItemFailedError, LoadItem, TaskItem, node_name
from pytest_promptfmt.plugin.items.lint_items import ScoringItem
from pytest_promptfmt.plugin.items.task_node import Kind, TaskNode
from pytest_promptfmt.results.failures import (
    change_of,
    differing_verdicts,
    misread_lines,
    recording_lines,
    some_errors,
)
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.content import (
    EXTRACTION,
    RECORDED,
    RECORDING,
    accepted_failures,
    extraction_document,
    recorded_document,
    recording_document,
)
from pytest_promptfmt.study.scoring import has_expectations
from pytest_promptfmt.tasks import looks_for_answers


class AnswerWarning(pytest.PytestWarning):
    """A note about how answers are read that does not fail the run."""


class ExtractionItem(AnswersItem):
    """The phrasing battery of one task@format: its verdicts by class, and as a matrix compared with its snapshot."""

    marker = "promptfmt_extraction"
    kind = "Answers"

    def runtest(self) -> None:
        """Try every phrasing; skip if something is unavailable."""
        run = self.run
        settings = run.folders.settings_of(self.tested)
        item = Outcome(task=self.tested.id, file=str(self.path), profile=settings.run_id(EXTRACTION))
        accepted = accepted_failures(self.place.path)
        with self.failures_of(item):
            tried = try_answers(self.study)
        header = {"task": self.tested.id, "profile": item.profile, "docs": tried.docs}
        document = extraction_document(header, tried.matrix)
        verdict, self.outcome = self.compared(document, item)
        if run.outputs.needs_views:
            from pytest_promptfmt.results.item_views import comparison_view, matrix_view, packed_view

            view = {"verdicts": matrix_view(tried.matrix), **comparison_view(verdict.comparison)}
            self.outcome = replace(self.outcome, view=packed_view(view))
        failing: Sequence[PhrasingRow] = tried.failing
        if not settings.is_strict_about_answers:
            failing = [row for row in failing if not _is_accepted(row, verdict, accepted)]
            if verdict.written and len(failing) < len(tried.failing):
                self.warn(AnswerWarning(_accepted_now(self.tested.id, tried, failing)))
        self.outcome, failing = run.baseline.judge_rows(self.outcome, failing)
        if failing or tried.problems:
            first = failing[0] if failing else None
            key = first.id if first is not None else "expected failures"
            self.outcome = self.outcome.misread(key, first.problem if first is not None else tried.problems[0])
        elif verdict.passed:
            return
        else:
            self.skip_unadopted(verdict, self.outcome)
        misread = [*misread_lines(self.tested.id, failing, tried.problems)]
        self.fail(misread, "the answers that the filters read have changed", verdict)


def _is_accepted(row: PhrasingRow, verdict: snapshots.Verdict, accepted: Any) -> bool:
    """Return whether the snapshot shows a failure already, or from now on.

    The answer that the task itself requests must be read in any case, and no filter may crash.
    """
    if row.kind in ("contract", "own") or any(cell.startswith("CRASH") for cell in row.verdicts):
        return False
    return verdict.written or list(accepted.get(row.id, ())) == list(row.verdicts)


def _accepted_now(task: str, tried: Tried, failing: Sequence[PhrasingRow]) -> str:
    rows = [row for row in tried.failing if row not in failing]
    slow = sum(SLOW in row.verdicts for row in rows)
    kinds = [f"{len(rows) - slow} misread phrasings"] if len(rows) > slow else []
    kinds += [f"{slow} slow phrasings"] if slow else []
    return f"{task} [extraction]: the snapshot accepts {' and '.join(kinds)}, such as {rows[0].title}"


class RecordingItem(AnswersItem):
    """A recording of real completions, replayed, its verdicts compared with their snapshot."""

    marker = "promptfmt_recording"
    kind = "Recording"

    def __init__(self, *, recording: Path, profile: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recording = recording
        self.profile = profile

    def runtest(self) -> None:
        """Replay; skip if something is unavailable, or no record is for this task."""
        item = Outcome(task=self.tested.id, file=str(self.path), profile=self.profile)
        self.outcome = item
        with self.failures_of(item):
            transcript = transcribed(self.study, self.recording)
        replay = transcript.replay
        if not replay.records and not replay.bad_count:
            self.outcome = item.skipped("the recording has no record for the task")
            pytest.skip(f"{display_path(self.recording)} has no record for {self.tested.id}")
        header = {
            "task": self.tested.id,
            "profile": self.profile,
            "recording": self.recording.name,
            "records": str(replay.records),
        }
        document = recording_document(header, transcript)
        verdict, self.outcome = self.compared(document, item)
        if replay.bad_count:
            first = replay.bad[0]
            bad = f"{replay.bad_count:,} records cannot be used, such as record {first.number}: {first.reason}"
            self.warn(AnswerWarning(f"{display_path(self.recording)}: {bad}"))
        self.skip_unadopted(verdict, self.outcome)
        if verdict.passed:
            if verdict.written and replay.changed:
                self.warn(AnswerWarning(f"{self.tested.id} [{self.profile}]: {differing_verdicts(replay)}"))
            return
        changed = change_of(verdict)
        if changed is not None:
            self.outcome = self.outcome.misread(self.profile, f"{self.profile}: {changed}")
        text = "\n".join(recording_lines(f"{self.tested.id} [{self.profile}]", replay, verdict))
        self.outcome = replace(self.outcome, detail=text)
        raise ItemFailedError(f"{text}\naccept: {self.accept_command}")


class RecordedPromptsItem(TaskItem):
    """The prompts that a run recorded, compared with ours byte for byte."""

    marker = "promptfmt_recorded"
    kind = "Recording"

    def runtest(self) -> None:
        """Compare; raises ItemFailedError with the first differences and the states that cannot be used."""
        item = Outcome(task=self.tested.id, file=str(self.path), profile="recorded prompts")
        with self.failures_of(item):
            compare = self.tested.assembly.recorded_prompts
            assert compare is not None
            found = compare()
        self.outcome = item
        self.add_report_section("call", "promptfmt", found.summary)
        if not found.different and not found.bad:
            return
        title = found.summary if found.different else found.bad[0].message
        shown = [found.summary, *map(str, found.differences), *some_errors(found.bad)]
        self.outcome = replace(item.misread("recorded prompts", title), detail="\n".join(shown))
        raise ItemFailedError(self.outcome.detail)


class RecordedScoresItem(AnswersItem):
    """The completions that a run recorded, scored by today's rules and compared with their snapshot."""

    marker = "promptfmt_recorded"
    kind = "Recording"

    def runtest(self) -> None:
        """Score and compare; raises ItemFailedError, also for states that cannot be scored."""
        run = self.run
        assembly = self.tested.assembly
        run_id = run.folders.settings_of(self.tested).run_id(RECORDED)
        item = Outcome(task=self.tested.id, file=str(self.path), profile=run_id)
        with self.failures_of(item):
            assert assembly.recorded_scores is not None
            found = assembly.recorded_scores()
        header = {"task": self.tested.id, "profile": run_id, **assembly.facts}
        document = recorded_document(header, found)
        verdict, self.outcome = self.compared(document, item)
        if found.bad:
            self.outcome = self.outcome.misread("recorded scores", found.bad[0].message)
        if found.bad or not verdict.passed:
            changed = "the scores of the recorded completions have changed"
            self.fail([*some_errors(found.bad)], changed, verdict)


class ExtractionKind(Kind):
    """Whether the answers of a task that generates are read as they should."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield an item for a task that generates, where answers are tried."""
        task = _asked(node)
        if task is not None and task.generates and _tries_answers(node):
            yield node.make_with_snapshot(EXTRACTION, ExtractionItem, "extraction")


class ScoringKind(Kind):
    """Whether the metrics of a task separate right from wrong answers."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield an item if answers are tried; for multiple choice if that was requested."""
        task, is_asked = _asked(node), node.settings.answers == "all"
        if task is None:
            return
        if task.has_choices and not is_asked:
            is_asked = node.imported is not None and has_expectations(node.imported)
        if (task.generates or (task.has_choices and is_asked)) and _tries_answers(node):
            yield node.make(ScoringItem, "scoring")


class RecordingKind(Kind):
    """Recordings next to a task that generates, replayed."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield an item per recording; its snapshot is claimed even if answers are not tried."""
        task = _asked(node)
        if task is None or not task.generates:
            return
        try:
            recordings = recordings_of(node.task)
        except ScoringError as error:
            yield node.make(LoadItem, "load[recordings]", error=error)
            return
        for path in recordings:
            name = recording_name(node.task, path)
            kind, title = (f"{RECORDING}-{name}", f"{RECORDING}[{node_name(name)}]") if name else (RECORDING, RECORDING)
            profile = node.settings.run_id(kind)
            item = node.make_with_snapshot(kind, RecordingItem, title, recording=path, profile=profile)
            if node.settings.answers != "none":
                yield item


class RecordedKind(Kind):
    """The run that a task's own file recorded, repeated."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield an item for recorded prompts, and one for recorded answers."""
        assembly = node.task.assembly
        if assembly.recorded_prompts is not None:
            yield node.make(RecordedPromptsItem, "recorded[prompts]")
        if assembly.recorded_scores is not None:
            yield node.make_with_snapshot(RECORDED, RecordedScoresItem, "recorded[scores]")


def _asked(node: TaskNode) -> Task | None:
    """Return the task with its output type; None if its reading of answers is not tried."""
    if node.is_variant:
        return None
    return node.task if node.settings.answers == "none" else node.imported


def _tries_answers(node: TaskNode) -> bool:
    """Return whether the run and the task try how the task reads and scores answers."""
    answers, task = node.settings.answers, node.imported
    if answers == "none" or task is None:
        return False
    return answers == "all" or looks_for_answers(task) or has_expectations(task)

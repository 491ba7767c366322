"""The pytest items about prompts: rendered, and compared with their snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.outcome import Outcome, UsedTokenizer
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.plugin.items.item import ItemFailedError, TaskItem
from pytest_promptfmt.plugin.items.kind import Kind, TaskLike
from pytest_promptfmt.results.failures import explanation, outcome_of
from pytest_promptfmt.results.text_changes import (
    TextChange,
    describe_token_change,
    text_change,
)
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.changes import SnapshotComparison
from pytest_promptfmt.snapshots.content import most_informative_profile, shows_task, snapshot_document
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.snapshots.paths import SnapshotPath
from pytest_promptfmt.study import ProfileView, seen_by


class RenderedItem(TaskItem):
    """What items share that look at the prompts of one task@format for one profile."""

    def __init__(self, *, profile: Profile, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.profile = profile

    def runtest(self) -> None:
        """Render and judge; skip where something that rendering needs is unavailable."""
        profile_id = self.run.folders.settings_of(self.tested).run_id(self.profile.name)
        self.outcome = outcome = Outcome(task=self.tested.id, file=str(self.path), profile=profile_id)
        with self.failures_of(outcome):
            seen = seen_by(self.study, self.profile, profile_id)
            document = snapshot_document(seen, with_task=self.shows_task)
        tokenizer = None
        if seen.tokenizer is not None:
            tokenizer = UsedTokenizer(
                name=seen.profile.tokenizer_name,
                loader=seen.tokenizer.loader,
                content=seen.tokenizer.digest,
                origin=seen.tokenizer.origin,
            )
        unseen = " and ".join(self.study.media_keys)
        self.outcome = outcome = replace(outcome, rendered=True, tokenizer=tokenizer, unseen=unseen)
        self.judge(seen, document, outcome)

    @property
    def shows_task(self) -> bool:
        """Return whether the document shows what is about the task itself, too."""
        return False

    def judge(self, seen: ProfileView, document: Document, outcome: Outcome) -> None:
        """Raise what is wrong with the prompts; rendering alone proves that they can be made."""


class VariantItem(RenderedItem):
    """A variant of a format: rendered for each doc, without a snapshot.

    That it differs from its format in what it says and in nothing else was proved when it was laid out.
    """

    marker = "promptfmt_variant"
    kind = "Variant"


class SnapshotItem(RenderedItem):
    """The prompts of one task@format for one profile, compared with their snapshot."""

    repeats = "change"

    def __init__(self, *, place: SnapshotPath, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place

    @property
    def shows_task(self) -> bool:
        """Return whether this is the profile that shows it; two revisions are compared by what is written."""
        folders = self.run.folders
        settings = folders.settings_of(self.tested)
        profiles = folders.profiles_for(self.tested)
        return not settings.beside and shows_task(self.profile, profiles, is_chosen=settings.has_chosen_profiles)

    def judge(self, seen: ProfileView, document: Document, outcome: Outcome) -> None:
        """Compare with the snapshot; raises ItemFailedError."""
        narrowed = self.run.settings.is_narrowed
        verdict = snapshots.check(
            self.config,
            self,
            self.place,
            document,
            expected=self.run.expected,
            narrowed_run=narrowed,
            may_be_missing=self.may_be_missing,
        )
        self.skip_unadopted(verdict, outcome)
        note = None
        if outcome.tokenizer is not None and verdict.state == "changed":
            note = self.run.lock.note(outcome.tokenizer)
        change = self.text_change(verdict, seen)
        outcome = outcome_of(verdict, outcome, change=change, note=note)
        outcome = self.run.outputs.with_edit(outcome, verdict)
        outcome = self.with_view(outcome, verdict, seen)
        if verdict.comparison is not None:
            outcome = replace(outcome, tokens=describe_token_change(verdict.comparison.changes))
        self.outcome = outcome
        if verdict.passed:
            return
        first = self.run.tally.first_item(outcome)
        if first is None:
            text = "\n".join(explanation(verdict, outcome, docs=len(seen.render()), change=change, note=note))
            self.outcome = replace(outcome, detail=text)
            raise ItemFailedError(f"{text}\naccept: {self.accept_command}")
        raise ItemFailedError(self.repeated(outcome, first))

    def text_change(self, verdict: snapshots.Verdict, seen: ProfileView) -> TextChange | None:
        """Return what changed in the text: for all profiles of a task what the one that shows it best says."""
        comparison, study = verdict.comparison, self.study
        if verdict.state != "changed" or comparison is None:
            return None
        profile = most_informative_profile(self.run.folders.profiles_for(self.tested))
        if profile is None or profile is self.profile:
            change = _text_change(comparison, seen)
            study.once("text change", lambda: change)
            return change
        shared = study.once("text change", lambda: self._text_change_in(profile))
        return shared if shared is not None and shared.explains(comparison) else _text_change(comparison, seen)

    def _text_change_in(self, profile: Profile) -> TextChange | None:
        """Return what changed for another profile, which this process has not tested, or not just now."""
        profile_id = self.run.folders.settings_of(self.tested).run_id(profile.name)
        try:
            seen = seen_by(self.study, profile, profile_id)
            document, narrowed = snapshot_document(seen), self.run.settings.is_narrowed
            path = self.run.expected.tree.path(self.path, self.tested.id, profile_id)
            comparison = snapshots.compared(path, document, narrowed_run=narrowed)
        except (PromptfmtError, OSError):
            return None
        return _text_change(comparison, seen)

    def with_view(self, outcome: Outcome, verdict: snapshots.Verdict, seen: ProfileView) -> Outcome:
        """Return the outcome with what the HTML report shows of the prompts, where one is wanted."""
        if not self.run.outputs.needs_views:
            return outcome
        from pytest_promptfmt.results.html import comparison_view, packed_view, prompts_view

        outcome = replace(outcome, is_synthetic=seen.study.material.docs.kind == "synthetic")
        view = prompts_view(seen.render(), seen.profile, seen.tokenizer, seen.pairs)
        view["conversation"] = seen.study.given.assembly.brings_profiles
        comparison = verdict.comparison
        if outcome.category == "changed" and comparison and comparison.old and comparison.new:
            view["comparison"] = comparison_view(comparison.old, comparison.new)
        return replace(outcome, view=packed_view(view))


def _text_change(comparison: SnapshotComparison, seen: ProfileView) -> TextChange | None:
    study = seen.study
    shots = [replace(instance, index=-1) for instance in study.with_shots[:1]] if not study.shots else []
    return text_change(comparison, (*seen.render(), *shots), study.given.locate, docs=study.material.docs)


class SnapshotKind(Kind):
    """The prompts of a task, for each profile of the run."""

    def items(self, node: TaskLike) -> Iterator[pytest.Item]:
        """Yield one item per profile; variants have no snapshots."""
        for profile in () if node.is_variant else node.profiles:
            name = f"snapshot[{node.settings.run_id(profile.name)}]"
            yield node.make_with_snapshot(profile.name, SnapshotItem, name, profile=profile)


class VariantKind(Kind):
    """The prompts of a variant, for each profile of the run."""

    def items(self, node: TaskLike) -> Iterator[pytest.Item]:
        """Yield one item per profile."""
        for profile in node.profiles if node.is_variant else ():
            yield node.make(VariantItem, f"variant[{node.settings.run_id(profile.name)}]", profile=profile)

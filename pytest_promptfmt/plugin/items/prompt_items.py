"""The pytest items about prompts: rendered, compared with their snapshot, put to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, Protocol

import pytest

from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
from pytest_promptfmt.core.outcome import Outcome, UsedTokenizer
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.plugin.items.item import ItemFailedError, TaskItem
from pytest_promptfmt.plugin.items.lint_items import raise_errors, with_findings
from pytest_promptfmt.plugin.items.task_node import Kind, TaskNode
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.results.clusters import MEANINGS
from pytest_promptfmt.results.failures import explanation, outcome_of
from pytest_promptfmt.results.text_changes import (
    TextChange,
    describe_token_change,
    text_change,
)
from pytest_promptfmt.rules.linter import check_model
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.changes import SnapshotComparison, compare
from pytest_promptfmt.snapshots.content import most_informative_profile, shows_task, snapshot_document
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.snapshots.paths import SnapshotPath, read_snapshot
from pytest_promptfmt.snapshots.token_sections import shown_digests
from pytest_promptfmt.study import ProfileView, seen_by


class RenderedItem(TaskItem):
    """The base of items about the prompts of one task@format for one profile."""

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
                name=seen.profile.tokenizer_name or seen.tokenizer.facts.digest,
                loader=seen.tokenizer.loader,
                content=seen.tokenizer.facts.digest,
                origin=seen.tokenizer.origin,
            )
        unseen = " and ".join(self.study.media_keys)
        self.outcome = outcome = replace(outcome, rendered=True, tokenizer=tokenizer, unseen=unseen)
        self.judge(seen, document, outcome)

    @property
    def shows_task(self) -> bool:
        """Return whether the document also shows the sections about the task itself."""
        return False

    def judge(self, seen: ProfileView, document: Document, outcome: Outcome) -> None:
        """Raise an error about the prompts; the base class only proves that they can be rendered."""


class VariantItem(RenderedItem):
    """A variant of a format: rendered for each doc, without a snapshot.

    Its difference from the format was checked when the variant was made.
    """

    marker = "promptfmt_variant"
    kind = "Variant"


class SnapshotItem(RenderedItem):
    """The prompts of one task@format for one profile, compared with their snapshot."""

    repeats = "change"

    def __init__(self, *, place: SnapshotPath, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place

    def runtest(self) -> None:
        """Compare; a snapshot that would be new, and that this run does not show, is not made."""
        run = self.run
        is_new = not (run.needs_snapshots or run.expected.has_snapshots(self.path) or run.expected.obsolete())
        if not is_new or not self.tested.assembly.brings_profiles or self.profile.tokenizer is not None:
            super().runtest()
            return
        profile_id = run.folders.settings_of(self.tested).run_id(self.profile.name)
        item = Outcome(task=self.tested.id, file=str(self.path), profile=profile_id)
        self.outcome = replace(item, category="new", title=MEANINGS["new"])
        raise ItemFailedError(MEANINGS["new"])

    @property
    def shows_task(self) -> bool:
        """Return whether this is the profile that shows it; two revisions are compared by their sources."""
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
            with self.failures_of(outcome):
                self.study.require_requests()
                if verdict.is_partial and document.unknown is not None:
                    raise document.unknown
            return
        first = self.run.tally.first_item(outcome, self.nodeid)
        if first is None:
            text = "\n".join(explanation(verdict, outcome, docs=len(seen.render()), change=change, note=note))
            self.outcome = replace(outcome, detail=text)
            raise ItemFailedError(f"{text}\naccept: {self.accept_command}")
        raise ItemFailedError(self.repeated(outcome, first))

    def text_change(self, verdict: snapshots.Verdict, seen: ProfileView) -> TextChange | None:
        """Return the change of the text: for all profiles of a task that of the most informative one."""
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
        """Return the change for another profile, which this process has not tested, or not last."""
        profile_id = self.run.folders.settings_of(self.tested).run_id(profile.name)
        try:
            seen = seen_by(self.study, profile, profile_id)
            document, narrowed = snapshot_document(seen), self.run.settings.is_narrowed
            path = self.run.expected.tree.path(self.path, self.tested.id, profile_id)
            comparison = compare(read_snapshot(str(path)), document, path, narrowed_run=narrowed)
        except (PromptfmtError, OSError):
            return None
        return _text_change(comparison, seen)

    def with_view(self, outcome: Outcome, verdict: snapshots.Verdict, seen: ProfileView) -> Outcome:
        """Return the outcome with the view of the prompts, if this run writes an HTML report."""
        if not self.run.outputs.needs_views:
            return outcome
        from pytest_promptfmt.results.item_views import comparison_view, packed_view, prompts_view

        outcome = replace(outcome, is_synthetic=seen.study.material.docs.kind == "synthetic")
        view = prompts_view(seen.render(), seen.profile, seen.tokenizer, seen.pairs)
        if (tried := seen.study.given.assembly.verdicts(seen.study)) is not None:
            view["verdicts"] = tried
        view |= comparison_view(verdict.comparison) if outcome.category == "changed" else {}
        return replace(outcome, view=packed_view(view))


def _text_change(comparison: SnapshotComparison, seen: ProfileView) -> TextChange | None:
    study = seen.study
    shots = [replace(instance, index=-1) for instance in study.with_shots[:1]] if not study.shots else []
    return text_change(comparison, (*seen.render(), *shots), study.given.locate, docs=study.material.docs)


class SnapshotKind(Kind):
    """The prompts of a task, for each profile of the run."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield one item per profile; variants have no snapshots."""
        for profile in () if node.is_variant else node.profiles:
            name = f"snapshot[{node.settings.run_id(profile.name)}]"
            yield node.make_with_snapshot(profile.name, SnapshotItem, name, profile=profile)


class VariantKind(Kind):
    """The prompts of a variant, for each profile of the run."""

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield one item per profile."""
        for profile in node.profiles if node.is_variant else ():
            yield node.make(VariantItem, f"variant[{node.settings.run_id(profile.name)}]", profile=profile)


# -- models ------------------------------------------------------------------------------------------------------------

_MODELS: Final = "pytest_promptfmt.models.model_run"
"""The slice that queries models, imported if a run names one: everything else works without it."""


class AnsweredTask(Protocol):
    """The input of the rules about models, with the row of the closing table."""

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """Return the row, by column."""


class OpenModel(Protocol):
    """The model of a run."""

    def judged(
        self,
        task: Task,
        instances: Sequence[Instance],
        *,
        profile: Profile,
        profile_id: str,
        shown: frozenset[str] | None,
        progress: Callable[[int, str], AbstractContextManager[Callable[[int], object]]],
    ) -> AnsweredTask:
        """Return the model's answers to the docs of a task; raises ModelError."""

    def close(self) -> None:
        """Close the recording. Raises ModelError."""


def open_model_run(config: pytest.Config) -> OpenModel | None:
    """Return the model of this run, None for none; raises SettingsError for contradictory values."""
    written = SettingLookup(config)
    model, record = written.value("model"), written.value("record")
    if model is None:
        if record is not None:
            raise SettingsError("--promptfmt-record needs a model to record", hint="add --promptfmt-model hf:PATH")
        return None
    if record is not None and model.startswith("replay:"):
        raise SettingsError(
            "--promptfmt-record needs a running model, not a recording",
            hint="copy the recording, or choose another --promptfmt-model",
        )
    try:
        models = import_module(_MODELS)
    except ModuleNotFoundError as error:
        package = _MODELS.rpartition(".")[0]
        raise SettingsError(f"--promptfmt-model needs {package}, which is not installed") from error
    names = ("device", "dtype", "batch_size", "timeout", "concurrency")
    given = {name: value for name in names if (value := written.value(f"model_{name}")) is not None}
    download = written.option("download") or False
    run: OpenModel = models.ModelRun(model, record=record, download=download, **given)
    return run


class ModelItem(RenderedItem):
    """One task@format for one profile, put to a model: whether the chain from prompt to score holds."""

    marker = "promptfmt_model"
    kind = "Model"
    runs_in_worker = False  # the model is loaded once

    def __init__(self, *, model: OpenModel, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model

    def judge(self, seen: ProfileView, document: Document, outcome: Outcome) -> None:
        """Query the model and check its answers; skip if the model cannot do this."""
        with self.failures_of(outcome):
            judged = self.model.judged(
                self.study.bound_for_scoring,
                seen.render(),
                profile=self.profile,
                profile_id=outcome.profile,
                shown=shown_digests(document) if seen.tokenizer is not None else None,
                progress=lambda count, what: self.on_terminal(count, f"asking about {what}"),
            )
            selection = self.run.folders.rules_for(self.path)
            checked = check_model(self.study, selection, judged, profile=outcome.profile)
        outcome = replace(outcome, figures=judged.figures, asked=(outcome.profile,))
        self.outcome = with_findings(self.run, outcome, checked)
        raise_errors(self, self.outcome)


class ModelKind(Kind):
    """The tasks of a run put to its model, where it has one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.model = open_model_run(self.run.config)

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield one item per profile that a model can have, so without the tokenizer of an archetype."""
        if self.model is None or node.is_variant or not node.task.has_question:
            return
        for profile in node.profiles:
            if not profile.is_archetype or profile.tokenizer is None:
                name = f"model[{node.settings.run_id(profile.name)}]"
                yield node.make(ModelItem, name, profile=profile, model=self.model)

    def pytest_sessionfinish(self) -> None:
        """Close the recording."""
        if self.model is not None:
            self.model.close()

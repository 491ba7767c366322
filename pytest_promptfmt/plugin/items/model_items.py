"""The pytest item that puts prompts to a model, and which model a run asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, Protocol

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.plugin.items.kind import Kind, TaskLike
from pytest_promptfmt.plugin.items.lint_items import raise_errors, with_findings
from pytest_promptfmt.plugin.items.prompt_items import RenderedItem
from pytest_promptfmt.plugin.progress import answering
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.rules.linter import check_model
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.snapshots.token_sections import shown_digests
from pytest_promptfmt.study import ProfileView

_MODELS: Final = "pytest_promptfmt.models.model_run"
"""What asks models: imported where a run names one, for everything else works without it."""


class AnsweredTask(Protocol):
    """What the rules about models look at, with the row of the closing table."""

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
        """Return what the model's answers show about the docs of a task; raises ModelError."""

    def close(self, *, joins: bool) -> None:
        """Close the recording; `joins` where this process outlives all others that record. Raises ModelError."""


def open_model_run(config: pytest.Config) -> OpenModel | None:
    """Return the model that this run asks, None for none; raises SettingsError for values that make no sense."""
    written = SettingLookup(config)
    model, record = written.value("model"), written.value("record")
    if model is None:
        if record is not None:
            raise SettingsError("--promptfmt-record needs a model to record", hint="add --promptfmt-model hf:PATH")
        return None
    if record is not None and model.startswith("replay:"):
        raise SettingsError("a recording cannot be recorded again", hint="copy the file")
    try:
        models = import_module(_MODELS)
    except ModuleNotFoundError as error:
        package = _MODELS.rpartition(".")[0]
        raise SettingsError(f"--promptfmt-model needs {package}, which this installation lacks") from error
    names = ("device", "dtype", "batch_size", "timeout", "concurrency")
    given = {name: value for name in names if (value := written.value(f"model_{name}")) is not None}
    download = written.option("download") or False
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    run: OpenModel = models.open_run(model, record=record, worker=worker, download=download, **given)
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
        """Ask, and look at the answers; skip where the model cannot be asked this."""
        with self.failures_of(outcome):
            judged = self.model.judged(
                self.study.bound_for_scoring,
                seen.render(),
                profile=self.profile,
                profile_id=outcome.profile,
                shown=shown_digests(document) if seen.tokenizer is not None else None,
                progress=lambda count, what: self.on_terminal(answering(count, f"asking about {what}")),
            )
            selection = self.run.folders.rules_for(self.path)
            checked = check_model(self.study, selection, judged, profile=outcome.profile)
        outcome = replace(outcome, figures=judged.figures, asked=(outcome.profile,))
        self.outcome = with_findings(self.run, outcome, checked)
        raise_errors(self.run, self.outcome)


class ModelKind(Kind):
    """The tasks of a run put to its model, where it has one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.model = open_model_run(self.run.config)

    def items(self, node: TaskLike) -> Iterator[pytest.Item]:
        """Yield one item per profile that a model can have: none has the tokenizer of an archetype."""
        if self.model is None or node.is_variant or not node.task.has_question:
            return
        for profile in node.profiles:
            if not profile.is_archetype or profile.tokenizer is None:
                name = f"model[{node.settings.run_id(profile.name)}]"
                yield node.make(ModelItem, name, profile=profile, model=self.model)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the recording; an xdist worker leaves joining those of all to the controller."""
        if self.model is not None:
            self.model.close(joins=not hasattr(session.config, "workeroutput"))

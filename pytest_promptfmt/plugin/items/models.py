"""The pytest item that puts prompts to a model, and which model a run asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.models.base import ModelOptions
from pytest_promptfmt.models.running import ModelRun, ModelSettings
from pytest_promptfmt.plugin.items.base import ItemFailedError
from pytest_promptfmt.plugin.items.prompts import RenderedItem
from pytest_promptfmt.plugin.kinds import Kind
from pytest_promptfmt.plugin.progress import answering
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.settings.written import Written
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.snapshots.token_sections import shown_digests
from pytest_promptfmt.study import ProfileView

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collection import TaskNode


def read_model_settings(config: pytest.Config) -> ModelSettings | None:
    """Return which model this run asks, None for none; raises SettingsError for values that make no sense."""
    written = Written(config)
    model, record = written.value("model"), written.value("record")
    if model is None:
        if record is not None:
            raise SettingsError("--promptfmt-record needs a model to record", hint="add --promptfmt-model hf:PATH")
        return None
    if record is not None and model.startswith("replay:"):
        raise SettingsError("a recording cannot be recorded again", hint="copy the file")
    names = ("device", "dtype", "batch_size", "timeout", "concurrency")
    given = {name: written.value(f"model_{name}") for name in names}
    return ModelSettings(
        model=model,
        options=ModelOptions(
            download=written.option("download") or False,
            **{name: value for name, value in given.items() if value is not None},
        ),
        record=record,
        worker=getattr(config, "workerinput", {}).get("workerid", ""),
    )


class ModelItem(RenderedItem):
    """One task@format for one profile, put to a model: whether the chain from prompt to score holds."""

    marker = "promptfmt_model"
    kind = "Model"

    def __init__(self, *, model: ModelRun, **kwargs: Any) -> None:
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
        self.outcome = outcome = replace(outcome, figures=judged.figures)
        if not judged.problems:
            return
        text = judged.problems_text
        first = judged.problems[0]
        self.outcome = replace(outcome.misread(first.title, f"{first.title}: {first.details}"), detail=text)
        raise ItemFailedError(text)


class ModelKind(Kind):
    """The tasks of a run put to its model, where it has one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings = read_model_settings(self.run.config)
        self.model = ModelRun(settings) if settings is not None else None

    def items(self, node: TaskNode) -> Iterator[pytest.Item]:
        """Yield one item per profile that a model can have: none has the tokenizer of an archetype."""
        if self.model is None or node.is_variant or node.task.output_type == "loglikelihood_rolling":
            return
        for profile in node.profiles:
            if not profile.is_archetype or profile.tokenizer is None:
                name = f"model[{node.settings.run_id(profile.name)}]"
                yield node.make(ModelItem, name, profile=profile, model=self.model)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the recording; an xdist worker leaves joining those of all to the controller."""
        if self.model is not None:
            self.model.close(joins=not hasattr(session.config, "workeroutput"))

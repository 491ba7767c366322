"""The pytest item that puts prompts to a model, and which model a run asks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.models.base import ModelOptions
from pytest_promptfmt.models.running import ModelSettings
from pytest_promptfmt.plugin.items.base import ItemFailedError
from pytest_promptfmt.plugin.items.prompts import RenderedItem
from pytest_promptfmt.plugin.progress import answering
from pytest_promptfmt.settings.written import Written
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.snapshots.token_sections import shown_digests
from pytest_promptfmt.study import ProfileView

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.session import PromptfmtPlugin


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

    def judge(self, plugin: PromptfmtPlugin, seen: ProfileView, document: Document, outcome: Outcome) -> None:
        """Ask, and look at the answers; skip where the model cannot be asked this."""
        assert plugin.model is not None
        with self.failures_of(outcome):
            judged = plugin.model.judged(
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

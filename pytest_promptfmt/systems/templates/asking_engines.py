"""A server asked to render everything that runs will compare with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems.templates.engines import server_at
from pytest_promptfmt.systems.templates.prompt_trials import trial_of_view
from pytest_promptfmt.systems.templates.recorded_engine import ServerRecorder
from pytest_promptfmt.systems.templates.trial import TemplateTrial


def recorded(views: Iterable[ProfileView], engine: str, file: Path) -> str:
    """Write what a server renders into a recording, and return what was done; raises SettingsError."""
    server = server_at(engine)
    if server is None:
        raise SettingsError(f"{engine!r} is not a server", hint="write --engine llama.cpp:URL or --engine vllm:URL")
    recorder = ServerRecorder(server)
    done: set[int] = set()
    for view in views:
        trial = trial_of_view(view)
        if trial is not None and id(trial) not in done:  # one for all conversations of a template
            done.add(id(trial))
            _ask(recorder, trial)
    if not recorder.lines:
        raise SettingsError("no chat template renders a prompt here", hint="name a template, or --profile NAME")
    changed = recorder.write(file)
    return f"{file.name}: {len(recorder.lines)} prompts of {recorder.name}, {changed} of them new or changed"


def _ask(recorder: ServerRecorder, trial: TemplateTrial) -> None:
    for conversation in trial.conversations.values():
        for number, state in enumerate(conversation.states, start=1):
            recorder.place = f"{trial.profile.name} {conversation.name} {number}"
            trial.rendered_by(recorder, conversation, state)

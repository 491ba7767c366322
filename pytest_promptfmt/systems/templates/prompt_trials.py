"""What a profile's chat template is given for the docs of a task, as a trial of conversations."""

from __future__ import annotations

from dataclasses import replace

from pytest_promptfmt.core.prompt import Prompt
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems.templates.conversations import Conversation
from pytest_promptfmt.systems.templates.evidence import trial_of
from pytest_promptfmt.systems.templates.trial import TemplateTrial


def trial_of_view(view: ProfileView) -> TemplateTrial | None:
    """Return the conversations of a template under test, or of the docs of a task; None without a chat template."""
    own = trial_of(view.study)
    if own is not None or view.profile.chat_template is None:
        return own
    trial = TemplateTrial(view.profile, {}, may_run_code=not view.study.settings.no_code)
    if trial.syntax_error is None:
        each = [
            _conversation(trial, f"{view.study.given.id} doc {instance.index + 1}, prompt {number}", prompt)
            for instance in view.instances
            for number, prompt in enumerate(instance.prompts, start=1)
        ]
        trial.conversations = {conversation.name: conversation for conversation in each}
    return trial


def _conversation(trial: TemplateTrial, name: str, prompt: Prompt) -> Conversation:
    """Return the messages of a prompt; without the system message where the template refused that."""
    messages = [{"role": each.role, "content": each.text} for each in prompt.messages]
    continues = messages[-1]["role"] == "assistant"
    whole = Conversation(name=name, about=name, messages=messages, continue_final_message=continues)
    if messages[0]["role"] != "system" or trial.render(whole, whole.states[-1]).text is not None:
        return whole
    return replace(whole, name=f"{name} without system message", messages=messages[1:])

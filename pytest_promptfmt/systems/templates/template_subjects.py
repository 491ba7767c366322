"""The subject of rules about templates: the trial of a template under test, or of the template of a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_promptfmt.core.finding import Family, Severity
from pytest_promptfmt.core.prompt import Prompt
from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions
from pytest_promptfmt.rules.chat_templates import TrialRule, on_trial, trial_of
from pytest_promptfmt.rules.rule_registry import RuleFunction, rule
from pytest_promptfmt.study import ProfileView


def template_rule(code: str, name: str, *, severity: Severity) -> Callable[[TrialRule], RuleFunction]:
    """Register a rule about the chat templates under test: it is given the trial of each that compiles."""
    return lambda function: rule(code, name, severity=severity, family=Family.CHAT)(on_trial()(function))


def trial_of_view(view: ProfileView) -> TemplateTrial | None:
    """Return the conversations of a template under test, or of the docs of a task; None without a chat template."""
    own = trial_of(view.study)
    if own is not None or view.profile.chat_template is None:
        return own
    trial = TemplateTrial(view.profile, {}, options=TrialOptions(may_run_code=not view.study.settings.no_code))
    if trial.syntax_error is None:
        each = [
            _conversation(trial, f"{view.study.given.id} doc {instance.index + 1}, prompt {number}", prompt)
            for instance in view.instances
            for number, prompt in enumerate(instance.prompts, start=1)
        ]
        trial.given = {conversation.name: conversation for conversation in each}
    return trial


def _conversation(trial: TemplateTrial, name: str, prompt: Prompt) -> Conversation:
    """Return the messages of a prompt; without the system message where the template refused that."""
    messages = [{"role": each.role, "content": each.text} for each in prompt.messages]
    continues = messages[-1]["role"] == "assistant"
    whole = Conversation(name=name, about=name, messages=messages, continue_final_message=continues)
    if messages[0]["role"] != "system" or trial.render(whole, whole.states[-1]).text is not None:
        return whole
    return replace(whole, name=f"{name} without system message", messages=messages[1:])

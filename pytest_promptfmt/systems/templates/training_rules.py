"""The rule about templates for training: they write what the model is asked with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation
from pytest_promptfmt.systems.templates.evidence import attributed, excerpt, finished, first_difference, trial_of, whole
from pytest_promptfmt.systems.templates.trial import TemplateTrial

TRAINING: Final = "_training.jinja"
"""How the name of a training variant ends that is beside its template."""


@rule("PF454", "training-template-differs", severity=Severity.WARNING, family=Family.CHAT)
def training_template_differs(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report prompts that a training variant of the template writes differently.

    It is `NAME_training.jinja` beside `NAME.jinja`, or what the setting `training_of` names.

    Why: A variant for training adds `{% generation %}`; every other difference is a prompt that the model is trained on
    and never asked with. Where reasoning is kept for training, it may be meant (an info).

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}{{- message.role + ': ' + message.content + '\n' }}{% endfor %}
        # file: chat_template_training.jinja
        {%- for message in messages %}{{- message.role + ': ' + message.content + '\n\n' }}{% endfor %}

    Silent example:
        # file: chat_template.jinja
        {%- for message in messages %}{{- message.role + ': ' + message.content + '\n' }}{% endfor %}
        # file: chat_template_training.jinja
        {%- for message in messages %}
            {{- message.role + ': ' }}{% generation %}{{- message.content }}{% endgeneration %}{{- '\n' }}
        {%- endfor %}

    Fix: copy the template and add `{% generation %}`, nothing else.

    Real: TRL's templates (GLM-4 MoE, Qwen3) beside the models' own.
    """
    trial = trial_of(study)
    file = trial.profile.template_file if trial is not None else None
    if trial is None or file is None or trial.syntax_error is not None:
        return
    variant = file.with_name(f"{file.stem}{TRAINING}")
    if variant.is_file() and (training := _beside(trial, variant)) is not None:
        yield from _trained_otherwise(trial, training)
    asked = trial.trains_for
    if asked is not None and file != asked.with_name(f"{asked.stem}{TRAINING}"):
        inference = _beside(trial, asked)
        if inference is None or inference.syntax_error is not None:
            yield Finding(message="the template of training_of cannot be read", saw=asked.name, position=trial.place())
        else:
            yield from _trained_otherwise(inference, trial)


def _beside(trial: TemplateTrial, file: Path) -> TemplateTrial | None:
    """Return another template tried as this one is; None where none can be read, which it says as a file under test."""
    from pytest_promptfmt.systems.templates.template_files import templates_of  # collecting needs no reader

    try:
        found = templates_of(file)
    except SourceError:
        return None
    if not found:
        return None
    return TemplateTrial(replace(trial.profile, chat_template=found[0].source, template_file=file), trial.conversations)


def _trained_otherwise(inference: TemplateTrial, training: TemplateTrial) -> Iterator[Finding]:
    def differing(conversation: Conversation) -> list[tuple[str, str]]:
        """Return the whole conversation without and with generation prompt, where the two templates differ."""
        texts = [[render(each, conversation) for render in (finished, whole)] for each in (inference, training)]
        return [
            (ours, theirs or "") for ours, theirs in zip(*texts, strict=True) if ours is not None and ours != theirs
        ]

    def faults(conversation: Conversation) -> frozenset[str]:
        return frozenset({"text"} if differing(conversation) else ())

    for conversation, _ in attributed(inference, faults):
        ours, theirs = differing(conversation)[0]
        at = first_difference(ours, theirs)
        yield Finding(
            message=f"the training template writes another prompt: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(theirs, at)!r}, for answers {excerpt(ours, at)!r}",
            conversation=conversation.name,
            position=training.place(),
            severity=Severity.INFO if conversation.has_reasoning else None,
        )

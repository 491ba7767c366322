"""Rules about text that a template writes without being asked, and variables that it loses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.profiles.template_probes import MARKER
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.evidence import (
    excerpt,
    trial_of,
)
from pytest_promptfmt.systems.templates.loop_scope import lost_assignments
from pytest_promptfmt.systems.templates.trial import TemplateTrial
from pytest_promptfmt.systems.templates.turn_layout import ANSWER

_PROSE: Final = re.compile(r"\btools?\b|\bfunction calls?\b", re.I)


@rule("PF443", "default-beside-system", severity=Severity.INFO, family=Family.CHAT)
def default_beside_system(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report a text of the template that stays beside a given system text, or takes the place of an empty one.

    Why: It may be meant as a preamble. Where it is a default, the model gets two system texts, or one where the client
    sends an empty text to have none.

    Example:
        # file: chat_template.jinja
        You are a helpful assistant of our company.
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: write the default only where no system message is given.

    Real: Alpaca and Vicuna templates of text-generation-webui.
    """
    trial = trial_of(study)
    if trial is None:
        return
    asked, given = trial.text("question"), trial.text("system-alone-with-question")
    if asked is None or given is None or "Speak as a smith" not in given:
        return
    opening = asked.partition("Which metal rusts?")[0]
    pieces = re.split(rf"\n|{MARKER.pattern}", opening)
    kept = [piece.strip() for piece in pieces if len(piece.split()) > 4 and piece.strip() in given]
    if kept:
        yield Finding(
            message="a text of the template stays beside the given system text",
            saw=excerpt(kept[0]),
            position=trial.place_of(kept[0][:30]),
        )
    empty = trial.text("system-empty") or ""
    defaults = [piece.strip() for piece in pieces if len(piece.split()) > 4 and piece.strip() not in given]
    if defaults and defaults[0] in empty:
        yield Finding(
            message="an empty system message does not switch off the default text",
            saw=excerpt(defaults[0]),
            conversation="system-empty",
            position=trial.place_of(defaults[0][:30]),
        )


@rule("PF445", "set-inside-loop", severity=Severity.WARNING, family=Family.CHAT)
def set_inside_loop(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report a variable that is set inside a loop and read after it, if that changes a prompt.

    Why: Jinja gives a variable back its old value after a loop, so that a flag or text collected there is lost.

    Example:
        # file: chat_template.jinja
        {%- set found = false %}
        {%- for message in messages %}{% if message.role == 'system' %}{% set found = true %}{% endif %}{% endfor %}
        {%- if not found %}{{- 'You are a helpful assistant of our company.\n' }}{%- endif %}
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: keep it in a `namespace`, or use a filter such as `selectattr`.

    Real: text-generation-webui's Alpaca and Vicuna (a default beside the system text), MiniCPM5 (tool calls).
    """
    trial = trial_of(study)
    if trial is None or trial.syntax_error is not None:
        return
    for name, line in lost_assignments(trial):
        yield Finding(
            message="a variable set inside a loop is read after it, where it has its old value",
            saw=f"{name}: {trial.source.splitlines()[line - 1].strip()}",
            conversation=name,
            position=trial.place(line),
        )


@rule("PF447", "stray-text", severity=Severity.WARNING, family=Family.CHAT)
def stray_text(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report accidental text: quotes at both ends, whitespace at the beginning, words about missing tools.

    A space between an answer and its end token is an info.

    Why: What the template's file holds around its tags is printed.

    Example:
        # file: chat_template.jinja
        "{%- for message in messages %}
            {{- message.role + ': ' + message.content + '\n' }}
        {%- endfor %}"

    Silent example:
        # include: sound_template.txt

    Fix: remove the text, or use `{%-` and `-%}`.

    Real: axolotl's Falcon-H1 (quotes of a configuration file), vLLM's Baichuan (line breaks).
    """
    trial = trial_of(study)
    text = trial.text("answer") if trial is not None else None
    if trial is None or text is None:
        return
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        yield Finding(
            message="quotes are at both ends of the prompt",
            saw=f"{text[:20]} … {text[-20:]}",
            position=trial.place(1),
        )
    if text[:1].isspace():
        what = "a line break" if text[0] == "\n" else "a space"
        yield Finding(message=f"the prompt begins with {what}", saw=excerpt(text), position=trial.place(1))
    ended = text.partition(ANSWER)[2]
    if ended.startswith(" ") and trial.marker.match(ended.lstrip(" ")):
        yield Finding(
            message="a space is between an answer and its end token",
            saw=excerpt(text, len(text) - len(ended)),
            position=trial.place_of("eos_token", ended.strip()),
            severity=Severity.INFO,
        )
    asked = trial.text("question") or ""
    prose = [line for line in asked.partition("Which metal")[0].splitlines() if len(line.split()) > 4]
    found = next((line for line in prose if _PROSE.search(line)), None)
    if found is not None and trial.mentions("tools"):
        yield Finding(
            message="the prompt speaks of tools where none are given",
            saw=excerpt(found),
            position=trial.place_of(found[:30]),
            severity=Severity.INFO,
        )

"""Rules about engines other than Jinja that render the same template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.engines import MEASURED, RUNS_CODE, compiled_by, unknown_constructs
from pytest_promptfmt.systems.templates.evidence import excerpt, first_difference, trial_of
from pytest_promptfmt.systems.templates.trial import Rendering, Trial

_CAUSES: Final[Mapping[str, Callable[[str, str, int], bool]]] = {
    "tojson escapes characters of HTML": lambda _ours, theirs, at: theirs[at : at + 4] == "\\u00",
    "Jinja escapes characters of HTML, it does not": lambda ours, _theirs, at: ours[at : at + 2] == "&#",
    "line ends of the file stay CRLF": lambda ours, theirs, _at: ours == theirs.replace("\r\n", "\n"),
    "backslashes of literals are kept": lambda ours, theirs, _at: ours == theirs.replace("\\'", "'"),
    "None, true and false are printed in another way": lambda ours, theirs, _at: _plain(ours) == _plain(theirs),
    "mappings, lists and null are printed in another way": lambda ours, theirs, _at: _loose(ours) == _loose(theirs),
    "keys in another order, or other whitespace": lambda ours, theirs, _at: _sorted(ours) == _sorted(theirs),
}
"""Why an engine writes another text: by Jinja's text, its own, and the place of the first difference."""


def _plain(text: str) -> str:
    return text.replace("None", "null").replace("none", "null").replace("True", "true").replace("False", "false")


def _loose(text: str) -> str:
    return re.sub(r"null|[\s\"']", "", _plain(text))


def _sorted(text: str) -> list[str]:
    return sorted(text.replace(" ", ""))


@check("PF449", "engines-differ", severity=Severity.WARNING, family=Family.CHAT)
def engines_differ(study: Study | Trial) -> Iterator[Finding]:
    r"""Report constructs that other engines lack, and prompts that differ in an engine that you name.

    Why: Servers render the template with minijinja (Dynamo, TGI, mistral.rs), or with engines of their own. What they
    do not know fails there. Constructs are an info; with the setting `promptfmt_template_engines = minijinja` all
    conversations are rendered by that engine as well (or by `@huggingface/jinja`, that of transformers.js, where node
    finds it), and a prompt that differs is a warning.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + message.content.removeprefix(' ') + '\n' }}
        {%- endfor %}

    Silent example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + message.content + '\n' }}
        {%- endfor %}

    Fix: use a construct that all engines know, such as a filter or a slice.

    Real: Qwen3 templates made portable (string methods, slices); nobodywho PR #563 (`{% generation %}`).
    """
    trial = trial_of(study)
    if trial is None or trial.syntax_error is not None:
        return
    for construct, line in dict(unknown_constructs(trial.tree)).items():
        yield Finding(
            message=f"{construct} is unknown to other engines",
            saw=f"tried in {MEASURED}",
            position=trial.place(line),
            severity=Severity.INFO,
        )
    for engine in trial.engines:
        yield from _differences(trial, engine)


def _differences(trial: Trial, engine: str) -> Iterator[Finding]:
    if engine in RUNS_CODE and not trial.may_run_code:
        yield Finding(
            message=f"{engine} is not tried",
            saw="it runs code of node_modules, which --promptfmt-no-code forbids",
            position=trial.place(),
            severity=Severity.INFO,
        )
        return
    try:
        renderer = compiled_by(engine, trial.source)
    except RuntimeError as error:
        yield Finding(message=f"{engine} does not compile the template", saw=str(error), position=trial.place())
        return
    for conversation in trial.conversations.values():
        for state in conversation.states:
            ours = trial.render(conversation, state)
            theirs = trial.rendered_by(renderer, conversation, state)
            if ours.text != theirs.text:
                cause, saw = _cause(ours, theirs)
                yield Finding(
                    message=f"{engine} renders another prompt: {cause}",
                    saw=f"{conversation.name}: {saw}",
                    position=trial.place(ours.line),
                )
                break


def _cause(ours: Rendering, theirs: Rendering) -> tuple[str, str]:
    """Return why an engine gives something else, and what was seen."""
    if theirs.text is None:
        why = (theirs.refusal or theirs.error or "").removeprefix("RuntimeError: ").partition(" (in ")[0]
        return why, excerpt(ours.text or "")
    if ours.text is None:
        return f"where Jinja stops with {(ours.refusal or ours.error or '')[:60]}", excerpt(theirs.text)
    at = first_difference(ours.text, theirs.text)
    saw = f"{excerpt(theirs.text, at)!r}, Jinja {excerpt(ours.text, at)!r}"
    for cause, is_it in _CAUSES.items():
        if is_it(ours.text, theirs.text, at):
            return cause, saw
    return "other text", saw

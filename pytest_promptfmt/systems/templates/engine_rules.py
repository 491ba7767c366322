"""Rules about engines other than Jinja that render the same template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.profiles.dialect import compiled_template
from pytest_promptfmt.profiles.probe_conversations import Conversation, State
from pytest_promptfmt.profiles.template_trial import Rendering, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems.templates.constructs import (
    GENERATION,
    constructs_at,
    line_at,
    unknown_constructs,
)
from pytest_promptfmt.systems.templates.engines import RUNS_CODE, Engine, compiled_by
from pytest_promptfmt.systems.templates.server_engines import NOT_RECORDED
from pytest_promptfmt.systems.templates.template_subjects import template_rule, trial_of_view
from pytest_promptfmt.systems.templates.training_rules import TRAINING

_PLACE: Final = re.compile(r" \(in \w+:(\d+)\)")
"""The line at which minijinja reports an error."""
_OTHER_TIME: Final = timedelta(days=400)

_PORTABLE: Final = "use a construct that all engines know"


class _Cause(NamedTuple):
    """Why an engine writes another text: by Jinja's text, its own, and the place of the first difference."""

    about: str
    fits: Callable[[str, str, int], bool]
    do: str = _PORTABLE


_PRINTED: Final = re.compile(r"\[?\{'.*?'\}\]?")
"""A mapping or list of mappings as Python prints it."""

_CAUSES: Final = (
    _Cause(
        "tojson escapes characters of HTML",
        lambda _ours, theirs, at: theirs[at : at + 4] == "\\u00",
        "a defect of the engine, not the template: turn off the engine's escaping, or report the defect",
    ),
    _Cause(
        "Jinja escapes characters of HTML, the engine does not",
        lambda ours, _theirs, at: ours[at : at + 2] == "&#",
        "remove |safe and |e from the template",
    ),
    _Cause(
        "line ends of the file stay CRLF",
        lambda ours, theirs, _at: ours == theirs.replace("\r\n", "\n"),
        "save the file with Unix line endings (LF)",
    ),
    _Cause("backslashes of literals are kept", lambda ours, theirs, _at: ours == theirs.replace("\\'", "'")),
    _Cause(
        "None is written as nothing",
        lambda ours, theirs, _at: ours.replace("None", "") == theirs.replace("None", ""),
        "print no value that may be null: write it with tojson, or leave it out",
    ),
    _Cause(
        "numbers such as 1.0 are written as 1",
        lambda ours, theirs, _at: _whole(ours) == _whole(theirs),
        "a defect of the engine: write the number as text where its form matters",
    ),
    _Cause("line breaks around tags differ", lambda ours, theirs, _at: _on_one_line(ours) == _on_one_line(theirs)),
    _Cause("whitespace is stripped differently", lambda ours, theirs, _at: _stripped(ours) == _stripped(theirs)),
    _Cause("other whitespace", lambda ours, theirs, _at: _spaceless(ours) == _spaceless(theirs)),
    _Cause("the arguments of format are left out", lambda _ours, theirs, at: theirs.startswith("%s", at)),
    _Cause(
        "line breaks of printed texts are not escaped",
        lambda ours, theirs, _at: ours.replace("\\n", "\n").replace("\\t", "\t") == theirs,
        "write values with tojson",
    ),
    _Cause(
        "mappings and lists are printed as nothing",
        lambda ours, theirs, _at: _spaceless(_PRINTED.sub("", ours)) == _spaceless(theirs),
        "write values with tojson",
    ),
    _Cause(
        "None, true and false are printed differently",
        lambda ours, theirs, _at: _plain(ours) == _plain(theirs),
        "write values with tojson",
    ),
    _Cause(
        "mappings, lists and null are printed differently",
        lambda ours, theirs, _at: _loose(ours) == _loose(theirs),
        "write values with tojson",
    ),
    _Cause("the text after a last answer is missing", lambda ours, theirs, _at: ours.startswith(theirs)),
    _Cause("a condition has another result", lambda ours, theirs, at: _is_inserted(ours[at:], theirs[at:])),
    _Cause(
        "keys are in another order",
        lambda ours, theirs, _at: _sorted(ours) == _sorted(theirs),
        "a defect of the engine: the template is right",
    ),
)
_STOPS_HERE: Final = "correct the template: transformers fails on this conversation"
_STOPS_THERE: Final = "if this engine serves the template, use a construct that it knows"


def _on_one_line(text: str) -> str:
    return text.replace("\n", "")


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def _spaceless(text: str) -> str:
    return "".join(text.split())


def _whole(text: str) -> str:
    return re.sub(r"(?<=\d)\.0(?!\d)", "", text).replace("None", "")


def _plain(text: str) -> str:
    return text.replace("None", "null").replace("none", "null").replace("True", "true").replace("False", "false")


def _loose(text: str) -> str:
    return re.sub(r"null|[\s\"']", "", _plain(text))


def _is_inserted(one: str, other: str) -> bool:
    return min(len(one), len(other)) > 0 and (one.endswith(other) or other.endswith(one))


def _sorted(text: str) -> list[str]:
    return sorted(text.replace(" ", ""))


@template_rule("PF449", "engines-differ", severity=Severity.WARNING)
def engines_differ(trial: TemplateTrial) -> Iterator[Finding]:
    """Report constructs that other engines lack, and prompts that another engine renders differently.

    Why: Some servers, such as Dynamo, TGI and mistral.rs, render templates with minijinja; others have their own
    engine. A construct that an engine lacks fails there; it is an info. The engines in the setting
    `promptfmt_template_engines` render all conversations as well. A prompt that differs is a warning.

    Fix: use a construct that all engines know, such as a filter or a slice.

    Real: unsloth's Qwen3, made portable (string methods, slices); nobodywho PR #563 (`{% generation %}`).
    """
    found = [finding for engine in trial.options.engines for finding in _differences(trial, engine)]
    yield from found
    for construct, line in dict(unknown_constructs(trial.nodes)).items():
        if not _is_served(trial, construct) or _is_named(construct, found):
            continue
        yield finding(
            f"{construct} is unknown to other engines",
            f"tried in {data_table('engines/minijinja')['version']}",
            trial.place(line),
            severity=Severity.INFO,
        )


def _is_served(trial: TemplateTrial, construct: str) -> bool:
    """Return whether a server may meet a construct: `{% generation %}` of a training template is for trainers."""
    file = trial.profile.template_file
    trains = trial.options.trains_for is not None or (file is not None and file.name.endswith(TRAINING))
    return construct != GENERATION or not trains


def _is_named(construct: str, found: Sequence[Finding]) -> bool:
    """Return whether an engine that was tried has stopped at a construct."""
    name = re.findall(r"\w+", construct)[-1]
    return any(re.search(rf"\b{name}\b", each.message) for each in found)


@rule("PF463", "profile-engine-differs", severity=Severity.WARNING, family=Family.CHAT, scope="profile")
def profile_engine_differs(view: ProfileView | TemplateTrial) -> Iterator[Finding]:
    """Report prompts of a task that the engine of a profile renders differently from Jinja.

    Why: The evaluated server may render the chat template with its own engine. The model then gets another prompt than
    the one that was reviewed.

    Fix: use constructs that the engine knows; if the template is right, renew the recording of the server.

    Real: minijinja escapes `<`, `>` and `&` in `tojson`, in 30 of 100 public templates.
    """
    engine = None if isinstance(view, TemplateTrial) else view.profile.engine
    if isinstance(view, TemplateTrial) or engine is None:
        return
    trial = trial_of_view(view)
    if trial is not None and trial.syntax_error is None:
        yield from _differences(trial, engine)


def _differences(trial: TemplateTrial, engine: str) -> Iterator[Finding]:
    if engine in RUNS_CODE and not trial.options.may_run_code:
        yield finding(
            f"{engine} is not tried",
            "it runs code of node_modules, which --promptfmt-no-code forbids",
            trial.place(),
            severity=Severity.INFO,
        )
        return
    try:
        yield from _compared(trial, compiled_by(engine, trial.source))
    except SettingsError as error:
        name = display_path(engine) if engine.endswith(RECORDED) else engine
        yield finding(f"{name} is not tried", str(error), error.position or trial.place())
    except RuntimeError as error:
        at = _PLACE.search(str(error))
        yield finding(
            f"{engine} does not compile the template: {_PLACE.sub('', str(error))}",
            trial.source.splitlines()[int(at[1]) - 1].strip() if at is not None else "",
            trial.place(int(at[1]) if at is not None else None),
        )


def _compared(trial: TemplateTrial, renderer: Engine) -> Iterator[Finding]:
    unrecorded = []
    fates = Counter[str]()
    for conversation in trial.given.values():
        fate = "same"
        for state in conversation.states:
            ours = trial.render(conversation, state)
            theirs = trial.rendered_by(renderer, conversation, state)
            if renderer.is_server:
                theirs = _with_begin_token(trial, ours, theirs)
            if ours.text == theirs.text or (renderer.is_server and _reads_clock(trial, conversation, state)):
                fate = "both refuse" if ours.text is None else fate
                continue
            if (theirs.error or "").endswith(NOT_RECORDED):
                fate = "not recorded"
                unrecorded.append(conversation.name)
            else:
                fate = "differ"
                yield _difference(trial, renderer.name, conversation, state, theirs)
            break
        fates[fate] += 1
    if fates["differ"]:
        counts = ", ".join(f"{fates[fate]} {fate}" for fate in ("same", "differ", "both refuse") if fates[fate])
        yield finding(
            f"prompts of {renderer.name} differ in some conversations",
            f"{len(trial.given)} conversations: {counts}",
            trial.place(),
            severity=Severity.INFO,
            do="fix the differences that matter to you",
        )
    if unrecorded:
        yield finding(
            f"prompts of {renderer.name} are not recorded",
            f"{len(unrecorded)} of {len(trial.given)} conversations, such as {unrecorded[0]}",
            trial.place(),
            do="record them again with promptfmt record, where the server runs",
        )


def _with_begin_token(trial: TemplateTrial, ours: Rendering, theirs: Rendering) -> Rendering:
    """Return what a server renders with the begin token that it leaves to its tokenizer, as llama.cpp does."""
    bos = trial.profile.special_tokens.get("bos_token") or ""
    if ours.text is None or theirs.text is None or theirs.text.startswith(bos) or not ours.text.startswith(bos):
        return theirs
    return theirs._replace(text=bos + theirs.text)


def _reads_clock(trial: TemplateTrial, conversation: Conversation, state: State) -> bool:
    """Return whether another time gives another prompt: a server has its own."""
    if not trial.mentions("strftime_now"):
        return False
    later = replace(conversation, clock=(conversation.clock or trial.profile.clock) + _OTHER_TIME)
    made = trial.rendered_by(compiled_template(trial.source), later, state)
    return made.text != trial.render(conversation, state).text


def _difference(
    trial: TemplateTrial, engine: str, conversation: Conversation, state: State, theirs: Rendering
) -> Finding:
    """Return the finding about a state that an engine renders differently."""
    ours = trial.render(conversation, state)
    cause, saw, do = _cause(ours, theirs)
    at = _PLACE.search(theirs.error or "")
    line, constructs = int(at[1]) if at else ours.line, ""
    if ours.text is not None and theirs.text is not None:
        line = line_at(trial, conversation, state, ours.text, theirs.text)
        constructs = constructs_at(trial.tree, line)
    return Finding(
        message=f"{engine} renders another prompt: {cause}",
        saw=f"{conversation.name}{constructs and f', {constructs}'}: {saw}",
        conversation=conversation.name,
        position=trial.place(line),
        severity=_severity_of(trial, conversation) if ours.text is not None else Severity.INFO,
        do=do,
    )


def _severity_of(trial: TemplateTrial, conversation: Conversation) -> Severity:
    """Return an info for what no host sends to this template; a failure of Jinja has its own rule."""
    sent = trial.sent.get(conversation.name)
    return Severity.INFO if sent is None else sent.mildest(Severity.WARNING)


def _cause(ours: Rendering, theirs: Rendering) -> tuple[str, str, str]:
    """Return why an engine gives something else, what was seen, and what to do."""
    if theirs.text is None:
        why = (theirs.refusal or theirs.error or "").removeprefix("RuntimeError: ").partition(" (in ")[0]
        return why, excerpt(ours.text or ""), _STOPS_THERE
    if ours.text is None:
        return f"Jinja stops there with {(ours.refusal or ours.error or '')[:60]}", excerpt(theirs.text), _STOPS_HERE
    at = first_difference(ours.text, theirs.text)
    saw = f"{excerpt(theirs.text, at)!r}, Jinja {excerpt(ours.text, at)!r}"
    found = next((each for each in _CAUSES if each.fits(ours.text, theirs.text, at)), None)
    return (found.about, saw, found.do) if found is not None else ("the text differs", saw, _PORTABLE)

"""Rules about engines other than Jinja that render the same template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from jinja2.exceptions import TemplateSyntaxError

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.profile import ENGINES, RECORDED
from pytest_promptfmt.profiles.dialect import compiled_template
from pytest_promptfmt.profiles.probe_conversations import Conversation, State
from pytest_promptfmt.profiles.template_trial import Rendering, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding, info
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems.templates.constructs import GENERATION, constructs_at, line_at, unknown_constructs
from pytest_promptfmt.systems.templates.engine_deviations import DEVIATIONS, deviating
from pytest_promptfmt.systems.templates.engines import RUNS_CODE, Engine, compiled_by
from pytest_promptfmt.systems.templates.server_engines import NOT_RECORDED
from pytest_promptfmt.systems.templates.template_subjects import template_rule, trial_of_view
from pytest_promptfmt.systems.templates.training_rules import TRAINING

JINJA_STOPS: Final = "Jinja stops with"
"""The beginning of the cause if only the engine renders a conversation; the error of Jinja follows."""

UNKNOWN: Final = "unknown cause"

_PLACE: Final = re.compile(r" \(in \w+:(\d+)\)")
"""The line at which minijinja reports an error."""
_OTHER_TIME: Final = timedelta(days=400)

_PORTABLE: Final = "remove the construct, or write one that all engines know"
_STOPS_HERE: Final = "correct the template: transformers fails on this conversation"
_STOPS_THERE: Final = "if you serve the template with this engine, use a construct that the engine knows"


def _fits(cause: Mapping[str, Any], ours: str, theirs: str) -> bool:
    """Return whether a cause of `data/engines/differences.yaml` makes an engine write `theirs` instead of `ours`."""
    texts = {"ours": ours, "theirs": theirs}
    for whose in texts:
        for pattern, text in (*cause.get(whose, {}).items(), *cause.get("both", {}).items()):
            texts[whose] = re.sub(pattern, text, texts[whose])
    one, other = (_VIEWS[cause.get("as", "text")](text) for text in texts.values())
    return one == other


_VIEWS: Final[Mapping[str, Callable[[str], object]]] = {
    "text": str,
    "lines": lambda text: [line.strip() for line in text.splitlines()],
    "characters": sorted,
}


@template_rule("PF449", "engines-differ", severity=Severity.WARNING)
def engines_differ(trial: TemplateTrial) -> Iterator[Finding]:
    """Report Jinja constructs that other engines lack, and prompts that another engine renders differently.

    Why: Some servers, such as Dynamo, TGI and mistral.rs, render templates with minijinja. Others have their own
    engine. If an engine lacks a construct, the template fails on that server; this finding is an info. This plugin also
    renders all test conversations with the engines in the setting `promptfmt_template_engines`. If a prompt of such an
    engine differs, the finding is a warning.

    Fix: replace the construct with one that all engines support.

    Real: unsloth's Qwen3, which was rewritten without string methods and slices; nobodywho PR #563 (`{% generation
    %}`).
    """
    found = [finding for engine in trial.options.engines for finding in _differences(trial, engine)]
    yield from found
    for construct, line in dict(unknown_constructs(trial.nodes)).items():
        if not _is_served(trial, construct) or _is_named(construct, found):
            continue
        yield info(
            f"some engines do not support {construct}",
            f"for example {data_table('engines/minijinja')['version']}",
            trial.place(line),
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
    the one in the snapshot.

    Fix: use constructs that the engine supports. If the template is right, record the server's prompts again.

    Real: minijinja, whose `tojson` escapes `<`, `>` and `&`; this changes prompts of 30 of 100 public templates.
    """
    engine = None if isinstance(view, TemplateTrial) else view.profile.engine
    if isinstance(view, TemplateTrial) or engine is None:
        return
    trial = trial_of_view(view)
    if trial is not None and trial.syntax_error is None:
        yield from _differences(trial, engine)


def _differences(trial: TemplateTrial, engine: str) -> Iterator[Finding]:
    if engine in RUNS_CODE and not trial.options.may_run_code:
        yield info(
            f"the engine {engine} was not tried",
            "it runs code in node_modules, and --promptfmt-no-code forbids this",
            trial.place(),
        )
        return
    try:
        yield from _compared(trial, compiled_by(engine, trial.source))
    except SettingsError as error:
        name = display_path(engine) if engine.endswith(RECORDED) else engine
        yield finding(f"the engine {name} was not tried", str(error), error.position or trial.place())
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
    made: dict[tuple[int, bool], Rendering] = {}  # Jinja's rendering is one for all that a template cannot tell apart
    for conversation in trial.given.values():
        fate = "same"
        for state in conversation.states:
            ours = trial.render(conversation, state)
            key = id(ours), state.generation_prompt
            theirs = made.get(key) or trial.rendered_by(renderer, conversation, state)
            if ours.text is not None:
                made[key] = theirs
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
        yield info(
            f"{renderer.name} renders other prompts for some conversations",
            f"{len(trial.given)} conversations: {counts}",
            trial.place(),
            do="change the template where a difference matters to you",
        )
    if unrecorded:
        yield finding(
            f"some prompts are not in the recording of {renderer.name}",
            f"{len(unrecorded)} of {len(trial.given)} conversations, such as {unrecorded[0]}",
            trial.place(),
            do="record all prompts: run promptfmt record on the machine of the server",
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
    ours, sent = trial.render(conversation, state), trial.sent.get(conversation.name)
    deviation = _deviation(trial, engine, conversation, state, theirs.text)
    cause, saw, do = _cause(ours, theirs, deviation)
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
        # A failure of Jinja has its own rule.
        severity=sent.mildest(Severity.WARNING) if sent is not None and ours.text is not None else Severity.INFO,
        do=do,
    )


def _deviation(
    trial: TemplateTrial, engine: str, conversation: Conversation, state: State, theirs: str | None
) -> str | None:
    """Return the deviation with which Jinja writes the engine's text, or more of it than without; None for neither."""
    ours = trial.render(conversation, state).text
    if ours is None or theirs is None:
        return None
    found, agreed = None, first_difference(ours, theirs)
    for name, each in DEVIATIONS.items():
        if each.needs not in trial.source or (engine in ENGINES and engine not in each.engines):
            continue
        with suppress(TemplateSyntaxError, RecursionError):  # the change nests too deeply
            made = trial.rendered_by(deviating(trial.source, name), conversation, state).text
            if made == theirs:
                return name
            if made is not None and first_difference(made, theirs) > agreed:
                found, agreed = name, first_difference(made, theirs)
    return found


def _cause(ours: Rendering, theirs: Rendering, deviation: str | None = None) -> tuple[str, str, str]:
    """Return why an engine gives something else, what was seen, and what to do."""
    if theirs.text is None:
        why = (theirs.refusal or theirs.error or "").removeprefix("RuntimeError: ").partition(" (in ")[0]
        return why, excerpt(ours.text or ""), _STOPS_THERE
    if ours.text is None:
        return f"{JINJA_STOPS} {(ours.refusal or ours.error or '')[:60]}", excerpt(theirs.text), _STOPS_HERE
    at = first_difference(ours.text, theirs.text)
    saw = f"{excerpt(theirs.text, at)!r}, Jinja {excerpt(ours.text, at)!r}"
    if deviation is not None:
        return deviation, saw, DEVIATIONS[deviation].do
    causes = data_table("engines/differences").items()
    fits = ((about, cause) for about, cause in causes if _fits(cause, ours.text, theirs.text))
    about, cause = next(fits, (UNKNOWN, {"do": _PORTABLE}))
    return about, saw, cause.get("do", _PORTABLE)

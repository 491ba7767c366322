"""Rules about what a chat template does to any conversation, for those under test and those of profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import Final

from jinja2 import nodes

from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.profiles.probe_conversations import MARKER, Conversation, State, builtin_conversations
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, place_printed
from pytest_promptfmt.profiles.turn_layout import INSTRUCTION, QUESTION, is_for_chat
from pytest_promptfmt.rules import Family, Finding, LoadedProfile, Severity, rule
from pytest_promptfmt.rules.rule_views import finding, info, warning
from pytest_promptfmt.study import Study

_SHOWN: Final = 80

TrialRule = Callable[[TemplateTrial], Iterable[Finding]]
Subject = LoadedProfile | Study | TemplateTrial


def on_trial(
    for_tasks: Severity = Severity.INFO, do: str = ""
) -> Callable[[TrialRule], Callable[[Subject], Iterator[Finding]]]:
    """Make a rule about loaded profiles, or about templates under test, of one about the trial of a chat template.

    A profile of tasks has the template of a model that others made: its findings are `for_tasks` at most, with their
    own remedy. Findings are infos at most if a template makes one task of a conversation, as those of classifiers and
    rerankers do. Nothing is found in a template that does not compile.
    """

    def made(function: TrialRule) -> Callable[[Subject], Iterator[Finding]]:
        @wraps(function)
        def of_subject(subject: Subject) -> Iterator[Finding]:
            trial = subject.trial if isinstance(subject, LoadedProfile) else trial_of(subject)
            for each in function(trial) if trial is not None and trial.syntax_error is None else ():
                is_for_task = isinstance(subject, LoadedProfile) and subject.tested is None
                if is_for_task or not (trial is None or is_for_chat(trial)):
                    most = for_tasks if is_for_task else Severity.INFO
                    milder = max(each.severity or most, most, key=list(Severity).index)
                    yield replace(each, severity=milder, do=each.do or (do if is_for_task else ""))
                else:
                    yield each

        return of_subject

    return made


def trial_of(subject: Study | TemplateTrial) -> TemplateTrial | None:
    """Return the trial of a template's task; None for tasks of other systems."""
    return subject if isinstance(subject, TemplateTrial) else subject.tested


@rule("PF401", "default-system-text", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def default_system_text(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a chat template that adds a default system text if there is no system message.

    Why: tasks without a description then get instructions that are in no task file. Tasks with a description do not get
    these instructions. This changes answers: with its default text, one model followed the requested format in 1 of 18
    answers; without this text, in 10. The finding is an info if the template adds its text to a given system text, or
    writes it although the system message is empty.

    Fix: give the profile a `system_instruction`.

    Real: aprender #3990, lmdeploy PR #3475, LlamaFactory PR #10772; text-generation-webui's Alpaca and Vicuna templates
    (added to a given text).
    """
    facts = loaded.facts
    has_default = facts is not None and loaded.tested is None and not loaded.profile.system_instruction
    if facts is not None and facts.default_system and has_default:
        yield finding(
            "the chat template adds a default system text",
            facts.default_system[:_SHOWN],
            loaded.place_of(re.split(r"[.!?,]", facts.default_system)[0][:30]),
        )
    if loaded.trial is not None:
        yield from _beside_system(loaded.trial)


def _beside_system(trial: TemplateTrial) -> Iterator[Finding]:
    """Yield what remains of the template's own text where a system text is given, or an empty one."""
    asked, given = trial.text("question"), trial.text("system-alone-with-question")
    if asked is None or given is None or INSTRUCTION not in given:
        return
    opening = asked.partition(QUESTION)[0]
    pieces = re.split(rf"\n|{MARKER.pattern}", opening)
    long = [piece.strip() for piece in pieces if len(piece.split()) > 4]
    kept = [piece for piece in long if piece in given]
    if kept:
        message = "the template adds its default system text to the given system text"
        do = "in the template, write the default text only if no system text is given"
        yield info(message, excerpt(kept[0]), trial.place_of(kept[0][:30]), do=do)
    empty = trial.text("system-empty") or ""
    for name in ("tools", "turns"):
        if lost := [piece for piece in long if piece not in (trial.text(name) or opening)][:1]:
            about = trial.conversations[name].about
            message = f"the template's default system text is missing in a conversation with {about}"
            yield info(message, excerpt(lost[0]), trial.place_of(lost[0][:30]))
    defaults = [piece for piece in long if piece not in given]
    if defaults and defaults[0] in empty:
        message, place = "the template writes its default text although the system message is empty", defaults[0][:30]
        conversation = trial.conversations["system-empty"]
        yield conversation.finding(message, excerpt(defaults[0]), trial.place_of(place), Severity.INFO)


@rule("PF402", "date-in-prompt", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def date_in_prompt(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a chat template that writes today's date, or writes minutes in the place of months.

    Why: in a real run, the prompts change every day, and so may the results. Answers that were cached for a prompt
    cannot be used again. If the prompt has the time of day, no server can use a cached prefix. The tests of this plugin
    use a fixed date. If the template itself writes a fixed date, the finding is an info. It is a warning if the
    template is under test, and calls this date the current date.

    Fix: set the date with a template argument, such as Llama's `date_string`, both in the profile and in real runs.

    Real: sglang #3296, text-generation-webui PR #6692, llama.cpp #12729.
    """
    facts, trial = loaded.facts, loaded.trial
    if facts is None:
        return
    for each in trial.nodes if trial is not None else ():
        if isinstance(each, nodes.Const) and isinstance(each.value, str) and _MINUTES.search(each.value):
            message = "minutes and months are mixed up: %M is the minute, %m the month"
            do = "write %m for the month, and %M for the minute"
            yield finding(message, each.value, loaded.place(each.lineno), do=do)
    if facts.follows_clock and trial is not None and _follows_time(trial):
        message, do = "the chat template writes the time of day, so no two prompts begin alike", "write only the date"
        yield warning(message, ", ".join(facts.dates), loaded.place_of("strftime_now"), do=do)
    elif facts.follows_clock:
        message = "the chat template writes today's date, so prompts change every day"
        severity = Severity.INFO if loaded.tested is not None else Severity.WARNING  # a model may be trained so
        yield finding(message, ", ".join(facts.dates), loaded.place_of("strftime_now"), severity=severity)
    elif facts.dates and not loaded.profile.template_args:
        asked = (trial.text("question") if trial is not None else None) or ""
        is_today = any(_TODAY.search(asked.partition(each)[0]) for each in facts.dates)
        yield finding(
            "the chat template writes a fixed date",
            ", ".join(facts.dates),
            loaded.place_of(facts.dates[0]),
            severity=Severity.WARNING if is_today and loaded.tested is not None else Severity.INFO,
            do="set the date with a template argument or `clock`, or remove it from the template",
        )


def _follows_time(trial: TemplateTrial) -> bool:
    """Return whether the prompt is another one a minute later."""
    asked = builtin_conversations()["first-date"]
    clock = asked.clock or trial.profile.clock
    later = (replace(asked, clock=clock + timedelta(seconds=each)) for each in (0, 61))
    return len({trial.whole(each) for each in later}) > 1


_TODAY: Final = re.compile(r"(?:today|current)[^.\n]{0,24}\Z", re.I)
_MINUTES: Final = re.compile(r"%[Yyd][-/.]?%M|%M[-/.]?%[Yyd]|%[HI]:?%m")


@rule("PF406", "html-escaped", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def html_escaped(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a chat template that writes `<`, `&` and quotes as HTML entities.

    Why: the model gets `&lt;` where the task has `<`, and `&#34;` around each key of a tool call. In Jinja, `|safe`
    marks a text as HTML. If a template joins another text to a marked one, Jinja escapes the other text. The rule
    checks tools and tool calls
    only if the template itself is tested, or if the profile has tools.

    Fix: remove `|safe` and `|e` from the template. Then Jinja escapes nothing.

    Real: mistral-common #311 (`[{&#34;name&#34;: …`), functionary v3.1, llama.cpp PR #19553, sglang PR #12123.
    """
    trial = loaded.trial
    if trial is None or loaded.facts is None:
        return
    for name, (base, what) in _ESCAPED.items():
        text, usual = trial.text(name), trial.text(base)
        if text is not None and (
            what == "content" or loaded.tested is not None or loaded.profile.template_args.get("tools")
        ):
            conversation = trial.conversations[name]
            given = f"{conversation.messages} {conversation.tools} {trial.source}"
            entities = [each for each in _ENTITY.findall(text) if each not in given]
            if len(entities) > sum(each not in given for each in _ENTITY.findall(usual or "")):
                yield finding(
                    f"the chat template writes special characters in {what} as HTML entities",
                    excerpt(text, text.rfind(entities[-1])),
                    loaded.place_of("|safe", "| safe", "|e", "| e", "escape"),
                )


_ENTITY: Final = re.compile(r"&(?:#34|#39|quot|lt|gt|amp);")
_ESCAPED: Final = {
    "markup": ("second-question", "content"),
    "tools": ("second-question", "tools"),
    "call-finished": ("tools", "tool calls"),
}
"""Conversations that show where a template escapes text, each with a simpler one and what it shows."""


@rule("PF407", "undefined-in-template", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def undefined_in_template(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report an undefined name that a chat template prints or iterates over.

    Why: jinja renders an undefined name as an empty text, so a misspelled name leaves no trace. Names that are only
    tested, as in `if tools` or `is defined`, are not reported. The finding is an info for a special token that the
    tokenizer does not have. It is also an info for a field of a message whose name does not look misspelled, because a
    model may use more fields than usual. It is an error if the name is defined elsewhere: in a message, a tool, a tool
    call or another branch of the template. Otherwise it is a warning.

    Fix: correct the name, or define it in the profile's `template_args`.

    Real: pallets/jinja #1849, mini-swe-agent #497, chat_templates #25.
    """
    facts = loaded.facts
    if facts is None:
        return
    for undefined in facts.undefined:
        is_token = undefined.name.endswith("_token")
        message = f"the chat template prints the undefined name {undefined.name!r}"
        saw = (loaded.profile.chat_template or "").splitlines()[undefined.line - 1].strip() if undefined.line else ""
        do = "set the model's tokenizer in the profile" if is_token else ""
        severity = Severity.ERROR if undefined.is_elsewhere and loaded.tested else Severity.WARNING
        is_misspelt = undefined.name not in _FIELDS and did_you_mean(undefined.name, _FIELDS) is not None
        if is_token or (undefined.is_field and not undefined.is_elsewhere and not is_misspelt):
            severity = Severity.INFO
        yield finding(message, saw, loaded.place(undefined.line), severity=severity, do=do)


_FIELDS: Final = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
"""Fields of a message, which not every message has."""


@rule("PF408", "indented-markers", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def indented_markers(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a chat template that writes the indentation of its own file into the prompt.

    Why: if a template was indented by hand, it prints the spaces before its markers. The model then gets tokens between
    the turns that it never saw in training. If the indentation can come only from texts in quotes, the finding is an
    error. Otherwise it is a warning or an info.

    Fix: write `{{-` and `{%-` instead of `{{` and `{%`, or put the template on one line.

    Real: the files of chujiezheng/chat_templates. Its README tells users to join the lines of a file first.
    """
    facts, trial = loaded.facts, loaded.trial
    if facts is None or trial is None or trial.syntax_error is not None:
        return
    outside = [each.data for each in trial.nodes if isinstance(each, nodes.TemplateData)]
    message = "the chat template prints the indentation of its own file"
    if facts.indentation:
        spaces = " " * (len(facts.indentation) - len(facts.indentation.lstrip()))
        inside = [each.value for each in trial.nodes if isinstance(each, nodes.Const) and isinstance(each.value, str)]
        file = trial.profile.template_file
        has_other_name = file is not None and file.name != "chat_template.jinja"
        is_quoted = any(each.endswith(f"\n{spaces}") for each in inside) and not any(spaces in each for each in outside)
        severity = Severity.ERROR if is_quoted else Severity.WARNING
        is_prose = facts.default_system.find(" ".join(facts.indentation.split())) > 0
        if is_prose or not is_for_chat(trial):  # the task of a classifier may hold an example
            severity = Severity.INFO
        elif has_other_name and not is_quoted and not any(map(str.strip, outside)):
            severity = Severity.INFO  # programs that load such a file may join its lines
        yield finding(message, facts.indentation, loaded.place_of("\n    {{ ", "\n    <"), severity=severity)
        return
    own = [re.escape(each) for each in {*outside} if re.fullmatch(r"\s* {4,}", each)]
    printed = re.compile(rf"(?:{'|'.join(own)})(?=[^\s\"{{}}\]])") if own and is_for_chat(trial) else None
    for conversation in trial.simplest(
        lambda each: printed and each.is_regular and printed.search(trial.whole(each) or "")
    ):
        text = trial.whole(conversation) or ""
        found = printed.search(text) if printed is not None else None
        at = found.start() if found else 0
        yield conversation.finding(
            f"{message} in a conversation with {conversation.about}",
            excerpt(text, at),
            place_printed(trial, conversation, at, "\n    {{ "),
            Severity.INFO if conversation.tools else Severity.WARNING,  # inside of a declaration
        )


@rule("PF409", "carriage-return-in-template", severity=Severity.INFO, family=Family.CHAT, scope="template")
def carriage_return_in_template(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template with Windows line endings.

    Why: Jinja turns `\r\n` in a template into `\n`. Other engines keep `\r\n`, so the model gets other tokens between
    the turns.

    Fix: save the file with Unix line endings (LF).

    Real: two of 204 public templates; betalgo/openai #145 counts the additional tokens.
    """
    if loaded.trial is not None and "\r" in loaded.trial.source:
        yield finding("the chat template has Windows line endings", at=loaded.place(1))


@rule("PF439", "tools-not-written", severity=Severity.ERROR, family=Family.CHAT, scope="template")
@on_trial(Severity.WARNING)
def tools_not_written(trial: TemplateTrial) -> Iterator[Finding]:
    """Report tools, schemas of tools and tool calls that a template does not write.

    Why: A model cannot call a tool or give a parameter that it never sees. For example, some templates do not write a
    parameter that is named `description`. If the template does not support tools at all, the finding is an info.

    Fix: print tools and tool calls in the template, or refuse such conversations with `raise_exception`.

    Real: axolotl's template for Mistral v3.
    """
    if trial.text("question") is None or "tools-many" not in trial.given:
        return  # a profile without tools
    if not trial.mentions("tool_call"):
        yield info("the template writes no tool calls", "the template does not use `tool_calls`", trial.place())
    has_tools = bool(trial.conversations["tools-many"].tools)  # not where the template fails on them
    text = trial.text("tools-many", generation_prompt=True) if has_tools else None
    if text is not None and "polish_part" not in text and _TOOL in (trial.text("tools-system") or ""):
        message, place = (
            "the tools of the request are in the prompt only if there is a system message",
            trial.place_of("tools"),
        )
        yield finding(message, excerpt(text), place)
        return
    if text is not None and "polish_part" not in text:
        yield finding(
            "the tools of the request are not in the prompt",
            excerpt(text),
            trial.place_of("tools"),
            severity=Severity.ERROR if "_ingot" in text else Severity.INFO,  # some of them
        )
        return
    if text is not None and not trial.mentions("tool_call"):
        yield finding("the prompt has the tools, but not the tool calls", excerpt(text), trial.place_of("tools"))
    for conversation in trial.simplest(lambda each: _lacks_tools(trial, each)):
        message = f"the tools of the request are not in the prompt of a conversation with {conversation.about}"
        yield conversation.finding(message, excerpt(trial.whole(conversation) or ""), trial.place_of("tools"))
    named = trial.sent.get("tools-schema-words")
    (tool,) = named.tools if named is not None and named.tools else (None,)
    if named is not None and tool is not None and (text := trial.whole(named)) is not None:
        plain, *others = tool["function"]["parameters"]["properties"].items()
        lacking = [name for name, schema in others if schema["description"] not in text]
        if lacking and plain[1]["description"] in text:
            saw = f"{', '.join(lacking)}: {excerpt(text, text.find(plain[1]['description']))}"
            yield named.finding(f"{named.about} are not in the prompt", saw, trial.place_of("properties", "tools"))
    deep = trial.text("tools-deep", generation_prompt=True)
    if deep is not None and "plan_furnace" in deep:
        names = ("celsius", "argon", "badge", "Printed on the sleeve", "Plans a firing.", "dry_run")
        lacking = [name for name in names if name not in deep]
        if lacking:
            message, place = "parts of a tool's schema are not in the prompt", trial.place_of("tools")
            yield trial.conversations["tools-deep"].finding(message, ", ".join(lacking), place, Severity.INFO)


_TOOL: Final = "Finds what a sample consists of."


def _lacks_tools(trial: TemplateTrial, conversation: Conversation) -> bool:
    """Return whether a model is asked without the tools of the request, which it is given for a question."""
    text = trial.whole(conversation) if conversation.messages[-1].get("role") != "assistant" else None
    given = [(each.get("function") or {}).get("description") for each in conversation.tools or ()]
    shown = trial.render(trial.conversations["tools"], State(count=1)).text or ""
    return text is not None and _TOOL in given and _TOOL in shown and _TOOL not in text

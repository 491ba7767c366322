"""Rules about the way back: what a template writes for an answer is what a parser reads, and different calls differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation, builtin_conversations
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.systems.templates.answer_parsers import WrittenAnswer, parser_of
from pytest_promptfmt.systems.templates.answers_read_back import (
    NOT_RECORDED,
    REASONING_LEFT,
    failure_on_part,
    lost_parts,
    written_answers,
)
from pytest_promptfmt.systems.templates.template_subjects import template_rule

_MOST_SHOWN: Final = 160


@template_rule("PF467", "answer-not-read-back", severity=Severity.ERROR)
def answer_not_read_back(trial: TemplateTrial) -> Iterator[Finding]:
    """Report answers that a parser reads differently from how the template wrote them.

    The parser is the `response_template` of the tokenizer, or one of vLLM or SGLang.

    Why: A server parses the model's answer, and the client sends the parsed answer back with the next request. If the
    parser misses text, reasoning or tool calls, the client never gets them. The next prompt then differs from the text
    that the model generated, so cached prefixes cannot be used. This rule parses every answer as a whole and in pieces,
    and renders the result again. It also parses an answer that ends early, and an answer with a broken tool call.

    Fix: if the model was trained with the text that the template writes, correct the parser. Otherwise correct the
    template.

    Real: Gemma 4 (an argument that is null), LFM2.5 (an apostrophe in an argument), Llama 3.1 (text next to a call).
    """
    try:
        reader = parser_of(trial)
    except TokenizerError as error:
        hint = f" ({error.hint})" if error.hint else ""
        chosen = isinstance(trial.options.parser, str)
        message = f"no answer can be read with {trial.options.parser if chosen else 'the response_template'}"
        severity = Severity.ERROR if chosen else Severity.INFO
        yield finding(message, f"{error.message}{hint}", trial.place(), severity=severity)
        return
    seen: set[str] = set()
    answers: dict[tuple[str, str, str], WrittenAnswer] = {}
    for each in written_answers(trial) if reader is not None else ():
        answers.setdefault(each.key, each)
    for answer in answers.values():
        for step, what, saw in lost_parts(trial, reader, answer) if reader is not None else ():
            if what not in seen and what == NOT_RECORDED:
                seen.add(what)
                yield finding(what, saw[:_MOST_SHOWN], trial.place())
            elif what not in seen:
                seen.add(what)
                built_in = answer.conversation.name in builtin_conversations()
                is_mild = step == "rendered again" or what == REASONING_LEFT or not built_in
                severity = Severity.WARNING if is_mild else Severity.ERROR
                severity = Severity.INFO if answer.conversation.name == _LIKE_CALL else severity
                yield answer.conversation.finding(
                    f"{what} in a conversation with {answer.conversation.about}",
                    saw[:_MOST_SHOWN],
                    trial.place_of("tool_calls" if "call" in what else "content"),
                    severity,
                )

    called = max(answers.values(), key=lambda each: len(each.message.get("tool_calls") or ()), default=None)
    has_calls = called is not None and called.message.get("tool_calls")
    failure = failure_on_part(reader, called) if reader is not None and called is not None and has_calls else None
    if called is not None and failure is not None:
        message, place = _FAILS_ON_PART, trial.place_of("tool_calls")
        yield called.conversation.finding(message, failure[:_MOST_SHOWN], place, Severity.WARNING)


_FAILS_ON_PART: Final = "the parser fails on an answer that ends early or is malformed"


_LIKE_CALL: Final = "argument-like-call"
"""A text that closes the tag of a call, which formats of tags cannot hold."""


# -- without a parser --------------------------------------------------------------------------------------------------

_PAIRS: Final[Mapping[str, tuple[Any, Any]]] = {
    '"None" and null': ("None", None),
    '"null" and null': ("null", None),
    '"True" and true': ("True", True),
    '"true" and true': ("true", True),
    '"7" and 7': ("7", 7),
}
"""Two values of an argument that are different."""


@template_rule("PF468", "calls-look-alike", severity=Severity.INFO)
def calls_look_alike(trial: TemplateTrial) -> Iterator[Finding]:
    """Report different tool calls that give the same prompt.

    Why: If two different calls have the same text, no parser can distinguish them. So the meaning of the model's call
    is lost. Text inside one argument, such as a web page, can look like another argument. The finding is only an info,
    because many models write arguments in tags, and some parsers use the tool's schema.

    Fix: use `tojson` to write the arguments of tool calls as JSON.

    Real: Gemma 4 (null is written as None), Qwen3-Coder (an argument can close its own tag).
    """
    call = trial.conversations.get("call-finished")
    if call is None or "call-finished" not in trial.sent or trial.finished(call) is None:
        return
    for what, (one, other) in _PAIRS.items():
        texts = {trial.finished(_with_arguments(call, {"sample": value})) for value in (one, other)}
        text = texts.pop()
        if text is not None and not texts and str(one) in text:
            message = f"two different arguments of a tool call give the same prompt: {what}"
            yield call.finding(message, excerpt(text, text.rfind(str(one))), trial.place_of("arguments"))
    genuine = trial.finished(_with_arguments(call, {"sample": _FIRST, "unit": _LAST})) or ""
    between = genuine.partition(_FIRST)[2].partition(_LAST)[0]
    if between and genuine == trial.finished(_with_arguments(call, {"sample": _FIRST + between + _LAST})):
        message = "an argument can contain text that closes the argument's tag and adds another argument"
        yield call.finding(message, repr(between), trial.place_of("arguments"))


_FIRST, _LAST = "copperlot", "tinlot"


def _with_arguments(call: Conversation, arguments: Mapping[str, Any]) -> Conversation:
    """Return a conversation with these arguments in its calls, up to the last of them."""
    count = next((at for at, each in enumerate(call.messages, start=1) if each.get("tool_calls")), 1)
    *before, message = call.messages[:count]
    calls = [
        {**each, "function": {**each["function"], "arguments": arguments}} for each in message.get("tool_calls") or ()
    ]
    messages = [*before, {**message, "tool_calls": calls}]
    return Conversation(name=call.name, about=call.about, messages=messages, tools=call.tools)

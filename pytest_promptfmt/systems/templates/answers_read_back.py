"""Answers as a model would generate them, cut out of a finished conversation, and what a parser reads in them.

Also the table of the answers of a template: which come back through a parser, and stay as they are in later prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.profiles.conversation import REASONING_KEYS
from pytest_promptfmt.profiles.probe_conversations import Conversation, State, builtin_tools, conversations_of
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems.templates.answer_parsers import (
    AnswerParser,
    NamedParser,
    WrittenAnswer,
    parser_of,
    recorded_line,
)
from pytest_promptfmt.systems.templates.server_engines import write_recording

_NOT_READ: Final = ("whitespace", "reasoning-closed-only")
"""Conversations whose answers no parser gives back as they are: it strips texts, and reads `…</think>` as reasoning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadMessage:
    """The parts of a message that have to come back; whitespace around texts is left out."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]

    def differences(self, read: ReadMessage, text: str) -> Iterator[tuple[str, str]]:
        """Yield what of this message was read differently, and how; `text` is what the template wrote for it.

        Parts that it did not write are not expected: other rules report them.
        """
        if self.content != read.content and self.content in text:
            yield "the content of the message", f"{self.content!r} was read as {read.content!r}"
        if self.reasoning != read.reasoning and self.reasoning in text:
            yield "the reasoning", f"{self.reasoning!r} was read as {read.reasoning!r}"
        if any(text.count(name) < self.names.count(name) for name in self.names):
            return
        if self.names != read.names:
            yield "a tool call", f"{_listed(self.calls)} was read as {_listed(read.calls)}"
        elif self.calls != read.calls:
            pairs = zip(self.calls, read.calls, strict=True)
            ours, theirs = next((one[1], other[1]) for one, other in pairs if one != other)
            yield "an argument of a tool call", f"{ours} was read as {theirs}"

    @property
    def names(self) -> list[str]:
        """Return the names of the calls."""
        return [name for name, _ in self.calls]


def _listed(calls: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name}({arguments})" for name, arguments in calls) or "nothing"


def as_read(message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> ReadMessage:
    """Return the parts of a message, given by a client or read by a parser.

    Arguments that the tool's schema does not declare are left out: nothing tells a parser their type.
    """
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
    reasoning = _reasons(message)
    if not reasoning and text.lstrip().startswith("<think>"):
        reasoning, _, text = text.lstrip().removeprefix("<think>").partition("</think>")
    calls = tuple(_call(call.get("function") or call, tools) for call in message.get("tool_calls") or ())
    return ReadMessage(content=text.strip(), reasoning=reasoning.strip(), calls=calls)


def _reasons(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a message under any of its names, without that in its content."""
    return str(next((message[key] for key in REASONING_KEYS if message.get(key)), ""))


def _call(function: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> tuple[str, str]:
    name, arguments = str(function.get("name")), function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    schemas = [tool["function"] for tool in tools or () if tool.get("function", {}).get("name") == name]
    if schemas and isinstance(arguments, dict):
        declared = (schemas[0].get("parameters") or {}).get("properties") or {}
        arguments = {key: value for key, value in arguments.items() if key in declared}
    return name, json.dumps(arguments or {}, sort_keys=True, ensure_ascii=False)


@cache
def loop_conversations() -> tuple[Conversation, ...]:
    """Return the answers that are tried in addition to those of the conversations."""
    found = conversations_of(data_table("conversations/loops"), Path("loops.yaml"), builtin_tools())
    return tuple(found.values())


def written_answers(trial: TemplateTrial) -> Iterator[WrittenAnswer]:
    """Yield the answers that a template writes right after its generation prompt."""
    writes_tools = trial.mentions("tool_call")
    more = (each for each in loop_conversations() if writes_tools or not each.has_tools)
    for conversation in (*trial.applicable(), *more):
        yield from answers_of(trial, conversation)


def answers_of(trial: TemplateTrial, conversation: Conversation) -> Iterator[WrittenAnswer]:
    """Yield the answers of a conversation that the template writes right after its generation prompt."""
    if conversation.keep_null or conversation.continue_final_message or conversation.name in _NOT_READ:
        return
    reads_calls = bool(conversation.tools) or isinstance(trial.options.parser, Mapping | None)
    for number in conversation.answers:
        if conversation.messages[number].get("tool_calls") and not reads_calls:
            continue  # servers read calls only where tools are given
        prompt = trial.render(conversation, State(count=number)).text
        whole = trial.finished(conversation, number + 1)
        if prompt and whole and whole.startswith(prompt) and whole != prompt:
            answer = whole[len(prompt) :]
            earlier = (unit.text for unit in conversation.units if unit.message < number)
            if not any(text in answer for text in earlier):
                yield WrittenAnswer(conversation=conversation, number=number, prompt=prompt, text=answer)


def pieces_of(trial: TemplateTrial, text: str) -> list[str]:
    """Return a text as a server gets it: markers whole, for they are tokens, and the rest character by character."""
    pieces: list[str] = []
    end = 0
    for found in trial.marker.finditer(text):
        pieces += [*text[end : found.start()], found[0]]
        end = found.end()
    return [*pieces, *text[end:]]


def rendered_again(trial: TemplateTrial, answer: WrittenAnswer, read: Mapping[str, Any]) -> str | None:
    """Return what the template writes for the message that was read; None where it does not render it."""
    message = {"role": "assistant", "content": "", **read}
    again = replace(answer.conversation, messages=[*answer.conversation.messages[: answer.number], message])
    text = trial.finished(again)
    return text[len(answer.prompt) :] if text is not None and text.startswith(answer.prompt) else text


NOT_RECORDED: Final = "an answer is missing in the recording"
_MOST_ENDS: Final = 60
REASONING_LEFT: Final = "the parser leaves the reasoning in the content"

Step = Literal["read whole", "read in pieces", "rendered again"]
"""What is done with an answer that the template has written."""


class Loss(NamedTuple):
    """A part of an answer that does not come back: the step at which it is lost, in words, and the texts."""

    step: Step
    what: str
    saw: str


def lost_parts(trial: TemplateTrial, reader: AnswerParser, answer: WrittenAnswer) -> Iterator[Loss]:
    """Yield what of an answer does not come back."""
    tools = answer.conversation.tools
    try:
        read = reader.read([answer.text], answer.prompt, answer.conversation)
        in_pieces = reader.read(pieces_of(trial, answer.text), answer.prompt, answer.conversation)
    except (ValueError, LookupError) as error:
        what = NOT_RECORDED if isinstance(error, LookupError) else "the parser fails on an answer"
        yield Loss("read whole", what, f"{error}: {answer.text!r}")
        return
    given, whole = as_read(answer.message, tools), as_read(read, tools)
    differences = list(given.differences(whole, answer.text))
    yield from (Loss("read whole", f"the parser changes {what}", saw) for what, saw in differences)
    separates = isinstance(trial.options.parser, Mapping)  # servers may have another parser for reasoning
    if separates and whole.reasoning and _reasons(answer.message) and not _reasons(read):
        yield Loss("read whole", REASONING_LEFT, f"{answer.text!r} was read as {read.get('content')!r}")
    for what, saw in list(whole.differences(as_read(in_pieces, tools), answer.text))[:1]:
        yield Loss("read in pieces", f"{what} is read differently when the answer arrives in pieces", saw)
    is_whole = as_read(answer.message, None) == as_read(read, None)
    again = rendered_again(trial, answer, read) if is_whole else answer.text
    if again is not None and again != answer.text:
        at = first_difference(answer.text, again)
        saw = f"{excerpt(answer.text, at)!r} becomes {excerpt(again, at)!r}"
        yield Loss("rendered again", "the template renders the parsed answer differently", saw)


def failure_on_part(reader: AnswerParser, answer: WrittenAnswer) -> str | None:
    """Return how a parser fails on an answer that ends early or lacks a brace; None if it reads all of them.

    Clients expect errors of JSON and of types, for which they show the text.
    """
    text = answer.text
    ends = range(1, len(text), max(1, len(text) // _MOST_ENDS))
    for part in (*(text[:end] for end in ends), "".join(text.rpartition("}")[::2])):
        try:
            reader.read([part], answer.prompt, answer.conversation)
        except (ValueError, LookupError) as error:
            if isinstance(error.__cause__, (RuntimeError, LookupError, AttributeError)):
                return f"{error}: {part!r}"
    return None


def loop_lines(trial: TemplateTrial, conversation: Conversation) -> Iterator[str]:
    """Yield for each answer of a conversation whether the parser reads it back, else why not.

    Nothing without a parser, and for conversations that no parser gives back as they are.
    """
    try:
        reader = parser_of(trial)
    except TokenizerError as error:
        yield error.message
        return
    written = {answer.number: answer for answer in answers_of(trial, conversation)} if reader is not None else {}
    for number, answer in written.items():
        lost = [f"{each.what}: {each.saw}" for each in lost_parts(trial, reader, answer)] if reader is not None else []
        yield f"message {number + 1}: {', '.join(lost) or 'comes back'}"


def recorded_answers(views: Iterable[ProfileView], name: str) -> Iterator[str]:
    """Write what a parser reads in the answers of templates next to each of them; yield what was done.

    Raises TokenizerError where it cannot be loaded, SettingsError for another name and a file that cannot be written.
    """
    from pytest_promptfmt.systems.templates.template_files import answers_beside  # collecting needs no reader

    trials = {id(view.study.tested): (view.study, view.study.tested) for view in views}
    for study, trial in trials.values():
        if trial is None or study.given.path is None:
            continue
        trial.options = replace(trial.options, parser=name)
        parser, path = NamedParser(name, trial), answers_beside(study.given.path, study.given.name)
        made = (recorded_line(name, parser, each, pieces_of(trial, each.text)) for each in written_answers(trial))
        lines = {line["key"]: line for line in made}
        write_recording(path, lines)
        yield f"{path.name}: {name} {parser.version} read {len(lines)} answers"


# -- the table of the report -------------------------------------------------------------------------------------------

_OK: Final = "ok"
_MISS: Final = "miss"
_KEPT: Final = "kept in later prompts"


def loop_table(trial: TemplateTrial) -> Mapping[str, Any]:
    """Return the table as the report shows it: a column for each step, and a row for each answer.

    Without a parser, which may need another package, only whether later prompts keep an answer is known.
    """
    nothing, reader = "", None
    try:
        reader = parser_of(trial)
        if reader is None:
            nothing = "the answers cannot be parsed: the template has no response_template, and there is no recording"
    except TokenizerError as error:
        nothing = error.message
    steps: Sequence[Step] = get_args(Step) if reader is not None else ()
    rows, read = [], dict[tuple[str, str, str], Sequence[str]]()
    for answer in written_answers(trial):
        if answer.key not in read:
            read[answer.key] = _read(trial, reader, answer, steps)
        cells = [*read[answer.key], _kept(trial, answer)]
        failed = any(cell.startswith(_MISS) for cell in cells)
        rows.append([answer.conversation.name, f"message {answer.number + 1}", cells, failed])
    return {
        "title": "which answers come back",
        "things": ["answer", "answers", "do not come back"],
        "pipelines": [*steps, _KEPT],
        "rows": rows,
        "nothing": nothing,
    }


def _read(
    trial: TemplateTrial, reader: AnswerParser | None, answer: WrittenAnswer, steps: Sequence[Step]
) -> Sequence[str]:
    losses = list(lost_parts(trial, reader, answer)) if reader is not None else []
    lost = {step: [each.what for each in losses if each.step == step] for step in steps}
    return [f"{_MISS}: {', '.join(lost[step])}" if lost[step] else _OK for step in steps]


def _kept(trial: TemplateTrial, answer: WrittenAnswer) -> str:
    """Return whether the whole conversation begins with what was generated, so that its cache holds."""
    later = trial.finished(answer.conversation)
    if answer.number + 1 == len(answer.conversation.messages) or later is None:
        return "-"
    generated = (answer.prompt + answer.text).rstrip()
    return _OK if later.startswith(generated) else f"{_MISS}: a later prompt has another text"

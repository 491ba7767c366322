"""Parsers of answers: of a `response_template`, of vLLM and SGLang by name, and recordings of what those read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_promptfmt.core.errors import SettingsError, TokenizerError, did_you_mean
from pytest_promptfmt.profiles.messages import has_calls
from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.tokenizer_sources import find_source
from pytest_promptfmt.profiles.turn_layout import layout_of
from pytest_promptfmt.systems.templates.server_engines import key_of, read_recording


class AnswerParser(Protocol):
    """What reads the message in the text of an answer, of which a server knows prompt, tools and template arguments."""

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        """Return the message that a server makes of an answer to a prompt; a whole answer is one piece.

        Raises ValueError where parsing fails, LookupError where it is not known what the parser does.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenAnswer:
    """An assistant message of a conversation with its prompt and the text that the template writes for it."""

    conversation: Conversation
    number: int
    prompt: str
    text: str

    @property
    def message(self) -> Mapping[str, Any]:
        """Return the message as it was given."""
        return self.conversation.messages[self.number]

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what is equal for answers that are read alike."""
        return self.prompt, self.text, repr(self.message)


class ResponseReader:
    """A parser of answers, as `parse_response` of a tokenizer that has this `response_template`."""

    def __init__(self, response_template: Mapping[str, Any]) -> None:
        """Read with a template; raises TokenizerError where transformers is missing or too old, or refuses it."""
        try:
            self._module = import_module("transformers.utils.chat_parsing.response_parser")
        except ImportError as error:
            raise TokenizerError(
                "answers cannot be parsed, because the parser of response templates is missing",
                hint="install transformers 5.23 or later",
            ) from error
        try:
            self._template = self._module.load_response_template(dict(response_template))
        except ValueError as error:
            raise TokenizerError(f"invalid response_template: {error}") from error

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        """Return the message, as `AnswerParser`."""
        try:
            parser = self._module.ResponseParser(self._template, prefix=prompt, tools=list(conversation.tools or ()))
            for piece in pieces:
                parser.feed(piece)
            message, _ = parser.finalize()
        except (RuntimeError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not has_calls(message):
            raise ValueError("`tool_calls` of the answer is not a list of calls")
        made: Mapping[str, Any] = message
        return made


# -- parsers of servers ------------------------------------------------------------------------------------------------


_Call = tuple[int, str | None, str | None]
"""The number of a call, its name, and (a part of) its arguments."""


class _Streamed:
    """A message that a client puts together from what a server sends."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self._calls: dict[int, list[str]] = {}

    def add(self, reasoning: str | None, content: str | None, calls: Iterable[_Call]) -> None:
        """Add what a server sends next."""
        self.reasoning += reasoning or ""
        self.content += content or ""
        for number, name, arguments in calls:
            call = self._calls.setdefault(number, ["", ""])
            call[0] += name or ""
            call[1] += arguments or ""

    def message(self) -> Mapping[str, Any]:
        """Return the message as hosts render it: the arguments of a call as a mapping where they are JSON."""
        calls = []
        for number, (name, arguments) in enumerate(self._calls.values(), start=1):
            given: Any = arguments
            with suppress(ValueError):
                given = json.loads(arguments)
            calls.append({"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": given}})
        made = {"content": self.content, "reasoning_content": self.reasoning, "tool_calls": calls}
        return {key: value for key, value in made.items() if value}


class _SglangParser:
    """The parsers of SGLang, applied as its server does: first the reasoning is read, then calls in the rest."""

    def __init__(self, name: str, reasoning: str, _trial: TemplateTrial) -> None:
        module = import_module("sglang.srt.function_call.function_call_parser")
        self._calls, self._name = module.FunctionCallParser, _known(name, module.FunctionCallParser.ToolCallParserEnum)
        self._tool = import_module("sglang.srt.entrypoints.openai.protocol").Tool
        self._reasoning = import_module("sglang.srt.parser.reasoning_parser").ReasoningParser if reasoning else None
        self._reasoning_name = _known(reasoning, self._reasoning.DetectorMap) if self._reasoning is not None else ""

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        """Return the message, as `AnswerParser`."""
        made = _Streamed()
        calls = self._calls([self._tool(**tool) for tool in conversation.tools or ()], self._name)
        opened = prompt.rstrip().endswith("<think>") or None  # as its server, which looks for it in the template
        thoughts = self._reasoning and self._reasoning(
            self._reasoning_name, force_reasoning=opened, tool_call_parser_active=bool(conversation.tools)
        )

        def add(thought: str | None, read: tuple[str, Iterable[Any]]) -> None:
            made.add(thought, read[0], ((each.tool_index, each.name, each.parameters) for each in read[1]))

        if len(pieces) == 1:
            thought, text = thoughts.parse_non_stream(pieces[0]) if thoughts else ("", pieces[0])
            text, found = calls.parse_non_stream(text or "")
            made.add(thought, text, ((number, each.name, each.parameters) for number, each in enumerate(found)))
            return made.message()
        for piece in pieces:
            thought, text = thoughts.parse_stream_chunk(piece) if thoughts else ("", piece)
            add(thought, calls.parse_stream_chunk(text or ""))
        thought, text = thoughts.parse_stream_end() if thoughts else ("", "")
        add(thought, calls.parse_stream_chunk(text) if text else ("", ()))
        add("", calls.parse_stream_end())
        begun = getattr(calls.detector, "prev_tool_call_arr", [])
        sent = getattr(calls.detector, "streamed_args_for_tool", [])
        if begun and len(begun) <= len(sent):  # its server sends the rest of the last arguments at the end
            whole = begun[-1].get("arguments", {})
            whole = whole if isinstance(whole, str) else json.dumps(whole, ensure_ascii=False)
            rest = whole[len(sent[len(begun) - 1]) :] if whole.startswith(sent[len(begun) - 1]) else ""
            made.add("", "", [(len(begun) - 1, "", rest)] if rest else ())
        return made.message()


class _VllmParser:
    """The parser that vLLM makes of a tool parser and a reasoning parser, given the tokens of an answer."""

    def __init__(self, name: str, reasoning: str, trial: TemplateTrial) -> None:
        manager = import_module("vllm.parser.parser_manager").ParserManager
        self._request = import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest
        tools = import_module("vllm.tool_parsers").ToolParserManager
        _known(name, {**tools.lazy_parsers, **tools.tool_parsers})
        if reasoning:
            known = import_module("vllm.reasoning").ReasoningParserManager
            _known(reasoning, {**known.lazy_parsers, **known.reasoning_parsers})
        if trial.tokenizer is None:
            raise TokenizerError("the parsers of vLLM need a tokenizer", hint="put the tokenizer next to the template")
        folder = str(find_source(trial.tokenizer.source).folder)
        self._tokenizer = import_module("vllm.tokenizers").get_tokenizer(folder)
        self._parser = manager.get_parser(
            tool_parser_name=name,
            reasoning_parser_name=reasoning or None,
            enable_auto_tools=True,
            tokenizer=self._tokenizer,
        )

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        """Return the message, as `AnswerParser`; pieces are tokens."""
        user = [{"role": "user", "content": "?"}]
        tools, arguments = conversation.tools, dict(conversation.template_args)
        request = self._request(messages=user, model="", tools=list(tools) if tools else None)
        parser = self._parser(self._tokenizer, request.tools, chat_template_kwargs=arguments)
        request = parser.adjust_request(request)
        ids = self._tokenizer.encode("".join(pieces), add_special_tokens=False)
        made = _Streamed()
        if len(pieces) == 1:
            reasoning, content, calls = parser.parse(
                self._text(ids, request), request, enable_auto_tools=True, model_output_token_ids=ids
            )
            found = enumerate(calls or ())
            made.add(reasoning, content, ((number, each.name, each.arguments) for number, each in found))
            return made.message()
        asked = self._tokenizer.encode(prompt, add_special_tokens=False)
        text, waiting = "", list[int]()
        for number, token in enumerate(ids, start=1):
            waiting.append(token)
            until = self._text(ids[:number], request)
            if until.endswith("\N{REPLACEMENT CHARACTER}") and number < len(ids):
                continue  # half a character: servers wait for the rest
            delta = parser.parse_delta(
                until[len(text) :], waiting, request, prompt_token_ids=asked, finished=number == len(ids)
            )
            text, waiting = until, []
            if delta is not None:
                functions = [(each.index, each.function) for each in delta.tool_calls or () if each.function]
                made.add(delta.reasoning, delta.content, ((at, each.name, each.arguments) for at, each in functions))
        return made.message()

    def _text(self, ids: Sequence[int], request: Any) -> str:
        skips = request.skip_special_tokens is not False  # None is vLLM's default, to leave them out
        return str(self._tokenizer.decode(ids, skip_special_tokens=skips))


_SERVERS: Final[Mapping[str, Any]] = {"vllm": _VllmParser, "sglang": _SglangParser}


class NamedParser:
    """A parser of a server that is installed: `vllm/NAME` or `sglang/NAME`, with a reasoning parser `…+NAME`."""

    def __init__(self, written: str, trial: TemplateTrial) -> None:
        """Read answers of a template; raises as `parts_of`, and TokenizerError where the parser cannot be loaded."""
        package, name, reasoning = parts_of(written)
        logging.getLogger(package).setLevel(logging.CRITICAL + 1)  # it logs a stack for each text that it cannot read
        try:
            self.version = version(package)
            self._parser: AnswerParser = _SERVERS[package](name, reasoning, trial)
        except (PackageNotFoundError, ImportError) as error:
            hint = f"install {package}, or run promptfmt record --parser on a machine with this package"
            raise TokenizerError(f"the parser {written} cannot be loaded: {error}", hint=hint) from error
        except TypeError as error:  # by which vLLM refuses a tokenizer without the tokens of a parser
            raise TokenizerError(f"the parser {written} cannot be used: {error}") from error
        end = trial.tokenizer.special_tokens.get("eos_token") if trial.tokenizer is not None else None
        layout = layout_of(trial)
        closing = layout.first_marker if layout.first_marker not in (layout.header or "") else None
        ends = (end, trial.profile.special_tokens.get("eos_token"), closing)
        self._stops = [each for each in ends if each]

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        """Return the message, as `AnswerParser`: of the text before the stop token, at which a server ends it."""
        kept = list(pieces)
        while len(kept) > 1 and not kept[-1].strip():
            kept.pop()
        last = kept[-1].rstrip()
        stop = next((each for each in self._stops if last.endswith(each)), None)
        kept[-1] = kept[-1] if stop is None else last.removesuffix(stop)
        try:
            return self._parser.read([each for each in kept if each] or [""], prompt, conversation)
        except Exception as error:  # of any kind: a server answers with an error
            raise ValueError(f"{type(error).__name__}: {error}") from error


def parts_of(written: str) -> tuple[str, str, str]:
    """Return the package, the parser and the reasoning parser (or "") of a name; raises SettingsError for others."""
    package, _, names = written.partition("/")
    name, _, reasoning = names.partition("+")
    if package not in _SERVERS or not name:
        hint = did_you_mean(package, _SERVERS) or "write vllm/NAME, sglang/NAME or sglang/NAME+REASONING"
        raise SettingsError(f"unknown parser {written!r}", hint=hint)
    return package, name, reasoning


def _known(name: str, names: Mapping[str, Any]) -> str:
    if name not in names:
        raise TokenizerError(f"unknown parser {name!r}", hint=did_you_mean(name, names) or f"known: {', '.join(names)}")
    return name


# -- recordings --------------------------------------------------------------------------------------------------------


class RecordedParser:
    """What a parser of a server read in the answers of a template, where it was installed."""

    def __init__(self, path: Path) -> None:
        """Read a recording; raises SettingsError for a file that is not one."""
        self._lines = read_recording(path)

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        """Return the message, as `AnswerParser`."""
        line = self._lines.get(_key(prompt, "".join(pieces), conversation))
        if line is None:
            raise LookupError("record the answers again with promptfmt record --parser")
        if "message" not in line:
            raise ValueError(line["refused"])
        message: Mapping[str, Any] = line["message"] if len(pieces) == 1 else line.get("in_pieces", line["message"])
        return message


def recorded_line(name: str, parser: NamedParser, answer: WrittenAnswer, pieces: Sequence[str]) -> Mapping[str, Any]:
    """Return the line of a recording for an answer."""
    given, key = (answer.prompt, answer.conversation), _key(answer.prompt, answer.text, answer.conversation)
    head = {"engine": name, "version": parser.version, "from": answer.conversation.name, "key": key}
    try:
        whole, in_pieces = parser.read([answer.text], *given), parser.read(pieces, *given)
    except ValueError as error:
        return {**head, "refused": str(error)}
    return {**head, "message": whole, **({"in_pieces": in_pieces} if in_pieces != whole else {})}


def _key(prompt: str, text: str, conversation: Conversation) -> str:
    given = {"tools": conversation.tools, "arguments": dict(conversation.template_args)}
    return key_of({"prompt": prompt, "text": text, **given})


def parser_of(trial: TemplateTrial) -> AnswerParser | None:
    """Return the parser of the answers of a template, None without one; raises TokenizerError, SettingsError."""
    parser = trial.options.parser
    if parser is None:
        return None
    if isinstance(parser, str):
        return NamedParser(parser, trial)
    return RecordedParser(parser) if isinstance(parser, Path) else ResponseReader(parser)

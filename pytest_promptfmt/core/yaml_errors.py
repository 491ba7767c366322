"""PyYAML's errors about a broken file in plain words, with the place and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean

_CONTROL: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def position_of(path: Path, mark: Any) -> Position:
    """Return the place of a PyYAML mark, which counts from 0; without one, only the file."""
    return Position(path) if mark is None else Position(path, mark.line + 1, mark.column + 1)


def no_mapping(path: Path, node: yaml.Node | None) -> SourceError:
    """Return the error for a file whose top level is not a mapping."""
    kinds = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value", yaml.MappingNode: "a set or pairs"}
    found = kinds.get(type(node), "nothing")
    return SourceError(
        f"the file must be a mapping of keys to values, but there is {found} at its top level",
        position=Position(path) if node is None else position_of(path, node.start_mark),
    )


def unreadable(path: Path, data: bytes) -> SourceError:
    """Return the error for bytes that are not UTF-8, or hold characters that YAML does not allow."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        position = _end_of(path, before)
        return SourceError(
            f"the file is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            position=position,
            hint="save it as UTF-8",
        )
    found = _CONTROL.search(text)
    if found is None:
        return SourceError("the file contains characters that YAML does not allow", position=Position(path))
    return SourceError(
        f"the control character U+{ord(found.group()):04X} is not allowed in YAML",
        position=_end_of(path, text[: found.start()]),
        hint=f'write it as "\\x{ord(found.group()):02x}" in double quotes' if ord(found.group()) < 256 else None,
    )


def _end_of(path: Path, before: str) -> Position:
    return Position(path, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


_TAG: Final = re.compile(r"could not determine a constructor for the tag '(?P<tag>[^']*)'")
_PLAIN_WORDS: Final[Sequence[tuple[str, str, str | None]]] = (
    (
        "mapping values are not allowed",
        "unexpected ':': no key can start here",
        "put text that contains ': ' in quotes",
    ),
    (
        "found unhashable key|found unacceptable key",
        "a list or mapping cannot be a key",
        "put text that starts with '{' or '[' in quotes",
    ),
    (
        r"cannot start any token.*|found character '\\t'.*|found a tab character.*",
        "this character cannot start a value",
        "indent with spaces, not tabs; put text that starts with a tab, '@', '`' or '%' in quotes",
    ),
    (
        "found unexpected end of stream|found unexpected document indicator",
        "a quote is opened but never closed",
        None,
    ),
    (
        r"did not find expected ',' or '[]}]'|expected ',' or '[]}]'.*",
        "a list or mapping in brackets is not closed, or a comma is missing",
        "put text that starts with '{' or '[' in quotes",
    ),
    (
        "did not find expected key|expected <block end>.*|did not find expected '-' indicator",
        "this line does not fit the lines above: its indentation is off, or a quote above is closed too early",
        None,
    ),
    (
        "could not find expected ':'",
        "this line is not of the form 'key: value'",
        "a text over several lines needs '|' or quotes, and deeper indentation",
    ),
    (
        "found undefined alias.*",
        "'*' names an anchor that no '&' defines",
        "put text that starts with '*' in quotes",
    ),
    (
        "found unknown escape character.*",
        "a backslash in double quotes starts no known escape",
        "use single quotes, where a backslash is a backslash, or write it twice",
    ),
    (
        "expected a single document in the stream|but found another document",
        "a second YAML document starts here ('---')",
        "lm-eval 0.4.13 reads one document per file; split the file",
    ),
)


def in_plain_words(path: Path, data: bytes, error: yaml.MarkedYAMLError) -> SourceError:
    """Return the error for what PyYAML cannot parse or build."""
    problem = error.problem or str(error)
    mark = error.problem_mark or error.context_mark
    if error.problem and "end of stream" in problem and error.context_mark is not None:
        mark = error.context_mark  # where the quote opens is more useful than where the file ends
    position = position_of(path, mark)
    tag = _TAG.search(problem)
    if tag is not None:
        return SourceError(
            f"unknown tag {tag['tag']}; lm-eval 0.4.13 knows only !function",
            position=position,
            hint=did_you_mean(tag["tag"], ["!function"]) or "put text that starts with '!' in quotes",
        )
    message, hint = problem, None
    for pattern, words, advice in _PLAIN_WORDS:
        if re.search(pattern, problem):
            message, hint = words, advice
            break
    else:
        if error.context:
            message = f"{problem} ({error.context})"
    if _unquoted_template(data, mark):
        hint = "put a Jinja template that starts with '{{' or '{%' in quotes or after '|'"
    return SourceError(f"not valid YAML: {message}", position=position, hint=hint)


def _unquoted_template(data: bytes, mark: Any) -> bool:
    if mark is None:
        return False
    lines = data.decode("utf-8", "replace").splitlines()[: mark.line + 1]
    return bool(lines) and any(re.search(r":\s+\{[{%]", line) is not None for line in lines[-2:])

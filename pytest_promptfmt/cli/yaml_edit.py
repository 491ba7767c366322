"""Changing some keys of a YAML file and not one byte of the rest.

The YAML scanner gives the places of keys, values and comments; only those places are written. The result is read again
and compared before it is used. (A round trip through a YAML writer would reformat one in three of lm-eval's own task
files.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pytest_promptfmt.core.errors import FormatError

_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_COMMENT = re.compile("#[^\n\r\x85\u2028\u2029]*")
_BLOCK_HEADER_COMMENT = re.compile(r"[|>][-+0-9]*[ \t]+(#[^\n\r]*)")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


def with_keys(text: str, written: Mapping[str, Any], removed: Sequence[str] = ()) -> str:
    """Return the text of a YAML file with top-level keys written and removed; the rest is the same byte for byte.

    New keys are added after the one that precedes them in `written`. A mapping that stays one is changed option by
    option. Every comment is kept: that of a removed key on a separate line. Raises FormatError for a file where that is
    not possible.
    """
    try:
        page = _Page(text)
        made = page.edited(written, removed)
        _prove(page, _Page(made), written, removed)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise FormatError(f"the keys cannot be changed without damage to the rest: {problem}") from error
    return made


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key of a block mapping and its place, as offsets; `first` and `end` are those of the value's text."""

    key: str
    value: yaml.Node
    start: int
    colon: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


class _Page:
    """The text of a YAML file with its tokens, comments and entries."""

    def __init__(self, text: str) -> None:
        self.text = text
        tokens = list(yaml.scan(text, Loader=yaml.SafeLoader))
        self.tokens = [token for token in tokens if token.end_mark.index > token.start_mark.index]
        self.comments = list(self._comments())
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode) or root.flow_style:
            raise FormatError("the keys are not on separate lines", hint="write the task as `key: value` lines")
        self.entries = self._entries(root)
        found = _BREAK.search(text)
        self.newline = found[0] if found else "\n"

    def edited(self, written: Mapping[str, Any], removed: Sequence[str]) -> str:
        text = self.text
        edits = sorted(self._edits(self.entries, written, removed), key=lambda edit: edit.start)
        for edit in reversed(edits):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def _comments(self) -> Iterator[tuple[int, str]]:
        """Yield offset and text of every comment: between tokens there is only whitespace and comments."""
        end = 0
        for token in self.tokens:
            for match in _COMMENT.finditer(self.text, end, token.start_mark.index):
                yield match.start(), match[0]
            start, end = token.start_mark.index, token.end_mark.index
            header = _BLOCK_HEADER_COMMENT.match(self.text, start, end)
            if header is not None and getattr(token, "style", None) in ("|", ">"):
                yield header.start(1), header[1]
        for match in _COMMENT.finditer(self.text, end):
            yield match.start(), match[0]

    def _entries(self, mapping: yaml.MappingNode) -> list[_Entry]:
        starts = [key.start_mark.index for key, _ in mapping.value]
        ends = [*starts[1:], mapping.end_mark.index]
        entries = []
        for (key, value), start, end in zip(mapping.value, starts, ends, strict=True):
            inside = [token for token in self.tokens if start <= token.start_mark.index < end]
            colon = next((at for at, token in enumerate(inside) if isinstance(token, yaml.ValueToken)), None)
            line = self.text[self._line_start(start) : start]
            if colon is None or not isinstance(key, yaml.ScalarNode) or line.strip(" \t\ufeff"):
                raise FormatError(
                    f"line {key.start_mark.line + 1} is not of the form `key: value`", hint="write the key on a line"
                )
            after = inside[colon].end_mark.index
            first, last = (
                (inside[colon + 1].start_mark.index, inside[-1].end_mark.index)
                if inside[colon + 1 :]
                else (after, after)
            )
            # A block scalar includes the blank lines below it, which are layout here.
            last = first + len(self.text[first:last].rstrip(" \t\r\n"))
            entries.append(_Entry(key.value, value, start, after, first, last))
        return entries

    def _edits(self, entries: Sequence[_Entry], written: Mapping[str, Any], removed: Sequence[str]) -> Iterator[_Edit]:
        by_key = {entry.key: entry for entry in entries}
        indent = " " * self._column(entries[0].start)
        before: _Entry | None = None
        for key, value in written.items():
            entry = by_key.get(key)
            if entry is not None:
                yield from self._changed(entry, value, indent)
                before = entry
                continue
            line = f"{indent}{key}:{''.join(self._value(value, indent))}"
            if before is not None:
                at = self._line_end(before.end)
                yield _Edit(at, at, self.newline + line)
            else:
                touched = next((entry for entry in entries if entry.key in written or entry.key in removed), entries[0])
                at = self._line_start(touched.start)
                yield _Edit(at, at, line + self.newline)
        for key in removed:
            if key in by_key:
                yield self._without(by_key[key], indent)

    def _changed(self, entry: _Entry, value: Any, indent: str) -> Iterator[_Edit]:
        is_here = entry.value.start_mark.index >= entry.colon  # an alias has the place of its anchor
        if is_here and _same(_constructed(entry.value), value):
            return
        node = entry.value
        if is_here and isinstance(value, Mapping) and isinstance(node, yaml.MappingNode) and not node.flow_style:
            options = self._entries(node)
            yield from self._edits(options, value, [option.key for option in options if option.key not in value])
            return
        end = self._line_end(entry.end) if self._comments_in(entry.end, self._line_end(entry.end)) else entry.end
        comments = self._comments_in(entry.colon, end)
        beside = next((comment for comment in comments if comment[0] < self._line_end(entry.colon)), None)
        if beside is None and comments and comments[-1][0] >= entry.end:
            beside = comments[-1]
        gap = self.text[entry.colon : entry.first]
        inline, rest = self._value(value, indent, gap=gap if gap.strip(" ") == "" and gap else " ")
        if beside is not None:
            space = re.search(r"[ \t]*\Z", self.text[: beside[0]])
            inline += f"{(space[0] if space else '') or '  '}{beside[1].rstrip()}"
        yield _Edit(entry.colon, end, inline + rest)
        above = "".join(f"{text}{self.newline}{indent}" for at, text in comments if beside is None or at != beside[0])
        if above:
            yield _Edit(entry.start, entry.start, above)

    def _without(self, entry: _Entry, indent: str) -> _Edit:
        start, end = self._line_start(entry.start), self._line_end(entry.end)
        kept = self.newline.join(f"{indent}{text}" for _, text in self._comments_in(entry.colon, end))
        if kept:
            return _Edit(start, end, kept)
        following = _BREAK.match(self.text, end)
        return _Edit(start, following.end() if following else end, "")

    def _value(self, value: Any, indent: str, gap: str = " ") -> tuple[str, str]:
        """Return what is written after the colon on its line, and on the lines below it."""
        if not isinstance(value, Mapping):
            return f"{gap}{_inline(value)}", ""
        deeper = indent + self._step()
        lines = (f"{deeper}{key}: {_inline(option)}" for key, option in value.items())
        return "", "".join(f"{self.newline}{line}" for line in lines)

    def _step(self) -> str:
        """Return the indentation that the file gives to nested keys, two spaces where it has none."""
        for entry in self.entries:
            if isinstance(entry.value, yaml.MappingNode) and not entry.value.flow_style and entry.first > entry.colon:
                step = self._column(entry.first) - self._column(entry.start)
                if 0 < step <= 8:
                    return " " * step
        return "  "

    def _comments_in(self, start: int, end: int) -> list[tuple[int, str]]:
        return [comment for comment in self.comments if start <= comment[0] < end]

    def _line_start(self, at: int) -> int:
        start = max(self.text.rfind(mark, 0, at) for mark in "\n\r\x85\u2028\u2029") + 1
        return start + self.text.startswith("\ufeff", start, at)

    def _line_end(self, at: int) -> int:
        found = _BREAK.search(self.text, at)
        return found.start() if found else len(self.text)

    def _column(self, at: int) -> int:
        return at - self._line_start(at)


class _Dumper(yaml.SafeDumper):
    """Writes one value on one line: words plain, every other text in double quotes."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if _PLAIN.fullmatch(value) else '"')


_Dumper.add_representer(str, _represent_text)


def _inline(value: Any) -> str:
    dumped = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


def _prove(before: _Page, after: _Page, written: Mapping[str, Any], removed: Sequence[str]) -> None:
    """Raise FormatError unless the two differ in the given keys alone."""
    kept = [[entry for entry in page.entries if entry.key not in (*written, *removed)] for page in (before, after)]
    changed = [
        old.key
        for old, new in zip(*kept, strict=False)
        if before.text[old.start : old.end] != after.text[new.start : new.end]
        or not _same(_constructed(old.value), _constructed(new.value))
    ]
    made = {entry.key: _constructed(entry.value) for entry in after.entries if entry.key in written}
    comments = [sorted(text.rstrip() for _, text in page.comments) for page in (before, after)]
    same_keys = [entry.key for entry in kept[0]] == [entry.key for entry in kept[1]]
    is_removed = not any(entry.key in removed for entry in after.entries)
    if changed or not (same_keys and is_removed and _same(made, written)) or comments[0] != comments[1]:
        what = f" of {', '.join(changed)}" if changed else ""
        raise FormatError(f"the keys cannot be changed without damage to the rest{what}")


class _Constructor(yaml.constructor.SafeConstructor):
    """Makes plain values; a value with any other tag, such as `!function`, stays a node."""


_Constructor.add_multi_constructor(None, lambda _self, _tag, node: node)


def _constructed(node: yaml.Node) -> Any:
    return _Constructor().construct_document(node)


def _same(first: Any, second: Any) -> bool:
    """Return whether two values are the same in YAML: types count (1 is not true), tuples are lists."""
    return bool(_typed(first) == _typed(second))


def _typed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {repr(_typed(key)): _typed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_typed(item) for item in value]
    return yaml.serialize(value) if isinstance(value, yaml.Node) else (type(value), value)

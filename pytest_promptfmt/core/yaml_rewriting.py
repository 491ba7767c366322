"""One value, key or entry of a YAML file changed, and not one byte of the rest: comments and line ends stay.

A text keeps its style and its lines where that style can hold the new text; only the characters that differ are
written. Whatever is made is read again and compared with what was there, so that an edit is right or refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml

from pytest_promptfmt.core.errors import SourceError

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader that the file is read with; both count marks in characters."""

_STR: Final = "tag:yaml.org,2002:str"
_FOLD: Final = re.compile(r"[ \t]*(?:\r\n|\n|\r)(?:[ \t]*(?:\r\n|\n|\r))*[ \t]*")
_NEWLINE: Final = re.compile(r"\r\n|\n|\r")
_ESCAPE: Final = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|(?:\r\n|\n|\r)[ \t]*|.)", re.S)
_HEADER: Final = re.compile(r"\|([1-9]?)([-+]?)([ \t]*(?:#[^\r\n]*)?)(\r\n|\n|\r)")
_COMMENT: Final = re.compile(r"(?:^|\s)#")
_SHORT: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0", '"': '\\"', "\\": "\\\\", "\b": "\\b"}


def with_value(text: str, line: int, column: int, value: str) -> str:
    """Return a file with another text for the key, or the list element, that begins at line and column (from 1).

    Raises SourceError where nothing begins there, or where it cannot be written without damage to the rest.
    """
    page = _Page(text)
    return page.rewritten(page.place(line, column).value, value)


def with_key(text: str, line: int, column: int, name: str) -> str:
    """Return a file with another name for the key that begins at line and column (from 1); raises as `with_value`."""
    page = _Page(text)
    key = page.place(line, column).key
    if key is None:
        raise _damage()
    return page.rewritten(key, name)


def with_quotes(text: str, line: int, column: int) -> str:
    """Return a file in which the value at line and column (from 1) is text, spelled as it is; raises as `with_value`.

    For `no`, `012` and dates, which YAML reads as something else.
    """
    page = _Page(text)
    node = page.place(line, column).value
    return page.rewritten(node, page.source(node))


def without_earlier(text: str, line: int, column: int) -> str:
    """Return a file without the earlier entries of the key that is repeated at line and column (from 1).

    Raises as `with_value`.
    """
    page = _Page(text)
    place = page.place(line, column)
    mapping = place.parent
    if place.key is None or not isinstance(mapping, yaml.MappingNode):
        raise _damage()
    entries = [pair for pair in mapping.value if pair[0].value == place.key.value]
    earlier = entries[: next(number for number, pair in enumerate(entries) if pair[0] is place.key)]
    made = text
    for key, value in reversed(earlier):
        start, end, kept = page.extent(mapping, key, value)
        made = made[:start] + kept + made[end:]
    mapping.value = [pair for pair in mapping.value if not any(pair is each for each in earlier)]
    if not earlier or not _same(page.root, _composed(made)):
        raise _damage()
    return made


@dataclass(frozen=True, slots=True)
class _Place:
    """A value with its key (None in a list) and what it is in."""

    value: yaml.Node
    key: yaml.ScalarNode | None
    parent: yaml.CollectionNode


class _Page:
    """The text of a file with its nodes; their marks count characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = _composed(text)

    def place(self, line: int, column: int) -> _Place:
        """Return what begins at a line and column; raises SourceError."""
        waiting, seen = [self.root], set[int]()
        while waiting:
            node = waiting.pop()
            if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
                continue
            seen.add(id(node))
            for entry in node.value:
                key, value = entry if isinstance(entry, tuple) else (None, entry)
                mark = (value if key is None else key).start_mark
                is_inner = key is None and isinstance(value, yaml.CollectionNode)  # begins where its first key does
                if (mark.line + 1, mark.column + 1) == (line, column) and not is_inner:
                    is_after = key is None or value.start_mark.index >= key.end_mark.index  # else an alias
                    is_simple = key is None or isinstance(key, yaml.ScalarNode)
                    if is_after and is_simple:
                        return _Place(value, key, node)
                waiting.append(value)
        raise _damage()

    def source(self, node: yaml.Node) -> str:
        """Return a value as it is written."""
        return self.text[node.start_mark.index : node.end_mark.index]

    def rewritten(self, node: yaml.Node, value: str) -> str:
        """Return the text with another value for a scalar; raises SourceError."""
        source = self.source(node)
        if not isinstance(node, yaml.ScalarNode) or source[:1] in ("&", "!", "*"):
            raise _damage()
        tag, before = node.tag, node.value
        node.tag, node.value = _STR, value
        try:
            for made in _spellings(source, node.style or None, before, value):
                text = self.text[: node.start_mark.index] + made + self.text[node.end_mark.index :]
                try:
                    if _same(self.root, _composed(text)):
                        return text
                except SourceError:
                    continue
        finally:
            node.tag, node.value = tag, before
        raise _damage()

    def extent(self, mapping: yaml.MappingNode, key: yaml.Node, value: yaml.Node) -> tuple[int, int, str]:
        """Return from where to where an entry is written, and the comment that remains of it."""
        start = key.start_mark.index
        if mapping.flow_style:
            starts = [each.start_mark.index for each, _ in mapping.value]
            return start, min(each for each in starts if each > start), ""
        end = value.end_mark.index if value.start_mark.index >= start else key.end_mark.index
        end = start + len(self.text[start:end].rstrip())
        if isinstance(value, yaml.CollectionNode) and _COMMENT.search(self.text[start:end]):
            raise _damage()
        found = _NEWLINE.search(self.text, end)
        line_end, after = found.span() if found else (len(self.text), len(self.text))
        line_start = max(self.text.rfind("\n", 0, start), self.text.rfind("\r", 0, start)) + 1
        rest = self.text[end:line_end].strip()
        if self.text[line_start:start].strip() or (rest and not rest.startswith("#")):
            raise _damage()
        return (start, line_end, rest) if rest else (line_start, after, "")


def _damage() -> SourceError:
    return SourceError("the YAML cannot be changed here without damage to the rest")


def _composed(text: str) -> yaml.Node:
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, RecursionError):
        node = None
    if node is None:
        raise _damage()
    return node


def _same(first: yaml.Node, second: yaml.Node) -> bool:
    waiting, seen = [(first, second)], set[int]()
    while waiting:
        old, new = waiting.pop()
        if type(old) is not type(new) or old.tag != new.tag:
            return False
        if isinstance(old, yaml.ScalarNode):
            if old.value != new.value:
                return False
            continue
        if id(old) in seen:
            continue
        seen.add(id(old))
        if len(old.value) != len(new.value):
            return False
        for one, other in zip(old.value, new.value, strict=True):
            waiting += zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return True


def _spellings(source: str, style: str | None, old: str, new: str) -> Iterator[str]:
    """Yield how the new text may be written in place of the old one, the smallest change first."""
    units = list(_UNITS[style](source)) if style in _UNITS else []
    if "".join(text for _, text in units) == old:
        first = _shared(old, new)
        last = _shared(old[first:][::-1], new[first:][::-1])
        start, end = _offset(units, first, source, style), _offset(units, len(old) - last, source, style)
        middle = new[first : len(new) - last]
        indent = re.search(r"[\r\n]([ \t]*)\S", source)
        breaks = _NEWLINE.search(source)
        if start is not None and end is not None and start <= end:
            written = _written(middle, style, (breaks[0] if breaks else "\n") + (indent[1] if indent else ""))
            if written is not None:
                yield source[:start] + written + source[end:]
    if style == "|":
        yield from _blocks(source, new)
        return
    ending = source[len(source.rstrip()) :] if style == ">" else ""
    yield f'"{_escaped(new)}"{ending}'


def _offset(units: list[tuple[int, str]], at: int, source: str, style: str | None) -> int | None:
    """Return where in the source the character `at` of the value begins, None inside of a unit."""
    passed = 0
    for offset, text in units:
        if passed == at and text:
            return offset
        passed += len(text)
    if passed != at:
        return None
    return len(source) - (1 if style in ('"', "'") else len(source) - len(source.rstrip()) if style == "|" else 0)


def _shared(first: str, second: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _written(text: str, style: str | None, newline: str) -> str | None:
    if style == '"':
        return _escaped(text)
    if style == "|":
        return text.replace("\n", newline)
    if "\n" in text:
        return None
    return text.replace("'", "''") if style == "'" else text


def _escaped(text: str) -> str:
    return "".join(_SHORT.get(each) or (each if each.isprintable() else _numbered(each)) for each in text)


def _numbered(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _quoted_units(source: str) -> Iterator[tuple[int, str]]:
    at, end = 1, len(source) - 1
    while at < end:
        escape = _ESCAPE.match(source, at, end) if source[at] == "\\" else None
        fold = _FOLD.match(source, at, end)
        if escape is not None:
            is_break = escape[0][1] in "\r\n"
            yield at, "" if is_break else yaml.safe_load(f'"{escape[0]}"')
            at = escape.end()
        elif fold is not None:
            yield at, _folded(fold[0])
            at = fold.end()
        else:
            yield at, source[at]
            at += 1


def _single_units(source: str) -> Iterator[tuple[int, str]]:
    at, end = 1, len(source) - 1
    while at < end:
        fold = _FOLD.match(source, at, end)
        yield at, _folded(fold[0]) if fold else source[at]
        at = fold.end() if fold else at + (2 if source.startswith("''", at) else 1)


def _plain_units(source: str) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(source):
        fold = _FOLD.match(source, at)
        yield at, _folded(fold[0]) if fold else source[at]
        at = fold.end() if fold else at + 1


def _literal_units(source: str) -> Iterator[tuple[int, str]]:
    header = _HEADER.match(source)
    body = re.search(r"^[ \t]*(?=\S)", source[header.end() :], re.M) if header is not None else None
    if header is None or header[1] or body is None:
        return
    at, width = header.end(), len(body[0])
    lines = [(match.start(), match[0]) for match in re.finditer(r"[^\r\n]*(?:\r\n|\n|\r|\Z)", source[at:]) if match[0]]
    kept = len(source[at:].rstrip("\r\n \t"))
    for start, line in lines:
        content = line.rstrip("\r\n")
        for number in range(min(width, len(content)), len(content)):
            yield at + start + number, content[number]
        if len(line) > len(content) and (start + len(content) < kept or header[2] != "-"):
            yield at + start + len(content), "\n"
            if start + len(content) >= kept and header[2] != "+":
                return


def _folded(text: str) -> str:
    breaks = len(_NEWLINE.findall(text))
    return " " if breaks == 1 else "\n" * (breaks - 1)


def _blocks(source: str, value: str) -> Iterator[str]:
    """Yield a literal block with another text: every line that stays is the same."""
    header = _HEADER.match(source)
    body = re.search(r"^[ \t]*(?=\S)", source[header.end() :], re.M) if header is not None else None
    if header is None or body is None:
        return
    newline, indent = header[4], body[0]
    text = value.rstrip("\n")
    more = len(value) - len(text)
    chomp = "-" if more == 0 else "" if more == 1 else "+"
    lines = [f"{indent}{line}" if line else "" for line in text.split("\n")]
    written = newline.join([f"|{header[1]}{chomp}{header[3]}", *lines]) + newline * max(more, 1)
    tail = source[len(source.rstrip()) :]
    blank = newline.join(_NEWLINE.split(tail)[1:]) if chomp != "+" else ""
    yield written + blank
    yield written


_UNITS: Final = {'"': _quoted_units, "'": _single_units, None: _plain_units, "|": _literal_units}

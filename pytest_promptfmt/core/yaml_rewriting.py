"""Edits of a YAML file that change no other byte: comments, quotes, anchors and line ends stay.

An edit is made twice: in the text, at the places that the YAML parser gives, and in the tree of nodes. The new text is
parsed and compared with that tree, so an edit is right or is refused. (A round trip through a YAML writer would
reformat one in three of lm-eval's own task files.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.text import shared_end, shared_start
from pytest_promptfmt.core.yaml_parser import LOADER

_STR: Final = "tag:yaml.org,2002:str"
_LINE_END: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_COMMENT: Final = re.compile("#[^\n\r\x85\u2028\u2029]*")
_HEADER_COMMENT: Final = re.compile(r"[|>][-+0-9]*[ \t]+(#[^\n\r]*)")
_BLOCK: Final = re.compile(
    r"\|([1-9]?)([-+]?)([ \t]*(?:#[^\r\n]*)?)(\r\n|\n|\r)(?:[ \t]*(?:\r\n|\n|\r))*([ \t]*)(?=\S)"
)
_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)

_BREAK: Final = r"(?:\r\n|\n|\r)"
_FOLD: Final = rf"[ \t]*{_BREAK}(?:[ \t]*{_BREAK})*[ \t]*"
_ESCAPE: Final = rf"\\(?:x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|{_BREAK}[ \t]*|.)"
_PIECES: Final = {
    '"': re.compile(rf"{_ESCAPE}|{_FOLD}|.", re.DOTALL),
    "'": re.compile(rf"''|{_FOLD}|.", re.DOTALL),
    None: re.compile(rf"{_FOLD}|.", re.DOTALL),
}
"""The pieces of a scalar's source by its style; each is a piece of the text."""

_Pair = tuple[yaml.Node, yaml.Node]


def with_value(text: str, line: int, column: int, value: str) -> str:
    """Return a file with another text for the key, or the list element, that begins at line and column (from 1).

    The text keeps its style and its lines where that style can hold the new one; only the characters that differ are
    written. Raises SourceError if nothing begins there, or if the rest of the file would change.
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

    Their comments are kept, on separate lines. Raises as `with_value`.
    """
    page = _Page(text)
    _, key, mapping = page.place(line, column)
    if key is None:
        raise _damage()
    same = [pair for pair in mapping.value if pair[0].value == key.value]
    earlier = same[: next(number for number, pair in enumerate(same) if pair[0] is key)]
    edits = [page.removal(mapping, pair) for pair in earlier]
    mapping.value = [pair for pair in mapping.value if not any(pair is each for each in earlier)]
    if not edits:
        raise _damage()
    return page.edited(edits)


def with_keys(text: str, written: Mapping[str, Any], removed: Sequence[str] = ()) -> str:
    """Return a file with top-level keys written and removed.

    New keys are added after the one that precedes them in `written`. A mapping that stays one is changed option by
    option. The comment of a removed key is kept on a separate line. Raises SourceError for a file whose keys are not on
    separate lines, or if the rest of the file would change.
    """
    page = _Page(text)
    if not isinstance(page.root, yaml.MappingNode) or page.root.flow_style:
        raise SourceError("the keys are not on separate lines", hint="write the task as `key: value` lines")
    edits, page.root.value = page.written(page.root, written, removed)
    return page.edited(edits)


class _Place(NamedTuple):
    """A value with its key (None in a list) and the node that it is in."""

    value: yaml.Node
    key: yaml.ScalarNode | None
    parent: yaml.CollectionNode


class _Entry(NamedTuple):
    """The places of an entry of a block mapping, as offsets; `first` and `end` are those of the value's text."""

    start: int
    colon: int
    first: int
    end: int


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Page:
    """The text of a file with its nodes, tokens and comments; their marks count characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        loader = yaml.SafeLoader if text.startswith("\ufeff") else LOADER  # libyaml does not count the mark
        try:
            tokens = list(yaml.scan(text, Loader=loader))
            self.root: Any = yaml.compose(text, Loader=loader)
        except (yaml.YAMLError, RecursionError) as error:
            raise _damage(getattr(error, "problem", None) or str(error)) from error
        self.tokens = [token for token in tokens if token.end_mark.index > token.start_mark.index]
        self.comments = list(self._comments())
        found = _LINE_END.search(text)
        self.newline = found[0] if found else "\n"

    def _comments(self) -> Iterator[tuple[int, str]]:
        """Yield offset and text of every comment: between tokens there is only whitespace and comments."""
        end = 0
        for token in self.tokens:
            for match in _COMMENT.finditer(self.text, end, token.start_mark.index):
                yield match.start(), match[0]
            start, end = token.start_mark.index, token.end_mark.index
            header = _HEADER_COMMENT.match(self.text, start, end)
            if header is not None and getattr(token, "style", None) in ("|", ">"):
                yield header.start(1), header[1]
        for match in _COMMENT.finditer(self.text, end):
            yield match.start(), match[0]

    def place(self, line: int, column: int) -> _Place:
        """Return the entry or element that begins at a line and column; raises SourceError."""
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
                    if is_after and isinstance(key, yaml.ScalarNode | None):
                        return _Place(value, key, node)
                waiting.append(value)
        raise _damage()

    def source(self, node: yaml.Node) -> str:
        """Return a value as it is written."""
        return self.text[node.start_mark.index : node.end_mark.index]

    def edited(self, edits: Sequence[_Edit]) -> str:
        """Return the text with these edits; raises SourceError unless they make it what the tree is."""
        text = self.text
        ordered = sorted(edits, key=lambda edit: edit.start)
        for start, end, new in reversed(ordered):
            text = text[:start] + new + text[end:]
        made = _Page(text)
        comments = [sorted(comment.rstrip() for _, comment in page.comments) for page in (self, made)]
        if comments[0] != comments[1] or not _same(self.root, made.root):
            raise _damage()
        return text

    def rewritten(self, node: yaml.Node, value: str) -> str:
        """Return the text with another value for a scalar; raises SourceError."""
        source = self.source(node)
        if not isinstance(node, yaml.ScalarNode) or source[:1] in ("&", "!", "*"):
            raise _damage()
        before, node.tag, node.value = node.value, _STR, value
        for made in _spellings(source, node.style or None, before, value):
            try:
                return self.edited([_Edit(node.start_mark.index, node.end_mark.index, made)])
            except SourceError:
                continue
        raise _damage()

    def removal(self, mapping: yaml.CollectionNode, pair: _Pair) -> _Edit:
        """Return the edit that removes an entry and keeps its comments; raises SourceError."""
        if mapping.flow_style:
            start = pair[0].start_mark.index
            return _Edit(start, min(each for each in _starts(mapping) if each > start), "")
        entry = self._entry(mapping, pair)
        start, end = self._line_start(entry.start), self._line_end(entry.end)
        for at, _ in self._comments_in(end, len(self.text)):  # deeper ones would be text of a `|` above
            if self.text[end:at].strip() or at - self._line_start(at) <= len(self._indent(entry)):
                break
            end = self._line_end(at)
        kept = self.newline.join(f"{self._indent(entry)}{text}" for _, text in self._comments_in(entry.colon, end))
        following = _LINE_END.match(self.text, end)
        return _Edit(start, following.end() if following and not kept else end, kept)

    def written(
        self, mapping: yaml.MappingNode, written: Mapping[str, Any], removed: Sequence[str]
    ) -> tuple[list[_Edit], list[_Pair]]:
        """Return the edits of a block mapping that write and remove keys, and its entries after them."""
        pairs: list[_Pair] = list(mapping.value)
        entries = {pair[0].value: self._entry(mapping, pair) for pair in pairs}
        numbers = {key.value: number for number, (key, _) in enumerate(pairs)}
        first = next((key for key in entries if key in written or key in removed), pairs[0][0].value)
        removals = [self.removal(mapping, pairs[numbers[key]]) for key in removed if key in entries]
        edits: list[_Edit] = []
        indent, place = self._indent(entries[first]), numbers[first]
        at, start, end = self._line_start(entries[first].start), "", self.newline
        for key, value in written.items():
            if key in entries:
                place = max(number for number, (each, _) in enumerate(pairs) if each.value == key)
                changed, node = self._changed(entries[key], pairs[place][1], value, indent)
                edits += changed
                pairs[place] = pairs[place][0], node
                at, start, end = self._line_end(entries[key].end), self.newline, ""
            else:
                line = f"{indent}{key}:{''.join(self._value(value, indent))}"
                edits.append(_Edit(at, at, f"{start}{line}{end}"))
                pairs.insert(place, (_node(key), _node(value)))
            place += 1
        return [*edits, *removals], [pair for pair in pairs if pair[0].value not in removed]

    def _changed(self, entry: _Entry, node: yaml.Node, value: Any, indent: str) -> tuple[list[_Edit], yaml.Node]:
        """Return the edits that give an entry another value, and the node of that value."""
        is_here = node.start_mark.index >= entry.colon  # an alias has the place of its anchor
        if is_here and _holds(node, value):
            return [], node
        if is_here and isinstance(value, Mapping) and isinstance(node, yaml.MappingNode) and not node.flow_style:
            edits, pairs = self.written(node, value, [key.value for key, _ in node.value if key.value not in value])
            return edits, yaml.MappingNode(node.tag, pairs)
        line_end = self._line_end(entry.end)
        end = line_end if self._comments_in(entry.end, line_end) else entry.end
        comments = self._comments_in(entry.colon, end)
        beside = next((each for each in comments if each[0] < self._line_end(entry.colon)), None)
        if beside is None and comments and comments[-1][0] >= entry.end:
            beside = comments[-1]
        gap = self.text[entry.colon : entry.first]
        inline, rest = self._value(value, indent, gap=gap if gap and not gap.strip(" ") else " ")
        if beside is not None:
            space = re.search(r"[ \t]*\Z", self.text[: beside[0]])
            inline += f"{(space[0] if space else '') or '  '}{beside[1].rstrip()}"
        above = "".join(f"{each[1]}{self.newline}{indent}" for each in comments if each != beside)
        return [_Edit(entry.start, entry.start, above), _Edit(entry.colon, end, inline + rest)], _node(value)

    def _value(self, value: Any, indent: str, gap: str = " ") -> tuple[str, str]:
        """Return the text after the colon on its line, and the text on the lines below it."""
        if not isinstance(value, Mapping):
            return f"{gap}{_inline(value)}", ""
        lines = (f"{indent}{self._step()}{key}: {_inline(option)}" for key, option in value.items())
        return "", "".join(f"{self.newline}{line}" for line in lines)

    def _step(self) -> str:
        """Return the indentation that the file gives to nested keys, two spaces where it has none."""
        for key, value in self.root.value:
            if isinstance(value, yaml.MappingNode) and value.start_mark.line > key.start_mark.line:
                return " " * int(value.start_mark.column - key.start_mark.column)
        return "  "

    def _entry(self, mapping: yaml.CollectionNode, pair: _Pair) -> _Entry:
        """Return the place of an entry of a block mapping; raises SourceError for one that does not begin a line."""
        start = pair[0].start_mark.index
        end = min((each for each in _starts(mapping) if each > start), default=mapping.end_mark.index)
        inside = [token for token in self.tokens if start <= token.start_mark.index < end]
        colon = next((at for at, token in enumerate(inside) if isinstance(token, yaml.ValueToken)), None)
        before = self.text[self._line_start(start) : start]
        if colon is None or not isinstance(pair[0], yaml.ScalarNode) or before.strip(" \t\ufeff"):
            line = pair[0].start_mark.line + 1
            raise SourceError(f"line {line} is not of the form `key: value`", hint="write `key: value` on one line")
        after = inside[colon].end_mark.index
        of_value = inside[colon + 1 :]
        first, last = (of_value[0].start_mark.index, of_value[-1].end_mark.index) if of_value else (after, after)
        # A block scalar includes the blank lines below it, which are layout here.
        return _Entry(start, after, first, first + len(self.text[first:last].rstrip(" \t\r\n")))

    def _comments_in(self, start: int, end: int) -> list[tuple[int, str]]:
        return [comment for comment in self.comments if start <= comment[0] < end]

    def _indent(self, entry: _Entry) -> str:
        return self.text[self._line_start(entry.start) : entry.start]

    def _line_start(self, at: int) -> int:
        start = max(self.text.rfind(mark, 0, at) for mark in "\n\r\x85\u2028\u2029") + 1
        return start + self.text.startswith("\ufeff", start, at)

    def _line_end(self, at: int) -> int:
        found = _LINE_END.search(self.text, at)
        return found.start() if found else len(self.text)


def _damage(problem: str = "") -> SourceError:
    return SourceError("the YAML cannot be changed automatically here" + (problem and f": {problem}"))


def _starts(mapping: yaml.CollectionNode) -> list[int]:
    return [key.start_mark.index for key, _ in mapping.value]


def _same(first: yaml.Node | None, second: yaml.Node | None) -> bool:
    """Return whether two trees hold the same values."""
    waiting, seen = [(first, second)], set[int]()
    while waiting:
        old, new = waiting.pop()
        if old is None or new is None or type(old) is not type(new) or old.tag != new.tag:
            return False
        if isinstance(old, yaml.ScalarNode):
            if old.value != new.value:
                return False
        elif id(old) not in seen:
            seen.add(id(old))
            if len(old.value) != len(new.value):
                return False
            for one, other in zip(old.value, new.value, strict=True):
                waiting += zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return True


class _Dumper(yaml.SafeDumper):
    """Writes one value on one line: words plain, every other text in double quotes."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


_Dumper.add_representer(
    str, lambda dumper, value: dumper.represent_scalar(_STR, value, style=None if _WORD.fullmatch(value) else '"')
)


def _inline(value: Any) -> str:
    dumped = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


def _node(value: Any) -> Any:
    return yaml.compose(_inline(value), Loader=yaml.SafeLoader)


def _holds(node: yaml.Node, value: Any) -> bool:
    """Return whether a node has this value; types count, spelling does not."""
    try:
        return _inline(yaml.constructor.SafeConstructor().construct_document(node)) == _inline(value)
    except yaml.YAMLError:  # a tag such as `!function`
        return False


def _spellings(source: str, style: str | None, old: str, new: str) -> Iterator[str]:
    """Yield how the new text may be written in place of the old one, the smallest change first."""
    if style == "|":
        yield from _blocks(source, new)
        return
    offsets = _offsets(source, style, old)
    first = shared_start(old, new)
    last = shared_end(old[first:], new[first:])
    start, end = offsets.get(first), offsets.get(len(old) - last)
    middle = new[first : len(new) - last]
    is_plain = not {"\n", "\t"} & {*middle}  # Python's own scanner refuses some tabs that libyaml reads
    if start is not None and end is not None and start <= end and (style == '"' or is_plain):
        written = _escaped(middle) if style == '"' else middle.replace("'", "''") if style == "'" else middle
        yield source[:start] + written + source[end:]
    ending = source[len(source.rstrip()) :] if style == ">" else ""
    yield f'"{_escaped(new)}"{ending}'


def _offsets(source: str, style: str | None, text: str) -> dict[int, int]:
    """Return where in the source the characters of its text begin, and where the last ends; empty where unknown."""
    if style not in _PIECES:
        return {}
    edge = 1 if style else 0
    offsets: dict[int, int] = {}
    read = ""
    for match in _PIECES[style].finditer(source, edge, len(source) - edge):
        piece = _text_of(match[0])
        if piece:
            offsets[len(read)] = match.start()
        read += piece
    return offsets | {len(read): len(source) - edge} if read == text else {}


def _text_of(piece: str) -> str:
    if len(piece) > 1 and piece[0] == "\\":
        return "" if piece[1] in "\r\n" else str(yaml.safe_load(f'"{piece}"'))
    breaks = len(re.findall(_BREAK, piece))
    if breaks:
        return " " if breaks == 1 else "\n" * (breaks - 1)
    return "'" if piece == "''" else piece


def _blocks(source: str, value: str) -> Iterator[str]:
    """Yield a literal block with another text: every line that stays is the same."""
    header = _BLOCK.match(source)
    if header is None:
        return
    indicator, chomp, comment, newline, indent = header.groups()
    text, ending = source.rstrip(), source[len(source.rstrip()) :]
    known = {line.removeprefix(indent): line for line in re.split(_BREAK, text)[1:]}
    lines = [known.get(line, f"{indent}{line}" if line else "") for line in value.rstrip("\n").split("\n")]
    more = len(value) - len(value.rstrip("\n"))
    for sign in dict.fromkeys((chomp, "-" if more == 0 else "" if more == 1 else "+")):
        written = newline.join([f"|{indicator}{sign}{comment}", *lines]) + newline * max(more, 1)
        yield written + ("" if sign == "+" else newline.join(re.split(_BREAK, ending)[1:]))
        yield written


def _escaped(text: str) -> str:
    return "".join(
        f"\\{each}" if each in '"\\' else each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text
    )

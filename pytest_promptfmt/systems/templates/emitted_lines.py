"""Which line of a template writes a place of its text, and with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jinja2 import nodes

from pytest_promptfmt.profiles.dialect import compiled_template, generation_marks
from pytest_promptfmt.systems.templates.conversations import Conversation, State
from pytest_promptfmt.systems.templates.evidence import first_difference
from pytest_promptfmt.systems.templates.trial import TemplateTrial

_MOST_SHOWN: Final = 3
_FOLLOWING: Final = 8


class _Stepping:
    """The template as Jinja compiles it, which keeps each piece that it writes, with its line."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._template = compiled_template(source)
        self.pieces: list[tuple[str, int]] = []

    def render(self, variables: Mapping[str, Any], /) -> str:
        written: Any = self._template.root_render_func(self._template.new_context(dict(variables)))
        text = []
        for piece in written:
            plain = piece
            for mark in generation_marks.get():
                plain = plain.replace(mark, "") if mark else plain
            self.pieces.append((plain, self._line(plain, written.gi_frame.f_lineno)))
            text.append(piece)
        return "".join(text)

    def _line(self, piece: str, number: int) -> int:
        """Return where a piece is written: Jinja keeps no lines of text that stands in the template as it is."""
        literal = piece.strip()
        if literal and literal in self._source:
            return self._source.count("\n", 0, self._source.find(literal)) + 1
        return self._template.get_corresponding_lineno(number)


def line_at(trial: TemplateTrial, conversation: Conversation, state: State, ours: str, theirs: str) -> int | None:
    """Return the line of the template that writes the first difference of two texts; None where that is not seen.

    Where another engine writes more before what follows, that is the end of the piece before.
    """
    place = first_difference(ours, theirs)
    stepping = _Stepping(trial.source)
    trial.rendered_by(stepping, conversation, state)
    begin, before = 0, None
    for piece, line in stepping.pieces:
        if begin + len(piece) > place:
            is_longer = begin == place and theirs.find(ours[place : place + _FOLLOWING], place) > place
            return before if is_longer and before is not None else line
        begin += len(piece)
        before = line if piece else before
    return before


def constructs_at(tree: nodes.Template, line: int | None) -> str:
    """Return the filters, methods and functions of a line as they are written: `| tojson`, `.strip()`."""
    return ", ".join(list(dict.fromkeys(_constructs(tree, line)))[:_MOST_SHOWN])


def _constructs(tree: nodes.Template, line: int | None) -> Iterator[str]:
    for node in tree.find_all((nodes.Filter, nodes.Call, nodes.Concat)):
        if node.lineno != line:
            continue
        if isinstance(node, nodes.Filter):
            yield f"| {node.name}"
        elif isinstance(node, nodes.Concat):
            yield "~"
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            yield f".{node.node.attr}()"
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
            yield f"{node.node.name}()"

"""How a prompt looks in a notebook: its pieces in the colour of their origin, blanks and line ends shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Final

from pytest_promptfmt.core.text import show_inner

if TYPE_CHECKING:
    from pytest_promptfmt.core.prompt import Origin, Span

_COLOURS: Final[Mapping[str, str]] = {
    "system instruction": "#7d3fc8",
    "description": "#8a5a00",
    "question": "inherit",
    "answer": "#1a7f37",
    "gen prefix": "#0a7d91",
    "target delimiter": "#c0262d",
    "fewshot delimiter": "#c0262d",
    "chat template": "#0969da",
}
"""Readable on white and on black."""

_BLANK: Final = '<span style="opacity:.5">·</span>'
_LINE_END: Final = '<span style="opacity:.5">↵</span>\n'


def prompt_html(spans: Iterable[Span]) -> str:
    """Return a prompt as HTML without scripts; whatever it holds stays text, and what cannot be seen has a name."""
    pieces = "".join(_span(span) for span in spans)
    return f'<pre style="white-space:pre-wrap">{pieces}<span style="opacity:.5">⟨end⟩</span></pre>'


def _span(span: Span) -> str:
    lines = (escape(show_inner(line)).replace(" ", _BLANK) for line in span.text.split("\n"))
    style = f"color:{_COLOURS[span.origin.part]}"
    style += ";font-weight:bold" if span.origin.field is not None else ""
    style += ";opacity:.75" if span.origin.shot is not None else ""
    return f'<span style="{style}" title="{escape(_title(span.origin))}">{_LINE_END.join(lines)}</span>'


def _title(origin: Origin) -> str:
    return f"{origin.part}: {origin}"

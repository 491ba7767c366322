"""Prompts in a terminal, each span in the colour of its origin; and changed prompts, the words that differ marked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.prompt import Instance, Prompt, Request, Span
from pytest_promptfmt.core.text import END, escape_controls, show, show_inner
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.profiles.encoding import EncodedPair
from pytest_promptfmt.results.clusters import Cluster
from pytest_promptfmt.results.wording import NAMES, listed
from pytest_promptfmt.snapshots.content import to_json
from pytest_promptfmt.snapshots.hunks import marked_lines

STYLES: Final[Mapping[str, str]] = data_table("part_styles")["terminal"]

_MARKED: Final = "underline on dark_red"
_SPACE: Final = "·"
_LINE_END: Final = "↵"

DIFF_STYLES: Final = {"-": "red", "+": "green", "@": "cyan", "?": "yellow"}
SHOWN_LINES: Final = 60


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show what is being waited for, with a spinner, if standard error is a terminal."""
    with Console(stderr=True).status(what) if sys.stderr.isatty() else nullcontext():
        yield


def prompt_lines(prompt: Prompt, *, spaces: bool, marked: Sequence[Sequence[int]] = ()) -> Iterator[Text]:
    """Yield the lines of a prompt, `⟨end⟩` after the last; with `spaces`, spaces are dots and line ends arrows.

    The characters from the first to the second offset of each in `marked` are highlighted.
    """
    line = Text()
    for text, origin, is_marked in _pieces(prompt, marked):
        first, *more = text.split("\n")
        style = _style(origin) + (f" {_MARKED}" if is_marked else "")
        line.append(_shown(first, spaces), style)
        for piece in more:
            line.append(_LINE_END if spaces else "", f"dim red{f' {_MARKED}' if is_marked else ''}")
            yield line
            line = Text().append(_shown(piece, spaces), style)
    yield line.append(END, "dim")


def _pieces(prompt: Prompt, marked: Sequence[Sequence[int]]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the spans, cut where a mark begins or ends."""
    edges = sorted({edge for mark in marked for edge in mark})
    at = 0
    for span in prompt.spans:
        end = at + len(span.text)
        cuts = [at, *(edge for edge in edges if at < edge < end), end]
        for start, stop in pairwise(cuts):
            yield span.text[start - at : stop - at], span.origin, any(low <= start < high for low, high in marked)
        at = end


def _style(origin: Any) -> str:
    is_part = {"column": origin.field is not None, "shot": origin.shot is not None}
    return " ".join([STYLES[origin.part], *(STYLES[part] for part, applies in is_part.items() if applies)])


def _shown(text: str, spaces: bool) -> str:
    shown = show_inner(text)
    return shown.replace(" ", _SPACE) if spaces else shown


def legend(prompts: Sequence[Prompt]) -> Text:
    """Return which colour means what, for the parts that these prompts have."""
    origins = [span.origin for prompt in prompts for span in prompt.spans]
    parts = dict.fromkeys(origin.part for origin in origins)
    text = Text().append("colours: ", "dim")
    for part in parts:
        text.append(part, STYLES[part]).append("  ")
    if any(origin.field is not None for origin in origins):
        text.append("a column of the doc", STYLES["column"]).append("  ")
    if any(origin.shot is not None for origin in origins):
        text.append("shot", STYLES["shot"])
    return text


def token_lines(tokenizer: Tokenizer, text: str, *, ids: bool, special: bool) -> Iterator[Text]:
    """Yield a text with bars between its tokens, with their ids on demand, broken after tokens that end a line."""
    encoded = tokenizer.encode(text, add_special_tokens=special).ids
    line: list[int] = []
    for number, token in enumerate(encoded, 1):
        line.append(token)
        if number == len(encoded) or "\n" in tokenizer.decode([token]):
            yield _with_tokens(Text(), tokenizer, line, ids=ids)
            line = []
    yield Text(f"{len(encoded)} tokens", "dim")


def _with_tokens(line: Text, tokenizer: Tokenizer, tokens: Sequence[int], *, ids: bool) -> Text:
    for number, token in enumerate(tokens):
        line.append("│" if number else "", "dim").append(tokenizer.visible(token), "reverse" if number % 2 else "")
        line.append(f" {token}" if ids else "", "dim cyan")
    return line


def request_lines(
    requests: Sequence[tuple[int, Request]],
    tokenizer: Tokenizer | None = None,
    pairs: Mapping[int, EncodedPair] = MappingProxyType({}),
    ids: bool = False,
) -> Iterator[Text]:
    """Yield the requests: continuations, the right one with a star, or the generation arguments.

    Requests come with their numbers; those in `pairs` are shown in the tokens that are scored.
    """
    for number, request in requests:
        if request.kind == "generate_until":
            for name, value in (request.generation_kwargs or {}).items():
                yield Text(f"  {show(str(name))} {show(to_json(value))}", "dim")
            continue
        mark = "* " if request.gold else "  "
        line = Text().append(f"{mark}{show(to_json(request.continuation))}", f"{'bold ' * request.gold}green")
        if tokenizer is not None and number in pairs:
            _with_tokens(line.append("  "), tokenizer, pairs[number].continuation_ids, ids=ids)
        yield line


def as_data(instance: Instance) -> dict[str, Any]:
    """Return a rendered doc as data: prompts with their spans, and the requests."""
    return {
        "doc": instance.index + 1,
        "prompts": [
            {"text": each.text, "spans": [_span_as_data(span) for span in each.spans]} for each in instance.prompts
        ],
        "requests": [_request_as_data(request) for request in instance.requests],
        "target": to_json(instance.target),
    }


def _request_as_data(request: Request) -> dict[str, Any]:
    data = {name: getattr(request, name) for name in ("kind", "prompt", "context", "continuation", "gold")}
    arguments = request.generation_kwargs
    data["context"] = request.context if request.prompt is None else None
    return data | {"generation_kwargs": None if arguments is None else to_json(arguments)}


def _span_as_data(span: Span) -> dict[str, Any]:
    origin = span.origin
    position, shot = origin.position and str(origin.position), None if origin.shot is None else origin.shot + 1
    place = {"part": origin.part, "key": origin.key, "position": position, "shot": shot, "column": origin.field}
    return {"text": span.text, **place}


def diff_lines(lines: Sequence[str], most: int | None = SHOWN_LINES) -> Iterator[Text]:
    """Yield the lines of a unified diff in colour; where lines were replaced, the words that differ are highlighted."""
    shown = [escape_controls(line) for line in (lines if most is None else lines[:most])]
    for line, (sign, pieces) in zip(shown, marked_lines(shown), strict=True):
        style = DIFF_STYLES.get(line[:1], "")
        yield Text(sign, style).append_tokens(
            (piece, f"{style} reverse" if differs else style) for piece, differs in pieces
        )
    if len(shown) < len(lines):
        yield Text(f"… and {len(lines) - len(shown):,} more lines", "dim")


def cluster_lines(cluster: Cluster, *, verbose: bool = False) -> Iterator[Text]:
    """Yield a cluster: its category and size, a line about it, its first diff, and the tasks."""
    yield Text(f"{cluster.category}: {cluster.size('prompt')}", "bold")
    yield Text(escape_controls(cluster.title))
    detail = cluster.detail.splitlines()
    yield from diff_lines(detail, None if verbose else SHOWN_LINES)
    if len(cluster.tasks) > 1 or not detail:
        yield Text(f"in {escape_controls(listed(cluster.tasks, None if verbose else NAMES))}", "dim")
    yield Text("")

"""The rendered result: spans that know where their text came from, prompts made of spans, and requests.

Values only. Joining the spans of a prompt is its text, byte for byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.text import show_inner

Part = Literal[
    "system instruction",
    "description",
    "question",
    "answer",
    "gen prefix",
    "target delimiter",
    "fewshot delimiter",
    "chat template",
    "system message",
    "user message",
    "assistant message",
    "reasoning",
    "tool call",
    "tool result",
]
"""Which piece of a prompt a span belongs to; from `system message` on, of a conversation that tests a template."""


class Place(NamedTuple):
    """Which doc is rendered: its number in the task, and the shot (both from 0; None for the evaluated doc)."""

    task: str
    doc: int
    shot: int | None = None

    def __str__(self) -> str:
        """Return `of 'arc_easy', doc 3, shot 1`, both counted from 1."""
        shot = f", shot {self.shot + 1}" if self.shot is not None else ""
        return f"of {self.task!r}, doc {self.doc + 1}{shot}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a piece of text came from.

    `key` is the configuration key (`doc_to_text`, `fewshot_config.doc_to_text`), `position` where it is written,
    `shot` the number of the shot from 0 (None for the evaluated doc), `field` the doc's column that was
    inserted (None for constant text).
    """

    part: Part
    key: str | None = None
    position: Position | None = None
    shot: int | None = None
    field: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key as a path, as in findings and positions: `("fewshot_config", "doc_to_text")`."""
        return tuple(self.key.split(".")) if self.key else ()

    def __str__(self) -> str:
        """Return a short phrase: `arc.yaml:7:1 doc_to_text (column 'question', shot 2)`."""
        where = " ".join(str(part) for part in (self.position, self.key or self.part) if part)
        details = [f"column {self.field!r}"] if self.field else []
        details += [f"shot {self.shot + 1}"] if self.shot is not None else []
        return f"{where} ({', '.join(details)})" if details else where


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a prompt and its origin."""

    text: str
    origin: Origin


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `delimiter` is what follows it in plain text and is dropped in turns."""

    role: Literal["system", "user", "assistant"]
    content: tuple[Span, ...]
    delimiter: tuple[Span, ...] = ()

    @property
    def text(self) -> str:
        """Return the content without the delimiter."""
        return join(self.content)


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages in a row: the text of each with its role, and all of it as plain text with delimiters.

    A shot is laid out once; in another prompt its spans differ only in the number of the shot.
    """

    base: tuple[Message, ...]
    contents: tuple[tuple[str, str], ...]
    text: str
    shot: int | None = None

    @classmethod
    def of(cls, messages: tuple[Message, ...]) -> Turn:
        """Return the turn made of these messages."""
        contents = tuple([(message.role, join(message.content)) for message in messages])
        parts = []
        for message, (_, content) in zip(messages, contents, strict=True):
            parts.append(content)
            parts += [span.text for span in message.delimiter]
        text = "".join(parts)
        return cls(messages, contents, text)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the messages; their origins name the shot."""
        if self.shot is None:
            return self.base
        moved: dict[Origin, Origin] = {}

        def move(spans: Spans) -> Spans:
            for span in spans:
                if span.origin not in moved:
                    moved[span.origin] = replace(span.origin, shot=self.shot)
            return tuple([Span(span.text, moved[span.origin]) for span in spans])

        return tuple([Message(each.role, move(each.content), move(each.delimiter)) for each in self.base])


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: its spans, and the messages it was made from."""

    spans: tuple[Span, ...]
    messages: tuple[Message, ...] = field(default_factory=tuple)

    @classmethod
    def lazy(cls, text: str, make: Callable[[], tuple[tuple[Span, ...], tuple[Message, ...]]]) -> Prompt:
        """Return a prompt whose text is known; `make` gives spans and messages when they are first used."""
        prompt = object.__new__(cls)
        prompt.__dict__.update(text=text, _make=make)
        return prompt

    def __getattr__(self, name: str) -> Any:
        """Make the spans and messages of a `lazy` prompt; called only for missing attributes."""
        if name not in ("spans", "messages") or "_make" not in self.__dict__:
            raise AttributeError(f"a prompt has no attribute {name!r}")
        spans, messages = self.__dict__.pop("_make")()
        self.__dict__.update(spans=spans, messages=messages)
        return self.__dict__[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by value, whether or not everything was made yet."""
        return Prompt, (self.spans, self.messages)

    @cached_property
    def text(self) -> str:
        """Return the whole prompt (characters), exactly as the model gets it."""
        return join(self.spans)

    def _repr_html_(self) -> str:
        """Return the prompt as a notebook shows it: HTML without scripts, in which nothing of the prompt is markup."""
        pieces = "".join(_span_html(span) for span in self.spans)
        return f'<pre style="white-space:pre-wrap">{pieces}<span style="opacity:.5">⟨end⟩</span></pre>'

    @cached_property
    def _ends(self) -> Sequence[int]:
        return list(accumulate(len(span.text) for span in self.spans))

    def span_at(self, offset: int) -> Span | None:
        """Return the span that holds the character at `offset` (from 0); the last one for the end; None if empty."""
        if not self.spans:
            return None
        return self.spans[min(bisect_right(self._ends, offset), len(self.spans) - 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The prompts and requests that would be sent to the model for one doc; lm-eval 0.4.13's `Instance`.

    `context` is None for rolling log-likelihood, "" for an unconditional one. `prompt` is the index of the
    instance's prompt that is the context, None where the context is not a prompt. `gold` marks the right continuation.
    `doc` is what is scored where one doc asks several questions, each with its own answer; None where it is the
    instance's.
    """

    kind: Literal["loglikelihood", "loglikelihood_rolling", "generate_until"]
    index: int
    context: str | None = None
    continuation: str | None = None
    generation_kwargs: Mapping[str, Any] | None = None
    prompt: int | None = None
    gold: bool = False
    doc: Doc | None = field(default=None, repr=False, compare=False)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the argument tuple as lm-eval sends it."""
        if self.kind == "loglikelihood_rolling":
            return (self.continuation,)
        if self.kind == "generate_until":
            return (self.context, self.generation_kwargs)
        return (self.context, self.continuation)


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One doc of a task, rendered for one profile.

    `prompts` has one prompt, or one for each choice where the choices are inputs (Winogrande-like tasks).
    `target` is the gold answer as doc_to_target gives it: an index, a text, or a list of either. `notes` are what else
    a snapshot shows: titles with their lines. `heading` is what it shows first, for docs that have names (ASCII).
    """

    index: int
    doc: Doc
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...]
    target: Any
    notes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    heading: str = ""


def join(spans: Iterable[Span]) -> str:
    """Return the text of the spans."""
    return "".join([span.text for span in spans])


def joined_spans(first: Spans, second: Spans, gap: Spans) -> Spans:
    """Return both in a row, with `gap` between them where neither side has whitespace."""
    if not first or not second:
        return first or second
    return (*first, *gap, *second) if meet_without_space(first, second) else first + second


def meet_without_space(first: Spans, second: Spans) -> bool:
    """Return whether `first` and `second` meet without whitespace."""
    return bool(first) and not first[-1].text[-1].isspace() and not second[0].text[0].isspace()


_SPACE: Final = '<span style="opacity:.5">·</span>'
_LINE_END: Final = '<span style="opacity:.5">↵</span>\n'


def _span_html(span: Span) -> str:
    origin = span.origin
    lines = (escape(show_inner(line)).replace(" ", _SPACE) for line in span.text.split("\n"))
    style = f"color:{data_table('part_styles')['notebook'][origin.part]}"
    style += ";font-weight:bold" if origin.field is not None else ""
    style += ";opacity:.75" if origin.shot is not None else ""
    return f'<span style="{style}" title="{escape(f"{origin.part}: {origin}")}">{_LINE_END.join(lines)}</span>'

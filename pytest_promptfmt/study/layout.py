"""A rendered question read once as a document: its options, its labels and its cue, and where the data stands in it.

Options are read in two ways: by their labels at the start of lines, in any script, and by the values of a list column,
wherever the prompt shows them. Rules are queries on both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.core.prompt import Instance, Message, Prompt, Span, Spans

_OPTION: Final = re.compile(
    r"^([ \t]*)(?:(?i:option|choice|answer|ending|alternative|candidate) )?([(\[（]?)"
    r"(?=[A-Za-z\dＡ-Ｚ]|[^\W_][)\].:])([^\W_])([)\].:．、：）])([ \t]*)([^\n]*)",
    re.MULTILINE,
)
_INLINE: Final = re.compile(
    r"(?:(?<!\S)(?:[(\[]([A-Za-z1-9])[)\]]|([A-Z])[.)])|(?:(?<=[(\[、])|(?<=[,;] ))([A-Z1-9])[:：])[ \t]?(?=\S)"
)
_IN_NAME: Final = r"\w\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u109f\u1780-\u17d3"
"""Letters, and the marks with which many scripts write vowels."""

_LABEL: Final = re.compile(
    rf"^[ \t>*#]*([^\W\d_](?:[{_IN_NAME} -]{{0,18}}[{_IN_NAME}])?)\**[ \t]?([:：])([ \t]*)", re.MULTILINE
)
_BEFORE_VALUE: Final = re.compile(r"[(\[（]?([^\W_]|@|`|/)[)\].:．、：）](?:[ \t]*|\n)$")
_LEAST, _MOST = 2, 26
_SHORT, _SHORTEST = 8, 3
"""Characters of a value that may be the beginning of a word, and that is too short to be found."""


@dataclass(frozen=True, slots=True)
class OptionLine:
    """A line that begins with the label of an option: indentation, bracket, label, mark, the spaces after, the text."""

    indent: str
    bracket: str
    label: str
    mark: str
    space: str
    text: str
    start: int

    @property
    def lead(self) -> str:
        """Return the part of the line before the text."""
        return f"{self.indent}{self.bracket}{self.label}{self.mark}{self.space}"

    @property
    def style(self) -> tuple[str, ...]:
        """Return how it is written, without label and text."""
        return self.indent, self.bracket, self.mark, self.space


@dataclass(frozen=True, slots=True)
class LabelLine:
    """A line that begins with a label and a colon, the spaces after it, and the text on the same line."""

    name: str
    colon: str
    space: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a text that stand at the start of its lines, in order."""

    text: str
    options: tuple[OptionLine, ...]
    labels: tuple[LabelLine, ...]

    @property
    def listed(self) -> tuple[OptionLine, ...]:
        """Return the last list of options whose labels follow each other from the first: A, a, 0 or 1; or none."""
        lines = [one for one in self.options if one.label.isascii() and one.space and one.text]
        labels = "".join(one.label for one in lines)
        starts = [found.start() for found in re.finditer("[Aa0]|(?<!0)1", labels)]
        lines = lines[starts[-1] :] if starts else []
        return tuple(lines) if follow_each_other([one.label for one in lines]) else ()

    @property
    def listed_labels(self) -> list[str]:
        """Return the labels of that list, in order."""
        return [option.label for option in self.listed]

    @property
    def listed_in_any_script(self) -> tuple[OptionLine, ...]:
        """Return that list, or one with labels that are not ASCII."""
        return self.listed or self.listed_in_other_scripts

    @property
    def listed_in_other_scripts(self) -> tuple[OptionLine, ...]:
        """Return the options with labels that are not ASCII; their alphabets may leave letters out of lists."""
        lines = [one for one in self.options if not one.label.isascii() and one.label.isalpha()]
        lines = [one for one in lines if (one.space or one.mark in "．、：）") and one.text and one.mark != ":"]
        return tuple(lines) if 1 < len(lines) == len({one.label for one in lines}) else ()

    @property
    def listed_inline(self) -> tuple[str, ...]:
        """Return the labels of the last options within a line, `(A) tin (B) iron` or `[1: tin, 2: iron]`, in order."""
        labels = [found[1] or found[2] or found[3] for found in _INLINE.finditer(self.text)]
        starts = [number for number, label in enumerate(labels) if label in "Aa1"]
        labels = labels[starts[-1] :] if starts else []
        return tuple(labels) if len(labels) > 1 and follow_each_other(labels) else ()

    @property
    def cue(self) -> LabelLine | None:
        """Return the label that the text ends with, where the answer begins."""
        last = self.labels[-1] if self.labels else None
        return last if last is not None and not self.text[last.end :].strip() else None


@lru_cache(maxsize=512)
def layout_of(text: str) -> Layout:
    """Return the layout of a text."""
    options = (
        OptionLine(found[1], found[2], found[3], found[4], found[5], found[6], found.start(3))
        for found in _OPTION.finditer(text)
    )
    labels = (
        LabelLine(
            found[1], found[2], found[3], text[found.end() :].partition("\n")[0].strip(), found.start(1), found.end()
        )
        for found in _LABEL.finditer(text)
    )
    return Layout(text, tuple(options), tuple(labels))


def follow_each_other(labels: Sequence[str]) -> bool:
    """Return whether labels of one character follow each other from the first of their kind."""
    if not labels or any(len(label) != 1 for label in labels) or labels[0] not in "Aa10":
        return False
    return all(ord(after) == ord(before) + 1 for before, after in pairwise(labels))


# -- the values of a list --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value of a list where the prompt shows it after a label: its index, the label, and the character before that.

    `is_printed` is False where the text is that of another column, or of the template.
    """

    index: int
    label: str
    before: str
    start: int
    is_printed: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """How a question lists the values of one column: those after a label, and those that it does not show at all."""

    column: str
    options: Sequence[ShownValue]
    missing: Sequence[str]
    text: str

    @property
    def labels(self) -> list[str]:
        """Return the labels in the order of the prompt."""
        return [option.label for option in self.options]


def listing_of(message: Message | None, doc: Mapping[str, Any]) -> Listing | None:
    """Return how a question lists a list of the doc with a label each; None if it does not."""
    if message is None:
        return None
    text = message.text
    for name, values in doc.items():
        if not isinstance(values, list) or not _LEAST <= len(values) <= _MOST:
            continue
        texts = [value.strip() if isinstance(value, str) else "" for value in values]
        if not all(texts) or len(set(texts)) < len(texts):
            continue
        found = [
            ShownValue(index, label[1], before, label.start(), _field_at(message, start) == name)
            for index, value in enumerate(texts)
            for start, label, before in _labels_before(text, value, doc)
        ]
        if len({option.index for option in found}) >= _LEAST:
            missing = [value for value in texts if value not in text]
            return Listing(name, sorted(found, key=lambda option: option.start), missing, text)
    return None


def _labels_before(text: str, value: str, doc: Mapping[str, Any]) -> Iterator[tuple[int, re.Match[str], str]]:
    """Yield each place of a value with the label before it, and the character before that."""
    for place in re.finditer(re.escape(value), text):
        label = _BEFORE_VALUE.search(text, max(0, place.start() - 6), place.start())
        before = text[max(0, label.start() - 1) : label.start()] if label is not None else ""
        if label is None or (text[place.start() - 1] == "\n" and before.isalnum()):
            continue  # the end of a sentence on the line above
        if before.isalpha() and not _ends_with_data(text[: label.start()], doc):
            continue  # the end of a word: 'option: iron'
        yield place.start(), label, before


def _ends_with_data(text: str, doc: Mapping[str, Any]) -> bool:
    values = (each for value in doc.values() for each in (value if isinstance(value, list) else [value]))
    return text.endswith(tuple(each.strip() for each in values if isinstance(each, str) and each.strip()))


def _field_at(message: Message, at: int) -> str | None:
    for span in message.content:
        if at < len(span.text):
            return span.origin.field
        at -= len(span.text)
    return None


# -- the values in a text that code made -------------------------------------------------------------------------------


def with_columns(instance: Instance) -> Instance:
    """Return a rendered doc whose question, which code made, is split where it shows the values of columns."""
    columns = {
        text: name
        for name, values in instance.doc.items()
        for value in (values if isinstance(values, list) else [values])
        if isinstance(value, str) and len(text := value.strip()) >= _SHORTEST
    }
    if not columns:
        return instance
    ordered = sorted(columns, key=len, reverse=True)
    # A short value is followed by no more letters of the same word, but perhaps by a label glued to it.
    ends = [r"(?![a-z\d_])" if len(text) < _SHORT else "" for text in ordered]
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(text)}{end}" for text, end in zip(ordered, ends, strict=True)))

    def split(spans: Spans) -> Spans:
        return tuple(piece for span in spans for piece in _pieces(span, pattern, columns))

    prompts = tuple(
        Prompt(split(prompt.spans), tuple(replace(each, content=split(each.content)) for each in prompt.messages))
        for prompt in instance.prompts
    )
    return replace(instance, prompts=prompts)


def _pieces(span: Span, pattern: re.Pattern[str], columns: Mapping[str, str]) -> Iterator[Span]:
    origin = span.origin
    if origin.part != "question" or origin.field is not None or origin.shot is not None:
        yield span
        return
    end = 0
    for found in pattern.finditer(span.text):
        if found.start() > end:
            yield Span(span.text[end : found.start()], origin)
        yield Span(found[0], replace(origin, field=columns[found[0]]))
        end = found.end()
    if end < len(span.text):
        yield Span(span.text[end:], origin)

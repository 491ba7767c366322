"""What a format writes for one doc, piece by piece, computed without the templates: the oracle of the format tests.

A second reading of the same fields: it says which field each piece of a prompt comes from, so that the templates can be
tested against it, two formats compared piece by piece, and a variant shown to change nothing but its axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.formats.builder import LABEL_VARIABLES
from pytest_promptfmt.formats.fields import grammar, has_markup
from pytest_promptfmt.formats.format import PROMPT_FIELDS, TEXT_FIELDS, Format
from pytest_promptfmt.formats.labels import first_labels, label_count


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a prompt. `kind` is a field of `Format`, or `question`, `label`, `choice`, `target`."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One doc as a format sees it. `gold` is a position among `choices`, or the text of the answer without choices."""

    question: str
    choices: Sequence[str] | None = None
    gold: int | str = 0
    topic: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


def prompt_pieces(layout: Format, asked: Asked) -> tuple[Piece, ...]:
    """Return description, instruction, question, choices and answer cue in the order of the prompt, without empties.

    Raises FormatError when choices are missing or outnumber the labels.
    """
    if layout.needs_choices and asked.choices is None:
        raise FormatError(f"format {layout.name!r} needs choices")
    written = _Written(layout, asked)
    written.add("description", "instruction", "question_prefix")
    written.pieces.append(Piece("question", asked.question))
    if layout.choice_labels is not None and asked.choices is not None:
        written.add("section_separator", "choices_prefix")
        written.add_choices()
    if layout.answer_instruction or layout.answer_prompt:
        written.add("section_separator", "answer_instruction", "answer_prompt")
    return tuple(piece for piece in written.pieces if piece.text)


def answer_pieces(layout: Format, asked: Asked) -> tuple[Piece, ...]:
    """Return what follows the prompt in a shot: gap, gen prefix if any, target, shot delimiter.

    The gaps are lm-eval 0.4.13's: the target delimiter unless there is whitespace around it already, one space after
    a gen prefix that does not end in whitespace.
    """
    written = _Written(layout, asked)
    written.add("gen_prefix")
    prefix = "".join(piece.text for piece in written.pieces)
    target = target_text(layout, asked)
    if not prefix:
        return (
            Piece("target_delimiter", layout.target_delimiter),
            Piece("target", target),
            Piece("fewshot_delimiter", layout.fewshot_delimiter),
        )
    before = "".join(piece.text for piece in prompt_pieces(layout, asked))
    gap = "" if before[-1:].isspace() or prefix[:1].isspace() else layout.target_delimiter
    space = "" if prefix[-1:].isspace() or target[:1].isspace() or not target else " "
    return (
        Piece("target_delimiter", gap),
        Piece("gen_prefix", prefix + space),
        Piece("target", target),
        Piece("fewshot_delimiter", layout.fewshot_delimiter),
    )


def target_text(layout: Format, asked: Asked) -> str:
    """Return the gold answer as the prompt demands it: a label, or the full text where choices have none."""
    if asked.choices is None:
        return str(asked.gold)
    if layout.choice_labels is None or layout.answer_as == "text":
        return asked.choices[gold_index(asked)]
    return first_labels(layout.choice_labels, len(asked.choices))[shown_order(layout, asked).index(gold_index(asked))]


def gold_index(asked: Asked) -> int:
    """Return the position of the answer among the choices as written."""
    assert isinstance(asked.gold, int), "a doc with choices has a position as its answer"
    return asked.gold


def shown_order(layout: Format, asked: Asked) -> tuple[int, ...]:
    """Return the positions of the choices in the order in which the format shows them."""
    choices = tuple(asked.choices or ())
    positions = range(len(choices))
    order = layout.choice_order
    if order == "reversed":
        return tuple(reversed(positions))
    if order == "alphabetical":
        return tuple(sorted(positions, key=lambda position: choices[position].lower()))
    if order == "alphabetical_descending":
        return tuple(sorted(positions, key=lambda position: (choices[position].lower(), position), reverse=True))
    if order in ("shortest_first", "longest_first"):
        sign = 1 if order == "shortest_first" else -1
        return tuple(sorted(positions, key=lambda position: sign * len(choices[position])))
    if order in ("correct_first", "correct_last"):
        others = tuple(position for position in positions if position != asked.gold)
        gold = (gold_index(asked),)
        return gold + others if order == "correct_first" else others + gold
    return tuple(positions)


def differing_kinds(first: Sequence[Piece], second: Sequence[Piece]) -> tuple[str, ...]:
    """Return the kinds of pieces in which two prompts differ, in the order of the prompt."""
    kinds = dict.fromkeys(piece.kind for piece in (*first, *second))
    return tuple(kind for kind in kinds if _of_kind(first, kind) != _of_kind(second, kind))


def differences(first: Format, second: Format, asked: Asked) -> tuple[str, ...]:
    """Return the kinds of pieces in which two formats differ for one doc, shots included."""
    return differing_kinds(
        (*prompt_pieces(first, asked), *answer_pieces(first, asked)),
        (*prompt_pieces(second, asked), *answer_pieces(second, asked)),
    )


def _of_kind(pieces: Sequence[Piece], kind: str) -> list[str]:
    return [piece.text for piece in pieces if piece.kind == kind]


_SANDBOX = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


@lru_cache(maxsize=512)
def _compiled(text: str) -> jinja2.Template:
    return _SANDBOX.from_string(text)


class _Written:
    """The pieces written so far, and the variables that texts may use."""

    def __init__(self, layout: Format, asked: Asked) -> None:
        self.layout = layout
        self.asked = asked
        self.pieces: list[Piece] = []
        self.variables: dict[str, Any] = {**asked.columns, "_topic": asked.topic}
        self.labels: tuple[str, ...] = ()
        if asked.choices is not None and layout.choice_labels is not None:
            self.labels = first_labels(layout.choice_labels, len(asked.choices))
            self.variables |= {
                "_num_choices": len(asked.choices),
                "_choice_labels": list(self.labels),
                "_choice_list_and": listing(self.labels, "and"),
                "_choice_list_or": listing(self.labels, "or"),
            }

    def add(self, *fields: str) -> None:
        for name in fields:
            text = getattr(self.layout, name) or ""
            self.pieces.append(Piece(name, self._printed(text)))

    def add_choices(self) -> None:
        choices = self.asked.choices or ()
        shown = [choices[position] for position in shown_order(self.layout, self.asked)]
        for index, (label, choice) in enumerate(zip(self.labels, shown, strict=True)):
            if index:
                self.add("choice_delimiter")
            if self.layout.choice_format is not None:
                line = self.layout.choice_format.format(label=label, choice=choice)
                self.pieces.append(Piece("choice_format", line))
                continue
            self.add("label_prefix")
            self.pieces.append(Piece("label", label))
            self.add("label_suffix")
            self.pieces.append(Piece("choice", choice))

    def _printed(self, text: str) -> str:
        return _compiled(text).render(self.variables) if has_markup(text) else text


def listing(labels: Sequence[str], word: str) -> str:
    """Return `A, B and C`; a single label alone."""
    return f"{', '.join(labels[:-1])} {word} {labels[-1]}" if len(labels) > 1 else "".join(labels)


def placeholders(layout: Format, choices: int = 4) -> Asked:
    """Return a doc of readable placeholders (`«question»`) that has every column the format's texts use."""
    texts = [getattr(layout, name) for name in ("description", "instruction", "question_prefix", "answer_instruction")]
    texts += [layout.answer_prompt, layout.gen_prefix, layout.section_separator, layout.choices_prefix]
    names: set[str] = set()
    for text in texts:
        names |= meta.find_undeclared_variables(grammar().parse(text or ""))
    columns = {name: f"«{name}»" for name in sorted(names) if not name.startswith("_")}
    return Asked(
        question="«question»",
        choices=[f"«choice {number}»" for number in range(1, choices + 1)],
        gold=min(2, choices - 1),
        topic="«topic»",
        columns=columns,
    )


@dataclass(frozen=True, slots=True)
class Allowed:
    """What an axis may change: fields of `Format`, and kinds of pieces."""

    fields: tuple[str, ...]
    kinds: tuple[str, ...]


_DESCRIPTORS = ("question_prefix", "choices_prefix", "answer_prompt")
CHANGED_BY_AXIS: Mapping[str, Allowed] = {
    "enumerator": Allowed(("choice_labels",), ("label", "target")),
    "label_style": Allowed(("label_prefix", "label_suffix"), ("label_prefix", "label_suffix")),
    "choice_separator": Allowed(("choice_delimiter",), ("choice_delimiter",)),
    "section_separator": Allowed(("section_separator",), ("section_separator",)),
    "descriptor_separator": Allowed(_DESCRIPTORS, _DESCRIPTORS),
    "descriptor_casing": Allowed(_DESCRIPTORS, _DESCRIPTORS),
    "answer_gap": Allowed(("target_delimiter",), ("target_delimiter",)),
    "choice_order": Allowed(("choice_order",), ("choice", "target")),
}


def undeclared_changes(base: Format, varied: Format, axes: Iterable[str]) -> tuple[str, ...]:
    """Return what differs between two formats beyond these axes: fields, pieces of a prompt, or a gold that moved.

    Empty when the axes are all that differs. Fields are compared as data, then prompts and shots of readable
    docs of 1, 2 and 4 choices with each choice as the gold one.
    """
    chosen = [CHANGED_BY_AXIS[name] for name in axes]
    fields = {name for allowed in chosen for name in allowed.fields}
    kinds = {kind for allowed in chosen for kind in allowed.kinds}
    if "label" in kinds:  # texts that name the labels change with them
        kinds |= {name for name in TEXT_FIELDS if _names_labels(getattr(base, name))}
    problems = [name for name in PROMPT_FIELDS if name not in fields and getattr(base, name) != getattr(varied, name)]
    for asked in _probes(base, varied):
        problems += [kind for kind in differences(base, varied, asked) if kind not in kinds]
        shown = [(asked.choices or ())[position] for position in shown_order(varied, asked)]
        if sorted(shown) != sorted(asked.choices or ()):
            problems.append("choices lost or repeated")
        if shown[shown_order(varied, asked).index(gold_index(asked))] != (asked.choices or ())[gold_index(asked)]:
            problems.append("gold")
    return tuple(dict.fromkeys(problems))


def _names_labels(text: str | None) -> bool:
    return any(name in (text or "") for name in LABEL_VARIABLES)


def _probes(*layouts: Format) -> Iterator[Asked]:
    limit = min((label_count(layout.choice_labels) or 4 for layout in layouts), default=4)
    for count in sorted({min(count, limit) for count in (1, 2, 4)}):
        asked = placeholders(layouts[0], count)
        for gold in range(count):
            yield dataclasses.replace(asked, gold=gold)

"""Prompts as HELM's adapters make them (0.5.16): blocks of instructions, shots and the evaluated instance.

A prompt is one text there, and one user message for chat models. The pieces keep their origins through HELM's
substitutions, which run over the whole prompt. Shots are chosen, and prompts cut to a window, in adapters.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from pytest_promptfmt.core.errors import LimitExceededError, RenderError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Message, Origin, Part, Span, Turn
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.instances import HelmInstance

SUBSTITUTION_SECONDS: Final = 10.0
"""How long the substitutions of one prompt may take."""

NO_CORRECT: Final = "n/a"
CALIBRATION_INPUT: Final = "Answer:"
RELEVANT, IRRELEVANT = "Yes", "No"


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A piece of a prompt: a span, and the message it belongs to (from 0), as its content or behind it."""

    span: Span
    message: int
    is_delimiter: bool = False


@dataclass(frozen=True)
class Built:
    """A prompt as HELM would send it: its pieces and its text.

    `roles` are those of the messages that the pieces name. `answer` is the number of characters at the end that HELM
    scores where a reference is part of the prompt.
    """

    pieces: tuple[PromptPiece, ...]
    roles: tuple[str, ...]
    answer: int = 0

    @cached_property
    def text(self) -> str:
        """Return the whole prompt."""
        return "".join([piece.span.text for piece in self.pieces])


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """One example: what is asked, the answer, and what follows it."""

    asked: list[Span]
    answer: list[Span] = field(default_factory=list)
    rest: list[Span] = field(default_factory=list)


class PromptBuilder:
    """Puts prompts together by one spec. Raises RenderError where HELM fails: labels that run out, unfit patterns."""

    def __init__(self, spec: AdapterSpec, locate: Callable[..., Any] = lambda *_keys: None) -> None:
        self.spec = spec
        self._where = locate
        self._origins: dict[tuple[str, int | None, Part, str | None], Origin] = {}

    def built(
        self,
        train: Sequence[HelmInstance],
        row: HelmInstance,
        *,
        include_output: bool = False,
        reference: int | None = None,
        recorded: str = "",
    ) -> Built:
        """Return the prompt of a row after its shots; `reference` is the one that it is about, if any.

        `recorded` is the text of shots that replace `train`, with what separates them.
        """
        pieces: list[PromptPiece] = []
        roles: list[str] = []

        def add(role: str, spans: Iterable[Span], delimiters: Iterable[Span] = ()) -> None:
            pieces.extend(PromptPiece(span, len(roles)) for span in spans if span.text)
            pieces.extend(PromptPiece(span, len(roles), True) for span in delimiters if span.text)
            roles.append(role)

        opening = [self._span(self.spec.global_prefix, "global_prefix", None, "description")]
        if self.spec.instructions:
            opening.append(self._span(self.spec.instructions, "instructions", None, "description"))
        gap = [self._gap(None)] if self.spec.instructions else []
        if any(span.text for span in opening):
            add("system", opening, gap)
        for number, shot in enumerate(train):
            blocks = self._examples(shot, number, include_output=True, reference=None)
            for block in blocks:
                content, space = _without_trailing_space(block.asked)
                add("user", content, [space])
                add("assistant", block.answer, [*block.rest, *([self._gap(number)] if block is blocks[-1] else [])])
        if recorded:
            name = "recorded shots"
            add("system", [self._span(recorded, name, None, "description", column=name)])
        block = self._examples(row, None, include_output=include_output, reference=reference)[0]
        suffix = self._span(self.spec.global_suffix, "global_suffix", None)
        scored = 0
        if include_output:
            content, space = _without_trailing_space(block.asked)
            add("user", content, [space])
            add("assistant", [*block.answer, *block.rest, suffix])
            scored = sum(len(span.text) for span in (space, *block.answer, *block.rest, suffix))
        else:
            add("user", [*block.asked, suffix])
        if self.spec.substitutions:
            pieces, scored = self._substituted(pieces, scored)
        return Built(tuple(pieces), tuple(roles), answer=scored)

    # -- one example -----------------------------------------------------------------------------------------------

    def _examples(
        self, row: HelmInstance, shot: int | None, *, include_output: bool, reference: int | None
    ) -> list[_Block]:
        """Return the blocks that a row gives: one, but for each reference one of a ranked shot."""
        if self.spec.method == "ranking_binary":
            return self._ranked(row, shot, include_output=include_output, reference=reference)
        spec = self.spec
        asked = self._input(row, shot)
        if spec.is_joint:
            for index, text in enumerate(row.references):
                asked += [
                    self._span(self._labelled(spec.reference_text, index), "reference_prefix", shot),
                    self._span(text, "references", shot, column="references"),
                    self._span(spec.reference_suffix, "reference_suffix", shot),
                ]
        if not include_output:
            return [_Block([*asked, self._span(spec.output_prefix.rstrip(), "output_prefix", shot)])]
        asked.append(self._span(spec.output_prefix, "output_prefix", shot))
        answer = [self._span(self._output(row, reference), "references", shot, "answer", column="references")]
        if spec.method == "multiple_choice_joint_chain_of_thought":
            answer = [
                self._span(spec.chain_of_thought_prefix, "chain_of_thought_prefix", shot, "answer"),
                self._span(row.chain_of_thought, "chain_of_thought", shot, "answer", column="chain_of_thought"),
                self._span(spec.chain_of_thought_suffix, "chain_of_thought_suffix", shot, "answer"),
                *answer,
            ]
        return [_Block(asked, answer, [self._suffix(shot)])]

    def _ranked(
        self, row: HelmInstance, shot: int | None, *, include_output: bool, reference: int | None
    ) -> list[_Block]:
        spec = self.spec
        blocks = []
        for index in range(len(row.references)) if row.is_train else (reference or 0,):
            asked = [
                self._span(spec.reference_prefix, "reference_prefix", shot),
                self._span(row.references[index], "references", shot, column="references"),
                self._span(spec.reference_suffix, "reference_suffix", shot),
                *self._input(row, shot),
            ]
            if not include_output:
                blocks.append(_Block([*asked, self._span(spec.output_prefix.rstrip(), "output_prefix", shot)]))
                continue
            label = RELEVANT if index in row.correct else IRRELEVANT
            asked.append(self._span(spec.output_prefix, "output_prefix", shot))
            rest = [self._suffix(shot), *([self._gap(shot)] if index < len(row.references) - 1 else [])]
            blocks.append(_Block(asked, [self._span(label, "tags", shot, "answer", column="correct")], rest))
        # A shot without references is an empty block, which still is one between two instance prefixes.
        return blocks or [_Block([])]

    def _input(self, row: HelmInstance, shot: int | None) -> list[Span]:
        return [
            self._span(self.spec.input_prefix, "input_prefix", shot),
            self._span(row.text, "input", shot, column="input"),
            self._span(self.spec.input_suffix, "input_suffix", shot),
        ]

    def _suffix(self, shot: int | None) -> Span:
        return self._span(self.spec.output_suffix, "output_suffix", shot, "fewshot delimiter")

    def _output(self, row: HelmInstance, reference: int | None) -> str:
        spec = self.spec
        if spec.is_joint:
            # HELM decides by the text: a label that reads `n/a` would be taken for none.
            output = NO_CORRECT
            label_of = spec.reference_text if spec.method.endswith("chain_of_thought") else spec.label
            for index in row.correct:
                label = self._labelled(label_of, index)
                if output == NO_CORRECT:
                    output = label
                elif spec.multi_label:
                    output += f", {label}"
            return output
        if reference is not None:
            return row.references[reference]
        golds = row.golds if spec.multi_label else row.golds[:1]
        return ", ".join(golds) if golds else NO_CORRECT

    def label(self, index: int) -> str:
        """Return the label of a reference; raises RenderError where HELM fails."""
        return self._labelled(self.spec.label, index)

    def _labelled(self, label: Callable[[int], str], index: int) -> str:
        try:
            return label(index)
        except ValueError as error:
            key = "reference_prefix_characters" if self.spec.reference_prefix_characters else "reference_prefix"
            position = self._where("adapter_spec", key)
            raise RenderError(str(error), position=position, hint="HELM 0.5.16 fails here") from error

    # -- spans -----------------------------------------------------------------------------------------------------

    def _span(
        self, text: str, key: str, shot: int | None, part: Part = "question", *, column: str | None = None
    ) -> Span:
        known = self._origins.get((key, shot, part, column))
        if known is None:
            position = self._where("adapter_spec", key) if column is None else None
            known = self._origins[key, shot, part, column] = Origin(part, key, position, shot, column)
        return Span(text, known)

    def _gap(self, shot: int | None) -> Span:
        return self._span(self.spec.instance_prefix, "instance_prefix", shot, "fewshot delimiter")

    def _substituted(self, pieces: list[PromptPiece], scored: int) -> tuple[list[PromptPiece], int]:
        origin = Origin("question", "substitutions", self._where("adapter_spec", "substitutions"))
        try:
            with time_limit(SUBSTITUTION_SECONDS, "applying the substitutions to a prompt", origin.position):
                for each in self.spec.substitutions:
                    end = sum(len(piece.span.text) for piece in pieces) - scored
                    pieces, moved = substituted(pieces, *each, origin, mark=end)
                    scored = sum(len(piece.span.text) for piece in pieces) - moved
        except LimitExceededError:
            raise
        except (re.error, IndexError) as error:
            raise RenderError(f"substitutions: {error}", position=origin.position) from error
        return pieces, scored


def substituted(
    pieces: Sequence[PromptPiece], source: str, target: str, origin: Origin, *, mark: int = 0
) -> tuple[list[PromptPiece], int]:
    """Return the pieces after `re.sub(source, target, text)` over their whole text, and where offset `mark` went.

    What is put in has `origin` and belongs to the message that the match begins in.
    """
    text = "".join([piece.span.text for piece in pieces])
    made: list[PromptPiece] = []
    done = length = 0
    moved: int | None = None
    for match in re.finditer(source, text):
        start, end = match.span()
        if moved is None and mark < end:
            moved = length + min(mark, start) - done
        kept = cut(pieces, done, start)
        made += kept
        replacement = match.expand(target)
        if replacement:
            at = _piece_at(pieces, start)
            made.append(PromptPiece(Span(replacement, origin), at.message, at.is_delimiter))
        length += start - done + len(replacement)
        done = end
    made += cut(pieces, done, len(text))
    return made, length + mark - done if moved is None else moved


def cut(pieces: Iterable[PromptPiece], start: int, end: int) -> list[PromptPiece]:
    """Return what is between two offsets of the text of the pieces."""
    found = []
    at = 0
    for piece in pieces:
        text = piece.span.text
        after = at + len(text)
        if at < end and after > start:
            inside = Span(text[max(start - at, 0) : end - at], piece.span.origin)
            found.append(piece if inside.text == text else replace(piece, span=inside))
        at = after
    return found


def _piece_at(pieces: Sequence[PromptPiece], offset: int) -> PromptPiece:
    at = 0
    for piece in pieces:
        at += len(piece.span.text)
        if offset < at:
            return piece
    return pieces[-1]


def _without_trailing_space(spans: Sequence[Span]) -> tuple[list[Span], Span]:
    """Return the spans of a question, and the trailing whitespace of its last one (the output prefix) apart."""
    *before, last = spans or [Span("", Origin("question"))]
    bare = last.text.rstrip()
    return [*before, Span(bare, last.origin)], Span(last.text[len(bare) :], last.origin)


def turns_of(built: Built, profile: Profile) -> tuple[Turn, ...]:
    """Return the turns of a prompt: shots apart in plain text, one user message for a chat template.

    HELM's clients send a prompt as one user message, with all its shots.
    """
    if profile.chat_template is not None:
        return (Turn.of((Message("user", tuple(piece.span for piece in built.pieces)),)),)
    messages: dict[int, tuple[list[Span], list[Span]]] = {}
    for piece in built.pieces:
        messages.setdefault(piece.message, ([], []))[piece.is_delimiter].append(piece.span)
    return tuple(
        Turn.of((Message(built.roles[number], tuple(content), tuple(delimiter)),))  # type: ignore[arg-type]
        for number, (content, delimiter) in sorted(messages.items())
    )

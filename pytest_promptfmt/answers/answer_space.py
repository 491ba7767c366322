"""What can be answered to a doc: labelled options, a number, or a text; read from the target and the prompt.

The phrasing battery says each possible answer in many ways and asks whether the task's filters find it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pytest_promptfmt.tasks import Question

_LABEL_TARGET: Final = re.compile(r"([(\[\"'* ]*)([A-Za-z]|[1-9]|[α-ω]|[ㄱ-ㅎ가-하])([)\].\"'*: ]*)")
_OPTION: Final = re.compile(
    r"(?:^|(?<=\s))[(\[]?([A-Za-z]|[1-9])[)\].:、：](?=\s)[ \t]*(\S[^\n]{0,200}?)[ \t]*$", re.MULTILINE
)
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FINAL_NUMBER: Final = re.compile(
    rf"(?:.*\s)?#### ?({_NUMBER.pattern})\.?\s*|[$€£]?({_NUMBER.pattern})%?\.?", re.DOTALL
)
_MOST_OPTIONS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The possible answers to one doc.

    `labels` and `texts` name the options (one label for what has no options: the answer itself); `targets` is what the
    scorer compares each with; `gold` is the index of the right one; `number` is the number within a numeric target.
    """

    kind: Literal["choice", "number", "text"]
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    targets: tuple[Any, ...]
    gold: int
    number: str | None = None

    def target_with(self, number: str) -> Any:
        """Return a numeric target with another number in it."""
        target = str(self.targets[self.gold])
        start = target.rindex(self.number or "")
        return target[:start] + number + target[start + len(self.number or "") :]


def answers_of(question: Question, prompt: str) -> Answers | None:
    """Return what can be answered to a generation doc; None for a target that is no text and no number."""
    target = question.target
    if question.choices is not None:
        return _of_choices(question, prompt)
    if question.has_several_targets:
        return _text(str(target[0]), list(target)) if isinstance(target, list) and target else None
    if not isinstance(target, str | int | float) or isinstance(target, bool):
        return None
    return _labelled(str(target), prompt) or _numeric(str(target)) or _text(str(target), str(target))


def _of_choices(question: Question, prompt: str) -> Answers | None:
    choices, gold = question.choices, question.target
    if not isinstance(gold, int) or not isinstance(choices, list | tuple) or not 0 <= gold < len(choices):
        return None
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        return None
    labelled = _labelled(choices[gold], prompt)
    labels = tuple(_bare(choice) for choice in choices)
    texts = labelled.texts if labelled is not None and len(labelled.texts) == len(choices) else ("",) * len(choices)
    return Answers(kind="choice", labels=labels, texts=texts, targets=tuple(choices), gold=gold)


def _bare(text: str) -> str:
    match = _LABEL_TARGET.fullmatch(text)
    return match[2] if match else text.strip()


def _labelled(target: str, prompt: str) -> Answers | None:
    """Return the options of the prompt when the target is the label of one of them."""
    match = _LABEL_TARGET.fullmatch(target)
    options = _last_options(prompt) if match else ()
    labels = tuple(label for label, _ in options)
    if match is None or match[2] not in labels:
        return None
    return Answers(
        kind="choice",
        labels=labels,
        texts=tuple(text for _, text in options),
        targets=tuple(f"{match[1]}{label}{match[3]}" for label in labels),
        gold=labels.index(match[2]),
    )


def _last_options(prompt: str) -> Sequence[tuple[str, str]]:
    """Return the last run of options in the prompt: labels that follow each other, from the first of their kind."""
    runs: list[list[tuple[str, str]]] = []
    for found in _OPTION.finditer(prompt):
        label, text = found[1], found[2]
        if runs and ord(label) == ord(runs[-1][-1][0]) + 1:
            runs[-1].append((label, text))
        elif label in "Aa1":
            runs.append([(label, text)])
    runs = [run for run in runs if len(run) > 1]
    return runs[-1][:_MOST_OPTIONS] if runs else ()


def _numeric(target: str) -> Answers | None:
    match = _FINAL_NUMBER.fullmatch(target.strip())
    if match is None:
        return None
    number = match[1] or match[2]
    return Answers(kind="number", labels=(number,), texts=("",), targets=(target,), gold=0, number=number)


def _text(text: str, target: Any) -> Answers:
    return Answers(kind="text", labels=(text,), texts=("",), targets=(target,), gold=0)

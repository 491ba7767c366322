"""The labels of choices (`A`, `1`, `iii` …): named sets and custom lists, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from pytest_promptfmt.core.errors import FormatError, did_you_mean

NUMBERS = "numbers"
"""The only labels without an end."""

_ROMAN_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")

LABEL_SETS: Mapping[str, tuple[str, ...]] = {
    "letters": tuple(ascii_uppercase),
    "lowercase": tuple(ascii_lowercase),
    "roman": tuple(tens + ones for tens in ("", "X", "XX") for ones in _ROMAN_ONES if tens + ones)[:26],
    "greek": tuple("αβγδεζηθικλμνξοπρστυφχψω"),
    "keyboard": tuple("!@#$%^₪*)("),
}
"""Named sets besides `numbers`. `greek` and `keyboard` are DOVE's (arXiv 2503.01622)."""

ChoiceLabels = str | tuple[str, ...] | None
"""`letters`, `numbers`, another named set, a custom list, or None for choices without labels."""


def checked_labels(value: Any, key: str = "choice_labels") -> ChoiceLabels:
    """Return the labels that a value such as that of `choice_labels` means; labels are always strings.

    `key` is the name of the setting that they are given for. Raises FormatError for an unknown name, an empty list, a
    repeated label, and a label that is not a string or integer.
    """
    refusal = partial(FormatError, key=key)
    if value is None or (isinstance(value, str) and (value == NUMBERS or value in LABEL_SETS)):
        return value
    if isinstance(value, str):
        known = (*LABEL_SETS, NUMBERS)
        hint = did_you_mean(value, known) or f"for your own labels, write a list: [{', '.join(value[:4])}]"
        message = f"{key} {value!r} is not a set of labels; expected {', '.join(known)}, a list of labels, or null"
        raise refusal(message, hint=hint)
    if not isinstance(value, Sequence):
        message = f"{key} is a {type(value).__name__}; it must be a name, a list of strings, or null"
        raise refusal(message, hint=f"{key}: [I, II, III, IV]")
    for label in value:
        if isinstance(label, bool) or not isinstance(label, str | int):
            message = f"{key} has the {type(label).__name__} {label!r}, but labels must be text"
            raise refusal(message, hint="put the label in quotes")
        if not str(label).strip():
            raise refusal(f"{key} has an empty label", hint="for choices without labels, write null")
    labels = tuple(str(label) for label in value)
    if not labels:
        raise refusal(f"{key} is an empty list", hint="for choices without labels, write null")
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is not None:
        raise refusal(f"{key} has the label {repeated!r} twice", hint="give each choice a different label")
    return labels


def label_count(labels: ChoiceLabels) -> int | None:
    """Return how many choices the labels can mark, None where there is no limit."""
    if labels is None or labels == NUMBERS:
        return None
    return len(LABEL_SETS[labels]) if isinstance(labels, str) else len(labels)


def first_labels(labels: ChoiceLabels, count: int) -> tuple[str, ...]:
    """Return the labels of `count` choices. Raises FormatError when there are fewer labels than choices."""
    if labels is None:
        return ()
    if labels == NUMBERS:
        return tuple(str(number) for number in range(1, count + 1))
    known = LABEL_SETS[labels] if isinstance(labels, str) else labels
    if count > len(known):
        raise FormatError(
            f"{count} choices, but only {len(known)} labels",
            hint="write `choice_labels: numbers`, which has no limit, or `choice_labels: null`",
        )
    return known[:count]

"""The words of synthetic docs: what a synthetic text calls its column, so that a renamed column has the same text.

A text that no renaming changes cannot show that two columns were swapped: a swap is two renamings. So a few names of
the field differ by their role (`query` is a `question`, `context` a `passage`, `premise` a `premise`),
and numbers and letters at their end by their order (`sentence1` and `sentence2`, `option_a` and `option_b`): swapping
such columns changes the prompt. Other names are not looked at. What they are called depends on the field that uses
them, and among several on the order of their first use. Renaming one changes nothing, and neither does swapping two
of them in one field; the columns that a snapshot lists, in the order in which they are read, show both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

CHOICE: Final = "choice"
LABEL: Final = "label"

_SYNONYMS: Final[Mapping[str, str]] = {
    "answer": "answer target output response reference completion gold solution",
    CHOICE: "choice option candidate ending alternative distractor op sol",
    "code": "code program snippet",
    "dialogue": "dialogue dialog conversation",
    "explanation": "explanation rationale reasoning",
    "hint": "hint",
    "hypothesis": "hypothesis",
    LABEL: "label letter",
    "passage": "passage context ctx article document paragraph background support",
    "premise": "premise",
    "question": "question query problem prompt instruction input goal q",
    "review": "review",
    "right answer": "right correct",
    "sentence": "sentence",
    "statement": "statement claim",
    "story": "story",
    "summary": "summary highlight",
    "title": "title headline",
    "topic": "topic subject",
    "translation": "translation",
    "turn": "turn message utterance",
    "wrong answer": "wrong incorrect",
}
_ROLES: Final = {name: word for word, names in _SYNONYMS.items() for name in names.split()}
_RIGHTNESS: Final = frozenset({"right answer", "wrong answer"})
_SAY_NOTHING: Final = frozenset({"text", "string", "str", "content", "value", "list"})
_TOKEN: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_NUMBERS: Final = ("", "second ", "third ", "fourth ", "fifth ", "sixth ", "seventh ", "eighth ", "ninth ", "tenth ")
_LETTERS: Final = "abcdefghij"


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a column: its role, None where it is not a name of the field, the rest of it, and its number."""

    role: str | None
    stem: str
    number: int


@lru_cache(maxsize=4096)
def read_name(name: str) -> Name:
    """Return what a name says: `option_b` is the second choice, `Question text` a question, `foo2` the second foo."""
    if len(name) == 1 and name in _LETTERS.upper():
        return Name(CHOICE, "", _LETTERS.index(name.lower()))
    tokens = [_singular(token.lower()) for token in _TOKEN.findall(name)]
    number = 0
    if len(tokens) > 1 and tokens[-1].isdecimal():
        number = int(tokens.pop()[:9])
    elif len(tokens) > 1 and len(tokens[-1]) == 1 and tokens[-1] in _LETTERS:
        number = _LETTERS.index(tokens.pop())
    elif len(tokens) == 1 and tokens[0] not in _ROLES and tokens[0][:-1] in _ROLES and tokens[0][-1] in _LETTERS:
        number = _LETTERS.index(tokens[0][-1])
        tokens = [tokens[0][:-1]]
    stem = " ".join(tokens)
    while len(tokens) > 1 and tokens[-1] in _SAY_NOTHING:
        tokens.pop()
    role = _ROLES.get(tokens[-1]) if tokens else None
    if role in ("answer", CHOICE):
        role = next((each for token in tokens if (each := _ROLES.get(token)) in _RIGHTNESS), role)
    return Name(role, stem, number)


@lru_cache(maxsize=4096)
def names_choices(name: str) -> bool:
    """Return whether a name speaks of choices or their labels: `multiple_choice_targets` does."""
    return any(_ROLES.get(_singular(token.lower())) in (CHOICE, LABEL) for token in _TOKEN.findall(name))


@dataclass(frozen=True, slots=True)
class Use:
    """Something that a synthetic text is put into: the names that lead to it, and the roles of the fields that read it.

    `is_list` says whether it is a list, or in one.
    """

    names: tuple[str, ...]
    fields: Collection[str]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Word:
    """What a synthetic text is called: its role, and the text with its number among those of the same role."""

    role: str
    text: str


def words_of(uses: Sequence[Use]) -> dict[tuple[str, ...], Word]:
    """Return what each text is called, by the names that lead to it; `uses` are in the order of their first use."""
    by_role: dict[str, list[tuple[str, ...]]] = {}
    unknown: list[tuple[Use, Name]] = []
    known: list[tuple[int, str, tuple[str, ...]]] = []
    for use in uses:
        read = [read_name(name) for name in use.names]
        last = next((name for name in reversed(read) if name.role is not None), None)
        if last is None or last.role is None:
            unknown.append((use, read[0]))
        else:
            known.append((last.number, last.role, use.names))
    for _, role, names in sorted(known, key=lambda each: each[0]):
        by_role.setdefault(role, []).append(names)
    has_choices = any("doc_to_choice" in use.fields for use in uses)
    first = {stem: at for at, stem in enumerate(dict.fromkeys(name.stem for _, name in unknown))}
    for use, _ in sorted(unknown, key=lambda each: (first[each[1].stem], each[1].number)):
        by_role.setdefault(_role_of_use(use, by_role, has_choices=has_choices), []).append(use.names)
    return {
        names: Word(role, f"{_NUMBERS[at] if at < len(_NUMBERS) else f'number {at + 1} '}{role}")
        for role, found in by_role.items()
        for at, names in enumerate(found)
    }


def _role_of_use(use: Use, taken: Collection[str], *, has_choices: bool) -> str:
    if "doc_to_choice" in use.fields:
        return CHOICE
    if use.is_list:
        return CHOICE if has_choices and CHOICE not in taken else "item"
    if "doc_to_text" in use.fields:
        return "text" if "question" in taken else "question"
    return "answer" if "doc_to_target" in use.fields else "text"


def _singular(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "is")) else word

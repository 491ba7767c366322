"""Names of columns that datasets of this field share, and what looks like a misspelling of one of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

COMMON: Final = frozenset(
    """
    answer answers article candidates category choice choice1 choice2 choices completion content context dialogue
    document ending endings explanation goal gold highlights hypothesis input instruction label labels message option
    option_a option_b option_c option_d options output paragraph passage premise problem prompt query question question1
    question2 question_stem questions reference response review sentence sentence1 sentence2 sentence_bad sentence_good
    sentences solution source statement story subject summary target targets text title topic translation
    """.split()  # noqa: SIM905
)
"""Columns that tasks of many authors have."""

_SHORTEST: Final = 5


def meant(name: str, known: Collection[str] = COMMON) -> str | None:
    """Return the known name of which a name has two letters swapped, or one inside lost or doubled; None otherwise."""
    if len(name) < _SHORTEST - 1 or name in known or not name.isascii():
        return None
    close = [each for each in known if len(each) >= _SHORTEST and _is_slip(name, each)]
    return close[0] if len(close) == 1 else None


def _is_slip(written: str, other: str) -> bool:
    start = next((at for at, (a, b) in enumerate(zip(written, other, strict=False)) if a != b), None)
    if start is None or start == 0:
        return False  # one begins with the other, or they differ from the first letter on: names of their own
    if len(written) == len(other):
        swapped = other[:start] + other[start + 1 : start + 2] + other[start] + other[start + 2 :]
        return written == swapped
    if len(written) + 1 == len(other):
        return written == other[:start] + other[start + 1 :]
    doubled = len(written) == len(other) + 1 and written[start] == written[start - 1]
    return doubled and other == written[:start] + written[start + 1 :]

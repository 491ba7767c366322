"""The shortest text that a regular expression matches, with a place for the answer."""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

_LONGEST: Final = 2000
_SHORT: Final = 8
_OF_CHARACTERS: Final = (codes.LITERAL, codes.RANGE)
_OF_CLASS: Final = {codes.CATEGORY_SPACE: " ", codes.CATEGORY_DIGIT: "1"}


@lru_cache(maxsize=1024)
def written_around(pattern: str) -> str | None:
    """Return the shortest text that a pattern with one group matches, with `{}` for that; None for other patterns."""
    try:
        tree = parser.parse(pattern) if len(pattern) <= _LONGEST else None
    except (re.error, OverflowError, RecursionError, MemoryError):
        return None  # which other rules report
    text = _shortest(tree).replace("{", "{{").replace("}", "}}") if tree is not None else ""
    return text.replace("\0", "{}") if text.count("\0") == 1 and len(text) > 1 else None


def _shortest(items: Iterable[Any]) -> str:
    """Return a short text that the items of a parsed pattern match, with U+0000 for the first group."""
    text = ""
    for op, value in items:
        if op is codes.LITERAL:
            text += chr(value)
        elif op is codes.IN:
            kind, first = value[0]
            is_class = kind not in _OF_CHARACTERS
            text += _OF_CLASS.get(first, "x") if is_class else chr(first if kind is codes.LITERAL else first[0])
        elif op in (codes.ANY, codes.NOT_LITERAL):
            text += "x"
        elif op is codes.BRANCH:
            text += _shortest(value[1][0])
        elif op is codes.SUBPATTERN:
            text += "\0" if value[0] == 1 else _shortest(value[-1])
        elif op is codes.ASSERT:
            text += _shortest(value[1])
        elif op in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            text += _shortest(value[2]) * min(value[0], _SHORT)
        text = text[:_LONGEST]  # repeats of repeats grow without end
    return text

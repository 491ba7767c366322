"""Texts, and characters that cannot be seen: which of them a snapshot shows by name, and how such a name is read.

The table is written out instead of taken from `unicodedata`: its categories differ between Python versions, and a
snapshot must not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_promptfmt.core.errors import PromptfmtError

END = "⟨end⟩"
"""Marks the end of every text."""

_NAMED: dict[str, str] = {"\t": "TAB", "\n": "LF", "\r": "CR", "\u00a0": "NBSP"}
_BY_NAME = {name: character for character, name in _NAMED.items()} | {"SP": " ", "empty": ""}

# First and last code point of everything that is invisible, looks like a plain space, changes how its neighbours
# are drawn, has no agreed glyph (private use), or cannot be in a UTF-8 file; and the bracket of our own escapes.
_CODE_POINTS = """
    0000-001F 007F-00A0 00AD 034F 061C 070F 115F-1160 1680 17B4-17B5 180B-180F 2000-200F 2028-202F 205F-206F 27E8
    2800 3000 3164 D800-F8FF FDD0-FDEF FE00-FE0F FEFF FFA0 FFF0-FFFC FFFE-FFFF 13430-1343F 1BCA0-1BCA3 1D159
    1D173-1D17A E0000-10FFFF
"""
_RANGES = (
    *(
        (int(first, 16), int(last or first, 16))
        for first, _, last in (one.partition("-") for one in _CODE_POINTS.split())
    ),
    *((plane * 0x10000 + 0xFFFE, plane * 0x10000 + 0xFFFF) for plane in range(1, 14)),
)


def _any_of(ranges: Iterable[tuple[int, int]]) -> re.Pattern[str]:
    return re.compile("[" + "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges) + "]")


# Python looks into a class of characters 25 times faster when it has none beyond U+FFFF.
_BASIC = tuple(pair for pair in _RANGES if pair[1] <= 0xFFFF)
_HIDDEN = _any_of(_RANGES)
_HIDDEN_BASIC = _any_of(_BASIC)
_HIDDEN_BUT_LF = _any_of(((0x0000, 0x0009), (0x000B, 0x001F), *_BASIC[1:]))
_BEYOND_BASIC = _any_of([(0x10000, 0x10FFFF)])
_ESCAPE = re.compile("⟨([^⟨⟩]*)(⟩?)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# What servers of CI obey: `::command::` at the start of a line, `##[command]` and `##vso[command]` anywhere.
_COMMAND = re.compile(r"(?m)^([^\S\n]*)(?=::)|##(?=(?:vso)?\[)")


class BadEscapeError(PromptfmtError):
    """An unknown escape in a snapshot; the reader adds the line."""


def show(text: str) -> str:
    """Return `text` as one line in which every character can be seen, and which does not end with a space."""
    text = show_inner(text)
    return text[:-1] + "⟨SP⟩" if text.endswith(" ") else text


def show_inner(text: str) -> str:
    """Return `text` like `show`, for places where something visible follows it: a last space stays a space."""
    if text.isascii() and text.isprintable():  # of ASCII: the same in every Python version
        return text
    return (_HIDDEN if _BEYOND_BASIC.search(text) else _HIDDEN_BASIC).sub(_name, text)


def needs_no_names(text: str) -> bool:
    """Return whether every line of `text` is shown unchanged; False may also mean that it has to be checked."""
    return " \n" not in text and not _HIDDEN_BUT_LF.search(text) and not _BEYOND_BASIC.search(text)


def unshow(shown: str) -> str:
    """Return the text that `show` or `show_inner` was given; raises BadEscapeError for an unknown escape."""
    return _ESCAPE.sub(_character, shown) if "⟨" in shown else shown


def printable(text: str) -> str:
    r"""Return the text with control characters as `\x1b`, and those that change direction or line as `\u202e`.

    Tabs and line feeds stay.
    """
    return _CONTROL.sub(_escaped, text)


def escape_controls(text: str) -> str:
    r"""Return the text as a terminal and a CI server can show it: all text that is printed goes through here.

    It is `printable`, and commands of a CI server get a backslash: `\::error::`, `##\[error]`.
    """
    text = printable(text)
    return _COMMAND.sub(r"\g<0>\\", text) if "::" in text or "##" in text else text


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _name(match: re.Match[str]) -> str:
    character = match[0]
    return f"⟨{_NAMED.get(character) or f'U+{ord(character):04X}'}⟩"


def _character(match: re.Match[str]) -> str:
    name, closed = match.groups()
    if closed:
        if name in _BY_NAME:
            return _BY_NAME[name]
        if re.fullmatch(r"U\+[0-9A-F]{4,6}", name) and int(name[2:], 16) <= 0x10FFFF:
            return chr(int(name[2:], 16))
    raise BadEscapeError(f"unknown escape {match[0]!r}", hint="write a literal ⟨ as ⟨U+27E8⟩")


def shared_start(one: str, other: str) -> int:
    """Return how many characters two texts have in common at the start."""
    # Halving compares slices in C: a prompt can be one line of megabytes.
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_end(one: str, other: str) -> int:
    """Return how many characters two texts have in common at the end."""
    return shared_start(one[::-1], other[::-1])

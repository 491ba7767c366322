"""What every command does to text that comes from files before it reaches a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""Return the text with control characters, which a terminal would obey, shown as `\x1b`; tabs and lines stay."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)

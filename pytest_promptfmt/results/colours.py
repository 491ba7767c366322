"""The colours of a failure in a terminal; its text is the same everywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MARKUP: Final[Mapping[str, Mapping[str, bool]]] = {
    "--- ": {"bold": True},
    "+++ ": {"bold": True},
    "@@ ": {"cyan": True},
    "-": {"red": True},
    "+": {"green": True},
    "accept": {"bold": True},
}


class FailureText(str):
    """The text of a failure: a plain string for JUnit files, workers and annotations, which pytest prints in colour."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        """Return the first line: on a CI server pytest puts the message into the closing list, the whole diff again."""
        # Of a text of one line partition() gives the object itself, of this class.
        return format(str(self).partition("\n")[0], spec)

    def toterminal(self, tw: Any) -> None:
        """Write the lines to pytest's terminal writer, which leaves colours out where there are none."""
        for line in self.split("\n"):
            tw.line(line, **next((markup for start, markup in _MARKUP.items() if line.startswith(start)), {}))

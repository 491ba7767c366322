"""Docs that note which of their columns a Python function asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class ReadDoc(dict[str, Any]):
    """A doc like any other; names that are asked for, of columns it has or lacks, are added to `names` in that order.

    Who takes the whole doc has read all of it.
    """

    def __init__(self, doc: Mapping[str, Any], names: dict[str, None]) -> None:
        """Take the columns of a doc, and where to note their names."""
        super().__init__(doc)
        self._names = names

    def _note(self, name: Any) -> None:
        if isinstance(name, str):
            self._names[name] = None

    def _note_all(self) -> None:
        self._names.update(dict.fromkeys(name for name in dict.keys(self) if isinstance(name, str)))

    def __getitem__(self, name: Any) -> Any:
        self._note(name)
        return super().__getitem__(name)

    def __contains__(self, name: Any) -> bool:
        self._note(name)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._note_all()
        return super().__iter__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to copy it: as an ordinary doc."""
        return dict, (self.copy(),)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a column, as of any doc."""
        self._note(name)
        return super().get(name, default)

    def pop(self, name: Any, *default: Any) -> Any:
        """Return a column and remove it, as of any doc."""
        self._note(name)
        return super().pop(name, *default)

    def copy(self) -> dict[str, Any]:
        """Return an ordinary doc."""
        self._note_all()
        return dict(super().items())

    def items(self) -> Any:
        """Return all columns with their values, as of any doc."""
        self._note_all()
        return super().items()

    def values(self) -> Any:
        """Return all values, as of any doc."""
        self._note_all()
        return super().values()

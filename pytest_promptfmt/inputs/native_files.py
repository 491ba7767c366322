"""The data files that compiled code of libraries may read: Python's audit hook does not see what these open.

Code has to name a file somehow: each data file next to code that uses libraries counts, and each file that a text in
the code names, from the folder of the code, of the task or of the run.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.inputs.code_inputs import CodeInputs
from pytest_promptfmt.inputs.places import Places

_OTHER_KINDS: Final = (".py", ".pyc", ".pyi", ".yaml", ".yml", ".md", ".rst")
"""Endings of files that Python code reads, and those that no code reads."""

_MOST_FILES: Final = 200
"""Data files below a folder that all count; if there are more, only those that a text names."""

_MOST_ENTRIES: Final = 20_000
_LEVELS_ABOVE: Final = 2
"""Folders above the code in which a file that a text names is searched."""

_UNCOUNTED: Final = (".", "__")
_ENDING: Final = re.compile(r".*\.\w{1,16}")


class NativeFiles:
    """The data files of a run, each folder read once."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._below = cache(_below)
        self._named = cache(self._by_name)
        self._found = cache(self._find)

    def of(self, code: CodeInputs, folders: Iterable[str]) -> frozenset[str]:
        """Return the paths that count for code that uses libraries: files, and folders with a slash.

        `folders` are those of the task and of the run, and those that variables name.
        """
        return self._found(code.files, code.texts, tuple(folders))  # the same for many tasks

    def _find(self, files: frozenset[str], texts: frozenset[str], folders: tuple[str, ...]) -> frozenset[str]:
        modules = [each for each in files if each.endswith(".py") and not self._places.is_library(each)]
        own = {os.path.dirname(each) for each in modules if os.path.isfile(each)}
        found: set[str] = set()
        for folder in own - {self._places.rootdir}:
            below = self._below(folder)
            if len(below) <= _MOST_FILES:
                found |= below
        named = [text.replace("\\", "/") for text in texts if " " not in text or _ENDING.fullmatch(text)]
        for text in named:
            found |= set(self._at(text, own.union(folders)))
            if _ENDING.fullmatch(text):
                name = os.path.basename(text)
                found.update(path for folder in own for path in self._named(self._above(folder)).get(name, ()))
        endings = tuple(text for text in named if text.startswith(".") and _ENDING.fullmatch(text))
        found.update(path for folder in own if endings for path in self._below(folder) if path.endswith(endings))
        return frozenset(found)

    def _at(self, text: str, folders: Iterable[str]) -> Iterator[str]:
        """Yield the files that a text names: by its path, or from one of these folders.

        A single word names no folder of the working folder: words such as `test` are common.
        """
        inner = text.strip("/")
        if not inner or not inner.strip("./"):
            return
        if text.startswith("/"):
            yield text.rstrip("/")
        for path in {os.path.normpath(os.path.join(folder, inner)) for folder in folders}:
            if os.path.isdir(path):
                yield from self._below(path) if "/" in inner or os.path.dirname(path) != os.getcwd() else ()
            elif os.path.lexists(path):
                yield path

    def _above(self, folder: str) -> str:
        """Return a folder some levels above another one, as long as it is below the rootdir."""
        for _ in range(_LEVELS_ABOVE):
            above = os.path.dirname(folder)
            if not gate.is_below(above, [self._places.rootdir]):
                break
            folder = above
        return folder

    def _by_name(self, folder: str) -> dict[str, list[str]]:
        found = defaultdict(list)
        for path in self._below(folder):
            found[os.path.basename(path)].append(path)
        return found


def _below(folder: str) -> frozenset[str]:
    """Return the data files below a folder, and the folders, with a slash; not those of hidden folders."""
    found: set[str] = set()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_UNCOUNTED))
        found.add(f"{place}/")
        found.update(f"{place}{os.sep}{name}" for name in names if not name.endswith(_OTHER_KINDS))
        if len(found) > _MOST_ENTRIES:
            break
    return frozenset(found)

"""Where files are: paths without the place of a checkout, so that its digests and rows are those of any other one.

Also the folders that Python imports from, and the files that belong to libraries: these count by name and version.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.files import LIBRARY_FOLDERS, cache_directory, is_installed
from pytest_promptfmt.core.writing import top_of

PACKAGE: Final = str(Path(__file__).absolute().parents[1])
"""The folder of this package."""

_MARK: Final = "\N{SYMBOL FOR UNIT SEPARATOR}"
"""Begins the name of a place; JSON, as it is written here, never has it, because it is no ASCII."""

_AFTER: Final = r"(?![\w.~-])"
_BEFORE: Final = r"(?:(?<![\w.~/-])|(?<=\\[nrt]))"
_ORIGIN: Final = re.compile(r'^\s*\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S[^\n]*?)\s*$', re.MULTILINE)
_URL: Final = re.compile(r"(?:[a-z+]+://)?(?:[^@/]*@)?([^/:]+(?::\d+(?=/))?)[:/](.+?)(?:\.git)?/*")
_MOST_BYTES: Final = 2**16
_Patterns = list[tuple[str, re.Pattern[str], str]]
_MOST_CLONES: Final = 3

_MADE_OF_INPUTS: Final = ("tokenizers",)
"""Folders of the user's cache that hold other forms of inputs: converted tokenizers."""


class Places:
    """The folders of a run whose paths belong to no key: rootdir, work tree, and where this package is.

    Without a `rootdir` each path is its own.
    """

    def __init__(self, rootdir: Path | None = None) -> None:
        self.rootdir = str(rootdir) if rootdir is not None else ""
        self._folders: dict[str, str] = {}
        if rootdir is not None:
            named = {"root": self.rootdir, "tree": str(top_of(rootdir)), "package": os.path.dirname(PACKAGE)}
            for mark, folder in named.items():
                for each in (folder, os.path.realpath(folder)):
                    if len(each) > 1:
                        self._folders.setdefault(each, f"{_MARK}{mark}")
        made = cache_directory()
        own = [PACKAGE, *(str(made / name) for name in _MADE_OF_INPUTS if made is not None)]
        self.is_library = cache(partial(_is_library, rootdir=self.rootdir, own=own))
        self.is_linked = cache(self._is_linked)

    def neutral(self, text: str) -> str:
        """Return a text with the names of places for their paths."""
        return self._replaced(text, self._plain)

    def written(self, text: str) -> str:
        """Return JSON with the names of places for their paths."""
        return self._replaced(text, self._escaped)

    def here(self, text: str) -> str:
        """Return the text that `neutral` was given, with the paths of this run."""
        return self._restored(text, str)

    def read(self, text: str) -> str:
        """Return the JSON that `written` was given, with the paths of this run."""
        return self._restored(text, lambda folder: json.dumps(folder)[1:-1])

    def is_named_in(self, text: str) -> bool:
        """Return whether a text names a file by the path of one of these places."""
        return any(folder in text for folder in self._folders)

    def digest(self, value: object) -> str:
        """Return the digest of a value with a stable `repr`, the same wherever the places are."""
        return digest_of(self.neutral(repr(value)).encode("utf-8", "backslashreplace"))

    def __repr__(self) -> str:
        """Return the paths of all places."""
        return repr([*self._folders])

    def _replaced(self, text: str, folders: _Patterns) -> str:
        for folder, pattern, mark in folders:
            parts, end, at = [], 0, text.find(folder)  # which is faster than a search for the pattern
            while at >= 0:
                if pattern.match(text, at):
                    parts += [text[end:at], mark]
                    end = at + len(folder)
                at = text.find(folder, max(end, at + 1))
            text = "".join([*parts, text[end:]]) if parts else text
        return text

    def _restored(self, text: str, form: Callable[[str], str]) -> str:
        if _MARK in text:
            for mark, folder in self._of_marks:
                text = text.replace(mark, form(folder))
        return text

    @cached_property
    def _plain(self) -> _Patterns:
        return self._patterns(repr)

    @cached_property
    def _escaped(self) -> _Patterns:
        return self._patterns(json.dumps)

    def _patterns(self, quoted: Callable[[str], str]) -> _Patterns:
        forms = [(quoted(folder)[1:-1], mark) for folder, mark in self._folders.items()]
        return [
            (each, re.compile(f"{_BEFORE}{re.escape(each)}{_AFTER}"), mark)
            for each, mark in sorted(forms, key=lambda pair: -len(pair[0]))
        ]

    @cached_property
    def _of_marks(self) -> list[tuple[str, str]]:
        """Return the folder of each mark, as the run names it, longer marks first."""
        folders: dict[str, str] = {}
        for folder, mark in self._folders.items():
            folders.setdefault(mark, folder)
        return sorted(folders.items(), reverse=True)

    def _is_linked(self, path: str) -> bool:
        """Return whether a file, or a folder on the way to it from the rootdir, is a link."""
        if not gate.is_below(path, [self.rootdir]):
            return False
        return os.path.realpath(path) != os.path.realpath(self.rootdir) + path[len(self.rootdir) :]


def digest_of(content: bytes) -> str:
    """Return the digest of bytes, 32 hexadecimal characters."""
    return blake2b(content, digest_size=16).hexdigest()


def _is_library(path: str, rootdir: str, own: Sequence[str]) -> bool:
    """Return whether a file belongs to an installed distribution, to Python or to this package: its version counts."""
    if gate.is_below(path, own):
        return True
    if path.startswith(f"{rootdir}{os.sep}"):
        inside = path[len(rootdir) :]
        return any(f"{os.sep}{name}{os.sep}" in inside for name in LIBRARY_FOLDERS)
    return is_installed(path)


# -- what can be imported ----------------------------------------------------------------------------------------------


def search_path() -> list[str]:
    """Return the folders in which Python searches for modules, those of editable packages with a finder included."""
    folders = [folder for folder in sys.path if folder and os.path.isdir(folder)]
    return [*dict.fromkeys([*folders, *_editable_folders()])]


def _editable_folders() -> Iterator[str]:
    """Yield the folders of packages that setuptools' finders know, which are not in the search path."""
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        mapping = getattr(module, "MAPPING", None) if module and module.__name__.startswith("__editable__") else None
        if isinstance(mapping, dict):
            yield from (os.path.dirname(str(folder)) for folder in mapping.values())


def distributions() -> list[str]:
    """Return the names of what is installed, with versions."""
    found: set[str] = set()
    for folder in search_path():
        with suppress(OSError):
            found.update(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-link")))
    return sorted(found)


def importable_in(folder: str) -> Iterator[str]:
    """Yield the names that an import finds in a folder: modules, packages, and folders that hold any of these."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.name
            elif entry.name.isidentifier() and not entry.name.startswith("__") and _holds_modules(entry.path):
                yield f"{entry.name}/"


def _holds_modules(folder: str, depth: int = 2) -> bool:
    """Return whether there are modules in a folder, or in one of its folders, so that it can be imported."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    if "pyvenv.cfg" in names:
        return False  # an environment, which is not imported from
    is_found = any(name.endswith(".py") for name in names)
    return is_found or (depth > 1 and any(_holds_modules(f"{folder}/{name}", depth - 1) for name in names))


# -- which repository --------------------------------------------------------------------------------------------------


def identity_of(root: Path) -> str:
    """Return a text that is equal for a resolved rootdir and the same folder of other clones of its repository.

    That is where it was cloned from, or its own path if that is unknown.
    """
    tree = top_of(root)
    return f"{_source_of(tree, _MOST_CLONES)} {root.relative_to(tree).as_posix()}"


def _source_of(tree: Path, clones: int) -> str:
    """Return the origin of a repository without user and protocol; that of the other one for a clone on this machine.

    Where a repository was cloned from is a work tree, or its `.git`, or bare.
    """
    is_bare = clones < _MOST_CLONES and not (tree / ".git").exists()
    common = tree if is_bare else _common_folder(tree / ".git")
    match = _ORIGIN.search(_text_of(common / "config"))
    origin = match[1] if match else ""
    local = Path(tree, origin.removeprefix("file://"))
    if origin and clones and local.is_dir():
        return _source_of(local.resolve(), clones - 1)
    url = None if origin.startswith((".", "/")) else _URL.fullmatch(origin)
    return f"{url[1].lower()}/{url[2]}" if url else str(common.parent if common.name == ".git" else tree)


def _common_folder(place: Path) -> Path:
    """Return the folder of a repository, which several work trees may share."""
    link = _text_of(place).partition("gitdir:")[2].strip() if place.is_file() else ""
    own = Path(place.parent, link) if link else place
    shared = _text_of(own / "commondir").strip()
    return Path(os.path.normpath(own / shared)) if shared else own


def _text_of(path: Path) -> str:
    """Return the text of a small file of a repository's own folder, "" if it cannot be read."""
    with suppress(OSError, PromptfmtError), gate.open_file(path, limit=_MOST_BYTES, also=(path.parent,)) as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""

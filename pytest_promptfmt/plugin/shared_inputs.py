"""What holds for all tasks of a folder: versions, settings, options, the code around.

Where any of it is another, no outcome of before holds. Also which files belong to libraries: their versions speak for
them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from pytest_promptfmt.core.files import LIBRARY_FOLDERS, is_installed
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.engine.code_inputs import CodeInputs, reached_from
from pytest_promptfmt.engine.contents import OTHER, Contents, digest_of
from pytest_promptfmt.engine.traces import Trace
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.settings.setting_lookup import SettingLookup

_PACKAGE: Final = str(Path(__file__).absolute().parents[1])
_ENVIRONMENT: Final = ("PROMPTFMT_", "HF_", "TRANSFORMERS_", "PYTHON", "TZ", "LC_", "LANG")


class Surroundings:
    """What outcomes of a run depend on besides their own inputs."""

    def __init__(self, config: pytest.Config, folders: Folders, contents: Contents) -> None:
        self._config = config
        self._folders = folders
        self._contents = contents
        self._digests: dict[int, tuple[Settings, str]] = {}
        self._base: str | None = None
        self.is_library = lru_cache(maxsize=None)(partial(_is_library, rootdir=config.rootpath))
        self._is_linked = lru_cache(maxsize=None)(partial(_is_linked, rootdir=str(config.rootpath)))

    def reached_from(self, modules: Iterable[str], settings: Settings) -> CodeInputs:
        """Return the files that modules of a task may import; one behind a link asks for something nobody sees."""
        reached = reached_from(modules, (str(settings.rootdir), *_search_path()), self.is_library)
        if not reached.asks and any(self._is_linked(name) for name in reached.files if not name.endswith("/")):
            return CodeInputs(reached.files, "a module behind a link, which it may look for its files by")
        return reached

    def conftests_above(self, folder: Path) -> list[str]:
        """Return the conftests that hold for a folder, from the rootdir down to it, whether they are there or not."""
        root = self._config.rootpath
        chain = [folder, *folder.parents]
        return [f"{each}/conftest.py" for each in (chain[: chain.index(root) + 1] if root in chain else chain)]

    def digest(self, settings: Settings) -> str:
        """Return the digest of what holds for all tasks of a folder; `OTHER` where nobody can say what that is."""
        known = self._digests.get(id(settings))
        if known is None:
            if self._base is None:
                found = list(self._of_this_run())
                self._base = OTHER if OTHER in found else digest_of(repr(found).encode("utf-8", "backslashreplace"))
            own = [self._base, _plain(settings), *self._files_named_by(settings)]
            digest = digest_of(repr(own).encode("utf-8", "backslashreplace"))
            known = self._digests[id(settings)] = settings, OTHER if OTHER in own else digest
        return known[1]

    def _of_this_run(self) -> Iterator[object]:
        """Yield what holds for every task: versions, the code of this package and of conftests, options."""
        config = self._config
        yield sys.version, sys.platform, version("pytest-promptfmt"), os.getcwd(), str(config.rootpath)
        for folder, _, names in sorted(os.walk(_PACKAGE)):
            stamps = ((name, os.stat(f"{folder}/{name}")) for name in sorted(names) if name.endswith(".py"))
            yield from ((folder, name, stamp.st_size, stamp.st_mtime_ns) for name, stamp in stamps)
        for folder in _search_path():
            with suppress(OSError):
                yield folder, sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-link")))
            if _is_below(folder, str(config.rootpath)):
                yield folder, sorted(_importable_in(folder))
        plugins = {str(getattr(plugin, "__file__", "") or "") for plugin in config.pluginmanager.get_plugins()}
        root = str(config.rootpath)
        own = [name for name in plugins if name.startswith(root) and not self.is_library(name)]
        reached = reached_from(own, (root,), self.is_library)
        yield sorted(self._contents.input(name)[:2] for name in reached.files | reached.facts)
        yield OTHER if reached.reads else None  # nobody sees what is opened while pytest imports them
        yield config.getoption("pythonwarnings", None), list(config.getini("filterwarnings"))
        yield config.get_verbosity() > 0, config.getoption("promptfmt"), sorted(self._folders.settings.repeat)
        yield sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT))
        baseline, update = map(SettingLookup(config).value, ("baseline", "baseline_update"))
        yield None if baseline is None else self._contents.input(str(baseline))[:2], update

    def _files_named_by(self, settings: Settings) -> Iterator[object]:
        """Yield the contents of files that settings name; `OTHER` where nobody can say what they are."""
        for file in settings.rules:
            reached = reached_from([str(file)], (str(settings.rootdir),), self.is_library)
            yield sorted(self._contents.input(name)[:2] for name in reached.files | reached.facts)
            yield OTHER if reached.asks or reached.loads or reached.reads else None
        engines = (*settings.template_engines, *(each.engine or "" for each in settings.profiles))
        recorded = (engine for engine in engines if engine.endswith(RECORDED))
        yield [self._contents.input(name)[:2] for name in (*recorded, *(str(file) for _, file in settings.training_of))]
        for profile in settings.profiles:
            tokenizer = profile.tokenizer
            if tokenizer is None or profile.is_archetype:
                continue
            place = Path(tokenizer)
            if place.is_dir():
                yield sorted(self._contents.input(f"{place}/{name}")[:2] for name in os.listdir(place))
            else:
                yield self._contents.input(str(place))[:2] if place.exists() else OTHER


class FileTrace(Trace):
    """What items of a worker open, apart from Python's own files, those of libraries and of this package."""

    def __init__(self, rootdir: Path, *, is_offline: bool) -> None:
        super().__init__(lambda path: _is_library(path, rootdir), is_offline=is_offline)


def _search_path() -> list[str]:
    return [folder for folder in sys.path if folder and os.path.isdir(folder)]


def _is_library(path: str, rootdir: Path) -> bool:
    """Return whether a file is of an installed distribution or of Python, whose version speaks for it, or of ours."""
    if path.startswith(f"{_PACKAGE}{os.sep}"):
        return True
    if path.startswith(f"{rootdir}{os.sep}"):
        inside = path[len(str(rootdir)) :]
        return any(f"{os.sep}{name}{os.sep}" in inside for name in LIBRARY_FOLDERS)
    return is_installed(path)


def _is_below(path: str, rootdir: str) -> bool:
    return path == rootdir or path.startswith(f"{rootdir}{os.sep}")


def _importable_in(folder: str) -> Iterator[str]:
    """Yield the names that an import finds in a folder: modules, packages, and folders that hold any of these."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.name
            elif entry.name.isidentifier() and not entry.name.startswith("__") and _holds_modules(entry.path):
                yield f"{entry.name}/"


def _holds_modules(folder: str, depth: int = 2) -> bool:
    """Return whether there are modules in a folder, or in one of its folders: without any it is nothing to import."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    is_found = any(name.endswith(".py") for name in names)
    return is_found or (depth > 1 and any(_holds_modules(f"{folder}/{name}", depth - 1) for name in names))


def _is_linked(path: str, rootdir: str) -> bool:
    """Return whether a file, or a folder on the way to it from the rootdir, is a link."""
    if not _is_below(path, rootdir):
        return False
    return os.path.realpath(path) != os.path.realpath(rootdir) + path[len(rootdir) :]


def _plain(value: object) -> object:
    """Return a value of settings so that equal ones, and no others, look alike."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [(each.name, _plain(getattr(value, each.name))) for each in fields(value)]
    if isinstance(value, Mapping):
        return sorted((str(key), repr(_plain(item))) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(each)) for each in value)
    return str(value) if isinstance(value, Path | datetime) else value

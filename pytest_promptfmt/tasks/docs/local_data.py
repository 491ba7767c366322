"""The local data files that a task names with `dataset_path` and `data_files`, by split.

For a name of the hub (`cais/mmlu`) or a URL the result is None, and nothing is ever downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import DocsError, Position, display_path, raising
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.docs.data_files import KINDS, kind_of, missing_file, named_file

_MAX_FILES: Final = 1000
_SHOWN_FILES: Final = 3
_DEFAULT_SPLIT: Final = "train"
_SPLIT_WORDS: Final[Mapping[str, list[str]]] = data_table("data_files")["split_words"]


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """The files of each split; `kind` is set where the task names it (`json`, `csv`, `parquet`).

    `folder` is that of the task: names are relative to it, so that they do not change with the working directory.
    """

    splits: Mapping[str, tuple[Path, ...]]
    kind: str | None
    options: Mapping[str, Any]
    folder: Path

    def label(self, split: str) -> str:
        """Return what to call the files of a split."""
        files = self.splits[split]
        more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
        return ", ".join(self._shown(file) for file in files[:_SHOWN_FILES]) + more

    def _shown(self, file: Path) -> str:
        try:
            shown = Path(os.path.relpath(file, self.folder)).as_posix()
        except ValueError:  # another drive
            return file.name
        # Far away: the folders in between are those of one machine.
        return file.name if shown.startswith("../../../") else shown


def local_files(task: Task) -> LocalFiles | None:
    """Return the local data files of the task, None when it names none.

    Relative paths are looked up from the working directory, as lm-eval 0.4.13 does, then from the task's folder.
    Raises DocsError when the task clearly names a local file that is not there, but its folder is: data in a folder
    that does not exist is made elsewhere, like that of a hub.
    """
    with suppress(_NoFolderError):
        return _local_files(task)
    return None


class _NoFolderError(Exception):
    """A data file whose folder does not exist."""


def _missing(folders: list[Path], name: str, position: Position | None) -> Exception:
    places = [named_file(folder, name, position) for folder in folders]
    is_outside = not Path(name).is_absolute() and not all(map(gate.is_allowed, places))
    if not is_outside and not any(_is_safely(place.parent.is_dir) for place in places) and not name.startswith("~"):
        return _NoFolderError(name)
    return missing_file(places[-1], position)


def _local_files(task: Task) -> LocalFiles | None:
    path = task.dataset.path
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    options = dict(task.dataset.kwargs or {})
    if path in KINDS:
        return _named_files(task, path, options)
    is_path = path.startswith(("./", "../", "/", "~"))
    position = task.position("dataset_path")
    if (is_path or kind_of(Path(path)) is not None) and gate.refusal_of_name(path) is not None:
        named_file(Path(), path, position)  # raises with the reason
    for folder in _starts(task):
        if gate.refusal_of_name(path) is not None:
            break
        place = named_file(folder, path, position)
        if _is_safely(place.exists):
            _require_allowed(place, position)
        if _is_safely(place.is_file):
            if kind_of(place) is None:
                message = f"dataset_path names the file {place.name}, which is not a data file"
                hint = "give a .jsonl, .json, .csv or .parquet file"
                raise task.error(DocsError, message, "dataset_path", hint=hint)
            return _gathered(task, {task.dataset.evaluation_split or _DEFAULT_SPLIT: (place,)}, None, options)
        if _is_safely(place.is_dir):
            found = _folder_files(task, place, options)
            # A folder that happens to be called like a dataset of the hub is not meant.
            if found is not None and (is_path or task.dataset.evaluation_split in found.splits):
                return found
    if is_path or kind_of(Path(path)) is not None:
        raise _missing(_starts(task), path, position)
    return None


def _starts(task: Task) -> list[Path]:
    return [Path.cwd(), *([task.path.absolute().parent] if task.path is not None else [])]


def _gathered(task: Task, splits: Mapping[str, tuple[Path, ...]], kind: str | None, options: Any) -> LocalFiles:
    return LocalFiles(splits=splits, kind=kind, options=options, folder=_starts(task)[-1])


def _is_safely(test: Any) -> bool:
    with suppress(OSError, ValueError):
        return bool(test())
    return False


def _named_files(task: Task, kind: str, options: Mapping[str, Any]) -> LocalFiles | None:
    position = task.position("dataset_kwargs", "data_files")
    base = options.get("data_dir")
    starts = _starts(task)
    if options.get("data_files") is None and isinstance(base, str):
        places = [named_file(start, base, task.position("dataset_kwargs", "data_dir")) for start in starts]
        place = next((place for place in places if _is_safely(place.is_dir)), None)
        return _folder_files(task, place, options, kind) if place is not None else None
    patterns = _patterns(options.get("data_files"), position)
    if not patterns or any("://" in name for names in patterns.values() for name in names):
        return None
    prefix = named_file(Path(), base, task.position("dataset_kwargs", "data_dir")) if isinstance(base, str) else Path()
    splits = {
        split: tuple(file for name in names for file in _found([start / prefix for start in starts], name, position))
        for split, names in patterns.items()
    }
    return _gathered(task, splits, kind, options)


def _found(folders: list[Path], name: str, position: Position | None) -> list[Path]:
    """Return the files that a name or glob means in the first folder that has any; raises DocsError when none has."""
    for folder in folders:
        if found := _matches(folder, named_file(folder, name, position)):
            return found
    raise _missing(folders, name, position)


def _patterns(given: Any, position: Position | None) -> dict[str, list[str]]:
    """Return `data_files` as split → names; a bare name or list is the split `train` (datasets 5.2)."""
    if given is None:
        return {}
    by_split = given if isinstance(given, Mapping) else {_DEFAULT_SPLIT: given}
    patterns: dict[str, list[str]] = {}
    for split, names in by_split.items():
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, list | tuple) or not all(isinstance(name, str) and name for name in listed):
            raise DocsError(
                f"invalid data_files for the split {split!r}: {names!r:.60}",
                position=position,
                hint="write a file name, or a list of file names",
            )
        patterns[str(split)] = list(listed)
    return patterns


def _matches(folder: Path, path: Path) -> list[Path]:
    """Return the files that a path or glob means, sorted; some may turn out unreadable when opened."""
    parts = path.relative_to(folder).parts if path.is_relative_to(folder) else path.parts
    plain = list(takewhile(lambda part: not re.search(r"[*?\[]", part), parts))
    try:
        if len(plain) == len(parts):
            return [path] if gate.is_there(path) and not path.is_dir() else []
        start = folder.joinpath(*plain)
        if not gate.is_allowed(start / "-"):
            raise gate.RefusedError("the file is outside the rootdir", start)
        found = islice(start.glob("/".join(parts[len(plain) :])), _MAX_FILES)
        return sorted(each for each in found if not each.is_dir())
    except (OSError, ValueError, NotImplementedError):
        return []


def _require_allowed(path: Path, position: Position | None) -> None:
    """Raise DocsError for data outside the allowed folders."""
    with raising(DocsError, f"cannot read {display_path(path)}", position):
        gate.allowed(path / "-")


def _folder_files(task: Task, folder: Path, options: Mapping[str, Any], kind: str | None = None) -> LocalFiles | None:
    position = task.position("dataset_kwargs", "data_files")
    _require_allowed(folder, task.position("dataset_kwargs", "data_dir") or position)
    splits = {
        split: tuple(file for name in names for file in _found([folder], name, position))
        for split, names in _patterns(options.get("data_files"), position).items()
    }
    if not splits:
        splits = _by_words(folder, sorted(file for file in _walk(folder) if kind_of(file) is not None))
    return _gathered(task, splits, kind, options) if splits else None


def _walk(folder: Path) -> Iterable[Path]:
    """Return the files of a folder and of the folders in it; sidecars are docs of a task, not of a dataset."""
    found: list[Path] = []
    with raising(DocsError, f"cannot read {display_path(folder)}"):  # or a folder in it
        for pattern in ("*", "*/*"):
            found += islice(folder.glob(pattern), _MAX_FILES)
        return [file for file in found if ".docs." not in file.name and not file.is_dir()]


def _by_words(folder: Path, files: Iterable[Path]) -> dict[str, tuple[Path, ...]]:
    splits: dict[str, tuple[Path, ...]] = {}
    rest: tuple[Path, ...] = ()
    for file in files:
        words = set(re.split(r"[-._ /]+", file.relative_to(folder).as_posix().lower()))
        split = next((split for split, known in _SPLIT_WORDS.items() if words.intersection(known)), None)
        if split is None:
            rest = (*rest, file)
        else:
            splits[split] = (*splits.get(split, ()), file)
    return splits or ({_DEFAULT_SPLIT: rest} if rest else {})

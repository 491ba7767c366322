"""The local data files that a task names with `dataset_path` and `data_files`, by split.

A name of the hub (`cais/mmlu`) or an address is nothing local: the answer is None, and nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.errors import DocsError, Position
from pytest_promptfmt.sources.data_files import KINDS, kind_of, missing_file
from pytest_promptfmt.tasks import Task

_MAX_FILES: Final = 1000
_DEFAULT_SPLIT: Final = "train"
# The words by which Hugging Face datasets 5.2 finds the splits of a folder.
_SPLIT_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "train": frozenset({"train", "training"}),
    "validation": frozenset({"validation", "valid", "dev", "val"}),
    "test": frozenset({"test", "testing", "eval", "evaluation"}),
}


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """The files of each split; `kind` is set where the task names it (`json`, `csv`, `parquet`).

    `written` is what the task calls the files of each split, `beside_task` whether they were found from the task's
    folder instead of the working directory.
    """

    splits: Mapping[str, tuple[Path, ...]]
    written: Mapping[str, str]
    kind: str | None
    options: Mapping[str, Any]
    beside_task: bool

    def label(self, split: str) -> str:
        """Return what to call the files of a split."""
        found = " (found beside the task)" if self.beside_task else ""
        return self.written[split] + found


def local_files(task: Task) -> LocalFiles | None:
    """Return the local data files of the task, None when it names none.

    Relative paths are looked up from the working directory, as lm-eval 0.4.13 does, then from the task's folder.
    Raises DocsError when the task clearly names a local file that is not there.
    """
    path = task.dataset.path
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    options = dict(task.dataset.kwargs or {})
    if path in KINDS:
        return _named_files(task, path, options)
    is_path = path.startswith(("./", "../", "/", "~"))
    for folder, beside_task in _starts(task):
        place = folder / Path(path).expanduser()
        if _is_safely(place.is_file):
            split = task.dataset.evaluation_split or _DEFAULT_SPLIT
            return _one(task, split, path, place, options, beside_task)
        if _is_safely(place.is_dir):
            found = _folder_files(task, path, place, options, beside_task)
            # A folder that happens to be called like a dataset of the hub is not meant.
            if found is not None and (is_path or task.dataset.evaluation_split in found.splits):
                return found
    if is_path or kind_of(Path(path)) is not None:
        raise missing_file(_starts(task)[-1][0] / Path(path).expanduser(), task.position("dataset_path"))
    return None


def _starts(task: Task) -> list[tuple[Path, bool]]:
    """Return the folders that relative paths may start from."""
    starts = [(Path.cwd(), False)]
    if task.path is not None:
        starts.append((task.path.absolute().parent, True))
    return starts


def _is_safely(test: Any) -> bool:
    try:
        return bool(test())
    except (OSError, ValueError):
        return False


def _one(task: Task, split: str, path: str, file: Path, options: Mapping[str, Any], beside_task: bool) -> LocalFiles:
    if kind_of(file) is None:
        raise DocsError(
            f"dataset_path names the file {path}, which is no data file",
            position=task.position("dataset_path"),
            hint="give a .jsonl, .json, .csv or .parquet file",
        )
    return LocalFiles(
        splits={split: (file,)}, written={split: _shown(path)}, kind=None, options=options, beside_task=beside_task
    )


def _named_files(task: Task, kind: str, options: Mapping[str, Any]) -> LocalFiles | None:
    """Return the files of `dataset_path: json` and its like."""
    position = task.position("dataset_kwargs", "data_files")
    given = options.get("data_files")
    base = options.get("data_dir")
    starts = _starts(task)
    if given is None and isinstance(base, str):
        for folder, beside_task in starts:
            if _is_safely((folder / base).is_dir):
                return _folder_files(task, base, folder / base, options, beside_task, kind=kind)
    patterns = _patterns(given, position)
    if not patterns or any("://" in name for names in patterns.values() for name in names):
        return None
    prefix = Path(base) if isinstance(base, str) else Path()
    splits: dict[str, tuple[Path, ...]] = {}
    beside_any = False
    for split, names in patterns.items():
        for name in names:
            found, beside_task = _found(starts, prefix, name)
            if not found:
                raise missing_file(starts[-1][0] / prefix / Path(name).expanduser(), position)
            splits[split] = (*splits.get(split, ()), *found)
            beside_any = beside_any or beside_task
    written = {split: ", ".join(_shown(name) for name in names) for split, names in patterns.items()}
    return LocalFiles(splits=splits, written=written, kind=kind, options=options, beside_task=beside_any)


def _found(starts: Iterable[tuple[Path, bool]], prefix: Path, name: str) -> tuple[list[Path], bool]:
    """Return the files a name means, and whether they were found from the task's folder."""
    for folder, beside_task in starts:
        found = _matches(folder / prefix, name)
        if found:
            return found, beside_task
    return [], False


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
                f"data_files has {names!r:.60} for the split {split!r}",
                position=position,
                hint="give a file name, a list of them, or a mapping of split names to either",
            )
        patterns[str(split)] = list(listed)
    return patterns


def _matches(folder: Path, name: str) -> list[Path]:
    """Return the files that a name or glob means, sorted."""
    path = Path(name).expanduser()
    try:
        if not re.search(r"[*?\[]", name):
            whole = folder / path
            return [whole] if whole.is_file() else []
        start, pattern = (
            (Path(path.anchor), str(path.relative_to(path.anchor))) if path.is_absolute() else (folder, name)
        )
        return sorted(found for found in islice(start.glob(pattern), _MAX_FILES) if found.is_file())
    except (OSError, ValueError, NotImplementedError):
        return []


def _folder_files(
    task: Task, path: str, folder: Path, options: Mapping[str, Any], beside_task: bool, kind: str | None = None
) -> LocalFiles | None:
    """Return the data files in a folder, their splits told by `data_files` or by the words in their names."""
    position = task.position("dataset_kwargs", "data_files")
    patterns = _patterns(options.get("data_files"), position)
    if patterns:
        splits = {
            split: tuple(file for name in names for file in _matches(folder, name)) for split, names in patterns.items()
        }
        for split, names in patterns.items():
            if not splits[split]:
                raise missing_file(folder / names[0], position)
    else:
        found = sorted(file for file in _walk(folder) if kind_of(file) is not None)
        splits = _by_words(folder, found)
    if not splits:
        return None
    written = {
        split: ", ".join(_shown(f"{path.rstrip('/')}/{file.relative_to(folder).as_posix()}") for file in files[:3])
        + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        for split, files in splits.items()
    }
    return LocalFiles(splits=splits, written=written, kind=kind, options=options, beside_task=beside_task)


def _walk(folder: Path) -> Iterable[Path]:
    """Return the files of a folder and of the folders in it; sidecars are docs of a task, not of a dataset."""
    found = [*islice(folder.glob("*"), _MAX_FILES), *islice(folder.glob("*/*"), _MAX_FILES)]
    return [file for file in found if file.is_file() and ".docs." not in file.name]


def _by_words(folder: Path, files: Iterable[Path]) -> dict[str, tuple[Path, ...]]:
    splits: dict[str, tuple[Path, ...]] = {}
    rest: tuple[Path, ...] = ()
    for file in files:
        words = set(re.split(r"[-._ /]+", file.relative_to(folder).as_posix().lower()))
        split = next((split for split, known in _SPLIT_WORDS.items() if words & known), None)
        if split is None:
            rest = (*rest, file)
        else:
            splits[split] = (*splits.get(split, ()), file)
    return splits or ({_DEFAULT_SPLIT: rest} if rest else {})


def _shown(name: str) -> str:
    """Return a path as written, without the folders of somebody's machine."""
    path = Path(name)
    return path.name if path.is_absolute() or name.startswith("~") else path.as_posix()

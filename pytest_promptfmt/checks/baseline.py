"""The baseline: findings and errors that were there when the plugin came, kept in a file so that only new ones fail.

One JSON object in a line for each, sorted, so that git merges it and a reviewer reads it. An entry is met again by
the stable key of its finding, which knows no lines and no docs; where the text that was seen has changed as well, by
rule, task and message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SettingsError, display_path

FIRST_LINE: Final = {"pytest-promptfmt baseline": 1}
ERROR: Final = "error"
"""Stands in place of a code for a task or file that cannot be read or rendered."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Entry:
    """One accepted finding, or error; `file` is below the rootdir, with slashes.

    `profile` is that of a rule about profiles, empty for the others.
    """

    file: str
    task: str
    code: str
    message: str
    key: str
    profile: str = ""


_LINES: Final = re.compile(r"(?<=\.\w{2}):\d+(?::\d+)?|(?<=\.\w{4}):\d+(?::\d+)?")
"""The lines that a message names of other files: `utils.py:12`, `_base.yaml:3:1`."""


class Baseline:
    """The entries of a file, looked up by the task file that they are about."""

    def __init__(self, entries: Iterable[Entry] = (), *, is_gone: Callable[[str], bool] = lambda _file: False) -> None:
        self.entries = tuple(entries)
        self._by_file: dict[str, list[Entry]] = {}
        self._moved: dict[str, list[Entry]] = {}
        """Entries by task whose file is gone: it may have another name or folder now."""
        for entry in self.entries:
            self._by_file.setdefault(entry.file, []).append(entry)
        for file, own in self._by_file.items():
            for entry in own if is_gone(file) else ():
                self._moved.setdefault(entry.task, []).append(entry)

    def _entries_for(self, file: str, tasks: Iterable[str]) -> list[Entry]:
        moved = [entry for task in dict.fromkeys(tasks) for entry in self._moved.get(task, ())]
        return [*self._by_file.get(file, ()), *moved]

    def met(self, file: str, findings: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Return for each finding of one item the key of the entry that accepts it, None for a new one."""
        left = {entry.key: entry for entry in self._entries_for(file, (finding["task"] for finding in findings))}
        keys = [finding["key"] if left.pop(finding["key"], None) else None for finding in findings]
        alike: dict[tuple[str, ...], list[str]] = {}
        for entry in left.values():
            alike.setdefault((entry.code, entry.task, entry.profile, entry.message), []).append(entry.key)
        for number, finding in enumerate(findings):
            same = alike.get(tuple(finding[name] for name in ("code", "task", "profile", "message")))
            if keys[number] is None and same:
                keys[number] = same.pop(0)
        return keys

    def accepts_error(self, file: str, task: str, message: str) -> bool:
        """Return whether a file or task may fail to be read or rendered with this message."""
        key = error_key(file, task, message)
        return any(entry.key == key for entry in self._entries_for(file, [task]))


def error_key(file: str, task: str, message: str) -> str:
    """Return the stable key of an error: the same wherever its line went, and in whatever folder the file lies."""
    identity = [ERROR, file.rpartition("/")[2], task, _LINES.sub("", message)]
    return sha256(json.dumps(identity).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def read_baseline(path: Path, *, is_gone: Callable[[str], bool] = lambda _file: False) -> Baseline:
    """Return the baseline in a file; `is_gone` tells of a file that it names whether there is none.

    Raises SettingsError, naming the line, for a file that is no baseline.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the baseline {display_path(path)} cannot be read: {error}") from error
    if not lines or _parsed(lines[0], path, 1) != FIRST_LINE:
        raise _no_baseline(path, 1, f"a baseline begins with the line {json.dumps(FIRST_LINE)}")
    entries = (_entry(_parsed(line, path, number), path, number) for number, line in enumerate(lines[1:], 2))
    return Baseline(entries, is_gone=is_gone)


def write_baseline(entries: Iterable[Entry], path: Path) -> None:
    """Write the entries, sorted, one in a line; the file is replaced in one step."""
    rows = [FIRST_LINE, *(_row(entry) for entry in sorted(entries))]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
    temporary.replace(path)


def _row(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name != "profile" or value}


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _no_baseline(path, number, "this line is no JSON") from error


def _entry(row: Any, path: Path, number: int) -> Entry:
    names = {"file", "task", "code", "message", "key"}
    if not isinstance(row, dict) or not names <= row.keys() <= names | {"profile"}:
        raise _no_baseline(path, number, f"an entry has {', '.join(sorted(names))}")
    if not all(isinstance(value, str) for value in row.values()):
        raise _no_baseline(path, number, "an entry has nothing but texts")
    return Entry(**row)


def _no_baseline(path: Path, number: int, message: str) -> SettingsError:
    hint = "--promptfmt-baseline-update write makes the file again"
    return SettingsError(message, position=Position(path, number), hint=hint)

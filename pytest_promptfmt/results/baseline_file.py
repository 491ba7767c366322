"""The file of a baseline: findings and errors that were there when the plugin came, so that only new ones fail.

One JSON object in a line for each, sorted, so that git merges it and a reviewer reads it. An entry is met again by
the stable key of its finding, which knows no lines and no docs; where the text that was seen has changed as well, by
rule, task and message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SettingsError, display_path
from pytest_promptfmt.core.files import write_atomically
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.outcome import BaselineEntry
from pytest_promptfmt.results.wording import below

FIRST_LINE: Final = {"pytest-promptfmt baseline": 1}
ERROR: Final = "error"
"""In place of a code: a task or file that cannot be read or rendered."""


_LINES: Final = re.compile(r"(?<=\.\w{2}):\d+(?::\d+)?|(?<=\.\w{4}):\d+(?::\d+)?")
"""The lines of other files in a message: `utils.py:12`, `_base.yaml:3:1`."""


class Baseline:
    """The entries of a file, looked up by the file that they are about; paths are relative to `rootdir`."""

    def __init__(self, entries: Iterable[BaselineEntry] = (), *, rootdir: Path) -> None:
        self.entries = tuple(entries)
        self._rootdir = rootdir
        self._by_file: dict[str, list[BaselineEntry]] = {}
        self._moved: dict[str, list[BaselineEntry]] = {}
        """Entries by task whose file is gone: it may have another name or folder now."""
        for entry in self.entries:
            self._by_file.setdefault(entry.file, []).append(entry)
        for file, own in self._by_file.items():
            for entry in own if not (rootdir / file).exists() else ():
                self._moved.setdefault(entry.task, []).append(entry)

    def _entries_for(self, file: str, task: str) -> list[BaselineEntry]:
        return [*self._by_file.get(below(file, self._rootdir), ()), *self._moved.get(task, ())]

    def met(self, findings: Sequence[Reported]) -> list[Mapping[str, str]]:
        """Return for each finding of one item the keys of the entries that accept it, by profile.

        A profile without an entry sees the finding for the first time. What concerns the task itself is under "".
        """
        places = dict.fromkeys((finding.file, finding.task) for finding in findings)
        left = {entry.key: entry for place in places for entry in self._entries_for(*place)}
        met = [
            {profile: key for profile, key in finding.by_profile if left.pop(key, None) is not None}
            for finding in findings
        ]
        others: dict[tuple[str, ...], list[str]] = {}
        for entry in left.values():
            others.setdefault((entry.code, entry.task, entry.profile, entry.message), []).append(entry.key)
        for finding, entries in zip(findings, met, strict=True):
            for profile, _ in finding.by_profile:
                same = others.get((finding.code, finding.task, profile, finding.message))
                if profile not in entries and same:
                    entries[profile] = same.pop(0)
        return list(met)

    def accepts_error(self, file: str, task: str, message: str) -> bool:
        """Return whether a file or task may fail to be read or rendered with this message."""
        key = error_key(file, task, message)
        return any(entry.key == key for entry in self._entries_for(file, task))


def error_key(file: str, task: str, message: str) -> str:
    """Return the stable key of an error: the same wherever its line went, and in whatever folder the file lies."""
    identity = [ERROR, Path(file).name, task, _LINES.sub("", message)]
    return sha256(json.dumps(identity).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def read_entries(path: Path) -> tuple[BaselineEntry, ...]:
    """Return the entries of a file. Raises SettingsError, naming the line, for a file that is not a baseline."""
    try:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the baseline {display_path(path)} cannot be read: {error}") from error
    if _parsed(lines[0], path, 1) != FIRST_LINE:
        raise _no_baseline(path, 1, f"a baseline begins with the line {json.dumps(FIRST_LINE)}")
    return tuple(_entry(_parsed(line, path, number), path, number) for number, line in enumerate(lines[1:], 2))


def write_baseline(entries: Iterable[BaselineEntry], path: Path) -> None:
    """Write the entries, sorted, one in a line; the file is replaced in one step."""
    rows = [FIRST_LINE, *(_row(entry) for entry in sorted(entries))]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


def _row(entry: BaselineEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name != "profile" or value}


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _no_baseline(path, number, "this line is not JSON") from error


def _entry(row: Any, path: Path, number: int) -> BaselineEntry:
    names = {"file", "task", "code", "message", "key"}
    if not isinstance(row, dict) or not names <= row.keys() <= names | {"profile"}:
        raise _no_baseline(path, number, f"an entry has {', '.join(sorted(names))}")
    if not all(isinstance(value, str) for value in row.values()):
        raise _no_baseline(path, number, "the values of an entry are strings")
    return BaselineEntry(**row)


def _no_baseline(path: Path, number: int, message: str) -> SettingsError:
    hint = "--promptfmt-baseline-update write makes the file again"
    return SettingsError(message, position=Position(path, number), hint=hint)

"""`promptfmt.lock`: what the snapshots were made with, at the rootdir: each tokenizer, and the release of lm-eval.

The release is there only if its prompts differ from those of the latest one that is known.

Snapshots hold no versions, so that an upgrade that changes nothing changes no file but this one, and one that changes
ids is explained by it. It is YAML, written whole or not at all, by the process that reports the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, SnapshotError, raising
from pytest_promptfmt.core.json_values import data_of, text, value_of
from pytest_promptfmt.core.outcome import UsedTokenizer
from pytest_promptfmt.core.release import LATEST, Release, release_of
from pytest_promptfmt.core.yaml_parser import parse_file
from pytest_promptfmt.snapshots.paths import note_written

FILE_NAME: Final = "promptfmt.lock"
_HEAD: Final = (
    "# What the tokens in the snapshots were made with; written by `pytest --promptfmt --snapshot-update`. Commit it."
)
_TOP: Final = "tokenizers"
_ORIGINS: Final = "origins"
_RELEASE: Final = "lm_eval"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedOrigin:
    """Where a folder or file of the repository was copied from: a repository of the hub, and its commit.

    `revision` is empty where it is not known; `content` is a digest of what was copied.
    """

    repository: str
    revision: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """An explanation of tokens that differ; `is_change` where the tokenizer itself has changed."""

    text: str
    is_change: bool = False


@dataclass(frozen=True, slots=True)
class Locked:
    """The content of a lock file: tokenizers by name, origins by path below the rootdir, a release of lm-eval or ""."""

    tokenizers: Mapping[str, UsedTokenizer] = field(default_factory=dict)
    origins: Mapping[str, LockedOrigin] = field(default_factory=dict)
    lm_eval: str = ""


def read_lock(path: Path) -> Locked:
    """Return what the file holds; nothing when there is no file.

    Raises SnapshotError with the line for a file that is not as written: edited, cut off, with conflict markers.
    """
    if not gate.is_there(path):
        return Locked()
    with raising(SnapshotError, "the file cannot be read", Position(path), _RENEW):
        parsed = parse_file(path, gate.status_of(path))
    sections = {name: parsed.values.get(name, {}) for name in (_TOP, _ORIGINS)}
    release = parsed.values.get(_RELEASE, "")
    is_ours = isinstance(release, str) and all(isinstance(section, Mapping) for section in sections.values())
    if not is_ours or not {_TOP} <= set(parsed.values) <= {*sections, _RELEASE}:
        raise SnapshotError("not a lock file of pytest-promptfmt", position=Position(path, 1), hint=_RENEW)
    found: dict[str, dict[str, Any]] = {_TOP: {}, _ORIGINS: {}}
    for section, entries in sections.items():
        for name, entry in entries.items():
            try:
                named = {"name": name, **entry} if section == _TOP else entry
                found[section][text(name)] = value_of(UsedTokenizer if section == _TOP else LockedOrigin, named)
            except (KeyError, TypeError, ValueError):
                position = parsed.locate((section, name)) or Position(path, 1)
                raise SnapshotError(f"invalid entry {name!r}", position=position, hint=_RENEW) from None
    return Locked(found[_TOP], found[_ORIGINS], release)


_RENEW: Final = "find the cause with `git log` and `git diff`, then write the file again with --snapshot-update"


def lock_text(locked: Locked) -> str:
    """Return the text of the file: the entries, sorted by name."""
    entries, origins = locked.tokenizers, locked.origins
    lines = [_HEAD, f"{_TOP}:" if entries else f"{_TOP}: {{}}"]
    for section in (entries, origins):
        lines += [f"{_ORIGINS}:"] if section is origins and origins else []
        for name, entry in sorted(section.items()):
            facts = {
                key: fact for key, fact in data_of(entry).items() if key != "name" and (fact or section is origins)
            }
            lines += [f"  {json.dumps(name)}:", *(f"    {key}: {json.dumps(fact)}" for key, fact in facts.items())]
    lines += [f"{_RELEASE}: {json.dumps(locked.lm_eval)}"] if locked.lm_eval else []
    return "\n".join([*lines, ""])


def write_lock(path: Path, locked: Locked) -> None:
    """Write the file; raises SnapshotError."""
    is_new, written = not path.exists(), lock_text(locked)
    with raising(SnapshotError, "the file cannot be written", Position(path)):
        writing.write(path, written)
    if is_new:  # no outcome of the run depends on it
        note_written(path, written)


def what_changed(before: UsedTokenizer | None, now: UsedTokenizer) -> str:
    """Return what differs between two states of a tokenizer, in a phrase; empty when nothing does."""
    if before is None or before == now:
        return ""
    parts = [f"{before.loader} -> {now.loader}"] if before.loader != now.loader else []
    parts += [f"files changed ({before.content} -> {now.content})"] if before.content != now.content else []
    parts += [f"{before.origin} -> {now.origin}"] if before.origin and before.origin != now.origin else []
    return ", ".join(parts)


class Lock:
    """The lock of a run: read on first use, written at the end. `release` is that of lm-eval which the run follows."""

    def __init__(self, path: Path, release: Release = LATEST) -> None:
        self._path = path
        self._release = release
        self._error: SnapshotError | None = None

    @cached_property
    def locked(self) -> Locked:
        """Return what the file holds; nothing when it is not a valid lock file."""
        try:
            return read_lock(self._path)
        except SnapshotError as error:
            self._error = error
            return Locked()

    def note(self, now: UsedTokenizer) -> Note:
        """Return why a tokenizer's tokens may differ from those in a snapshot."""
        name = now.name
        change = what_changed(self.locked.tokenizers.get(name), now)
        if change:
            return Note(is_change=True, text=f"{name}: {change}")
        if name in self.locked.tokenizers:
            return Note(text=f"{name} is the same as in {FILE_NAME} ({now.loader})")
        why = self._error.message if self._error is not None else f"{FILE_NAME} has no entry for this tokenizer"
        return Note(text=f"{name}: {why}. In this run, the tokenizer was loaded with {now.loader}")

    def out_of_date(self, seen: Mapping[str, UsedTokenizer]) -> Iterator[str]:
        """Yield a line for each way in which tokenizers of a run differ from their entries."""
        for change, names in self._changes(seen).items():
            yield (
                f"{FILE_NAME} is out of date ({', '.join(names)}: {change}). To update the file, use --snapshot-update"
            )
        if self.locked.lm_eval and release_of(self.locked.lm_eval).differs_from(self._release):
            release = self.locked.lm_eval
            yield (
                f"the snapshots were made as in lm-eval {release}, but this run "
                f"renders as lm-eval {self._release.version}. "
                f"To render as before, use --promptfmt-lm-eval {release}"
            )

    def _changes(self, seen: Mapping[str, UsedTokenizer]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, entry in sorted(seen.items()):
            if change := what_changed(self.locked.tokenizers.get(name), entry):
                found.setdefault(change, []).append(name)
        return found

    def would_write(self, seen: Mapping[str, UsedTokenizer]) -> tuple[Path, str] | None:
        """Return the file and the text that `renew` would write, None where it would not change the file."""
        merged = self._merged({**self.locked.tokenizers, **seen})
        is_due = merged != self.locked or (self._error is not None and seen)
        return (self._path, lock_text(merged)) if is_due else None

    def _merged(self, tokenizers: Mapping[str, UsedTokenizer]) -> Locked:
        release = self._release.version if self._release.differs_from(LATEST) else ""
        return Locked(tokenizers, self.locked.origins, release)

    def renew(self, seen: Mapping[str, UsedTokenizer], *, only_new: bool = False) -> Iterator[str]:
        """Write the tokenizers that a run has seen into the file, and yield a line for each change.

        Entries of tokenizers that the run did not use are kept. `only_new` changes no entry that is there.
        """
        tokenizers = {**seen, **self.locked.tokenizers} if only_new else {**self.locked.tokenizers, **seen}
        merged = self._merged(tokenizers)
        if self._error is not None and seen:
            yield f"{FILE_NAME} was replaced: {self._error.message}"
        elif merged == self.locked:
            return
        try:
            write_lock(self._path, merged)
        except SnapshotError as error:
            yield error.message.replace("the file", FILE_NAME)
            return
        for change, names in self._changes(tokenizers).items():
            yield f"{FILE_NAME} was updated, {', '.join(names)}: {change}"

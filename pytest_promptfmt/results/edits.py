"""What `--snapshot-update` would do to the snapshot files: as a patch for git, and as JSON lines for a review.

Rendering is deterministic, so a run in CI can say the exact bytes that a run at a desk would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SettingsError
from pytest_promptfmt.snapshots.hunks import Hunk, find_hunks

CONTEXT: Final = 3
_C_ESCAPES: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_NO_END: Final = "\\ No newline at end of file\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One file as it is (`old`, None where there is none) and as it would be (`new`, None where it would be deleted).

    `category`, `key` and `title` are those of the cluster that the change belongs to.
    """

    path: Path
    old: bytes | None
    new: bytes | None
    category: str = "changed"
    task: str = ""
    profile: str = ""
    key: str = ""
    title: str = ""


def git_patch(edits: Iterable[Edit], top: Path) -> tuple[bytes, list[Path]]:
    """Return a patch that `git apply` takes at the folder `top`, and the files that lie outside it and are left out.

    Names are quoted as git quotes them; files without a line end at their end stay so.
    """
    parts: list[str] = []
    outside: list[Path] = []
    for edit in sorted(edits, key=lambda edit: str(edit.path)):
        if edit.old == edit.new:
            continue
        if not edit.path.is_relative_to(top):
            outside.append(edit.path)
            continue
        parts += _file_patch(edit.path.relative_to(top).as_posix(), edit.old, edit.new)
    return "".join(parts).encode("latin-1"), outside


def top_of(rootdir: Path) -> Path:
    """Return the top folder of the git work tree that holds `rootdir`; `rootdir` itself where there is none."""
    return next((folder for folder in (rootdir, *rootdir.parents) if (folder / ".git").exists()), rootdir)


def quoted_name(name: str) -> str:
    """Return a path as it stands in a patch: as it is, or in quotes with octal bytes where git would quote it."""
    raw = name.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in raw):
        return name
    shown = (f"\\{_C_ESCAPES[b]}" if b in _C_ESCAPES else chr(b) if 32 <= b < 127 else f"\\{b:03o}" for b in raw)
    return '"' + "".join(shown) + '"'


def _file_patch(name: str, old: bytes | None, new: bytes | None) -> Iterator[str]:
    before, after = quoted_name(f"a/{name}"), quoted_name(f"b/{name}")
    yield f"diff --git {before} {after}\n"
    if old is None:
        yield "new file mode 100644\n"
    if new is None:
        yield "deleted file mode 100644\n"
    hunks = list(_hunks(_lines(old or b""), _lines(new or b"")))
    if not hunks:
        return  # an empty file that comes or goes has no content to show
    # Behind a name with a blank in it a tab ends the name, as git writes it itself.
    yield f"--- {'/dev/null' if old is None else _ended(before)}\n"
    yield f"+++ {'/dev/null' if new is None else _ended(after)}\n"
    yield from hunks


def _ended(name: str) -> str:
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _lines(content: bytes) -> list[str]:
    """Return the lines with their ends; a byte is one character, so that anything survives."""
    return content.decode("latin-1").split("\n") if content else []


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yield the hunks of a unified diff. The piece behind the last line end is empty, unless that end is missing."""
    before, after = _ended_lines(old), _ended_lines(new)
    group: list[Hunk] = []
    for hunk in find_hunks(before, after):
        if group and hunk.old_start - group[-1].old_end > 2 * CONTEXT:
            yield from _hunk(group, before, after)
            group = []
        group.append(hunk)
    if group:
        yield from _hunk(group, before, after)


def _ended_lines(pieces: Sequence[str]) -> list[str]:
    if not pieces:
        return []
    *whole, rest = pieces
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _hunk(group: Sequence[Hunk], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first, last = group[0], group[-1]
    lead = min(CONTEXT, first.old_start)
    old_range = first.old_start - lead, min(len(old), last.old_end + CONTEXT)
    new_range = first.new_start - lead, min(len(new), last.new_end + CONTEXT)
    yield f"@@ -{_range(*old_range)} +{_range(*new_range)} @@\n"
    at = old_range[0]
    for hunk in group:
        yield from (_marked(" ", line) for line in old[at : hunk.old_start])
        yield from (_marked("-", line) for line in old[hunk.old_start : hunk.old_end])
        yield from (_marked("+", line) for line in new[hunk.new_start : hunk.new_end])
        at = hunk.old_end
    yield from (_marked(" ", line) for line in old[at : old_range[1]])


def _range(start: int, end: int) -> str:
    count = end - start
    return f"{start + 1 if count else start},{count}"


def _marked(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{_NO_END}"


def write_pending(edits: Iterable[Edit], top: Path) -> str:
    """Return the edits as JSON lines, the paths relative to `top` where they lie below it."""
    lines = []
    for edit in edits:
        path = edit.path.relative_to(top) if edit.path.is_relative_to(top) else edit.path
        entry = {
            "path": path.as_posix(),
            "category": edit.category,
            "task": edit.task,
            "profile": edit.profile,
            "key": edit.key,
            "title": edit.title,
            "old": None if edit.old is None else edit.old.decode("latin-1"),
            "new": None if edit.new is None else edit.new.decode("latin-1"),
        }
        lines.append(json.dumps(entry))
    return "".join(f"{line}\n" for line in lines)


def read_pending(text: str, path: Path, top: Path) -> list[Edit]:
    """Return the edits that `write_pending` wrote. Raises SettingsError, naming the line, for anything else."""
    edits = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            edits.append(_edit(entry, top))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                "this line is no pending snapshot",
                position=Position(path, number),
                hint="pytest --promptfmt-pending writes such files",
            ) from error
    return edits


def _edit(entry: Mapping[str, Any], top: Path) -> Edit:
    old, new = entry["old"], entry["new"]
    words = {name: str(entry[name]) for name in ("category", "task", "profile", "key", "title")}
    return Edit(
        path=top / entry["path"],
        old=None if old is None else old.encode("latin-1"),
        new=None if new is None else new.encode("latin-1"),
        **words,
    )

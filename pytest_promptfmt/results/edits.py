"""What `--snapshot-update` would do to the snapshot files: as a patch for git, and as JSON lines for a review.

Rendering is deterministic, so a run in CI can say the exact bytes that a run at a desk would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import diff_bytes, unified_diff
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SettingsError

_QUOTED: Final = b'"\\'
_WORDS: Final = ("category", "task", "profile", "key", "title")
_NO_END: Final = b"\n\\ No newline at end of file\n"


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

    def changes_below(self, top: Path) -> bool:
        """Return whether the edit changes a file below `top`."""
        return self.old != self.new and self.path.is_relative_to(top)


def git_patch(edits: Iterable[Edit], top: Path) -> bytes:
    """Return a patch that `git apply` takes at the folder `top`, without files that lie outside it.

    Names are quoted as git quotes them; files without a line end at their end stay so.
    """
    changed = sorted((edit for edit in edits if edit.changes_below(top)), key=lambda edit: str(edit.path))
    return b"".join(_file_patch(edit.path.relative_to(top).as_posix(), edit.old, edit.new) for edit in changed)


def top_of(rootdir: Path) -> Path:
    """Return the top folder of the git work tree that holds `rootdir`; `rootdir` itself where there is none."""
    return next((folder for folder in (rootdir, *rootdir.parents) if (folder / ".git").exists()), rootdir)


def quoted_name(name: str) -> str:
    """Return a path as a patch has it: as it is, or in quotes with octal bytes where git would quote it."""
    raw = name.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in _QUOTED for byte in raw):
        return name
    shown = (chr(byte) if 32 <= byte < 127 and byte not in _QUOTED else f"\\{byte:03o}" for byte in raw)
    return '"' + "".join(shown) + '"'


def _file_patch(name: str, old: bytes | None, new: bytes | None) -> bytes:
    before, after = quoted_name(f"a/{name}"), quoted_name(f"b/{name}")
    head = f"diff --git {before} {after}\n"
    head += "new file mode 100644\n" if old is None else "deleted file mode 100644\n" if new is None else ""
    # After a name with a space a tab ends the name, as git writes it itself.
    first, second = (
        b"/dev/null" if content is None else name.encode() + (b"\t" if " " in name and name[0] != '"' else b"")
        for name, content in ((before, old), (after, new))
    )
    lines = diff_bytes(unified_diff, _lines(old or b""), _lines(new or b""), first, second)
    return head.encode() + b"".join(line if line.endswith(b"\n") else line + _NO_END for line in lines)


def _lines(content: bytes) -> list[bytes]:
    """Return the lines with their ends; only a line feed ends one for git."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def write_pending(edits: Iterable[Edit], top: Path) -> str:
    """Return the edits as JSON lines, the paths relative to `top` where they lie below it."""
    lines = []
    for edit in edits:
        path = edit.path.relative_to(top) if edit.path.is_relative_to(top) else edit.path
        contents = {
            name: None if content is None else content.decode("latin-1")
            for name, content in (("old", edit.old), ("new", edit.new))
        }
        words = {name: getattr(edit, name) for name in _WORDS}
        lines.append(json.dumps({"path": path.as_posix(), **words, **contents}))
    return "".join(f"{line}\n" for line in lines)


def read_pending(text: str, path: Path, top: Path) -> list[Edit]:
    """Return the edits that `write_pending` wrote. Raises SettingsError, naming the line, for anything else."""
    edits = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            edits.append(_edit(entry, top))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SettingsError(
                "this line is not a pending snapshot",
                position=Position(path, number),
                hint="pytest --promptfmt-pending writes such files",
            ) from error
    return edits


def _edit(entry: Mapping[str, Any], top: Path) -> Edit:
    old, new = entry["old"], entry["new"]
    words = {name: str(entry[name]) for name in _WORDS}
    return Edit(
        path=top / entry["path"],
        old=None if old is None else old.encode("latin-1"),
        new=None if new is None else new.encode("latin-1"),
        **words,
    )

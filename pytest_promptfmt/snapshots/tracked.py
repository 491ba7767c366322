"""What git says of files: which ones a sparse checkout leaves out, and whether one is tracked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

# Nothing that the repository configures is run: no monitor of files, and no repository inside it that is bare.
_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")
_SECONDS: Final = 600


def absent_files(folder: Path) -> frozenset[str]:
    """Return the absolute paths of the files below a folder that git marks skip-worktree; none without git.

    They are tracked and merely absent, so their snapshots are still needed.
    """
    entries = (os.fsdecode(entry) for entry in _listed(folder, "."))
    return frozenset(os.path.join(folder, entry[2:]) for entry in entries if entry.startswith("S "))


def is_tracked(path: Path) -> bool:
    """Return whether git tracks a file: then somebody may have put it into the repository on purpose."""
    return any(_listed(path.parent, path.name))


def _listed(folder: Path, name: str) -> list[bytes]:
    command = [*_GIT, "-C", str(folder), "ls-files", "-t", "-z", "--", f":(literal){name}" if name != "." else name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return []
    return [] if done.returncode else done.stdout.split(b"\0")[:-1]

"""The files that a sparse checkout leaves out: tracked and merely absent, so their snapshots are still needed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

# Nothing that the repository configures is run: no monitor of files, and no repository inside it that is bare.
_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")
_SECONDS: Final = 60


def absent_files(folder: Path) -> frozenset[str]:
    """Return the absolute paths of the files below a folder that git marks skip-worktree; none without git."""
    command = [*_GIT, "-C", str(folder), "ls-files", "-t", "-z", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    if done.returncode:
        return frozenset()
    entries = (os.fsdecode(entry) for entry in done.stdout.split(b"\0"))
    return frozenset(os.path.join(folder, entry[2:]) for entry in entries if entry.startswith("S "))

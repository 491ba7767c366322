"""The user's private folder for what is expensive to make, and which files are installed."""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "PROMPTFMT_CACHE_DIR"
"""The environment variable that names another folder; empty turns caching off."""

LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")
"""The folders that distributions are installed in."""

_OF_PYTHON: Final = tuple(
    f"{prefix}{os.sep}{folder}{os.sep}"
    for prefix in (sys.prefix, sys.base_prefix)
    for folder in ("bin", "lib", "lib64", "include", "share", "DLLs", "Lib", "Library", "Scripts")
)
"""Folders of Python itself. The prefix may be `/usr`, and a repository in `/usr/src/app` is not part of it."""


@cache
def private_directory(name: str, base: Path | None = None) -> Path | None:
    """Return the folder `name` of the cache, created if missing; None where nothing can be kept safely.

    `base` is the cache directory, by default `cache_directory()`. Compiled code is read back from here, so the folder
    must belong to the user and be writable only by the user: links, other users' folders, and folders that others can
    write to are refused.
    """
    base = base or cache_directory()
    if base is None:
        return None
    folder = base / name
    try:
        for each in (base, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(each):
                return None
    except OSError:
        return None
    return folder


def cache_directory() -> Path | None:
    """Return the folder of all caches of this plugin, whether or not it exists; None if no place is known.

    `$PROMPTFMT_CACHE_DIR`, or `pytest-promptfmt` in the system's folder for caches.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen).absolute() if chosen else None
    try:
        return _user_caches() / "pytest-promptfmt"
    except RuntimeError:  # no home
        return None


def hub_cache() -> tuple[Path, ...]:
    """Return the folder of Hugging Face's cache, once its library is loaded: an id names files of the user in it."""
    constants = sys.modules.get("huggingface_hub.constants")
    return (Path(constants.HF_HUB_CACHE),) if constants is not None else ()


def hub_caches() -> tuple[str, ...]:
    """Return the folders in which Hugging Face's libraries keep what they loaded, whether they are loaded or not."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    named = (os.environ.get(name) for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HUGGINGFACE_HUB_CACHE"))
    return home, *(folder for folder in named if folder)


def _user_caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    written = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return written if written.is_absolute() else Path.home() / ".cache"


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True  # Windows: what lies below the user's profile is the user's
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_installed(path: str) -> bool:
    """Return whether a file belongs to Python or to an installed distribution, by where it is."""
    parts = path.replace("\\", "/")
    return any(f"/{name}/" in parts for name in LIBRARY_FOLDERS) or path.startswith(_OF_PYTHON)


def expanded_home(written: str) -> str:
    """Return a path with the folder of the user for `~`; as it is where there is no such user."""
    try:
        return str(Path(written).expanduser()) if written.startswith("~") else written
    except RuntimeError:  # `~nobody/x`
        return written

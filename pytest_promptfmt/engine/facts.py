"""What outcomes are made of besides files: variables of the environment, programs, the machine, caches of a hub.

A fact is written like a path that no file can have, so that it is an input as any other.
"""

from __future__ import annotations

import os
import platform
import shutil
from typing import Final

from pytest_promptfmt.core.files import hub_caches

_BEGIN: Final = "fact:"
_LEVELS: Final = 5
"""Folders of a hub's cache that say what is in it: repository, revision, and the configurations of a dataset."""

PLATFORM: Final = f"{_BEGIN}platform"
"""What `platform` says of the machine."""

PROCESSORS: Final = f"{_BEGIN}processors"
"""How many processors the machine has, and which of them this process may use."""

HUB: Final = f"{_BEGIN}hub"
"""The names of what is in the caches of Hugging Face's libraries."""


def variable(name: str) -> str:
    """Return the fact that is the value of a variable of the environment."""
    return f"{_BEGIN}variable:{name}"


def program(name: str) -> str:
    """Return the fact that is where a program of this name is found."""
    return f"{_BEGIN}program:{name}"


def is_fact(path: str) -> bool:
    """Return whether an input is a fact, not a path."""
    return path.startswith(_BEGIN)


def value_of(fact: str) -> str:
    """Return what a fact is now."""
    _, kind, *rest = fact.split(":", 2)
    name = rest[0] if rest else ""
    if kind == "variable":
        return repr(os.environ.get(name))
    if kind == "program":
        return repr(shutil.which(name))
    if fact == PLATFORM:
        return repr(platform.uname())
    if fact == PROCESSORS:
        may_use = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return repr((os.cpu_count(), sorted(may_use)))
    return repr([found for folder in hub_caches() for found in sorted(_names_below(folder, _LEVELS))])


def _names_below(folder: str, levels: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            below = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    deeper = [name for path, is_folder in below if is_folder and levels > 1 for name in _names_below(path, levels - 1)]
    return [path for path, _ in below] + deeper

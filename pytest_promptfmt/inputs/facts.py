"""Facts: inputs that are no files, such as the value of an environment variable, written like paths that cannot be."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable
from typing import Final, Literal

from pytest_promptfmt.core.files import hub_caches, is_installed
from pytest_promptfmt.inputs.places import Places, search_path

_FACT: Final = "fact:"

PLATFORM: Final = f"{_FACT}platform"
"""The machine, as `platform` describes it."""

PROCESSORS: Final = f"{_FACT}processors"
"""The number of processors, and which of them this process may use."""

HUB: Final = f"{_FACT}hub"
"""The names in the caches of Hugging Face's libraries, and the variables that these libraries read."""

ZONE: Final = f"{_FACT}zone"
"""The time zone of this process."""

PLACE: Final = f"{_FACT}place"
"""The paths of the checkout and of the working folder, for code that can show them."""

_HUB_VARIABLES: Final = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
_ZONE_FILE: Final = "/etc/localtime"
_HUB_LEVELS: Final = 5
"""Folders of a hub's cache that name its content: repository, revision, and the configurations of a dataset."""


def named_fact(kind: Literal["variable", "program", "search path"], name: str) -> str:
    """Return a fact with a name: the value of a variable, the path of a program, or the folders that an import finds.

    These are in their order. After the name of a package, a space and a folder name one that an import searches last.
    """
    return f"{_FACT}{kind}:{name}"


def folders_of_variables(facts: Iterable[str]) -> list[str]:
    """Return the folders that the variables among these facts name."""
    begin = named_fact("variable", "")
    values = [os.environ.get(fact.removeprefix(begin), "") for fact in facts if fact.startswith(begin)]
    return [value for value in values if os.path.isdir(value)]


def is_fact(path: str) -> bool:
    """Return whether an input is a fact, not a path."""
    return path.startswith(_FACT)


def shown(fact: str) -> str:
    """Return the name of a fact for a message."""
    _, kind, *rest = fact.split(":", 2)
    if rest:
        return f"the {kind} {rest[0].partition(' ')[0]}"
    return _SHOWN.get(fact, kind)


_SHOWN: Final = {
    PLATFORM: "the machine",
    PROCESSORS: "the number of processors",
    HUB: "the cache of Hugging Face's libraries",
    ZONE: "the time zone",
    PLACE: "the path of the checkout",
}


def value_of(fact: str, places: Places) -> str:
    """Return the value of a fact now."""
    _, kind, *rest = fact.split(":", 2)
    name = rest[0] if rest else ""
    if kind == "variable":
        return repr(os.environ.get(name))
    if kind == "program":
        return repr(shutil.which(name))
    if kind == "search path":
        name, _, last = name.partition(" ")
        folders = (each for each in [*search_path(), *filter(None, [last])] if _holds(each, name))
        found = dict.fromkeys("installed" if is_installed(each) else os.path.realpath(each) for each in folders)
        return places.neutral(repr([*found]))
    if fact == PLATFORM:
        return repr(platform.uname())
    if fact == PROCESSORS:
        may_use = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return repr((os.cpu_count(), sorted(may_use)))
    if fact == PLACE:
        return repr((places, os.getcwd()))
    if fact == ZONE:
        return repr((os.environ.get("TZ"), os.path.realpath(_ZONE_FILE)))
    names = [
        sorted(os.path.relpath(each, folder) for each in _names_below(folder, _HUB_LEVELS)) for folder in hub_caches()
    ]
    return repr((names, sorted(item for item in os.environ.items() if item[0].startswith(_HUB_VARIABLES))))


def _holds(folder: str, name: str) -> bool:
    """Return whether a folder holds a module or package of this name."""
    return os.path.isfile(f"{folder}/{name}.py") or os.path.isdir(f"{folder}/{name}")


def _names_below(folder: str, levels: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            below = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    deeper = [name for path, is_folder in below if is_folder and levels > 1 for name in _names_below(path, levels - 1)]
    return [path for path, _ in below] + deeper

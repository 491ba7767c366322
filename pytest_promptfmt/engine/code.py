"""Which Python files a module of a task may import, and whether what it does may depend on anything but its inputs.

Found out by reading, never by running: imports are looked for below the folders that the code may come from, wherever
in the file they stand. Whatever asks for the clock or the environment is not remembered; which files are opened, and
that a network is used or a process started, is seen when it happens (traces.py).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_ASKING_MODULES: Final = frozenset(
    {
        *("asyncio", "ctypes", "getpass", "glob", "importlib", "inspect", "locale", "pkgutil", "platform", "pwd"),
        *("resource", "runpy", "secrets", "select", "shutil", "signal", "threading", "time", "uuid"),
        *("boto3", "fsspec", "huggingface_hub", "openai"),
    }
)
"""Modules whose use may give another result in another run, unseen; `os` and `sys` are looked at by attribute."""

_ASKING_NAMES: Final = frozenset({"exec", "eval", "compile", "__import__", "input"})
_ASKING_ATTRIBUTES: Final = frozenset(
    {
        *("now", "today", "utcnow", "environ", "getenv", "cpu_count", "gettempdir", "load_dataset", "from_pretrained"),
        *("read_csv", "read_json", "read_parquet", "read_table", "load_from_disk", "hf_hub_download", "from_file"),
    }
)
_ASKING_OF_PATHS: Final = frozenset(
    {
        *(
            "cwd",
            "exists",
            "expanduser",
            "glob",
            "group",
            "home",
            "is_dir",
            "is_file",
            "is_mount",
            "is_symlink",
            "lstat",
        ),
        *("owner", "readlink", "rglob", "samefile", "stat"),
    }
)
"""What a path is asked for that is seen by nobody, in a module that uses pathlib; what it opens and lists is seen."""

_PURE: Final = {
    "os": frozenset({"path"}),
    "sys": frozenset({"byteorder", "float_info", "hexversion", "maxsize", "maxunicode", "platform", "version_info"}),
}
"""What of a module is the same in every run with the same Python."""

_PURE_OF_OS_PATH: Final = frozenset(
    {"abspath", "join", "basename", "dirname", "splitext", "split", "normpath", "commonprefix", "sep"}
)


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """What the text of one module shows: the files it may import, of which some may be absent, and what it asks for."""

    imports: tuple[str, ...] = ()
    asks: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """All files that some modules may come to, themselves among them; `asks` is the first thing that is no input."""

    files: frozenset[str]
    asks: str = ""


def reached_from(modules: Iterable[str], folders: Sequence[str], is_library: Callable[[str], bool]) -> Reached:
    """Return what these files may import, directly or not, from their own folders and from `folders`.

    Files of libraries are left out: their versions speak for them, and what they ask for is known by their names.
    """
    seen: set[str] = set()
    waiting = list(modules)
    asks = ""
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        facts = module_facts(name, tuple(folders))
        asks = asks or facts.asks
        waiting += (name for name in facts.imports if not is_library(name))
    return Reached(frozenset(seen), asks)


@lru_cache(maxsize=16_384)
def module_facts(path: str, folders: tuple[str, ...]) -> ModuleFacts:
    """Return the facts of one file; of one that cannot be read or parsed, that it asks for something unknown."""
    try:
        with open(path, "rb") as file:
            module = ast.parse(file.read())
    except FileNotFoundError:
        return ModuleFacts()
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ModuleFacts(asks="a module that cannot be read")
    found: dict[str, None] = {}
    asks = ""
    nodes = list(ast.walk(module))
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    has_paths = any(isinstance(node, ast.Import | ast.ImportFrom) and _names_pathlib(node) for node in nodes)
    for node in nodes:
        asks = asks or _asked_by(node, is_owner=id(node) in owners)
        if not asks and has_paths and isinstance(node, ast.Attribute) and node.attr in _ASKING_OF_PATHS:
            asks = f"pathlib's {node.attr}"
        for base, dotted in _imported(node, path):
            for folder in (base,) if base is not None else (os.path.dirname(path), *folders):
                found.update(dict.fromkeys(_files_of(folder, dotted)))
    return ModuleFacts(tuple(found), asks)


def _names_pathlib(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "pathlib"
    return any(alias.name == "pathlib" for alias in node.names)


def _imported(node: ast.AST, path: str) -> Iterator[tuple[str | None, list[str]]]:
    """Yield the folder (None: any) and the parts of each name that a statement imports."""
    if isinstance(node, ast.Import):
        yield from ((None, alias.name.split(".")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = None
        if node.level:
            base = os.path.dirname(path)
            for _ in range(node.level - 1):
                base = os.path.dirname(base)
        parts = node.module.split(".") if node.module else []
        yield from ((base, [*parts, alias.name]) for alias in node.names)


def _files_of(folder: str, dotted: Sequence[str]) -> Iterator[str]:
    """Yield the files that importing a name may run, those that are there: each package on the way and the module."""
    place = folder
    for part in dotted:
        if part == "*":
            return
        for candidate in (os.path.join(place, part, "__init__.py"), os.path.join(place, f"{part}.py")):
            if os.path.isfile(candidate):
                yield candidate
        place = os.path.join(place, part)
        if not os.path.isdir(place):
            return


def _asked_by(node: ast.AST, *, is_owner: bool) -> str:
    """Return what a piece of code asks for that is no input of a task, "" for nothing.

    An owner is what stands before a dot: a module that is looked at by attribute must not go anywhere else.
    """
    if isinstance(node, ast.Import):
        tops = ((alias.name.partition(".")[0], alias.asname) for alias in node.names)
        return next((top for top, other in tops if top in _ASKING_MODULES or (other and top in _PURE)), "")
    if isinstance(node, ast.ImportFrom) and not node.level:
        top = (node.module or "").partition(".")[0]
        names = [alias.name for alias in node.names]
        if top in _ASKING_MODULES:
            return top
        if node.module == "os.path":
            return next((f"os.path.{name}" for name in names if name not in _PURE_OF_OS_PATH), "")
        if top in _PURE:
            return next((f"{top}.{name}" for name in names if top == "os" or name not in _PURE[top]), "")
        return next((name for name in names if name in _ASKING_ATTRIBUTES | _ASKING_NAMES), "")
    if isinstance(node, ast.Name) and (node.id in _ASKING_NAMES or (node.id in _PURE and not is_owner)):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = node.value
        if isinstance(owner, ast.Name) and node.attr not in _PURE.get(owner.id, (node.attr,)):
            return f"{owner.id}.{node.attr}"
        if isinstance(owner, ast.Attribute) and owner.attr == "path" and node.attr not in _PURE_OF_OS_PATH:
            return f"path.{node.attr}"
        if node.attr in _ASKING_ATTRIBUTES:
            return node.attr
    return ""

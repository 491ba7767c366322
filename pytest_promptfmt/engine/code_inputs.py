"""Which Python files a module of a task may import, and whether what it does may depend on anything but its inputs.

Found out by reading, never by running: imports are looked for below the folders that the code may come from, wherever
in the file they stand. A variable of the environment that is asked for by its name is an input (facts.py); whatever
asks for the clock is not remembered. Which files are opened, what is evaluated, and that a network is used or a process
started, is seen when it happens (traces.py).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Final

from pytest_promptfmt.engine.facts import HUB, PLATFORM, PROCESSORS, program, variable

_ASKING_MODULES: Final = frozenset(
    {
        *("ctypes", "fsspec", "getpass", "glob", "inspect", "locale", "pkgutil", "pwd", "runpy", "secrets", "time"),
    }
)
"""Modules whose use may give another result in another run, unseen; those of `_PURE` are looked at by attribute."""

_LOADING: Final = frozenset({"load_dataset", "from_pretrained", "hf_hub_download", "snapshot_download"})
"""What looks into the caches of a hub, in ways that nobody sees; without what it looks for it opens nothing."""

_READING: Final = frozenset({"open", "read_text", "read_bytes", "get_data"})
"""What opens a file."""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

_ASKING_NAMES: Final = frozenset({"__import__"})
_ASKING_ATTRIBUTES: Final = frozenset(
    {
        *("now", "today", "utcnow", "environ", "getenv", "cpu_count", "gettempdir", "uuid1", "uuid4"),
        *("read_csv", "read_json", "read_parquet", "read_table", "load_from_disk", "from_file"),
    }
)
_ASKING_OF_PATHS: Final = frozenset(
    {
        *("cwd", "exists", "expanduser", "glob", "group", "home", "is_dir", "is_file", "is_mount", "is_symlink"),
        *("lstat", "owner", "readlink", "rglob", "samefile", "stat"),
    }
)
"""What a path is asked for that is seen by nobody, in a module that uses pathlib; what it opens and lists is seen."""

_PROCESSORS: Final = frozenset(
    {"os.cpu_count", "os.sched_getaffinity", "multiprocessing.cpu_count", "psutil.cpu_count"}
)
"""What asks for the number of processors."""

_PURE: Final = {
    "os": frozenset(
        {
            *("path", "getcwd"),
            *("chdir", "kill", "putenv", "remove", "removedirs", "rename", "rmdir", "system", "unlink"),
        }
    ),
    "os.path": frozenset(
        {"abspath", "join", "basename", "dirname", "splitext", "split", "normpath", "commonprefix", "sep"}
    ),
    "sys": frozenset(
        {
            *("byteorder", "float_info", "hexversion", "maxsize", "maxunicode", "platform", "version_info"),
            *("stdin", "stdout", "stderr", "exit"),  # a worker has none but those of every run
        }
    ),
    "importlib": frozenset({"metadata", "util"}),
    "importlib.metadata": frozenset({"version", "PackageNotFoundError"}),  # what is installed holds for all tasks
    "importlib.util": frozenset({"find_spec"}),
    "platform": frozenset[str](),
    "resource": frozenset({"setrlimit", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_STACK"}),
    "shutil": frozenset({"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "rmtree"}),
    "uuid": frozenset({"UUID", "uuid3", "uuid5", "NAMESPACE_DNS", "NAMESPACE_URL"}),
}
"""What of a module is the same in every run with the same Python and the same packages, or is seen when it happens."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What the text of one module shows: the files it may import, of which some may be absent, and what it asks for.

    Among the files are folders, with a slash, in which an import looks for a name. `facts` are inputs besides files, as
    facts.py names them; it `loads` where it may look into the caches of a hub, and `reads` where it opens a file while
    it is imported.
    """

    imports: tuple[str, ...] = ()
    asks: str = ""
    facts: frozenset[str] = frozenset()
    loads: bool = False
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """All files that some modules may come to, themselves among them; the rest holds for all of them together."""

    files: frozenset[str]
    asks: str = ""
    facts: frozenset[str] = frozenset()
    loads: bool = False
    reads: bool = False


def reached_from(modules: Iterable[str], folders: Sequence[str], is_library: Callable[[str], bool]) -> Reached:
    """Return what these files may import, directly or not, from their own folders and from `folders`.

    Files of libraries are left out: their versions speak for them, and what they ask for is known by their names.
    """
    found: dict[str, CodeFacts] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = CodeFacts() if name.endswith("/") else module_facts(name, tuple(folders))
            waiting += (name for name in found[name].imports if not is_library(name))
    return Reached(
        frozenset(found),
        next((each.asks for each in found.values() if each.asks), ""),
        frozenset[str]().union(*(each.facts for each in found.values())),
        any(each.loads for each in found.values()),
        any(each.reads for each in found.values()),
    )


@lru_cache(maxsize=16_384)
def module_facts(path: str, folders: tuple[str, ...]) -> CodeFacts:
    """Return the facts of one file; of one that cannot be read or parsed, that it asks for something unknown."""
    try:
        with open(path, "rb") as file:
            module = ast.parse(file.read())
    except FileNotFoundError:
        return CodeFacts()
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return CodeFacts(asks="a module that cannot be read")
    found: dict[str, None] = {}
    asks = ""
    nodes = list(_nodes_of(module))
    facts = {id(place): fact for node in nodes for place, fact in _facts_in(node)}
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    has_paths = any(isinstance(node, ast.Import | ast.ImportFrom) and _names_pathlib(node) for node in nodes)
    for node in nodes:
        asks = asks or ("" if id(node) in facts else _asked_by(node, is_owner=id(node) in owners))
        if not asks and has_paths and isinstance(node, ast.Attribute) and node.attr in _ASKING_OF_PATHS:
            asks = f"pathlib's {node.attr}"
        for base, dotted in _imported(node, path):
            for folder in (base,) if base is not None else (os.path.dirname(path), *folders):
                found.update(dict.fromkeys(_files_of(folder, dotted)))
    loads = any(not _LOADING.isdisjoint(_names_of(node)) for node in nodes)
    asked = frozenset(filter(None, (*facts.values(), HUB if loads else "")))
    return CodeFacts(tuple(found), asks, asked, loads, _reads(module))


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that compiled code mentions, with those of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def asks_for(code: CodeType) -> str:
    """Return what compiled code that is evaluated may ask for that is no input, "" for nothing."""
    asking = _ASKING_MODULES | _ASKING_NAMES | _ASKING_ATTRIBUTES | _LOADING | _PURE.keys()
    return next((name for name in names_in(code) if name in asking), "")


def _nodes_of(module: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a module apart from what is run only where it is the program itself."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant()])):
                waiting += node.orelse
            case _:
                waiting += ast.iter_child_nodes(node)


def _reads(module: ast.Module) -> bool:
    """Return whether a module opens a file while it is imported, itself or by a function of its own that it calls."""
    within = {id(node) for each in ast.walk(module) if isinstance(each, _FUNCTIONS) for node in ast.walk(each)}
    functions = [each for each in module.body if isinstance(each, _FUNCTIONS)]
    opening = {each.name for each in functions if any(map(_opens, ast.walk(each)))}
    outside = [node for node in ast.walk(module) if id(node) not in within]
    return any(_opens(node) or (isinstance(node, ast.Name) and node.id in opening) for node in outside)


def _opens(node: ast.AST) -> bool:
    return not _READING.isdisjoint(_names_of(node))


def _facts_in(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield what asks for an input besides files by its name, and the input; "" for what only looks as if it asked."""
    match node:
        case ast.Call(func=ast.Attribute() as asked, args=[ast.Constant(value=str(name)), *_]):
            if _dotted(asked) in ("os.getenv", "os.environ.get", "os.environ.setdefault"):
                yield from ((place, variable(name)) for place in _chain(asked))
            elif _dotted(asked) == "shutil.which":
                yield asked, program(name)
        case ast.Subscript(value=ast.Attribute() as asked, slice=ast.Constant(value=str(name))):
            if _dotted(asked) == "os.environ":
                yield asked, variable(name)
            elif _dotted(asked) == "sys.modules" and isinstance(node.ctx, ast.Store):
                yield asked, ""  # nothing is asked
        case ast.Attribute(value=ast.Name(id="platform")):
            yield node, PLATFORM
        case ast.Attribute() as asked if _dotted(asked) in _PROCESSORS:
            yield asked, PROCESSORS


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an attribute and what stands before its dot, as far as that are attributes."""
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` of an attribute that is written so, "" for others."""
    names = [each.attr for each in _chain(node) if isinstance(each, ast.Attribute)]
    *_, first = (node, *_chain(node))
    first = first.value if isinstance(first, ast.Attribute) else first
    return ".".join([first.id, *reversed(names)]) if isinstance(first, ast.Name) else ""


def _names_of(node: ast.AST) -> Iterator[str]:
    """Yield the names that a piece of code uses or imports."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.ImportFrom(names=names):
            yield from (alias.name for alias in names)


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
    """Yield the files that importing a name may run, those that are there: each package on the way and the module.

    Also each folder on the way, where another file may come first, and the file that would make it a package.
    """
    place = folder
    for part in dotted:
        if part == "*":
            return
        if os.path.isfile(os.path.join(place, f"{part}.py")):
            yield os.path.join(place, f"{part}.py")
        place = os.path.join(place, part)
        if not os.path.isdir(place):
            return
        yield os.path.join(place, "__init__.py")
        yield f"{place}/"


def _asked_by(node: ast.AST, *, is_owner: bool) -> str:
    """Return what a piece of code asks for that is no input of a task, "" for nothing.

    An owner is what stands before a dot: a module that is looked at by attribute must not go anywhere else.
    """
    if isinstance(node, ast.Import):
        tops = ((alias.name.partition(".")[0], alias.asname) for alias in node.names)
        return next((top for top, other in tops if top in _ASKING_MODULES or (other and top in _PURE)), "")
    if isinstance(node, ast.ImportFrom) and not node.level:
        module = node.module or ""
        top = module.partition(".")[0]
        names = [alias.name for alias in node.names]
        if top in _ASKING_MODULES:
            return top
        if top in _PURE:
            known = frozenset[str]() if module == "os" else _PURE.get(module, frozenset())
            return next((f"{module}.{name}" for name in names if name not in known or f"{module}.{name}" in _PURE), "")
        return next((name for name in names if name in _ASKING_ATTRIBUTES | _ASKING_NAMES), "")
    if isinstance(node, ast.Name) and (node.id in _ASKING_NAMES or (node.id in _PURE and not is_owner)):
        return node.id
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
        # Whatever is called path is taken for that of os.
        is_path = isinstance(node.value, ast.Attribute) and node.value.attr == "path"
        owner = "os.path" if is_path else _dotted(node.value)
        if node.attr not in _PURE.get(owner, (node.attr,)):
            return f"{owner}.{node.attr}"
        if node.attr in _ASKING_ATTRIBUTES:
            return node.attr
    return ""

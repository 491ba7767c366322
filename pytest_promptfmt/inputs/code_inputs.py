"""The Python files that a module of a task may import, and whether its result depends on anything but known inputs.

This is found by reading, never by running: imports anywhere in a file count, and are searched below the folders that
the code may come from. An environment variable that code names is an input; outcomes of code that reads the clock are
not cached. Opened files, evaluated code, network and processes are traced while the code runs (traces.py).
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import CodeType
from typing import Final

from pytest_promptfmt.core.files import is_installed
from pytest_promptfmt.core.source_imports import names_in, syntax_tree
from pytest_promptfmt.inputs.facts import HUB, PLACE, PLATFORM, PROCESSORS, ZONE, named_fact
from pytest_promptfmt.inputs.set_orders import depends_on_order, shares_sets

_ASKING_MODULES: Final = frozenset(
    ("ctypes", "dbm", "fsspec", "getpass", "glob", "inspect", "locale", "pkgutil", "pwd", "runpy", "secrets", "time")
)
"""Modules whose use may give another result in another run, unnoticed; for those of `_PURE` the attribute decides."""

_LOADING: Final = frozenset({"load_dataset", "from_pretrained", "hf_hub_download", "snapshot_download"})
"""Functions that read the caches of a hub, untraced; what is missing there is not opened."""

_READING: Final = frozenset({"open", "read_text", "read_bytes", "get_data"})
"""Functions that open a file."""

_OPENING: Final = (
    _READING
    | _LOADING
    | {
        *("Path", "glob", "rglob", "listdir", "walk", "exec", "eval", "__import__", "__file__", "importlib", "pkgutil"),
    }
)
"""Names in code that may open any file."""

_UNREADABLE: Final = "a module that cannot be read"
_OF_PYTHON: Final = sys.stdlib_module_names | {"pytest_promptfmt"}
_MOST_TEXT: Final = 300
_MANY_FILES: Final = 200
_MOST_FILES: Final = 2_000

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

_ASKING_NAMES: Final = frozenset({"__import__"})
_ASKING_ATTRIBUTES: Final = frozenset(
    {"now", "today", "utcnow", "environ", "getenv", "cpu_count", "gettempdir", "uuid1", "uuid4"}
    | {"read_csv", "read_json", "read_parquet", "read_table", "load_from_disk", "from_file"}
)
_ASKING_OF_PATHS: Final = frozenset(
    {"cwd", "exists", "expanduser", "glob", "group", "home", "is_dir", "is_file", "is_mount", "is_symlink"}
    | {"lstat", "owner", "readlink", "rglob", "samefile", "stat"}
)
"""Attributes of paths that read the file system untraced, in a module that uses pathlib."""

_PROCESSORS: Final = frozenset(
    {"os.cpu_count", "os.sched_getaffinity", "multiprocessing.cpu_count", "psutil.cpu_count"}
)
"""Functions that return the number of processors."""

_UNSEEDED: Final = frozenset({"Random", "RandomState", "SystemRandom", "default_rng", "seed"})
"""Functions that make random numbers of the system if they get no seed."""

_LOCAL_TIMES: Final = frozenset({"astimezone", "fromtimestamp", "timestamp"})
"""Methods of dates that use the time zone of the machine."""

_SHOWING_PLACES: Final = frozenset(
    {"__file__", "__path__", "__spec__", "abspath", "absolute", "find_spec", "getcwd", "resolve"}
    | {"co_filename", "tb_frame", "format_exc", "print_exc", "extract_stack"}
)
"""Names whose value may show the path of the checkout."""

_PURE: Final = {
    "os": frozenset(
        ("path", "getcwd", "chdir", "kill", "putenv", "remove", "removedirs", "rename", "rmdir", "system", "unlink")
    ),
    "os.path": frozenset(
        {"abspath", "join", "basename", "dirname", "splitext", "split", "normpath", "commonprefix", "sep"}
    ),
    "sys": frozenset(
        {"byteorder", "float_info", "hexversion", "maxsize", "maxunicode", "platform", "version_info"}
        | {"stdin", "stdout", "stderr", "exit"}  # in a worker the same in every run
    ),
    "importlib": frozenset({"metadata", "util"}),
    "importlib.metadata": frozenset({"version", "PackageNotFoundError"}),  # of packages, an input of all tasks
    "importlib.util": frozenset({"find_spec"}),
    "platform": frozenset[str](),
    "resource": frozenset({"setrlimit", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_STACK"}),
    "shutil": frozenset({"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "rmtree"}),
    "uuid": frozenset({"UUID", "uuid3", "uuid5", "NAMESPACE_DNS", "NAMESPACE_URL"}),
}
"""Attributes of modules with the same result in every run with the same Python and packages, or that are traced."""


@dataclass(frozen=True, slots=True)
class CodeInputs:
    """The inputs of Python code: `files` that it may import, which need not exist, and `facts`.

    Among the files are folders, with a slash, in which an import searches a name. `asks` is the first thing that it
    uses and that is not an input, "" for none. It `loads` if it may read the caches of a hub, and `reads` if it opens a
    file while it is imported. `names` are the packages that it imports, without Python's.
    `texts` are its short texts. Its result `may_vary` with the order of a set, also of one that it `shares`. It
    `uses_libraries` if it imports a package that is neither Python's nor found: compiled code may read files untraced.
    """

    files: frozenset[str] = frozenset()
    asks: str = ""
    facts: frozenset[str] = frozenset()
    loads: bool = False
    reads: bool = False
    names: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    may_vary: bool = False
    shares: bool = False
    uses_libraries: bool = False


def reached_from(
    modules: Iterable[str],
    folders: Sequence[str],
    is_library: Callable[[str], bool],
    *,
    may_ask: bool = True,
    is_harness: Callable[[str], bool] = lambda _: False,
) -> CodeInputs:
    """Return the inputs of these files and of all that they may import, from their own folders and from `folders`.

    Files of libraries are left out: they are represented by their versions, and their uses known by name. A copy of a
    library in another folder is not: of very many files, or of many unless one `may_ask`, the rest is not read.
    Files that are code of a harness count by their contents, and, like libraries, not by what their functions use.
    """
    found: dict[str, CodeInputs] = {}
    waiting = list(modules)
    asks = ""
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = CodeInputs() if name.endswith("/") else _module_inputs(name, tuple(folders))
            if is_harness(name):
                found[name] = CodeInputs(files=found[name].files, names=found[name].names)
            asks = asks or found[name].asks
            waiting += (each for each in sorted(found[name].files) if not is_library(each))
            if len(found) > (_MANY_FILES if asks and not may_ask else _MOST_FILES):
                asks = asks or f"code in more than {len(found) - 1} files"
                found[name] = CodeInputs(asks=asks, reads=True)
                break
    all_found = found.values()
    return CodeInputs(
        files=frozenset(found),
        asks=asks,
        facts=frozenset[str]().union(*(each.facts for each in all_found)),
        loads=any(each.loads for each in all_found),
        reads=any(each.reads for each in all_found),
        names=frozenset[str]().union(*(each.names for each in all_found)),
        texts=frozenset[str]().union(*(each.texts for each in all_found)),
        may_vary=any(each.may_vary or (each.shares and len(found) > 1) for each in all_found),
        shares=any(each.shares for each in all_found),
        uses_libraries=any(each.uses_libraries for each in all_found),
    )


@lru_cache(maxsize=16_384)
def _module_inputs(path: str, folders: tuple[str, ...]) -> CodeInputs:
    """Return the inputs of one file, with the files that its imports may run; none of a missing file."""
    try:
        with open(path, "rb") as file:
            module = ModuleFacts(file.read())
    except FileNotFoundError:
        return CodeInputs()
    except OSError:
        return CodeInputs(asks=_UNREADABLE)
    searched = [
        (parts[0], place, [*_files_of(place, parts)])
        for level, parts in module.imports
        for place in ([folder_above(path, level)] if level else [os.path.dirname(path), *folders])
    ]
    own = {name for name, place, found in searched if found and not is_installed(f"{place}/")}
    inputs = module.inputs()
    files = frozenset(file for _, _, found in searched for file in found)
    return replace(inputs, files=files, uses_libraries=not inputs.names <= own)


def folder_above(path: str, level: int) -> str:
    """Return the folder so many levels above a path."""
    for _ in range(level):
        path = os.path.dirname(path)
    return path


class ModuleFacts:
    """The facts that the content of a Python file shows, wherever it is; each is found when it is requested.

    Content that cannot be parsed `asks` for the unknown, and may open any file.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._module = syntax_tree(content)
            self._is_read = True
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._module = ast.Module(body=[], type_ignores=[])
            self._is_read = False
        self._nodes = list(_nodes_of(self._module))

    @cached_property
    def imports(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Return the parts of the names that it imports, after the number of dots before each."""
        return tuple(dict.fromkeys(each for node in self._nodes for each in imported(node)))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for node in self._nodes for name in _names_of(node))

    @property
    def opens(self) -> bool:
        """Return whether it may open files, now or when its functions are called."""
        used = self._names.union(parts[0] for _, parts in self.imports)
        return not self._is_read or not _OPENING.isdisjoint(used) or any(name.startswith("read_") for name in used)

    def inputs(self) -> CodeInputs:
        """Return its inputs, without the files that its imports may run."""
        if not self._is_read:
            return CodeInputs(asks=_UNREADABLE)
        nodes = self._nodes
        packages = {parts[0] for _, parts in self.imports}
        asking_of_paths = _ASKING_OF_PATHS if "pathlib" in packages else frozenset()
        if not packages.isdisjoint({"re", "regex"}):
            asking_of_paths -= {"group"}  # of a match
        facts = {id(place): fact for node in nodes for place, fact in _facts_in(node)}
        owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        asks = ""
        for node in nodes:
            asks = asks or ("" if id(node) in facts else _asked_by(node, is_owner=id(node) in owners))
            if not asks and isinstance(node, ast.Attribute) and node.attr in asking_of_paths:
                asks = f"pathlib's {node.attr}"
        loads = not _LOADING.isdisjoint(self._names)
        may_vary = depends_on_order(nodes)
        order = named_fact("variable", "PYTHONHASHSEED") if may_vary else ""
        constants = (node.value for node in nodes if isinstance(node, ast.Constant))
        return CodeInputs(
            asks=asks,
            facts=frozenset(filter(None, (*facts.values(), HUB if loads else "", order))),
            loads=loads,
            reads=_reads(self._module),
            names=frozenset(parts[0] for level, parts in self.imports if not level) - _OF_PYTHON,
            texts=frozenset(value for value in constants if isinstance(value, str) and _is_short(value)),
            may_vary=may_vary,
            shares=shares_sets(self._module),
        )


def asks_for(code: CodeType) -> str:
    """Return a name in compiled code whose result is not an input, "" for none."""
    asking = _ASKING_MODULES | _ASKING_NAMES | _ASKING_ATTRIBUTES | _LOADING | _PURE.keys()
    return next((name for name in names_in(code) if name in asking), "")


def _nodes_of(module: ast.Module, *, called: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes of a module, without those of the main program and, on request, of functions to be `called`."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if not called and isinstance(node, _FUNCTIONS):
            continue
        yield node
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant()])):
                waiting += node.orelse
            case _:
                waiting += ast.iter_child_nodes(node)


def _reads(module: ast.Module) -> bool:
    """Return whether a module opens a file while it is imported, directly or in one of its functions."""
    functions = [each for each in module.body if isinstance(each, _FUNCTIONS)]
    opening = {each.name for each in functions if any(map(_opens, ast.walk(each)))}
    outside = _nodes_of(module, called=False)
    return any(_opens(node) or (isinstance(node, ast.Name) and node.id in opening) for node in outside)


def _opens(node: ast.AST) -> bool:
    return not _READING.isdisjoint(_names_of(node))


def _facts_in(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that read a fact, each with the fact; "" for nodes that only look so."""
    match node:
        case ast.Call(func=ast.Attribute() as asked, args=[ast.Constant(value=str(name)), *_]):
            if _dotted(asked) in ("os.getenv", "os.environ.get", "os.environ.setdefault"):
                yield from ((place, named_fact("variable", name)) for place in _chain(asked))
            elif _dotted(asked) == "shutil.which":
                yield asked, named_fact("program", name)
        case ast.Subscript(value=ast.Attribute() as asked, slice=ast.Constant(value=str(name))):
            if _dotted(asked) == "os.environ":
                yield asked, named_fact("variable", name)
            elif _dotted(asked) == "sys.modules" and isinstance(node.ctx, ast.Store):
                yield asked, ""  # a write
        case ast.Attribute(value=ast.Name(id="platform")):
            yield node, PLATFORM
        case ast.Attribute() as asked if _dotted(asked) in _PROCESSORS:
            yield asked, PROCESSORS
        case ast.Name(id=name) if name in _SHOWING_PLACES:
            yield node, PLACE
        case ast.Attribute(attr=name) if name in _SHOWING_PLACES:
            yield node, PLACE
        case ast.Attribute(attr=name) if name in _LOCAL_TIMES:
            yield node, ZONE


def _is_short(value: str) -> bool:
    return 0 < len(value) <= _MOST_TEXT and "\n" not in value


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an attribute and its owners, as long as these are attributes."""
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` for an attribute of attributes of a name, "" for others."""
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


def imported(node: ast.AST) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the parts of each name that a statement imports, after the number of dots before it."""
    if isinstance(node, ast.Import):
        yield from ((0, tuple(alias.name.split("."))) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = node.module.split(".") if node.module else []
        yield from ((node.level, (*parts, alias.name)) for alias in node.names)


def _files_of(folder: str, dotted: Sequence[str]) -> Iterator[str]:
    """Yield the existing files that importing a name may run: each package on the way and the module.

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
    """Return what a piece of code uses that is not an input of a task, "" for nothing.

    An owner is the name before a dot: a module whose attributes decide must not be used in another way.
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
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return next((name for name in _names_of(node.func) if name in _UNSEEDED), "")
    if isinstance(node, ast.Name) and (node.id in _ASKING_NAMES or (node.id in _PURE and not is_owner)):
        return node.id
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
        # Any attribute `path` counts as that of os.
        is_path = isinstance(node.value, ast.Attribute) and node.value.attr == "path"
        owner = "os.path" if is_path else _dotted(node.value)
        if node.attr not in _PURE.get(owner, (node.attr,)):
            return f"{owner}.{node.attr}"
        if node.attr in _ASKING_ATTRIBUTES:
            return node.attr
    return ""

"""The harness that task files belong to: a checkout around them, else the lm-eval that is installed.

Its files are read, never imported: the names of its tasks, the keys that its tasks may have, its release.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distributions, version
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.files import is_installed
from pytest_promptfmt.core.release import OF_LMMS_EVAL, OLDEST, numbers_of
from pytest_promptfmt.core.source_imports import syntax_tree
from pytest_promptfmt.tasks.registrations import Registration, registered_in

PACKAGES: Final = ("lm_eval", "lmms_eval")
"""The packages of harnesses that read lm-eval's YAML."""

_CLONES: Final = ("", "lm-evaluation-harness", "lmms-eval")
"""The names of a checkout's folder inside another repository."""

_CONFIGS: Final = ("config/task.py", "api/task.py")
"""The modules that define `TaskConfig`, by release."""

_GROUPS: Final = "evaluator_utils.py"
_AGGREGATED: Final = re.compile(rb"""["']aggregation["']\]\s*==\s*["'](\w+)["']""")
"""The module that averages groups, and how it compares the name of an aggregation."""

_COMPARED: Final = re.compile(rb"""\bmetric\s*==\s*["']([^"'\n]+)["']""")
"""How `api/task.py` singles out a metric of generated answers."""

_NAMED: Final = re.compile(rb"""(?m)^["']?(task|group|tag)["']?[ \t]*:[ \t]*([^\n]*(?:\n[ \t]*-[ \t][^\n]*)*)""")
_INCLUDE: Final = re.compile(rb"""(?m)^["']?include["']?[ \t]*:[ \t]*([^\n]*(?:\n[ \t]*-[ \t][^\n]*)*)""")
_WORD: Final = re.compile(rb"""[^\s,\[\]{}#"']+""")
_VERSION: Final = re.compile(r"""(?m)^\s*(?:version|__version__)\s*=\s*["']([^"']+)["']""")
_MAX_INCLUDES: Final = 4

_REGISTERING: Final[Mapping[str, str]] = {
    "filter": "filters/**/*.py",
    "metric": "api/*.py",
    "aggregation": "api/*.py",
    "task": "tasks/**/*.py",
}
"""The modules that register things of each kind."""

_SCORING: Final = ("filter", "metric", "aggregation")
"""The kinds that read and score answers."""

K = TypeVar("K")
Kind = Literal["task", "group", "tag"]


class Harness:
    """One package `lm_eval` or `lmms_eval` at `folder`; what is read of it is read once."""

    def __init__(self, folder: Path, *, is_installed: bool) -> None:
        self.folder = folder
        self.is_installed = is_installed
        self._registered: dict[str, Mapping[str, Registration]] = {}

    @property
    def tasks(self) -> Path:
        """Return the folder of its tasks."""
        return self.folder / "tasks"

    @cached_property
    def release(self) -> str:
        """Return the release that it renders like: the version that is stated, unless its code is that of later ones.

        Forks go on stating the version that they began with, and a development version may still lack what its
        release brings. `0.4.3+0.4.7` is 0.4.3 with what 0.4.7 changed; "" where neither version nor code says anything.
        """
        stated, found = numbers_of(self.stated_release), self._releases_in_code
        known = list(data_table("release_code"))
        earlier = [each for each in known if numbers_of(each) <= stated]
        reached = [each for each in earlier if numbers_of(each) < stated or "dev" not in self.stated_release]
        base, later = [OLDEST, *reached][-1], known[len(reached) :]
        while later and later[0] in found:
            base, *later = later
        made = "+".join([base, *(each for each in later if each in found)])
        return self.stated_release if not found or [made] == earlier[-1:] else made

    @cached_property
    def stated_release(self) -> str:
        """Return its version as its own files or its distribution state it, "" if they do not."""
        # That of a checkout which is installed in place, or on the search path, may be of another one.
        for path in () if is_installed(str(self.folder)) else self._stating_release:
            with suppress(OSError, UnicodeDecodeError), gate.also_reading(self.folder.parent):
                found = _VERSION.search(gate.read_text(path))
                if found is not None:
                    return found[1]
        for distribution in distributions(name=self.folder.name, path=[str(self.folder.parent)]):
            return distribution.version
        with suppress(PackageNotFoundError):
            return version(self.folder.name) if self.is_installed else ""
        return ""

    @property
    def _releases_in_code(self) -> frozenset[str]:
        known = data_table("release_code").items() if self.folder.name == PACKAGES[0] else ()
        return frozenset(name for name, row in known if row["code"].encode() in self._read(self.folder / row["file"]))

    @property
    def followed_release(self) -> str:
        """Return the release whose prompts it makes, as tasks name it."""
        return self.release if self.folder.name == PACKAGES[0] else OF_LMMS_EVAL

    @property
    def title(self) -> str:
        """Return its name and release: `lm-eval 0.4.9`."""
        return f"{self.folder.name.replace('_', '-')} {self.release}".rstrip()

    @property
    def reads_early_yaml(self) -> bool:
        """Return whether it reads YAML as lm-eval did before 0.4.12.

        A task may have the key `group`, the first of several includes wins, a file may be included twice, and
        `!function` may have a path.
        """
        numbers = numbers_of(self.release)
        return self.folder.name != "lm_eval" or (bool(numbers) and numbers < [0, 4, 12])

    @cached_property
    def task_keys(self) -> frozenset[str]:
        """Return the fields of its `TaskConfig`, none if that is not found."""
        for name in _CONFIGS:
            with suppress(OSError, SyntaxError, ValueError, RecursionError), gate.also_reading(self.folder):
                module = syntax_tree(gate.read_bytes(self.folder / name))
                for node in module.body:
                    if isinstance(node, ast.ClassDef) and node.name == "TaskConfig":
                        fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
                        return frozenset(each.id for each in fields if isinstance(each, ast.Name))
        return frozenset()

    @cached_property
    def group_aggregations(self) -> frozenset[str]:
        """Return the names of aggregations that groups may have."""
        return frozenset({"mean", *map(bytes.decode, _AGGREGATED.findall(self._read(self.folder / _GROUPS)))})

    @cached_property
    def singled_out_metrics(self) -> frozenset[str]:
        """Return the metrics of generated answers that its tasks treat otherwise than every release does."""
        return frozenset(map(bytes.decode, _COMPARED.findall(self._read(self.folder / _CONFIGS[1])))) - {"exact_match"}

    def has_output_type(self, name: object) -> bool:
        """Return whether its tasks may have an output type."""
        return self._quotes(name, _CONFIGS[1])

    def has_sampler(self, name: str) -> bool:
        """Return whether it may have a sampler of few-shot examples."""
        return self._quotes(name, "api/samplers.py")

    def _quotes(self, name: object, file: str) -> bool:
        source = self._read(self.folder / file)
        return any(f"{quote}{name}{quote}".encode() in source for quote in "'\"")

    def digest(self, paths: Iterable[str]) -> str:
        """Return the digest of what is in some of its files."""
        return _digest(self._read(Path(path)) for path in paths)

    def registrations(self, kind: str) -> Mapping[str, Registration]:
        """Return the filters, metrics, aggregations or tasks that its files register, by their names."""
        if kind not in self._registered:
            mark, paths = f"@register_{kind}(".encode(), reversed(self.registering(kind))  # the first file wins
            found = (registered_in(code, path, kind) for path in paths if mark in (code := self._read(path)))
            self._registered[kind] = dict(chain.from_iterable(found))
        return self._registered[kind]

    def changes(self, kind: str, name: str) -> bool:
        """Return whether it registers other code under a name than every release of lm-eval."""
        found = self.registrations(kind).get(name)
        return found is not None and found.digest not in data_table("registered")[kind].get(name, ())

    def registering(self, kind: str) -> Sequence[Path]:
        """Return the files that may register things of a kind."""
        return sorted(self.folder.glob(_REGISTERING[kind])) if kind != "task" or self.registers_tasks else ()

    @property
    def registers_tasks(self) -> bool:
        """Return whether it is like lm-eval before 0.4.2: its files may register classes as tasks, not only YAML."""
        return b"TaskManager" not in self._read(self.tasks / "__init__.py")

    @property
    def is_checkout(self) -> bool:
        """Return whether its files may change without its release: those of a checkout, not of a distribution."""
        return not (self.is_installed and is_installed(str(self.folder)))

    def places(self, *, with_tasks: bool) -> Iterator[str]:
        """Yield the paths that its description and, if wanted, its names are read from, folders with a slash."""
        code = (row["file"] for row in data_table("release_code").values())
        read = "tasks/__init__.py", *_CONFIGS, _GROUPS, *code
        yield from map(str, (*self._stating_release, *(self.folder / name for name in read), *self.registering("task")))
        yield from self.registering_places
        if with_tasks:
            yield from map(str, self.files)
            yield from (f"{root}/" for root, _, _ in os.walk(self.tasks))

    @cached_property
    def registering_places(self) -> frozenset[str]:
        """Return the files that may register what scores answers, and their folders, with a slash."""
        files = [path for kind in _SCORING for path in self.registering(kind)]
        folders = {self.folder / "api", self.folder / "filters", *(path.parent for path in files)}
        return frozenset({*map(str, files), *(f"{folder}/" for folder in folders)})

    @cached_property
    def description(self) -> list[Any]:
        """Return what tasks and groups use of it besides its names, in JSON's types."""
        keys, classes = sorted(self.task_keys), sorted(self.registrations("task"))
        names = sorted(self.group_aggregations), sorted(self.singled_out_metrics)
        registered = ((kind, *each) for kind in _SCORING for each in sorted(self.registrations(kind).items()))
        code = [(*names, replace(each, file=each.file.relative_to(self.folder))) for *names, each in registered]
        return [
            str(self.folder),
            self.release,
            keys,
            *names,
            classes,
            _digest([repr(code).encode()]) if self.is_checkout else "",
        ]

    @property
    def _stating_release(self) -> tuple[Path, ...]:
        above = self.folder.parent
        return above / "pyproject.toml", above / "setup.py", self.folder / "__init__.py"

    def defining(self, name: str) -> tuple[Kind, tuple[Path, ...]] | None:
        """Return whether a name is a task, a group or a tag, with the files that may define it; None if unknown."""
        for path in self._by_stem.get(name, ()):
            found = {kind for kind, each in self._named_in(path)[0] if each == name} - {"tag"}
            if found:
                return "group" if "group" in found else "task", (path,)
        kinds: tuple[Kind, ...] = ("group", "task")
        for kind in kinds:
            if (kind, name) in self._names:
                return kind, tuple(self._names[kind, name])
        tagged = self._names.get(("tag", name))
        return None if tagged is None else ("tag", tuple(sorted(set(self._includers(tagged)))))

    @cached_property
    def files(self) -> Sequence[Path]:
        """Return its YAML files, those that are only included as well."""
        walked = os.walk(self.tasks)
        return sorted(Path(root, name) for root, _, names in walked for name in names if name.endswith("yaml"))

    @cached_property
    def _by_stem(self) -> Mapping[str, list[Path]]:
        return _paths_by((path.stem, path) for path in self.files)

    @cached_property
    def _names(self) -> Mapping[tuple[Kind, str], list[Path]]:
        return _paths_by((named, path) for path in self.files for named in self._named_in(path)[0])

    @cached_property
    def _including(self) -> Mapping[str, list[Path]]:
        return _paths_by((name, path) for path in self.files for name in self._named_in(path)[1])

    def _named_in(self, path: Path) -> tuple[Sequence[tuple[Kind, str]], Sequence[str]]:
        """Return the names in a file and in its includes; a file is read once as long as it stays as it is."""
        with suppress(OSError), gate.also_reading(self.folder):
            status = gate.status_of(path)
            stamp = status.st_mtime_ns, status.st_size
            if path not in _named or _named[path][0] != stamp:
                data = gate.read_bytes(path)
                words = (word for match in _INCLUDE.finditer(data) for word in _words(match[1]))
                _named[path] = stamp, list(names_in(data)), [word.rpartition("/")[2] for word in words]
            return _named[path][1:]
        return (), ()

    def _includers(self, paths: Sequence[Path], depth: int = 0) -> Iterator[Path]:
        for path in paths:
            if path.suffix == ".yaml":
                yield path
            if depth < _MAX_INCLUDES:
                yield from self._includers(self._including.get(path.name, ()), depth + 1)

    def _read(self, path: Path) -> bytes:
        with suppress(OSError), gate.also_reading(self.folder):
            return gate.read_bytes(path)
        return b""


def _digest(contents: Iterable[bytes]) -> str:
    return blake2b(b"".join(b"\0" + each for each in contents), digest_size=16).hexdigest()


def _paths_by(pairs: Iterable[tuple[K, Path]]) -> Mapping[K, list[Path]]:
    found: dict[K, list[Path]] = {}
    for key, path in pairs:
        found.setdefault(key, []).append(path)
    return found


_named: Final[dict[Path, tuple[tuple[int, int], Sequence[tuple[Kind, str]], Sequence[str]]]] = {}


def names_in(data: bytes) -> Iterator[tuple[Kind, str]]:
    """Yield the names that a file gives to a task, a group or a tag, by the text of its top-level keys.

    Up to lm-eval 0.4.3 `group` was the key of tags: it is that of a group only next to a list of members.
    """
    keys = _NAMED.findall(data)
    members = [value for key, value in keys if key == b"task" and value.lstrip()[:1] in (b"", b"#", b"-", b"[")]
    for key, value in keys:
        if key == b"tag" or (key == b"group" and not members):
            yield from (("tag", name) for name in _words(value))
        elif value not in members:
            yield from ((key.decode(), name) for name in _words(value.partition(b"\n")[0])[:1])


def _words(value: bytes) -> list[str]:
    lines = (line.partition(b" #")[0].strip().removeprefix(b"- ") for line in value.split(b"\n"))
    return [word.decode("utf-8", "replace") for line in lines for word in _WORD.findall(line) if word != b"-"]


def harness_around(folder: Path) -> Harness | None:
    """Return the harness in whose checkout a resolved folder is; None outside of one."""
    package = _package_around(folder, gate.allowed_folders())
    return _harness_at(package) if package is not None else None


@lru_cache(maxsize=64)
def _harness_at(package: Path) -> Harness:
    """Return the harness of a checkout; its files are read once for all of its tasks."""
    return Harness(package, is_installed=False)


@lru_cache(maxsize=4096)
def _package_around(folder: Path, limit: tuple[str, ...] | None) -> Path | None:
    """Return the package of a harness that is in a folder or nearest above it, below the limit of this run."""
    if not gate.is_allowed(folder / "-"):
        return None
    for package in (folder / clone / name for clone in _CLONES for name in PACKAGES):
        if (package / "tasks").is_dir():
            return package
    return _package_around(folder.parent, limit) if folder.parent != folder else None


def forget_places() -> None:
    """Search for harnesses again: an index of tasks knows those that are there when it is made."""
    _package_around.cache_clear()
    _harness_at.cache_clear()
    _found_in.cache_clear()


def is_copied_harness(folder: Path) -> bool:
    """Return whether a folder is the package of a harness in a project whose own files do not mention it."""
    if folder.name not in PACKAGES or not any((folder / name).is_file() for name in _CONFIGS):
        return False
    about = []
    for name in ("pyproject.toml", "setup.py", "setup.cfg"):
        with suppress(OSError):
            about.append(gate.read_text(folder.parent / name, errors="replace"))
    return bool(about) and not any(folder.name in text for text in about) and (folder / "tasks").is_dir()


def found_release(folder: Path) -> tuple[str, str] | None:
    """Return the release of the harness around a folder, else of the installed one, and where it is; None without."""
    harness = harness_of(folder.resolve())
    if harness is None or not harness.release:
        return None
    place = "installed" if harness.is_installed else "in this checkout"
    stated = harness.stated_release
    followed = harness.followed_release
    return (
        followed,
        place
        if stated == followed
        else f"{place} (according to its code; its metadata states {stated or 'no version'})",
    )


def harness_of(folder: Path) -> Harness | None:
    """Return the harness around a resolved folder, else the one that is installed.

    None without one, and for a repository that has a harness as a submodule which is not checked out.
    """
    return harness_around(folder) or (None if _has_submodule(folder) else installed_harness())


def _has_submodule(folder: Path) -> bool:
    for above in (folder, *folder.parents):
        if not gate.is_allowed(above / "-"):
            return False
        with suppress(OSError):
            text = gate.read_text(above / ".gitmodules", errors="replace")
            return any(name and name in text for name in _CLONES)
    return False


def installed_harness() -> Harness | None:
    """Return the lm-eval that is installed; None without one. It is not imported."""
    return _found_in(tuple(sys.path))


@lru_cache(maxsize=4)
def _found_in(_path: tuple[str, ...]) -> Harness | None:
    """Return the lm-eval that is found with this search path of Python."""
    for name in PACKAGES:
        # Not `find_spec`, which knows what is imported: code of a checkout imports that checkout.
        finders = [each for each in sys.meta_path if not getattr(each, "is_passing", False)]
        found_by = (getattr(each, "find_spec", lambda *_: None)(name, None, None) for each in finders)
        try:
            spec = next(filter(None, found_by), None)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            if Path(folder, "tasks").is_dir():
                found = Path(folder).resolve()
                return _distributed(found) if is_installed(str(found)) else Harness(found, is_installed=True)
    return None


@lru_cache(maxsize=4)
def _distributed(folder: Path) -> Harness:
    """Return the harness of a distribution, whose files are the same as long as this process runs."""
    return Harness(folder, is_installed=True)

"""The inputs of outcomes: those of each file that is tested, and those shared by all tasks of a folder.

Shared inputs are versions, settings, options and surrounding code: if one changes, no earlier outcome holds. Files of
libraries are represented by their versions, those of this package by their contents.
"""

from __future__ import annotations

import locale
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.files import VARIABLE as CACHE_VARIABLE, hub_caches
from pytest_promptfmt.core.profile import RECORDED, SEPARATE_ENGINES, Profile
from pytest_promptfmt.core.task import FunctionRef, Task, leaves
from pytest_promptfmt.formats.format_registry import format_files
from pytest_promptfmt.inputs.cached_files import ItemResults, Shown, TaskRow, is_quiet
from pytest_promptfmt.inputs.code_inputs import CodeInputs, reached_from
from pytest_promptfmt.inputs.contents import OTHER, Contents
from pytest_promptfmt.inputs.facts import PLACE, folders_of_variables, named_fact
from pytest_promptfmt.inputs.folders import Folders
from pytest_promptfmt.inputs.native_files import NativeFiles
from pytest_promptfmt.inputs.places import PACKAGE, digest_of, distributions, importable_in, search_path
from pytest_promptfmt.inputs.store import StoredInputs, mapping
from pytest_promptfmt.inputs.traces import CONVERSION, AccessedPaths
from pytest_promptfmt.profiles.tokenizer_sources import find_source
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import TaskFile, functions_of, harness_around, needs_harness, registering_files

_FLAGS: Final = ("dev_mode", "int_max_str_digits", "optimize", "utf8_mode")
"""The options of Python that change what code does."""

_METRICS: Final = ("HF_EVALUATE_OFFLINE", "HF_MODULES_CACHE")
"""The variables by which metrics of a hub are found, in addition to its caches."""

_SETTING: Final = "PROMPTFMT_"
"""The beginning of the variables that are settings."""

_PLACES: Final = (CACHE_VARIABLE, gate.VARIABLE)
"""The variables that name where caches are, and where this run may read and write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInputs:
    """The inputs that the program which runs the tests gives to all of them; each is read when it is needed.

    Paths of node ids begin at `rootdir`. `plugins` are the files of its plugins, `options` what changes the result of a
    test, `collecting` what decides which files are collected in a folder. `baseline` is the file of accepted findings,
    `written` are the files of results that it writes, which change no result.
    `varying` returns the files whose outcomes depend on the order of a set, all if that is unknown; files may run again
    for it if it `can_try_orders`. A run that `needs_snapshots` shows no outcomes of one that made none.
    """

    rootdir: Path
    plugins: Callable[[], Iterable[str]]
    options: Callable[[], Sequence[object]]
    baseline: Path | None
    written: Collection[str]
    collecting: Callable[[], Sequence[object]]
    can_try_orders: Callable[[], bool]
    varying: Callable[[Collection[Path]], frozenset[Path]]
    needs_snapshots: Callable[[], bool] = lambda: True


class SharedInputs:
    """The inputs shared by the tasks of a folder."""

    def __init__(self, run: RunInputs, folders: Folders, contents: Contents, inputs: StoredInputs) -> None:
        self._run = run
        self._folders = folders
        self._contents = contents
        self._inputs = inputs
        self._digests: dict[int, tuple[Settings, str]] = {}
        self._profiles: dict[int, tuple[Profile, str]] = {}
        self._base: str | None = None
        # Collecting Python tests adds their folders to the path: what a run began with does not depend on the order.
        self._path, self._plugins = search_path(), tuple(run.plugins())
        self.is_library = contents.places.is_library
        self.conftests_above = cache(self._conftests_above)
        self._reached = cache(self._reached_from)

    def reached_from(self, modules: Iterable[str], settings: Settings, *, may_ask: bool = False) -> CodeInputs:
        """Return the inputs of the modules of a task; one behind a link may depend on the link's path."""
        named = frozenset(modules)
        return self._reached(named, str(settings.rootdir), tuple(search_path()), may_ask) if named else CodeInputs()

    def _reached_from(self, modules: frozenset[str], root: str, path: tuple[str, ...], may_ask: bool) -> CodeInputs:
        around = {str(harness.folder) for each in modules if (harness := harness_around(Path(each).parent))}
        folders = (root, *sorted({*map(os.path.dirname, around)} - {root}), *path)
        is_harness = partial(_is_code_of, around)
        reached = reached_from(sorted(modules), folders, self.is_library, may_ask=may_ask, is_harness=is_harness)
        last = {os.path.basename(harness): f" {os.path.dirname(harness)}" for harness in around}
        facts = {named_fact("search path", name + last.get(name, "")) for name in reached.names}
        places = self._contents.places
        facts |= {PLACE} if any(map(places.is_named_in, reached.texts)) else set()
        reached = replace(reached, facts=reached.facts | facts)
        if not reached.asks and any(
            self._contents.places.is_linked(name) for name in reached.files if not name.endswith("/")
        ):
            return replace(reached, asks="a module that is reached through a link and may read files behind the link")
        return reached

    def _conftests_above(self, folder: Path) -> list[str]:
        """Return the paths of conftests from a folder up to the rootdir, also of missing ones."""
        root = self._run.rootdir
        chain = [folder, *folder.parents]
        return [f"{each}/conftest.py" for each in (chain[: chain.index(root) + 1] if root in chain else chain)]

    def digest(self, settings: Settings) -> str:
        """Return the digest of the inputs shared by all tasks with these settings; `OTHER` if one is unknown."""
        known = self._digests.get(id(settings))
        if known is None:
            if self._base is None:
                found = list(self._of_this_run())
                self._base = OTHER if OTHER in found else self._contents.places.digest(found)
            own = [self._base, _plain(settings), *self._files_named_by(settings)]
            known = self._digests[id(settings)] = settings, OTHER if OTHER in own else self._contents.places.digest(own)
        return known[1]

    def profile_key(self, profile: Profile) -> str:
        """Return a text that is equal for equal profiles."""
        known = self._profiles.get(id(profile))
        if known is None:
            known = self._profiles[id(profile)] = profile, self._contents.places.digest(_plain(profile))
        return known[1]

    def _of_this_run(self) -> Iterator[object]:
        """Yield the inputs of every task: versions, the code of this package and of conftests, options."""
        root = str(self._run.rootdir)
        yield sys.implementation.name, tuple(sys.version_info), sys.platform, version("pytest-promptfmt")
        yield os.path.relpath(os.getcwd(), root), [getattr(sys.flags, name) for name in _FLAGS], locale.getencoding()
        files = sorted(f"{folder}{os.sep}{name}" for folder, _, names in os.walk(PACKAGE) for name in names)
        code = [path for path in files if not path.endswith(".pyc")]
        yield self._inputs.digest_of(digest_of(os.fsencode(PACKAGE)), code)
        yield distributions()
        below = {folder for folder in self._path if gate.is_below(folder, [root])}
        yield sorted((folder, sorted(importable_in(folder))) for folder in {root, *below})
        own = {name for name in self._plugins if name.startswith(root) and not self.is_library(name)}
        reached = reached_from(own, (root,), self.is_library)
        yield sorted(self._contents.input(name)[:2] for name in reached.files | reached.facts)
        yield OTHER if reached.reads else None  # files that they open while pytest imports them are not traced
        yield sys.warnoptions, self._run.options(), sorted(self._folders.settings.repeat)
        yield sorted(item for item in os.environ.items() if item[0].startswith(_SETTING) and item[0] not in _PLACES)
        inside = (os.path.realpath(root), *map(os.path.realpath, self._run.written))
        yield sorted(folder for folder in gate.allowed_folders() or () if not gate.is_below(folder, inside))
        home = str(Path("~").expanduser())
        yield (
            [re.sub(f"^{re.escape(home)}(?=/)", "~", each) for each in hub_caches()],
            *(os.environ.get(name) for name in _METRICS),
        )
        yield None if self._run.baseline is None else self._contents.input(str(self._run.baseline))[:2]

    def _files_named_by(self, settings: Settings) -> Iterator[object]:
        """Yield the contents of files that settings name; `OTHER` if unknown."""
        for file in settings.rules:
            reached = reached_from([str(file)], (str(settings.rootdir),), self.is_library)
            yield sorted(self._contents.input(name)[:2] for name in reached.files | reached.facts)
            yield OTHER if reached.asks or reached.loads or reached.reads else None
        engines = (*settings.template_engines, *(each.engine or "" for each in settings.profiles))
        recorded = (engine for engine in engines if engine.endswith(RECORDED))
        yield [self._contents.input(name)[:2] for name in (*recorded, *(str(file) for _, file in settings.training_of))]
        profiles = (*settings.profiles, *settings.defined.values())  # tasks may name those that are no default
        tokenizers = {each.tokenizer for each in profiles if each.tokenizer is not None and not each.is_archetype}
        yield from (self._tokenizer(each, may_download=settings.download) for each in sorted(tokenizers))

    def _tokenizer(self, written: str, *, may_download: bool) -> object:
        """Return what decides what a tokenizer does: its commit on a hub, or its files; `OTHER` if unknown."""
        try:
            source = find_source(written)
        except PromptfmtError:
            return OTHER if may_download else written  # tests that need it are skipped
        names = [file.relative_to(source.folder).as_posix() for file in source.files]
        if source.origin:
            return source.origin, names
        if source.layout == "gguf":  # of which only the head counts
            return source.digest()
        digest = self._inputs.digest_of(f"tokenizer {written}", [str(file) for file in source.files])
        return OTHER if digest == OTHER else (digest, names)


def _is_code_of(harnesses: Collection[str], file: str) -> bool:
    """Return whether a file is code of one of the harnesses in these folders, not of its tasks."""
    below = (file[len(folder) + 1 :] for folder in harnesses if file.startswith(f"{folder}{os.sep}"))
    return any(not name.startswith(f"tasks{os.sep}") or name.count(os.sep) == 1 for name in below)


def _plain(value: object) -> object:
    """Return a value of settings with a `repr` that is equal for equal values only."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [(each.name, _plain(getattr(value, each.name))) for each in fields(value)]
    if isinstance(value, Mapping):
        return sorted((str(key), repr(_plain(item))) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(each)) for each in value)
    return str(value) if isinstance(value, Path | datetime) else value


# -- inputs of each file -----------------------------------------------------------------------------------------------

_MOST_TEXT: Final = 300
_PROMPT_KEYS: Final = frozenset(
    {"doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "doc_to_decontamination_query"}
    | {"target_delimiter", "fewshot_delimiter", "filter_list", "generation_kwargs", "metric_list"}
)
"""Keys of a task whose texts are parts of prompts and patterns, never paths."""

_DATA_KEYS: Final = ("dataset_path", "dataset_kwargs")
"""Keys of a task whose texts may be paths of any form."""


@dataclass(slots=True)
class WatchedFile:
    """A file that is tested in this run: the inputs of its outcomes so far, and the results of its items.

    `asked` are its questions to the index. It is `refused` for the first thing that is not an input. The cache of a
    hub, which its code `loads` from, is not known by the files that are traced. Its prompts `may_vary` with the order
    of a set. Its items use `profiles`, by their keys, and have the findings about those that it `introduces`.
    """

    settings: Settings
    paths: set[str]
    asked: set[tuple[str, str]]
    tasks: list[TaskRow]
    claims: list[tuple[str, str]] = field(default_factory=list)
    results: ItemResults = field(default_factory=ItemResults)
    refused: str = ""
    loads: bool = False
    may_vary: bool = False
    profiles: set[str] = field(default_factory=set)
    introduces: set[str] = field(default_factory=set)

    def refuse(self, reason: str) -> None:
        """Do not cache the outcomes of the file."""
        self.refused = self.refused or reason

    def add(self, seen: AccessedPaths, *, is_of_module: bool) -> None:
        """Add the trace of a module of the tasks, or of anything else."""
        self.paths |= seen.paths
        self.refuse(seen.refused)
        if self.loads and is_of_module and not all(path.endswith(".py") for path in seen.paths):
            self.refuse("data that an imported library may have loaded")


class WatchedFiles:
    """The files that are tested in this run, by path; a file whose inputs are unknown is not among them."""

    def __init__(self, shared: SharedInputs, folders: Folders, contents: Contents) -> None:
        self._shared = shared
        self._folders = folders
        self._contents = contents
        self._seen: dict[str, AccessedPaths] = defaultdict(AccessedPaths)
        self._native = NativeFiles(contents.places)
        self.files: dict[str, WatchedFile] = {}
        self.packages: set[str] = set()  # that their code imports
        contents.take(f"{contents.places.rootdir}/")  # to which pytest may add the folder of its own cache

    def add(self, path: Path, file: TaskFile, tasks: Iterable[Task], settings: Settings) -> None:
        """Add a file that was read, with the inputs that reading shows."""
        read = _read_for(file)
        if read is None:
            return
        made = list(tasks)
        paths = {str(path), f"{path.parent}/", *read}
        self._contents.take(f"{path.parent}/")
        for folder in {path.parent, *(task.path.parent for task in made if task.path is not None)}:
            paths.update(format_files(folder))
        watched = WatchedFile(settings, paths, set(), [(t.id, t.name, t.format) for t in made])
        harness = self._folders.index.harness
        watched.asked |= self._folders.index.asked
        whole = file.yaml.config if file.yaml is not None else {}
        configs = [whole, *(task.config for task in made if task.config != whole)]
        texts, modules = _texts_and_modules(configs)
        modules |= {str(ref.file) for task in made for ref in functions_of(task)}
        for task in made:
            registering, others = registering_files(task, harness)
            modules |= registering
            paths |= others
        reached = self._shared.reached_from(modules, settings)
        watched.refused, watched.loads, watched.may_vary = reached.asks, reached.loads, reached.may_vary
        self.packages |= reached.names
        brings_profiles = any(task.assembly.brings_profiles for task in made)
        if brings_profiles and SEPARATE_ENGINES.intersection(settings.template_engines):
            watched.refused = "the output of another program"
        by_harness = settings.renderer == "installed" and any(task.system == "lm-eval" for task in made)
        if by_harness or any(map(needs_harness, made)):
            watched.refused = "the output of lm-eval"
        if path.is_symlink():
            watched.refused = "a task file that is a link to another file"
        watched.paths |= reached.files | reached.facts
        if reached.uses_libraries:
            native = self._native.of(reached, [str(path.parent), os.getcwd(), *folders_of_variables(reached.facts)])
            for each in native:
                if each.endswith("/"):
                    self._contents.take(each)  # the names in it count now
            watched.paths |= native
        if any(map(self._contents.places.is_named_in, texts)):
            watched.paths.add(PLACE)
        self._add_conftests(path.parent, watched)
        if reached.loads:
            watched.paths.add(f"{Path.cwd()}/")  # a folder with the name of a hub's repository comes before it
        for text in texts:
            if "*" in text:
                watched.refused = "a path with `*`, which can match new files"
            else:
                watched.paths.update(os.path.normpath(folder / text) for folder in (path.parent, Path.cwd()))
        self.files[str(path)] = watched

    def _add_conftests(self, folder: Path, watched: WatchedFile) -> None:
        """Add the conftests of a folder, which pytest reads when it enters the folder."""
        conftests = self._shared.conftests_above(folder)
        watched.paths.update(conftests)
        reached = self._shared.reached_from(filter(os.path.isfile, conftests), watched.settings, may_ask=True)
        watched.paths |= reached.files | reached.facts
        if reached.reads:
            watched.refuse("a file that a conftest reads")

    def claim(self, path: Path, task: str, profile: str) -> None:
        """Add a snapshot that a task of a file has."""
        if str(path) in self.files:
            self.files[str(path)].claims.append((task, profile))

    def refuse(self, path: Path, reason: str) -> None:
        """Do not cache the outcomes of a file."""
        if str(path) in self.files:
            self.files[str(path)].refuse(reason)

    def settle(self, item: Node, shown: Shown, seen: Mapping[str, Any]) -> ItemResults | None:
        """Add the result of an item, and the trace of its worker; a snapshot that it wrote matches from then on.

        Returns the results of its file, None for a file whose inputs are unknown.
        """
        watched = self.files.get(str(item.path))
        if watched is None:
            return None
        for path, digest in seen["wrote"]:
            self._contents.wrote(path, digest)
        introduces = sorted(map(self._shared.profile_key, getattr(item, "introduces", None) or ()))
        watched.profiles.update(map(self._shared.profile_key, getattr(item, "met", ())))
        watched.introduces.update(introduces)
        counted = ["matched" for _ in shown["counted"]] if seen["wrote"] else shown["counted"]
        if not watched.results.add(name_of(item), {**shown, "counted": counted, "introduces": introduces}):
            watched.refuse("a test that ran twice")
        lock = str(watched.settings.rootdir / LOCK_NAME)
        categories = {mapping(report.get("promptfmt")).get("category") for report in shown["reports"]}
        if "changed" in categories:
            watched.paths.add(lock)  # it explains tokens that differ
        if "renamed" in categories:
            watched.refuse("a snapshot that was found under another name")
        watched.asked.update((str(question), str(about)) for question, about in seen["asked"])
        for file, paths, reason in seen["files"]:
            refused = "" if reason == CONVERSION and is_quiet(shown) else reason
            read = {path for path in paths if file or path != lock}
            watched.add(AccessedPaths(read, refused), is_of_module=bool(file))
            self._seen[file].paths.update(paths)
            self._seen[file].refused = self._seen[file].refused or refused
        return watched.results

    def share_traces(self) -> None:
        """Add the trace of a module to all files that use it; that of a rule or conftest to all files."""
        self._seen.pop("", None)
        used = {path for watched in self.files.values() for path in watched.paths}
        for module, seen in self._seen.items():
            for watched in self.files.values():
                if module in watched.paths or module not in used:
                    watched.add(seen, is_of_module=module in watched.paths)


class Node(Protocol):
    """A collected file, task or item; an item may have `met` profiles, and `introduces` some of them."""

    @property
    def nodeid(self) -> str:
        """Return the path of the file below the rootdir, and the names of the node."""
        ...

    @property
    def path(self) -> Path:
        """Return the file."""
        ...


def name_of(node: Node) -> str:
    """Return the part of a node id after the file."""
    return node.nodeid.partition("::")[2]


def _read_for(file: TaskFile) -> Collection[str] | None:
    """Return the paths of the files that were read for a task file, except itself; None if unknown."""
    if file.yaml is not None:
        return [*(str(part.path) for part in file.yaml.parts), *file.yaml.named]
    system = known_systems().get(file.tasks[0].system) if file.tasks else None
    return system.inputs_of(file.path) if system is not None else None


def _texts_and_modules(configs: Sequence[Mapping[Any, Any]]) -> tuple[set[str], set[str]]:
    """Return the texts of configs that may be paths, and the files of their functions.

    The configs are those of a file and of its tasks: a member of a group has keys of another file and of the group.
    """
    modules = {str(leaf.file) for leaf in leaves(configs) if isinstance(leaf, FunctionRef)}
    values = leaves([value for config in configs for key, value in config.items() if key not in _PROMPT_KEYS])
    texts = {leaf for leaf in values if isinstance(leaf, str) and _may_be_path(leaf)}
    named = (leaf for config in configs for key in _DATA_KEYS for leaf in leaves(config.get(key)))
    return texts | {leaf for leaf in named if isinstance(leaf, str) and 0 < len(leaf) <= _MOST_TEXT}, modules


def _may_be_path(text: str) -> bool:
    is_word = len(text) <= _MOST_TEXT and not any(c.isspace() or c in "{}\0" for c in text)
    return is_word and ("/" in text or "." in text or "\\" in text)

"""Systems: the harnesses and kinds of files that define tasks; what each of them gives, and the registry of all.

A system recognizes files, reads them into tasks, and names the modules of what else belongs to it. Nothing outside a
system imports from inside it: whoever needs one asks here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.tasks import TaskFile

if TYPE_CHECKING:
    from pytest_promptfmt.core.finding import Reported
    from pytest_promptfmt.core.recorded import BadRecord, Recorded
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.tasks import TaskIndex, YamlFile

GROUP: Final = "pytest_promptfmt.systems"
"""The entry point group in which packages name their systems."""

HEAD_BYTES: Final = 65_536
"""How much of a file a system is given to recognize it by."""

_BUILTIN: Final = (
    "eval_framework",
    "helm",
    "templates",
    "lm_eval",
)
"""The packages of the built-in systems, each with its system as `SYSTEM`, in the order in which they are asked."""

_registered: dict[str, System] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadContext:
    """What a run knows and a reader may need.

    `index` holds the names of tasks and groups below the folders of the run. `trusted` says whether a Python file may
    be imported, `import_limit` is the seconds that one import may take.
    """

    index: TaskIndex | None = None
    trusted: Callable[[Path], bool] = lambda _path: False
    import_limit: float = 60.0


class System(ABC):
    """One harness or kind of file. A subclass sets `name` and `suffixes` and says how files are recognized and read.

    The class lives in a module that is imported at every start; what reads files is imported when it is called.
    """

    name: str
    """What its tasks have as `Task.system`."""

    suffixes: tuple[str, ...]
    """The endings of its files, such as `.json`. Python files are only looked at where a setting names them."""

    shape: str = ""
    """By what people recognize a file, such as "a HELM file `adapter_spec`", for errors about files without tasks."""

    rules: tuple[str, ...] = ()
    """The modules that define its rules, by their full names."""

    replaced_rules: tuple[str, ...] = ()
    """The codes of general rules that its own ones replace, for tasks whose prompts it makes."""

    has_own_rules: bool = False
    """Whether its tasks are looked at by its own rules alone, and by `general_rules`."""

    general_rules: tuple[str, ...] = ()
    """The codes of general rules for tasks of a system that has rules of its own alone."""

    is_asked_for: bool = False
    """Whether a run collects its files only from the rootdir itself, from what the command line names, and by globs."""

    recordings: tuple[str, ...] = ()
    """The endings of its recordings beside a task: `scenario_state.json` for `arc.<any>.scenario_state.json`."""

    metadata_keys: tuple[str, ...] = ()
    """The keys of `metadata.promptfmt` that only its tasks have."""

    @abstractmethod
    def recognizes(self, path: Path, head: bytes) -> bool:
        """Return whether a file of one of the suffixes looks like its own, by its name and its first 64 KiB.

        Asked about every such file of a run, so it should be quick. A whole file is shorter than `HEAD_BYTES`.
        """

    @abstractmethod
    def read(self, path: Path, context: ReadContext) -> TaskFile | None:
        """Return what a file that it recognizes defines; None where it turns out to define no task.

        Raises SourceError, with the position, for a file that cannot be read, CodeNotAllowedError or FunctionError for
        one that is Python.
        """

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the files below a folder that `load_tasks` reads: those that it recognizes, sorted."""
        for path in sorted(file for file in folder.rglob("*") if file.suffix in self.suffixes and file.is_file()):
            if self.recognizes(path, head_of(path)):
                yield path

    def check(
        self,
        source: str | Path,
        tokenizer: str | Path | None = None,
        conversations: Mapping[str, Any] | None = None,
        engines: Sequence[str] = (),
    ) -> list[Reported]:
        """Return what its rules find in a file or text, without pytest; raises SettingsError where that is no task."""
        raise SettingsError(f"files of {self.name} are checked as tasks", hint="use load_tasks")

    def compare(self, first: Path, second: Path) -> list[str]:
        """Return lines that say how two of its files differ in prompts; raises SettingsError where it cannot tell."""
        raise SettingsError(f"files of {self.name} are compared by revision", hint="use promptfmt diff")

    def record(self, views: Sequence[Any], engine: str, file: Path) -> str:
        """Write what a server renders for some views of tasks, and return what was done; raises SettingsError."""
        raise SettingsError(f"prompts of {self.name} are rendered here", hint="record those of chat templates")

    def made_of(self, path: Path) -> Collection[str] | None:
        """Return the paths that the outcomes of a file are made of besides itself and the names in its folder.

        Those of folders end with a slash. None where nobody can say: its outcomes are not kept, and it is run each
        time. What is read of YAML, and what settings name, is known without asking.
        """
        return None

    def recording(
        self, path: Path, head: bytes, progress: Callable[[int], object]
    ) -> Iterator[Recorded | BadRecord] | None:
        """Return the completions that a file records, bad ones included; None for a file that is not its own.

        `progress` gets the number of bytes read so far. Raises ScoringError for a file that cannot be read at all.
        """
        return None


@runtime_checkable
class ReadsClasses(Protocol):
    """A system that makes the prompts of some task classes, which YAML files name with lm-eval's key `class`."""

    def class_task(self, file: YamlFile, path: Path) -> Task | None:
        """Return the task of such a file; None where the class is of another kind."""
        ...


def register_system(system: System) -> System:
    """Add a system for this process (from a `conftest.py`, a notebook) and return it; the same name replaces."""
    _registered[system.name] = system
    return system


def known_systems() -> Mapping[str, System]:
    """Return all systems by name, in the order in which they are asked about a file; lm-eval is the last.

    Raises SettingsError for an entry point that does not load.
    """
    return {**_registered, **{name: system for name, system in _installed().items() if name not in _registered}}


def check_template(
    template: str | Path,
    tokenizer: str | Path | None = None,
    conversations: Mapping[str, Any] | None = None,
    engines: Sequence[str] = (),
) -> list[Reported]:
    """Return what the rules about chat templates find, errors first.

    `template` is Jinja source, or a path: a Jinja or JSON file of transformers, a GGUF file, or a folder with one of
    them. `tokenizer` is a folder or file that `load_tokenizer` takes; it gives the special tokens. `conversations` take
    the place of the built-in ones and of those beside the template. `engines` (`minijinja`) render them as well, to be
    compared. Raises SourceError for a file without template, TokenizerError for a tokenizer that cannot be loaded, and
    SettingsError where an engine or the system of templates is missing.
    """
    system = known_systems().get("templates")
    if system is None:
        raise SettingsError("check_template needs the system of chat templates, which this installation lacks")
    return system.check(template, tokenizer, conversations, engines)


def replaced_rules(task: Task) -> tuple[str, ...]:
    """Return the codes of general rules that are silent about a task, because its system has more specific ones."""
    system = known_systems().get(task.system) if task.assembly is not None else None
    return system.replaced_rules if system is not None else ()


def concerns(code: str, module: str, name: str) -> bool:
    """Return whether a rule, by its code and module, looks at tasks of the system of this name at all."""
    system = known_systems().get(name)
    if system is None or not system.has_own_rules:
        return True
    return module in system.rules or code in system.general_rules


def systems_for(path: Path) -> tuple[System, ...]:
    """Return the systems that have files with the ending of this one."""
    return tuple(system for system in known_systems().values() if path.suffix in system.suffixes)


def recognized(path: Path) -> System | None:
    """Return the system that a file looks like one of; None for other files. Raises OSError."""
    systems = systems_for(path)
    if not systems:
        return None
    head = head_of(path)
    return next((system for system in systems if system.recognizes(path, head)), None)


def head_of(path: Path) -> bytes:
    """Return the first 64 KiB of a file; raises OSError."""
    with gate.open_file(path) as file:
        return file.read(HEAD_BYTES)


def shapes() -> str:
    """Return by what files with tasks are recognized, for errors about one that is none."""
    said = [system.shape for system in reversed(tuple(known_systems().values())) if system.shape]
    return f"{', '.join(said)}, at the top level"


@cache
def _installed() -> Mapping[str, System]:
    found: dict[str, System] = {}
    for entry in entry_points(group=GROUP):
        try:
            system = entry.load()
        except Exception as error:
            raise SettingsError(
                f"the system of {entry.value} does not import: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(system, System):
            raise SettingsError(f"{entry.value} is not a System", hint="name an instance of a subclass of System")
        found[system.name] = system
    for package in _BUILTIN:
        system = import_module(f"{__name__}.{package}").SYSTEM
        found[system.name] = system
    return found

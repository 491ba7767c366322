"""Systems: the harnesses and kinds of files that define tasks, and their registry.

A system recognizes files, reads them into tasks, and names the modules of its rules. Nothing outside a system imports
from inside it; it is found here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError, load_entry

if TYPE_CHECKING:
    from pytest_promptfmt.core.finding import Reported
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.profiles.probe_conversations import Conversation, ConversationSpec
    from pytest_promptfmt.tasks import TaskFile, TaskIndex, YamlFile

GROUP: Final = "pytest_promptfmt.systems"
"""The entry point group in which packages name their systems."""

HEAD_BYTES: Final = 65_536
"""How much of a file a system is given to recognize it by."""

Ability = TypeVar("Ability")

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
    """The facts of a run that a reader may need.

    `index` holds the names of tasks and groups below the folders of the run. `trusted` decides whether a Python file
    may be imported, `import_limit` is the seconds that one import may take.
    """

    index: TaskIndex | None = None
    trusted: Callable[[Path], bool] = lambda _path: False
    import_limit: float = 60.0


class System(ABC):
    """One harness or kind of file. A subclass sets `name` and `suffixes`; the rest is how files are read.

    The class lives in a module that is imported at every start; what reads files is imported when it is called.
    Further abilities are small protocols, next to the code that uses them: `ReadsClasses`, `ListsFiles`,
    `ReadsRecordings` and others. A system has one by having its attributes.
    """

    name: str
    """The value of `Task.system` of its tasks."""

    suffixes: Collection[str]
    """The endings of its files, such as `(".json",)`. Python files are only considered where a setting names them."""

    rules: tuple[str, ...] = ()
    """The modules that define its rules, by their full names."""

    @abstractmethod
    def recognizes(self, path: Path, head: bytes, /) -> bool:
        """Return whether a file of one of the suffixes is one of its files, by its name and its first 64 KiB.

        Called for every such file of a run, so it should be quick. A whole file is shorter than `HEAD_BYTES`.
        """

    @abstractmethod
    def read(self, path: Path, context: ReadContext, /) -> TaskFile | None:
        """Return the tasks of a file that it recognizes; None where the file defines no task.

        Raises SourceError, with the position, for a file that cannot be read, CodeNotAllowedError or FunctionError for
        one that is Python.
        """

    def inputs_of(self, path: Path) -> Collection[str] | None:
        """Return the paths that the outcomes of a file depend on, besides itself and the names in its folder.

        Those of folders end with a slash. None if they are unknown: its outcomes are not cached, and it always runs.
        The includes of YAML, and files named by settings, are known anyway.
        """
        return None


@runtime_checkable
class ReadsClasses(Protocol):
    """A system that makes the prompts of some task classes, which YAML files name with lm-eval's key `class`."""

    def class_task(self, file: YamlFile, path: Path) -> Task | None:
        """Return the task of such a file; None where the class is of another kind."""
        ...


@runtime_checkable
class DescribesFiles(Protocol):
    """A system whose files can be described in a few words, for messages about files that define no task."""

    shape: str
    """What is at the top level of its files, such as "`adapter_spec` in a file of HELM"."""


@runtime_checkable
class SelectsRules(Protocol):
    """A system whose tasks are only linted by its own rules and by a few general ones."""

    general_rules: tuple[str, ...]
    """The codes of those general rules."""


@runtime_checkable
class ChecksTemplates(Protocol):
    """A system that checks chat templates without pytest."""

    def check_template(
        self,
        source: str | Path,
        tokenizer: str | Path | None,
        **options: Any,
    ) -> list[Reported]:
        """Return the findings of a template, errors first; options and errors are those of `check_template`."""
        ...


def system_with(ability: type[Ability]) -> Ability:
    """Return the first system that has an ability, such as that for chat templates. Raises SettingsError."""
    for system in known_systems().values():
        if isinstance(system, ability):
            return system
    raise SettingsError("this installation has no support for chat templates")


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
    conversations: Mapping[str, Conversation | ConversationSpec] | None = None,
    engines: Sequence[str] = (),
    *,
    hosts: Sequence[str] = (),
    response_template: Mapping[str, Any] | None = None,
    parser: str | None = None,
) -> list[Reported]:
    """Return the findings of the rules about chat templates, errors first.

    `template` is Jinja source, or a path: a Jinja or JSON file of transformers, a GGUF file, or a folder with one of
    them. `tokenizer` is a folder or file that `load_tokenizer` takes; it gives the special tokens. `conversations`
    replace the built-in ones: a mapping of names to conversations, such as `{"refund": {"messages": [...], "tools":
    [...]}}`. `engines` (`minijinja`) also render them, and differences are findings. `hosts` (`vllm`, `trl` …) decide
    what is an error; by default all. `response_template` reads answers back; by default it is the one in the
    tokenizer_config.json next to the template. `parser` is an installed parser: `vllm/NAME`, `sglang/NAME`, or
    `sglang/NAME+NAME` with a reasoning parser. In the main thread, a rendering ends after 10 s of processor time, which
    is a finding. Memory is not limited.

    Raises SourceError for a file without template and for invalid conversations, TokenizerError for a tokenizer that
    cannot be loaded, and SettingsError for a missing engine or an unknown name.
    """
    return system_with(ChecksTemplates).check_template(
        template,
        tokenizer,
        conversations=conversations,
        engines=engines,
        hosts=hosts,
        response_template=response_template,
        parser=parser,
    )


def concerns(code: str, module: str, name: str) -> bool:
    """Return whether a rule, by its code and module, applies to tasks of the system with this name."""
    system = known_systems().get(name)
    if system is None or not isinstance(system, SelectsRules):
        return True
    return module in system.rules or code in system.general_rules


def systems_for(path: Path) -> tuple[System, ...]:
    """Return the systems that have files with the ending of this one."""
    return tuple(system for system in known_systems().values() if path.name.endswith(endings_of(system)))


def endings_of(system: System) -> tuple[str, ...]:
    """Return the endings of a system's files, which it may give in any collection, or as one text."""
    given = system.suffixes
    return (given,) if isinstance(given, str) else tuple(given)


def file_suffixes() -> frozenset[str]:
    """Return the last suffixes of the files of all systems, such as `.yaml`, and `.py`."""
    endings = (ending for system in known_systems().values() for ending in endings_of(system))
    return frozenset({".py", *(Path(f"_{ending}").suffix for ending in endings)})


def recognized(path: Path) -> System | None:
    """Return the system that a file looks like one of; None for other files. Raises OSError."""
    systems = systems_for(path)
    if not systems:
        return None
    head = head_of(path)
    return next((system for system in systems if _may_have(system, path, head)), None)


def _may_have(system: System, path: Path, head: bytes) -> bool:
    try:
        return system.recognizes(path, head)
    except Exception:
        return True  # reading the file reports the error


def head_of(path: Path) -> bytes:
    """Return the first 64 KiB of a file; raises OSError."""
    with gate.open_file(path) as file:
        return file.read(HEAD_BYTES)


def shapes() -> str:
    """Return what files with tasks look like, for errors about other files."""
    known = [each.shape for each in known_systems().values() if isinstance(each, DescribesFiles)]
    return f"the top level needs one of these: {'; '.join(reversed(known))}"


@cache
def _installed() -> Mapping[str, System]:
    found: dict[str, System] = {}
    for entry in entry_points(group=GROUP):
        system = load_entry(entry, "the system of", SettingsError)
        if not isinstance(system, System):
            raise SettingsError(f"{entry.value} is not a System", hint="name an instance of a subclass of System")
        found[system.name] = system
    for package in _BUILTIN:
        system = import_module(f"{__name__}.{package}").SYSTEM
        found[system.name] = system
    return found

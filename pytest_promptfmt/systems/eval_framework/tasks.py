"""Tasks that are Python classes: named by a YAML file with `class`, or found in the modules of a setting.

A YAML file names a class by `class: !function module.Name` or `class: package.module:Name` and gives docs next to it.
Nothing is imported until a task is bound, except for modules, whose classes are not known before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    FunctionError,
    OwnPromptsError,
    Position,
    PromptfmtError,
    SourceError,
    described,
    did_you_mean,
)
from pytest_promptfmt.core.task import Assembly, Dataset, FunctionRef, Locate, Task
from pytest_promptfmt.systems.eval_framework.class_docs import OWN_DOCS, class_docs, docs_files
from pytest_promptfmt.systems.eval_framework.hooks import TaskClass, is_lm_eval_class, is_task_class, task_class
from pytest_promptfmt.tasks import IMPORT_SECONDS, OF_LM_EVAL, CodeImporter, YamlFile, class_mentions

if TYPE_CHECKING:
    from pytest_promptfmt.systems.eval_framework.messages import EvalClassAssembler

Made = TypeVar("Made")

OWN_SHOTS: Final = "PROMPTFMT_NUM_FEWSHOT"
"""The class attribute that may set the number of shots for a class of a module."""
_KEYS: Final = ("class", "task", "docs", "num_fewshot", "metadata", "include", "tag", "group", "task_alias")
_HOOK_OF_KEY: Final[Mapping[str, str]] = {
    "doc_to_text": "_get_instruction_text",
    "doc_to_target": "_get_ground_truth",
    "doc_to_choice": "_get_possible_completions",
    "gen_prefix": "_get_cue_text",
    "description": "_get_initial_prompt_text",
    "fewshot_config": "_get_fewshot_target_text",
    "target_delimiter": "_get_possible_completions",
}
"""lm-eval's keys, which rules use, and the hooks of a class that give the same."""


@dataclass(frozen=True)
class ClassAssembly(Assembly):
    """The prompts of a task class. `ref` is where to find it, `written` how messages call it.

    `found` is the class once it is imported.
    """

    ref: FunctionRef
    written: str
    found: TaskClass | None = field(default=None, compare=False)
    is_class: ClassVar = True
    describes_scoring: ClassVar = False

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the name of the class, and the hooks that it leaves to their defaults."""
        if self.found is None:
            return {}
        facts = {"class": self.found.name}
        if self.found.kind != "hooks":
            facts["samples"] = "iterate_samples"
        if self.found.by_default:
            facts["defaults"] = ", ".join(self.found.by_default)
        return facts

    @property
    def key_names(self) -> Mapping[str, str]:
        """Return lm-eval's keys with the hooks that give the same, for the messages of rules."""
        return _HOOK_OF_KEY

    def bound(self, task: Task, trusted: Callable[[Path], bool], time_limit: float) -> Task:
        """Return the task with its class imported, and with the constants of the class.

        Raises CodeNotAllowedError, FunctionError, SourceError, OwnPromptsError.
        """
        found = self.found
        if found is None:
            position = task.position("class")
            made = CodeImporter(trusted, time_limit).find(self.ref, self.written, position)
            if is_lm_eval_class(made):
                raise OwnPromptsError.of(task.name, self.ref, position)
            found = _inspected(lambda: task_class(made, self.ref.name, position=position), self.ref, position)
        bound = replace(self, found=found)
        return _inspected(lambda: _with_constants(task, bound, found), self.ref, found.position or self.ref.position)

    def scored(self, task: Task) -> Task:
        """Return the bound task with the metrics and the post-processing of its class."""
        if self.found is None:
            return task
        from pytest_promptfmt.systems.eval_framework.metric_classes import scored_task  # only where answers are scored

        return scored_task(task, self.found)

    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> EvalClassAssembler:
        """Return what makes the instances of these docs. Raises CodeNotAllowedError for a class not imported."""
        if self.found is None:
            message = f"{task.name}: the Python class {self.ref} is not allowed to run"
            raise CodeNotAllowedError.of(message, task.position("class"))
        from pytest_promptfmt.systems.eval_framework.messages import EvalClassAssembler  # only where prompts are made

        return EvalClassAssembler(task, self.found, docs, task.shots(num_fewshot))


def _inspected(inspect_class: Callable[[], Made], ref: FunctionRef, position: Position | None) -> Made:
    """Return what `inspect_class` returns; raises FunctionError for what the attributes of the class raise."""
    try:
        return inspect_class()
    except PromptfmtError:
        raise
    except Exception as error:
        raise FunctionError(f"reading the attributes of {ref} raised {described(error)}", position=position) from error


def class_of(task: Task) -> TaskClass | None:
    """Return the imported class of a bound class task, None for any other task."""
    return task.assembly.found if isinstance(task.assembly, ClassAssembly) else None


def _with_constants(task: Task, assembly: ClassAssembly, found: TaskClass) -> Task:
    instance = found.make(0) if found.kind == "benchmark" else None
    constants = found.constants(instance)
    made = instance if instance is not None else found.make(0)
    stops = _asked(made, "get_stop_sequences", "stop_sequences")
    most = _asked(made, "get_max_tokens", "max_tokens")
    if isinstance(stops, str) or not isinstance(stops, Sequence | type(None)):
        raise SourceError(f"stop_sequences of {found.name} is {stops!r:.80}, not a list", position=found.position)
    arguments = {"until": list(stops or ()), **({} if most is None else {"max_gen_toks": most})}
    metadata = task.metadata
    own_docs = getattr(found.found, OWN_DOCS, None)
    if own_docs is not None and "docs" not in task.own_metadata:
        metadata = _with_docs(metadata, own_docs)
    bound = replace(
        task,
        output_type=constants.output_type,
        target_delimiter="",
        generation_kwargs=arguments if constants.output_type == "generate_until" else None,
        metadata=metadata,
        assembly=assembly,
    )

    def given(count: int | None, shots: int) -> TaskDocs:
        return class_docs(bound, found, count, shots)

    dataset = Dataset(given=given, test_split=constants.sample_split, fewshot_split=constants.fewshot_split)
    bound = replace(bound, dataset=dataset, locate=_locate(task.locate, found))
    return bound


def _locate(written: Locate, found: TaskClass) -> Locate:
    def locate(keys: tuple[str | int, ...]) -> Position | None:
        position = written(keys)
        if position is None and keys and keys[0] in _HOOK_OF_KEY:
            return found.line_of(_HOOK_OF_KEY[str(keys[0])])
        return position

    return locate


def _asked(instance: Any, method: str, attribute: str) -> Any:
    try:
        return getattr(instance, method)()
    except Exception:
        return getattr(instance, attribute, None)


def _with_docs(metadata: Mapping[str, Any], docs: Any) -> Mapping[str, Any]:
    own = metadata.get("promptfmt")
    return {**metadata, "promptfmt": {**(own if isinstance(own, Mapping) else {}), "docs": docs}}


# -- YAML ------------------------------------------------------------------------------------------------------------


def names_task_class(config: Mapping[Any, Any], path: Path) -> bool:
    """Return whether a YAML file with `class` is for this plugin: it gives docs, or names the class by `module:Name`.

    Other files name classes of lm-eval's own, which have docs as its other tasks.
    """
    ref = config.get("class")
    if isinstance(ref, FunctionRef):
        if class_mentions(ref, OF_LM_EVAL):
            return False
        if class_mentions(ref, OWN_DOCS.encode()):
            return True
    if isinstance(ref, str) or "docs" in config:
        return True
    metadata = config.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("promptfmt"), Mapping):
        return True
    stems = {path.stem, config.get("task")}
    return any(docs_files(path.parent, stem) for stem in stems if isinstance(stem, str) and stem)


def task_of_class_file(file: YamlFile, path: Path) -> Task:
    """Return the task that a YAML file with `class` defines, its class not imported yet.

    Raises SourceError for an unknown key, and for values of the wrong type.
    """
    config = file.config

    def wrong(key: str, shown: str, hint: str) -> SourceError:
        return SourceError(f"{key} is {shown}", position=file.locate((key,)), hint=hint)

    for key in config:
        if key not in _KEYS:
            raise SourceError(
                f"unknown key {key!r} in a file for a task class; expected one of {', '.join(_KEYS[:5])}",
                position=file.locate((key,)),
                hint=did_you_mean(str(key), _KEYS) or "put other settings into the class",
            )
    ref, written = _reference(config["class"], path, file.locate(("class",)))
    name = config.get("task", ref.name)
    if not isinstance(name, str) or not name:
        raise wrong("task", f"{name!r}", "write the name of the task")
    shots = config.get("num_fewshot")
    if shots is not None and (isinstance(shots, bool) or not isinstance(shots, int) or shots < 0):
        raise wrong("num_fewshot", f"{shots!r}", "write a whole number, 0 or more")
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise wrong("metadata", f"{metadata!r:.60}", "write a mapping")
    docs = config.get("docs")
    if docs is not None:
        if not isinstance(docs, str | list | Mapping):
            raise wrong(
                "docs", f"{docs!r:.60}", "write a file, a list of docs, or a mapping of splits to files or lists"
            )
        metadata = _with_docs(metadata, docs)
    return Task(
        name=name,
        path=path,
        system="eval-framework",
        num_fewshot=shots,
        metadata=metadata,
        config=config,
        target_delimiter="",
        assembly=ClassAssembly(ref, written),
        locate=_docs_at_top(file.locate),
    )


def _docs_at_top(locate: Locate) -> Locate:
    """Return a lookup that also finds docs of the metadata under `docs` at the top."""

    def found(keys: tuple[str | int, ...]) -> Position | None:
        position = locate(keys)
        if position is None and keys[:3] == ("metadata", "promptfmt", "docs"):
            return locate(("docs", *keys[3:]))
        if position is None and keys == ("task",):
            return locate(("class",))
        return position

    return found


def _reference(written: Any, path: Path, position: Position | None) -> tuple[FunctionRef, str]:
    if isinstance(written, FunctionRef):
        return written, f"class: !function {written}"
    module, colon, name = written.partition(":") if isinstance(written, str) else ("", "", "")
    parts = [*module.split("."), name]
    if not colon or not all(part.isidentifier() for part in parts):
        raise SourceError(
            f"class is {written!r:.80}",
            position=position,
            hint="write `package.module:Name`, or `!function module.Name` for a file next to the YAML",
        )
    ref = FunctionRef(module, name, path.parent, position or Position(path))
    return ref, f"class: {written}"


# -- modules ---------------------------------------------------------------------------------------------------------


def tasks_of_module(
    path: Path, *, trusted: Callable[[Path], bool], time_limit: float = IMPORT_SECONDS
) -> tuple[Task, ...]:
    """Return a task for each task class and each object with samples that a Python file defines, in its order.

    Names with a leading underscore, abstract classes and what was imported are left out. Raises CodeNotAllowedError,
    FunctionError for a file that does not import, SourceError for one without tasks.
    """
    module = CodeImporter(trusted, time_limit).module(path)
    found = tuple(_found_in(module, path))
    if not found:
        raise SourceError(
            "this module defines no task class",
            position=Position(path),
            hint="a task class has _get_instruction_text and _get_ground_truth, or iterate_samples",
        )
    return found


def _found_in(module: ModuleType, path: Path) -> Iterator[Task]:
    listed = tuple(_listed_in(module))
    names: set[str] = set()
    for name, value in (*_defined_in(module), *(listed or _made_in(module))):
        if name not in names and _is_task(value):
            names.add(name)
            yield _task_of(name, value, path)


def _is_task(value: Any) -> bool:
    try:
        return is_task_class(value)
    except Exception:  # a proxy of an object that is not there now
        return False


def _defined_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the classes that a module defines, and its objects, by name."""
    for name, value in vars(module).items():
        is_class = isinstance(value, type)
        if name.startswith("_") or inspect.ismodule(value) or (is_class and value.__module__ != module.__name__):
            continue
        if is_class or not (inspect.isroutine(value) or type(value).__module__ == "builtins"):
            yield name, value


def _listed_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the tasks in the lists, tuples and mappings of a module, by the names that they give themselves."""
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, list | tuple | dict):
            continue
        for number, each in enumerate(value.values() if isinstance(value, dict) else value):
            if _is_task(each):
                yield _own_name(each) or f"{name}-{number + 1}", each


def _made_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the benchmarks made by functions of a module without parameters, recognized by their return annotation."""
    for name, value in vars(module).items():
        returned = getattr(value, "__annotations__", {}).get("return")
        says = str(getattr(returned, "__name__", returned)).rpartition(".")[2]
        if name.startswith("_") or not inspect.isfunction(value) or not says.endswith("Benchmark"):
            continue
        if all(each.default is not each.empty for each in inspect.signature(value).parameters.values()):
            with suppress(Exception):  # a factory that fails hides none of the others
                made = value()
                yield _own_name(made) or name, made


def _own_name(found: Any) -> str:
    """Return the name of a task that is an object, "" where it gives none."""
    for attribute in ("id", "NAME", "__name__"):
        with suppress(Exception):
            value = getattr(found, attribute)
            name = value() if callable(value) else value
            if isinstance(name, str) and name:
                return name
    return ""


def _task_of(name: str, value: Any, path: Path) -> Task:
    position = Position(path)
    try:
        given = task_class(value, name)
        position = given.position or position
    except Exception:  # it is reported where the task is bound, and hides none of the others
        given = None
    shots = getattr(value, OWN_SHOTS, None)
    return Task(
        name=name,
        path=path,
        system="eval-framework",
        target_delimiter="",
        num_fewshot=shots if isinstance(shots, int) and not isinstance(shots, bool) and shots >= 0 else None,
        config=MappingProxyType({"task": name}),
        assembly=ClassAssembly(FunctionRef(path.stem, name, path.parent, position), name, given),
        locate=lambda keys: position if keys in (("task",), ("class",)) else None,
    )

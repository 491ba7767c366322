"""Tasks that are classes of lm-eval's Python interface: their hooks are called as lm-eval 0.4.13 calls them.

The class is imported when the task is bound. Its constructor downloads the dataset, so none is run: the hooks get an
object with a configuration and nothing else.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import CodeNotAllowedError, FunctionError, RenderError, UnavailableError, described
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Place, Request
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.source_imports import syntax_tree
from pytest_promptfmt.core.task import OUTPUT_TYPES, Assembly, FunctionRef, OutputType, Task
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.tasks.functions import CodeImporter
from pytest_promptfmt.tasks.harness import harness_around, installed_harness
from pytest_promptfmt.tasks.harness_renderer import HarnessAssembler
from pytest_promptfmt.tasks.renderer import LmEvalAssembler
from pytest_promptfmt.tasks.rendering.context import DocParts
from pytest_promptfmt.tasks.task_config import task_from_config, value_kinds
from pytest_promptfmt.tasks.yaml_file import YamlFile

_HOOKS: Final = ("doc_to_text", "doc_to_target", "doc_to_choice")
_OF_SHOTS: Final = ("doc_to_text", "doc_to_target")
"""Those that lm-eval calls for shots of a class; choices only where its configuration has some."""
_INTERFACE: Final = "lm_eval.api.task"
OF_LM_EVAL: Final = b"lm_eval.api"
"""What files with lm-eval's Python interface contain."""
_SPLITS: Final = ("training", "validation", "test")


def class_mentions(ref: FunctionRef, text: bytes) -> bool:
    """Return whether a text is in the file of a class, which is not run."""
    try:
        return text in gate.read_bytes(ref.file, limit=MAX_BYTES)
    except OSError:
        return False


def task_of_class(file: YamlFile, path: Path) -> Task | None:
    """Return the task of a file whose `class` is one of lm-eval's, its class not imported yet; None for other classes.

    Raises SourceError for values that lm-eval refuses; keys that are the class's own are left to it.
    """
    ref, name = file.config["class"], file.config.get("task")
    if not isinstance(ref, FunctionRef) or not isinstance(name, str) or not name or not class_mentions(ref, OF_LM_EVAL):
        return None
    known = {key: value for key, value in file.config.items() if key in value_kinds()}
    asked = _asked_in_text(ref) if "output_type" not in known else None
    task = task_from_config(known, path=path, locate=file.locate)
    return replace(task, assembly=LmEvalClass(ref), config=file.config, output_type=asked or task.output_type)


def _asked_in_text(ref: FunctionRef) -> OutputType | None:
    """Return the type of the first request that the text of a class makes, None if it is not a constant."""
    try:
        module = syntax_tree(gate.read_bytes(ref.file, limit=MAX_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    name: str | None = ref.name
    for _ in range(len(classes)):
        found = classes.pop(name or "", None)
        if found is None:
            return None
        hook = next((node for node in found.body if getattr(node, "name", "") == "construct_requests"), None)
        if hook is not None:
            types = (_type_of(call) for call in ast.walk(hook) if isinstance(call, ast.Call))
            return next((known for type_ in types for known in OUTPUT_TYPES if known == type_), None)
        name = next((base.id for base in found.bases if isinstance(base, ast.Name)), None)
    return None


def _type_of(call: ast.Call) -> object:
    given = next((each.value for each in call.keywords if each.arg == "request_type"), next(iter(call.args), None))
    return getattr(given, "value", None)


@dataclass(frozen=True)
class LmEvalClass(Assembly):
    """The prompts of a task class. `ref` is where to find it; `made` is the object whose hooks are called."""

    ref: FunctionRef
    made: Any = field(default=None, compare=False)
    is_class: ClassVar = True

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the name of the class."""
        return {"class": self.ref.name}

    @property
    def key_names(self) -> Mapping[str, str]:
        """Return lm-eval's keys with the hooks that replace them: both have the same names, except for requests."""
        return MappingProxyType({"generation_kwargs": "construct_requests", "metric_list": "aggregation"})

    def bound(self, task: Task, trusted: Callable[[Path], bool], time_limit: float) -> Task:
        """Return the task with its class imported, its hooks as field mappings.

        Raises CodeNotAllowedError, FunctionError, UnavailableError.
        """
        try:
            what = f"class: !function {self.ref}"
            found = CodeImporter(trusted, time_limit).find(self.ref, what, self.ref.position)
        except FunctionError as error:
            if isinstance(error, UnavailableError) or not error.lacks_resource:
                raise
            refusal = task.error(UnavailableError, error.message, "class", hint=error.hint)
            reason = "the Python task class needs lm-eval, or another package, which is not installed"
            raise refusal.because(reason) from error
        if not isinstance(found, type):
            raise task.error(FunctionError, f"class: {self.ref} is not a class", "class")
        made = _made(found, task)
        own: dict[str, Any] = {hook: partial(getattr(found, hook), made) for hook in _HOOKS if _is_own(found, hook)}
        if not _is_configurable(found):  # a Task joins question and answer
            own["target_delimiter"] = ""
        asked = _asked(made, task)
        if asked.get("output_type") == "generate_until" and _is_own(found, "process_results"):
            own |= {"process_results": made.process_results, "metric_list": _metrics(made)}
        return replace(
            task,
            assembly=replace(self, made=made),
            dataset=replace(task.dataset, **dict(_splits(made))),
            **own,
            **asked,
        )

    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> LmEvalClassAssembler | HarnessAssembler:
        """Return what makes the instances of these docs. Raises CodeNotAllowedError for a class not imported."""
        if self.made is None:
            message = f"{task.name}: the Python class {self.ref} is not allowed to run"
            raise CodeNotAllowedError.of(message, task.position("class"))
        if _is_own(type(self.made), "build_all_requests"):  # which may refuse a profile
            return HarnessAssembler(task, docs, num_fewshot)
        return LmEvalClassAssembler(task, docs, num_fewshot, self.made)


class LmEvalClassAssembler(LmEvalAssembler):
    """lm-eval's prompts, and the requests that the class makes of them."""

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None, made: Any) -> None:
        self._made = made
        if task.shots(num_fewshot) > 0:
            _require_shots(task, made)
        with OwnRandomness(task).used():
            super().__init__(task, docs, num_fewshot)
        self.is_repeatable = False

    def instance(self, layout: DocParts, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the doc for a profile, with the requests of its class; raises RenderError."""
        instance = super().instance(layout, number, doc, profile)
        if not _is_own(type(self._made), "construct_requests"):
            return instance
        try:
            own = _requests(self._made, self._task, number, dict(doc), instance.prompts[0].text, profile.joins_messages)
        except Exception as error:
            place, path = Place(self._task.id, number), self._task.path
            message = f"construct_requests {place} raised {described(error)}"
            around, installed = harness_around(path.parent.resolve()) if path is not None else None, installed_harness()
            if around is not None and installed is not None and around.release != installed.release:
                refusal = self._task.error(UnavailableError, message, "class")
                reason = "the Python task class belongs to a checkout of lm-eval, but another lm-eval is installed"
                raise refusal.because(reason) from error
            raise self._task.error(RenderError, message, "class").naming(str(place)) from error
        return replace(instance, requests=tuple(_shown(own, instance)))


def _made(found: type, task: Task) -> Any:
    """Return an object of the class, with lm-eval's configuration and without a dataset, for which its `repr` asks."""
    bare = type(found.__name__, (found,), {"__module__": found.__module__, "__repr__": object.__repr__})
    made: Any = object.__new__(bare)
    with suppress(Exception):  # a fork of lm-eval may have another one
        values = {key: value for key, value in task.config.items() if key in value_kinds()}
        made._config = import_module(_INTERFACE).TaskConfig(**values)
    return made


def _require_shots(task: Task, made: Any) -> None:
    """Raise RenderError for a class that lm-eval cannot make shots of.

    Since 0.4.10 ConfigurableTask gives the hooks of a shot what `fewshot_config` has as second argument.
    """
    for hook in _OF_SHOTS if task.release.makes_turns and _is_configurable(type(made)) else ():
        try:
            inspect.signature(getattr(made, hook)).bind({}, None)
        except ValueError:  # unknown
            continue
        except TypeError as error:
            message = (
                f"{hook} of {type(made).__name__} fails for few-shot examples "
                "(TypeError), because lm-eval 0.4.13 calls it with"
                " two arguments"
            )
            hint = f"write def {hook}(self, doc, {hook}=None), or set num_fewshot: 0"
            raise task.error(RenderError, message, "class", hint=hint) from error


def _is_configurable(found: type) -> bool:
    return "ConfigurableTask" in [each.__name__ for each in found.__mro__]


def _is_own(found: type, hook: str) -> bool:
    """Return whether an author wrote a hook: it is not lm-eval's."""
    return getattr(getattr(found, hook, None), "__module__", _INTERFACE) != _INTERFACE


def _splits(made: Any) -> Iterator[tuple[str, Any]]:
    for split in _SPLITS:
        has = False
        with suppress(Exception):
            has = bool(getattr(made, f"has_{split}_docs")())
        yield f"{split}_split", split if has else None


def _metrics(made: Any) -> list[Mapping[str, Any]]:
    """Return the metrics that a class averages; none where it needs a dataset for that."""
    with suppress(Exception):
        better = made.higher_is_better()
        return [
            {"metric": name, "aggregation": aggregate, "higher_is_better": better.get(name, True)}
            for name, aggregate in made.aggregation().items()
        ]
    return []


def _requests(made: Any, task: Task, number: int, doc: dict[str, Any], context: str, is_chat: bool) -> list[Any]:
    known = dict(islice({"apply_chat_template": is_chat, "chat_template": None}.items(), task.release.chat_arguments))
    found = made.construct_requests(doc=copy.deepcopy(doc), ctx=context, metadata=(task.name, number, 1), **known)
    return list(found) if isinstance(found, list | tuple) else [found]


class _AnyDoc(dict[str, Any]):
    """A doc whose every column is a text."""

    def __missing__(self, key: str) -> str:
        return key


def _asked(made: Any, task: Task) -> dict[str, Any]:
    """Return the output type and generation arguments of the first request of the class, where they are known."""
    with suppress(Exception):
        first = _requests(made, task, 0, _AnyDoc(), "", False)[0]
        if first.request_type == "generate_until":
            return {"output_type": first.request_type, "generation_kwargs": dict(first.arguments[1])}
        if first.request_type in OUTPUT_TYPES:
            return {"output_type": first.request_type, "generation_kwargs": None}
    return {}


def _shown(own: list[Any], instance: Instance) -> Iterator[Request]:
    golds = [instance.target] if isinstance(instance.target, str) else list(instance.target or ())
    for index, request in enumerate(own):
        *before, last = request.arguments
        context = before[0] if before else None
        prompt = 0 if context == instance.prompts[0].text else None
        made = partial(Request, kind=request.request_type, index=index, context=context, prompt=prompt)
        if request.request_type == "generate_until":
            yield made(generation_kwargs=last)
        elif request.request_type in ("loglikelihood", "loglikelihood_rolling"):
            yield made(continuation=last, gold=last in golds)

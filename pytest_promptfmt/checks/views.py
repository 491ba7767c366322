"""What rules look at: one task@format or one file, with everything costly prepared once and only when asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, TemplateError, nodes

from pytest_promptfmt.answers.smoke import Failure
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance, Message, Span, join
from pytest_promptfmt.core.task import Doc, FunctionRef, Task, TaskDocs, Unset
from pytest_promptfmt.systems import TaskFile
from pytest_promptfmt.systems.lm_eval.index import TaskIndex
from pytest_promptfmt.systems.lm_eval.synthetic.template_shapes import template_shapes
from pytest_promptfmt.systems.lm_eval.yaml import YamlFile

Keys = tuple[str | int, ...]

_MAX_STRINGS: Final = 4000
_TEMPLATE_KEYS: Final = ("description", "doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix")
_SHOT_KEYS: Final = ("doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix")
_REASONING: Final = re.compile(
    r"step[- ]by[- ]step|chain[- ]of[- ]thought|\bthink (?:carefully|through)|show your (?:work|reasoning)", re.I
)


@dataclass(frozen=True, slots=True)
class TemplateText:
    """A template taken apart: its constant texts, the names it uses, and the texts it prints as `{{ 'text' }}`."""

    constants: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    quoted: tuple[str, ...] = ()
    has_markup: bool = False


@dataclass(frozen=True, slots=True)
class TemplateView:
    """A template of the configuration: where it is written, its source, and what is in it."""

    keys: Keys
    source: str
    text: TemplateText


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """What is needed to look at rendered prompts: the docs, the number of shots, and the instances of profile plain."""

    docs: TaskDocs
    shots: int
    instances: Sequence[Instance]


@dataclass(frozen=True, slots=True)
class Shot:
    """One demonstration of a rendered prompt: the text of its question and of its answer (None without an answer)."""

    question: str
    answer: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Ignores:
    """What the engine knows once all other rules have run: ignores of no use, and rules that failed (code, why)."""

    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    crashes: tuple[tuple[str, str], ...] = ()


class FileView:
    """One YAML file: its parts and positions (`yaml`), what it defines (`file`), and every name of the folder tree."""

    def __init__(self, *, path: Path, yaml: YamlFile, file: TaskFile, index: TaskIndex) -> None:
        self.path = path
        self.yaml = yaml
        self.file = file
        self.index = index
        self.ignores = Ignores()

    @property
    def config(self) -> Mapping[Any, Any]:
        """Return the merged mapping."""
        return self.yaml.config


class TaskView:
    """One task@format: what its author wrote, and its docs and prompts.

    `instances`, `docs` and what is made from them are empty when the task cannot be rendered; `failure` says why.
    """

    def __init__(
        self,
        task: Task,
        *,
        prepare: Callable[[], Material] | None = None,
        demonstrate: Callable[[], Sequence[Instance]] | None = None,
        score: Callable[[], Failure | None] | None = None,
    ) -> None:
        self.task = task
        self.ignores = Ignores()
        self._prepare = prepare
        self._demonstrate = demonstrate
        self._score = score

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the merged mapping as written, functions unresolved."""
        return self.task.config

    @property
    def written(self) -> Task:
        """Return the task as its author wrote it, before a format laid it out."""
        written = getattr(self.task, "written", self.task)
        return written if isinstance(written, Task) else self.task

    # -- rendered --------------------------------------------------------------------------------------------------

    @cached_property
    def _material(self) -> Material | PromptfmtError | None:
        if self._prepare is None:
            return None
        try:
            return self._prepare()
        except PromptfmtError as error:
            return error

    def prepare(self) -> None:
        """Render and score now instead of when a rule asks for it."""
        self._material, self.scoring_failure  # noqa: B018  # cached

    @cached_property
    def scoring_failure(self) -> Failure | None:
        """Return why the gold answers of the docs cannot be scored, None when they can or were not tried."""
        return self._score() if self._score is not None and isinstance(self._material, Material) else None

    @property
    def failure(self) -> PromptfmtError | None:
        """Return what stopped rendering, None when nothing did."""
        return self._material if isinstance(self._material, PromptfmtError) else None

    @property
    def instances(self) -> Sequence[Instance]:
        """Return the rendered docs for the profile plain, whose messages every chat profile is made of."""
        return self._material.instances if isinstance(self._material, Material) else ()

    @property
    def docs(self) -> TaskDocs | None:
        """Return the docs, None when there are none."""
        return self._material.docs if isinstance(self._material, Material) else None

    @cached_property
    def has_real_docs(self) -> bool:
        """Return whether the docs are the user's own; made-up ones tell nothing about data."""
        return self.docs is not None and self.docs.kind == "given"

    @property
    def real_instances(self) -> Sequence[Instance]:
        """Return the rendered docs when the docs are the user's own."""
        return self.instances if self.has_real_docs else ()

    @property
    def real_docs(self) -> Sequence[Doc]:
        """Return the evaluated docs when they are the user's own."""
        return self.docs.evaluated if self.docs is not None and self.has_real_docs else ()

    @property
    def shots(self) -> int:
        """Return the number of demonstrations in `instances`."""
        return self._material.shots if isinstance(self._material, Material) else self.task.shots()

    @cached_property
    def demonstrated(self) -> Sequence[Instance]:
        """Return rendered docs with demonstrations: `instances`, or a doc with 2 shots where the run asks for none.

        Empty where demonstrations cannot be made, or would be made up.
        """
        if self.shots > 0:
            return self.instances
        if self._demonstrate is None or not self.has_real_docs:
            return ()
        try:
            return self._demonstrate()
        except PromptfmtError:
            return ()

    # -- the configuration -----------------------------------------------------------------------------------------

    @cached_property
    def strings(self) -> tuple[tuple[Keys, str], ...]:
        """Return every text of the configuration with its key path, `metadata` and inline docs left out."""
        found: list[tuple[Keys, str]] = []
        for key, value in self.config.items():
            if key != "metadata" and len(found) < _MAX_STRINGS:
                found += _strings(value, (key,))
        return tuple(found)

    @cached_property
    def templates(self) -> tuple[TemplateView, ...]:
        """Return the templates of the task, as its author wrote them; plain column names are none."""
        columns = set(self.docs.columns) if self.docs is not None else set()
        found = []
        for keys, spec in self._specs():
            if isinstance(spec, str) and spec and spec not in columns:
                found.append(TemplateView(keys, spec, read_template(spec)))
        return tuple(found)

    @cached_property
    def used_names(self) -> frozenset[str]:
        """Return the columns that the configuration names, in templates or by themselves."""
        names: set[str] = set()
        for _, spec in self._specs():
            for one in spec if isinstance(spec, list | tuple) else [spec]:
                if isinstance(one, str):
                    names |= read_template(one).names | {one}
        return frozenset(names)

    @cached_property
    def runs_functions(self) -> bool:
        """Return whether Python code makes texts of the prompt, so that templates tell only a part."""
        return any(isinstance(spec, FunctionRef) or callable(spec) for _, spec in self._specs())

    @cached_property
    def has_own_scorer(self) -> bool:
        """Return whether Python code of the task scores it."""
        return self.written.process_results is not None or any(name.startswith("!function") for name in self.metrics)

    @cached_property
    def has_guessed_text(self) -> bool:
        """Return whether the question is what Python code makes of made-up docs, whose ends tell nothing."""
        text = self.written.doc_to_text
        return not self.has_real_docs and (isinstance(text, FunctionRef) or callable(text))

    @cached_property
    def stops(self) -> Any:
        """Return `generation_kwargs.until` as written, None where it is not."""
        kwargs = self.task.generation_kwargs
        return kwargs.get("until") if isinstance(kwargs, Mapping) else None

    @cached_property
    def stop_texts(self) -> tuple[str, ...]:
        """Return the stop sequences that are text."""
        stops = [self.stops] if isinstance(self.stops, str) else self.stops
        return tuple(stop for stop in stops if isinstance(stop, str)) if isinstance(stops, list | tuple) else ()

    @cached_property
    def generates(self) -> bool:
        """Return whether the answer is generated."""
        return self.task.output_type == "generate_until"

    @cached_property
    def is_multimodal(self) -> bool:
        """Return whether an image or sound belongs to the prompt, which is then only a part of what is asked."""
        return any(self.config.get(key) is not None for key in ("doc_to_image", "doc_to_audio"))

    @cached_property
    def asks_for_reasoning(self) -> bool:
        """Return whether the prompt asks the model to reason before it answers."""
        if not self.generates:
            return False
        texts = [constant for template in self.templates for constant in template.text.constants]
        texts += [join(constant_spans(instance)) for instance in self.instances[:1]]
        return any(_REASONING.search(text) for text in texts)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics; those of functions as `!function name`."""
        return tuple(_metric_name(entry.get("metric")) for entry in self.task.metric_list or ())

    def _specs(self) -> Iterator[tuple[Keys, Any]]:
        task = self.written
        for key in _TEMPLATE_KEYS:
            yield (key,), getattr(task, key)
        for key in _SHOT_KEYS:
            spec = getattr(task.fewshot, key)
            if not isinstance(spec, Unset):
                yield ("fewshot_config", key), spec


def shots_of(instance: Instance) -> tuple[Shot, ...]:
    """Return the demonstrations of a rendered doc, in order."""
    if not instance.prompts:
        return ()
    shots: dict[int, list[Message]] = {}
    for message in instance.prompts[0].messages:
        spans = message.content or message.delimiter
        number = next((span.origin.shot for span in spans if span.origin.shot is not None), None)
        if number is not None:
            shots.setdefault(number, []).append(message)
    found = []
    for messages in shots.values():
        answers = [message.text for message in messages if message.role == "assistant"]
        question = "".join(message.text for message in messages if message.role == "user")
        found.append(Shot(question, answers[0] if answers else None, tuple(messages)))
    return tuple(found)


def question_message(instance: Instance) -> Message | None:
    """Return the message that asks about the evaluated doc."""
    if not instance.prompts:
        return None
    users = [message for message in instance.prompts[0].messages if message.role == "user"]
    last = users[-1] if users else None
    if last is None or any(span.origin.shot is not None for span in last.content):
        return None
    return last


def constant_spans(instance: Instance) -> tuple[Span, ...]:
    """Return the spans of the first prompt that belong to no demonstration and print no column."""
    prompts = instance.prompts[:1]
    return tuple(
        span for prompt in prompts for span in prompt.spans if span.origin.field is None and span.origin.shot is None
    )


def continuations(instance: Instance) -> list[str]:
    """Return the continuations that are text; a target may be anything."""
    return [request.continuation for request in instance.requests if isinstance(request.continuation, str)]


@lru_cache(maxsize=16384)
def read_template(source: str) -> TemplateText:
    """Return what is in a template; only its text when it does not parse (rendering says why)."""
    if "{{" not in source and "{%" not in source and "{#" not in source:
        return TemplateText(constants=(source,) if source else ())
    try:
        tree = _ENVIRONMENT.parse(source)
    except (TemplateError, RecursionError):
        return TemplateText(has_markup=True)
    constants = tuple(node.data for node in tree.find_all(nodes.TemplateData))
    quoted = tuple(
        child.value
        for output in tree.find_all(nodes.Output)
        for child in output.nodes
        if isinstance(child, nodes.Const) and isinstance(child.value, str)
    )
    names = frozenset(fact.path[0] for fact in template_shapes(source).facts if fact.path and fact.path[0] is not None)
    return TemplateText(constants=constants, names=names, quoted=quoted, has_markup=True)


_ENVIRONMENT: Final = Environment(keep_trailing_newline=True)


def _strings(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str):
        yield keys, value
    elif len(keys) < 8 and isinstance(value, Mapping):
        for key, inner in value.items():
            if (*keys, key) != ("fewshot_config", "samples"):
                yield from _strings(inner, (*keys, key))
    elif len(keys) < 8 and isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _strings(inner, (*keys, number))


def _metric_name(written: Any) -> str:
    return f"!function {written.name}" if isinstance(written, FunctionRef) else str(written)

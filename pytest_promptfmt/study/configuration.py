"""The configuration of a task, in the parts that several rules read: texts, templates, stop sequences, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from jinja2 import Environment, TemplateError, nodes

from pytest_promptfmt.core.task import FunctionRef, Task, Unset
from pytest_promptfmt.tasks import MEDIA_KEYS, template_shapes

Keys = tuple[str | int, ...]

_MAX_STRINGS: Final = 4000
_TEMPLATE_KEYS: Final = ("description", "doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix")
_SHOT_KEYS: Final = ("doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix")


@dataclass(frozen=True, slots=True)
class TemplateText:
    """A template taken apart: its constant texts, the names it uses, and the texts it prints as `{{ 'text' }}`.

    `printed` are the names that it prints outside of `{% if %}`, not those that it only tests.
    """

    constants: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    printed: frozenset[str] = frozenset()
    quoted: tuple[str, ...] = ()
    has_markup: bool = False


@dataclass(frozen=True, slots=True)
class WrittenTemplate:
    """A template of the configuration: where it is written, its source, and what is in it."""

    keys: Keys
    source: str
    text: TemplateText


class Configuration:
    """The configuration of a task, and what follows from it without docs and prompts."""

    @property
    def task(self) -> Task:
        """Return the task as its author wrote it, in the format that is tested."""
        raise NotImplementedError

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the merged mapping as written, functions unresolved."""
        return self.task.config

    @property
    def written(self) -> Task:
        """Return the task as its author wrote it, before a format laid it out."""
        written = getattr(self.task, "written", self.task)
        return written if isinstance(written, Task) else self.task

    @cached_property
    def strings(self) -> tuple[tuple[Keys, str], ...]:
        """Return every text of the configuration with its key path, `metadata` and inline docs left out."""
        found: list[tuple[Keys, str]] = []
        for key, value in self.config.items():
            if key != "metadata" and len(found) < _MAX_STRINGS:
                found += _strings(value, (key,))
        return tuple(found)

    @cached_property
    def used_names(self) -> frozenset[str]:
        """Return the columns that the configuration names, in templates or by themselves."""
        names: set[str] = set()
        for _, spec in self.field_specs():
            for one in spec if isinstance(spec, list | tuple) else [spec]:
                if isinstance(one, str):
                    names |= read_template(one).names | {one}
        return frozenset(names)

    @cached_property
    def runs_functions(self) -> bool:
        """Return whether Python code makes texts of the prompt, so that templates show only a part."""
        return any(_is_code(spec) for _, spec in self.field_specs())

    @cached_property
    def has_own_scorer(self) -> bool:
        """Return whether Python code of the task scores it."""
        return self.written.process_results is not None or any(name.startswith("!function") for name in self.metrics)

    @cached_property
    def asks_by_code(self) -> bool:
        """Return whether the question is what Python code makes of a doc."""
        return _is_code(self.written.doc_to_text)

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

    @property
    def generates(self) -> bool:
        """Return whether the answer is generated."""
        return self.task.generates

    @property
    def has_choices(self) -> bool:
        """Return whether the likelihoods of choices are compared."""
        return self.task.has_choices

    @property
    def is_multimodal(self) -> bool:
        """Return whether an image or sound belongs to the prompt, which is then only a part of what is asked."""
        return bool(self.media_keys)

    @property
    def media_keys(self) -> tuple[str, ...]:
        """Return the keys that give the images or sound of a prompt, of which only digests are shown."""
        return tuple(key for key in MEDIA_KEYS if self.config.get(key) is not None)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics; those of functions as `!function name`."""
        metrics = (entry.get("metric") for entry in self.task.metric_list or ())
        return tuple(f"!function {each.name}" if isinstance(each, FunctionRef) else str(each) for each in metrics)

    def field_specs(self) -> Iterator[tuple[Keys, Any]]:
        """Yield the field mappings that prompts are made of, with their keys, as the author wrote them."""
        task = self.written
        for key in _TEMPLATE_KEYS:
            yield (key,), getattr(task, key)
        for key in _SHOT_KEYS:
            spec = getattr(task.fewshot, key)
            if not isinstance(spec, Unset):
                yield ("fewshot_config", key), spec


@lru_cache(maxsize=16384)
def read_template(source: str) -> TemplateText:
    """Return what is in a template; only its text when it does not parse (rendering reports why)."""
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
    printed = frozenset(name for node in tree.body for name in _printed(node))
    return TemplateText(constants=constants, names=names, printed=printed, quoted=quoted, has_markup=True)


def _printed(node: nodes.Node) -> Iterator[str]:
    """Yield the names that a statement or expression prints, not those that it only tests or looks up."""
    if isinstance(node, nodes.Name):
        yield node.name
    elif isinstance(node, nodes.Output | nodes.For | nodes.Expr):
        for child in node.iter_child_nodes(exclude=("test", "arg")):
            yield from _printed(child)


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


def _is_code(spec: Any) -> bool:
    return isinstance(spec, FunctionRef) or callable(spec)

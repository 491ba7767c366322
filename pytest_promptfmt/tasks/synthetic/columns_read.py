"""Which columns of its docs a task reads, key by key: synthetic docs have whatever columns a task asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pytest_promptfmt.core.task import Task, Unset
from pytest_promptfmt.tasks.rendering.field_mappings import fields_of
from pytest_promptfmt.tasks.synthetic.synthetic_docs import columns_of_functions
from pytest_promptfmt.tasks.synthetic.template_shapes import template_shapes


def columns_read(task: Task, columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the keys that read columns, such as `fewshot_config.doc_to_text`, each with these in the order of reading.

    `columns` are those of the docs, which are synthetic. Of a function they are those that it asked for. Nothing is
    known of a task that is put together in its own way.
    """
    if not task.assembly.renders_fields:
        return {}
    called = columns_of_functions(task)
    named = {
        ".".join(keys): dict.fromkeys(called.get(keys, ()) if callable(spec) else _names(spec, columns))
        for keys, spec in _fields_of(task)
    }
    return {key: tuple(names) for key, names in named.items() if names}


def _fields_of(task: Task) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield from fields_of(task)
    yield ("description",), task.description
    yield ("gen_prefix",), task.gen_prefix
    if not isinstance(task.fewshot.gen_prefix, Unset):
        yield ("fewshot_config", "gen_prefix"), task.fewshot.gen_prefix


def _names(spec: Any, columns: Collection[str]) -> Iterator[str]:
    if isinstance(spec, Mapping | list | tuple):
        for part in spec.values() if isinstance(spec, Mapping) else spec:
            yield from _names(part, columns)
    elif isinstance(spec, str) and spec in columns:
        yield spec
    elif isinstance(spec, str):
        yield from (name for name, *_ in (fact.path for fact in template_shapes(spec).facts) if name is not None)

"""Which columns of its docs a task names, key by key: synthetic docs have whatever columns a task asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.lm_eval.rendering.field_mappings import fields_of
from pytest_promptfmt.systems.lm_eval.synthetic.template_shapes import template_shapes


def named_columns(task: Task, columns: Collection[str]) -> dict[str, str]:
    """Return the keys that name columns, such as `fewshot_config.doc_to_text`, each with these in the order of ASCII.

    `columns` are those of the docs. What functions read is not known, and nothing is for a task that is put together
    in its own way.
    """
    if task.assembly is not None:
        return {}
    named = {".".join(keys): sorted({*_names(spec, columns)}) for keys, spec in fields_of(task)}
    return {key: ", ".join(names) for key, names in named.items() if names}


def _names(spec: Any, columns: Collection[str]) -> Iterator[str]:
    if isinstance(spec, Mapping | list | tuple):
        for part in spec.values() if isinstance(spec, Mapping) else spec:
            yield from _names(part, columns)
    elif isinstance(spec, str) and spec in columns:
        yield spec
    elif isinstance(spec, str):
        yield from (name for name, *_ in (fact.path for fact in template_shapes(spec).facts) if name is not None)

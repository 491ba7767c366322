"""JSON Schema of task and group files, from the same tables that the reader checks them by; for editors.

A `!function` is a text to a schema: editors read the tag as one (`yaml.customTags: ["!function scalar"]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pytest_promptfmt.core.task import OUTPUT_TYPES
from pytest_promptfmt.tasks.task_config import FEWSHOT_KEYS, OWN_KEYS, SAMPLERS, STRUCTURAL_KEYS, value_kinds

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "text": {"type": "string"},
    "a whole number": {"type": "integer"},
    "a list": {"type": "array"},
    "a mapping": {"type": "object"},
    "a !function": {"type": "string"},
    "null": {"type": "null"},
    "empty": {"enum": [None, "", 0, False]},
}
_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "task": "The name of the task; it may carry a format: arc_easy@mcqa.",
    "dataset_path": "A dataset of the Hugging Face hub, or json, csv, parquet with dataset_kwargs.data_files.",
    "doc_to_text": "The question: a column's name or a Jinja template over the doc's columns.",
    "doc_to_choice": "The choices: a column's name, a list, or a Jinja template that prints a list.",
    "doc_to_target": "The answer: a column's name, a Jinja template, or the number of the right choice.",
    "target_delimiter": "The text between question and answer; a space by default.",
    "fewshot_delimiter": "The text between shots; an empty line by default.",
    "description": "The text before everything else.",
    "gen_prefix": "The text after the last question, as the beginning of the answer.",
    "num_fewshot": "The number of shots; 0 cannot be overridden.",
    "formats": "Formats of pytest-promptfmt that lay the task out; not a key of lm-eval.",
    "template": "A template of pytest-promptfmt: mcq or cloze; not a key of lm-eval.",
    "metadata": "Anything; settings of pytest-promptfmt are under promptfmt.",
    "include": "One or more files whose keys this one inherits.",
    "group": "The name of a group.",
}


def task_schema() -> dict[str, Any]:
    """Return the schema of a file that defines a task, a group or a task class."""
    properties: dict[str, Any] = {key: _schema(key, kinds) for key, kinds in value_kinds().items()}
    properties["output_type"] = {"enum": list(OUTPUT_TYPES)}
    properties["fewshot_config"] = {
        "anyOf": [{"type": "null"}, {"type": "object", "properties": _fewshot(), "additionalProperties": False}]
    }
    for key in (*OWN_KEYS, *STRUCTURAL_KEYS, "include", "class"):
        properties.setdefault(key, _described(key, {}))
    properties["metadata"] = _described("metadata", {"properties": {"promptfmt": {"type": "object"}}})
    group = {name: _described(name, {}) for name in ("group", "task", "include", "group_alias", "metadata", "tag")}
    group["aggregate_metric_list"] = {}
    return {
        "$schema": DIALECT,
        "title": "A task or group of lm-evaluation-harness, as pytest-promptfmt reads it",
        "type": "object",
        "if": {"anyOf": [{"required": ["class"]}, {"required": ["group"], "properties": {"task": {"type": "array"}}}]},
        "then": {"properties": group},
        "else": {"properties": properties, "additionalProperties": False},
    }


def _fewshot() -> dict[str, Any]:
    kinds = value_kinds(fewshot=True)
    properties = {key: _schema(key, kinds.get(key, frozenset())) for key in FEWSHOT_KEYS}
    properties["sampler"] = {"anyOf": [{"enum": list(SAMPLERS)}, {"type": "string"}]}
    return properties


def _schema(key: str, kinds: frozenset[str]) -> dict[str, Any]:
    types = [dict(_TYPES[kind]) for kind in sorted(kinds)]
    distinct = [kind for number, kind in enumerate(types) if kind not in types[:number]]
    return _described(key, distinct[0] if len(distinct) == 1 else {"anyOf": distinct} if distinct else {})


def _described(key: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "description": _DESCRIPTIONS[key]} if key in _DESCRIPTIONS else dict(schema)

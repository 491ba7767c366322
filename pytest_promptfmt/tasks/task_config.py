"""From a task's merged mapping to a typed `Task`: every key checked as lm-eval 0.4.13 accepts or refuses it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean, is_misspelt, named_value
from pytest_promptfmt.core.task import OUTPUT_TYPES, Dataset, FewShot, FunctionRef, Locate, Task, nearest
from pytest_promptfmt.tasks.harness import Harness, harness_of
from pytest_promptfmt.tasks.yaml_file import read_yaml

MAPPINGS: Final = ("doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix")
"""The field mappings that a task and its shots have."""
_DELIMITERS: Final = ("fewshot_delimiter", "target_delimiter")
FEWSHOT_KEYS: Final = ("sampler", "split", "process_docs", "fewshot_indices", "samples", *MAPPINGS, *_DELIMITERS)
SAMPLERS: Final = ("default", "first_n")
OWN_KEYS: Final = ("formats", "template")
"""Keys of this plugin's formats, which lm-eval 0.4.13 refuses."""
STRUCTURAL_KEYS: Final = ("tag", "group", "task_list")
"""Keys that lm-eval takes out before it builds a task."""

_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "a whole number": lambda value: isinstance(value, int),
    "a list": lambda value: isinstance(value, list | tuple),
    "a mapping": lambda value: isinstance(value, Mapping),
    "a !function": lambda value: isinstance(value, FunctionRef) or callable(value),
    "null": lambda value: value is None,
    # lm-eval checks descriptions and prefixes only when they are truthy.
    "empty": lambda value: not value,
}


def _kinds_of(keys: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    return {key: frozenset(kinds.split(" | ")) - {"any"} for key, kinds in keys.items()}


_TABLE: Final = data_table("task_keys")
_TASK_KEYS: Final = _kinds_of(_TABLE["task"])
_FEWSHOT_TYPES: Final = _kinds_of(_TABLE["fewshot_config"])


def value_kinds(*, fewshot: bool = False) -> Mapping[str, frozenset[str]]:
    """Return which kinds of values each key of a task, or of its fewshot_config, takes; an empty set means any."""
    return _FEWSHOT_TYPES if fewshot else _TASK_KEYS


_TASK_FIELDS: Final = (
    *(*MAPPINGS, *_DELIMITERS, "description", "num_fewshot", "output_type", "generation_kwargs"),
    *("metric_list", "filter_list", "process_results", "repeats"),
)
_DATASET_FIELDS: Final = ("training_split", "validation_split", "test_split", "fewshot_split", "process_docs")


def task_from_config(
    config: Mapping[Any, Any],
    *,
    path: Path | None,
    locate: Locate,
    name: str | None = None,
    group: str | None = None,
) -> Task:
    """Return the task that a merged mapping describes.

    `name` overrides the key `task`, `group` is the group that defines it. Keys that are absent from `fewshot_config`
    become UNSET (inherited). An explicit null stays None; lm-eval 0.4.13 then renders shots with the task's doc_to_text
    and doc_to_target, but without choices, gen prefix, process_docs or split. `use_prompt` is applied. Raises
    SourceError for every key or value that lm-eval refuses when it builds or first renders the task.
    """
    where = _Where(path, locate)
    _check_keys(config, where)
    check_name(config["task"] if name is None else name, where("task"))
    fields = {key: config[key] for key in _TASK_FIELDS if key in config}
    if fields.get("output_type", OUTPUT_TYPES[0]) not in OUTPUT_TYPES:
        fields["output_type"] = "other"
    fewshot = _fewshot(config, where)
    if config.get("use_prompt") is not None:
        replaced = _prompt_fields(
            config["use_prompt"],
            has_choices=config.get("doc_to_choice") is not None,
            folder=path.parent if path is not None else None,
            position=where("use_prompt"),
        )
        fields |= replaced
        fewshot = {key: value for key, value in fewshot.items() if key not in replaced}
    metadata = config.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        metadata = {"_metadata": metadata}
    custom = config.get("custom_dataset")
    return Task(
        name=config["task"] if name is None else name,
        group=group,
        path=path,
        fewshot=FewShot(**fewshot),
        dataset=Dataset(
            path=config.get("dataset_path"),
            name=config.get("dataset_name"),
            kwargs=config.get("dataset_kwargs"),
            # lm-eval falls back to dataset_path when this is not callable.
            custom=custom if _KINDS["a !function"](custom) else None,
            **{key: config[key] for key in _DATASET_FIELDS if key in config},
        ),
        metadata=MappingProxyType(dict(metadata or {})),
        config=config if isinstance(config, MappingProxyType) else MappingProxyType(dict(config)),
        locate=locate,
        **fields,
    )


class _Where:
    """From a key path to where it or its nearest parent is written, else the file; and the harness of the file."""

    def __init__(self, path: Path | None, locate: Locate) -> None:
        self._path, self._locate = path, locate

    def knows(self, key: Any) -> bool:
        """Return whether the harness of the file has a key of tasks."""
        return (harness := self.harness) is not None and key in harness.task_keys

    @property
    def harness(self) -> Harness | None:
        """Return the harness of the file, None without one."""
        return harness_of(self._path.parent.resolve()) if self._path is not None else None

    def error(self, message: str, *keys: str | int, hint: str | None = None) -> SourceError:
        """Return the error about a key, or about the file."""
        return SourceError(message, position=self(*keys), hint=hint)

    def __call__(self, *keys: str | int) -> Position | None:
        found = nearest(self._locate, keys)
        return Position(self._path) if found is None and self._path is not None else found


def check_name(name: str, position: Position | None) -> None:
    """Raise SourceError for a name that a report cannot show: empty, or with control characters."""
    if not name:
        raise SourceError("a task needs a name: the key `task` is empty", position=position)
    if not name.isprintable():
        raise SourceError(f"the name {name!r} has characters that cannot be printed", position=position)


def _check_keys(config: Mapping[Any, Any], where: _Where) -> None:
    if "task" not in config:
        raise where.error("a task needs a name: the key `task` is missing")
    known = (*_TASK_KEYS, *OWN_KEYS)
    for key, value in config.items():
        if key in _TASK_KEYS:
            _check_value((key,), value, _TASK_KEYS[key], where)
        elif key not in (*OWN_KEYS, *STRUCTURAL_KEYS) and (hint := _mistake(key, known)) and not where.knows(key):
            raise where.error(f"unknown task key {key!r}", key, hint=hint)
    output_type = config.get("output_type", OUTPUT_TYPES[0])
    if output_type == "greedy_until":
        message = "lm-eval 0.4 has no output_type 'greedy_until'"
        raise where.error(message, "output_type", hint="write output_type: generate_until")
    if output_type not in OUTPUT_TYPES and is_misspelt(output_type, OUTPUT_TYPES):
        message = f"unknown output_type {output_type!r}; known: {', '.join(OUTPUT_TYPES)}"
        raise where.error(message, "output_type", hint=did_you_mean(output_type, OUTPUT_TYPES))
    for index, tag in enumerate(config["tag"] if isinstance(config.get("tag"), list) else ()):
        if not isinstance(tag, str):
            raise where.error(f"a tag must be text, not {_what(tag)}", "tag", index)
    _check_generation(config.get("generation_kwargs"), where)
    _check_entries(config.get("metric_list") or (), "an entry of metric_list", "metric", where, "metric_list")
    for index, pipeline in enumerate(config.get("filter_list") or ()):
        _check_filters(pipeline, index, where)


def _mistake(key: Any, known: Collection[str]) -> str | None:
    """Return the hint about an unknown key; None for one that may be that of a fork, which PF117 reports."""
    refused = "lm-eval 0.4.13 does not accept the key"
    if not isinstance(key, str):
        return f"{refused}; keys are text"
    if key in FEWSHOT_KEYS:
        return f"{refused} here; write it under fewshot_config"
    return did_you_mean(key, known) or refused if key == "include" or is_misspelt(key, known) else None


def unknown_keys(config: Mapping[Any, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the keys of a task and of its `fewshot_config` that lm-eval 0.4.13 does not have, each with those above."""
    known = {*_TASK_KEYS, *OWN_KEYS, *STRUCTURAL_KEYS}
    yield from ((key,) for key in config if isinstance(key, str) and key not in known)
    shots = config.get("fewshot_config")
    for key in shots if isinstance(shots, Mapping) else ():
        if isinstance(key, str) and key not in FEWSHOT_KEYS:
            yield "fewshot_config", key


def _check_value(keys: tuple[str, ...], value: Any, kinds: frozenset[str], where: _Where) -> None:
    if not kinds or any(_KINDS[kind](value) for kind in kinds):
        return
    expected = [kind for kind in _KINDS if kind in kinds and kind != "empty"]
    key, hint = ".".join(keys), None
    if isinstance(value, bool) and "text" in kinds:
        hint = "put the word in quotes: YAML reads yes, no, on and off as true and false"
    elif "text" in kinds and not isinstance(value, Mapping | list) and value is not None:
        hint = "put the text in quotes"
    elif isinstance(value, str) and "a !function" in kinds:
        hint = f"write {key}: !function {value if '.' in value else 'utils.' + value}"
    elif key == "task" and isinstance(value, list):
        hint = "a list of tasks is a group: add its name with the key `group`"
    listed = " or ".join(filter(None, (", ".join(expected[:-1]), expected[-1])))
    raise where.error(f"{key} must be {listed}, not {_what(value)}", *keys, hint=hint)


def _what(value: Any) -> str:
    return f"!function {value}" if isinstance(value, FunctionRef) else named_value(value)


def _check_generation(kwargs: Mapping[str, Any] | None, where: _Where) -> None:
    if not kwargs or "temperature" not in kwargs:
        return
    try:
        float(kwargs["temperature"])
    except (TypeError, ValueError):
        message = f"temperature must be a number, not {_what(kwargs['temperature'])}"
        raise where.error(message, "generation_kwargs", "temperature") from None


def _check_filters(pipeline: Any, index: int, where: _Where) -> None:
    for key in ("name", "filter"):
        if not isinstance(pipeline, Mapping) or key not in pipeline:
            message = f"an entry of filter_list must have the keys `name` and `filter`; {key!r} is missing"
            raise where.error(message, "filter_list", index)
    steps = pipeline["filter"]
    if not isinstance(steps, list):
        raise where.error(f"`filter` must be a list of steps, not {_what(steps)}", "filter_list", index, "filter")
    _check_entries(steps, "a step of a filter", "function", where, "filter_list", index, "filter")


def _check_entries(entries: Iterable[Any], what: str, key: str, where: _Where, *keys: str | int) -> None:
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or key not in entry:
            hint = f"write `- {key}: {entry}`" if isinstance(entry, str) else None
            raise where.error(f"{what} must be a mapping with the key `{key}`", *keys, index, hint=hint)


def _fewshot(config: Mapping[Any, Any], where: _Where) -> dict[str, Any]:
    written = config.get("fewshot_config") or {}
    fields: dict[str, Any] = {}
    for key, value in written.items():
        if key not in FEWSHOT_KEYS:
            if isinstance(key, str) and key not in _TASK_KEYS and not is_misspelt(key, FEWSHOT_KEYS):
                continue  # a fork may have it, which PF117 reports
            hint = did_you_mean(str(key), FEWSHOT_KEYS)
            if key in _TASK_KEYS:
                hint = f"{key} belongs at the top level of the task, not under fewshot_config"
            raise where.error(f"unknown key {key!r} in fewshot_config", "fewshot_config", key, hint=hint)
        if key in _FEWSHOT_TYPES:
            _check_value(("fewshot_config", key), value, _FEWSHOT_TYPES[key], where)
        if key != "fewshot_indices":  # accepted and ignored by lm-eval 0.4.13
            fields[key] = value
    _check_sampler(fields.get("sampler", "default"), where)
    split = fields.get("split", config.get("fewshot_split"))
    samples = fields.get("samples")
    if split is None and samples is not None and not (isinstance(samples, list) or _KINDS["a !function"](samples)):
        message = f"fewshot_config.samples must be a list of docs or a !function, not {_what(samples)}"
        raise where.error(message, "fewshot_config", "samples")
    return fields


def _check_sampler(sampler: Any, where: _Where) -> None:
    if sampler in SAMPLERS if isinstance(sampler, str) else _KINDS["a !function"](sampler):
        return
    if isinstance(sampler, str) and (harness := where.harness) is not None and harness.has_sampler(sampler):
        return
    hint = (
        did_you_mean(sampler, SAMPLERS)
        if isinstance(sampler, str)
        else "use one of these, or a !function with a sampler class"
    )
    message = f"unknown sampler {_what(sampler)}; known: {', '.join(SAMPLERS)}"
    raise where.error(message, "fewshot_config", "sampler", hint=hint)


# -- `use_prompt`: ready-made prompts that replace the mappings of a task ----------------------------------------------

_BUILT_IN_PROMPTS: Final[Mapping[str, Mapping[str, str]]] = _TABLE["prompts"]


def _prompt_fields(
    use_prompt: str, *, has_choices: bool, folder: Path | None, position: Position | None
) -> dict[str, str]:
    """Return the fields that `use_prompt` replaces, both for the task and for its shots.

    A built-in prompt replaces doc_to_text, doc_to_target and (where the task has choices) doc_to_choice, all three by
    the same template: that is what lm-eval does. `file.yaml:name` replaces doc_to_text and doc_to_target; the file is
    searched in the working directory, as lm-eval does, then in `folder`. Raises SourceError.
    """
    refusal = partial(SourceError, position=position)
    category, separator, name = use_prompt.partition(":")
    if not separator or ":" in name:
        hint = "for example qa-basic:q-newline-a, or prompts.yaml:my_prompt"
        raise refusal(f"use_prompt must be category:name, not {use_prompt!r}", hint=hint)
    if category == "promptsource":
        message = f"use_prompt {use_prompt!r} needs the promptsource package, which is not supported"
        raise refusal(message, hint="write the template into doc_to_text and doc_to_target")
    if ".yaml" in category:
        return _prompts_of_file(category, name, has_choices, folder, refusal)
    if category not in _BUILT_IN_PROMPTS:
        message = f"unknown category {category!r} in use_prompt; built in: {', '.join(_BUILT_IN_PROMPTS)}"
        raise refusal(message, hint=did_you_mean(category, _BUILT_IN_PROMPTS))
    prompts = _BUILT_IN_PROMPTS[category]
    if name not in prompts:
        message = f"{category} has no prompt {name!r}; known: {', '.join(prompts)}"
        raise refusal(message, hint=did_you_mean(name, prompts))
    fields = ("doc_to_text", "doc_to_target", "doc_to_choice") if has_choices else ("doc_to_text", "doc_to_target")
    return dict.fromkeys(fields, prompts[name])


def _prompts_of_file(
    file: str, name: str, has_choices: bool, folder: Path | None, refusal: Callable[..., SourceError]
) -> dict[str, str]:
    try:
        places = [gate.named(each, file) for each in (Path(), *([folder] if folder is not None else []))]
    except gate.RefusedError as error:
        raise refusal(f"use_prompt cannot read {file!r}: {error.strerror}") from error
    path = next((place for place in places if gate.is_there(place) and not place.is_dir()), None)
    if path is None:
        hint = "lm-eval 0.4.13 looks for the prompt file in the working directory"
        raise refusal(f"the prompt file {file!r} of use_prompt does not exist", hint=hint)
    prompts = read_yaml(path).config.get("prompts")
    if not isinstance(prompts, Mapping):
        raise SourceError("a prompt file needs a mapping `prompts` at its top level", position=Position(path))
    prompt = prompts.get(name)
    if not isinstance(prompt, Mapping):
        known = [key for key in prompts if isinstance(key, str)]
        raise refusal(f"{file} has no prompt {name!r}", hint=did_you_mean(name, known))
    if has_choices or "doc_to_choice" in prompt:
        message = "lm-eval 0.4.13 cannot combine a prompt file in use_prompt with doc_to_choice"
        raise refusal(message, hint="write the templates into doc_to_text and doc_to_target")
    return {key: _prompt_template(prompt, key, name, path) for key in ("doc_to_text", "doc_to_target")}


def _prompt_template(prompt: Mapping[Any, Any], key: str, name: str, path: Path) -> str:
    template = prompt.get(key)
    if not isinstance(template, str):
        raise SourceError(f"{key} of the prompt {name!r} must be text", position=Position(path))
    # lm-eval reads these as templates only, never as column names; an empty comment keeps a bare word a template.
    return template if "{" in template else f"{template}{{##}}"


# -- the same tables as JSON Schema, for editors; a `!function` is a text to them --------------------------------------

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def task_schema() -> dict[str, Any]:
    """Return the schema of a file that defines a task, a group or a task class."""
    properties: dict[str, Any] = {key: _schema(key, kinds) for key, kinds in value_kinds().items()}
    kinds_of_shots = value_kinds(fewshot=True)
    fewshot: dict[str, Any] = {key: _schema(key, kinds_of_shots.get(key, frozenset())) for key in FEWSHOT_KEYS}
    fewshot["sampler"] = {"anyOf": [{"enum": list(SAMPLERS)}, {"type": "string"}]}
    properties["output_type"] = {"enum": list(OUTPUT_TYPES)}
    properties["fewshot_config"] = {
        "anyOf": [{"type": "null"}, {"type": "object", "properties": fewshot, "additionalProperties": False}]
    }
    for key in (*OWN_KEYS, *STRUCTURAL_KEYS, "include", "class"):
        properties.setdefault(key, _described(key, {}))
    properties["metadata"] = _described("metadata", {"properties": {"promptfmt": {"type": "object"}}})
    group = {name: _described(name, {}) for name in ("group", "task", "include", "group_alias", "metadata", "tag")}
    group["aggregate_metric_list"] = {}
    return {
        "$schema": _DIALECT,
        "title": "A task or group of lm-evaluation-harness, as pytest-promptfmt reads it",
        "type": "object",
        "if": {"anyOf": [{"required": ["class"]}, {"required": ["group"], "properties": {"task": {"type": "array"}}}]},
        "then": {"properties": group},
        "else": {"properties": properties, "additionalProperties": False},
    }


def _schema(key: str, kinds: frozenset[str]) -> dict[str, Any]:
    types = [dict(_TABLE["schemas"][kind]) for kind in sorted(kinds)]
    distinct = [kind for number, kind in enumerate(types) if kind not in types[:number]]
    return _described(key, distinct[0] if len(distinct) == 1 else {"anyOf": distinct} if distinct else {})


def _described(key: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    descriptions = _TABLE["descriptions"]
    return {**schema, "description": descriptions[key]} if key in descriptions else dict(schema)

"""`use_prompt`: ready-made prompts that replace a task's own mappings, as lm-eval 0.4.13 applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean
from pytest_promptfmt.tasks.yaml_file import read_yaml

BUILTIN_PROMPTS: Final[Mapping[str, Mapping[str, str]]] = data_table("task_keys")["prompts"]


def prompt_fields(
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
        return _from_file(category, name, has_choices, folder, refusal)
    if category not in BUILTIN_PROMPTS:
        message = f"unknown category {category!r} in use_prompt; built in: {', '.join(BUILTIN_PROMPTS)}"
        raise refusal(message, hint=did_you_mean(category, BUILTIN_PROMPTS))
    prompts = BUILTIN_PROMPTS[category]
    if name not in prompts:
        message = f"{category} has no prompt {name!r}; known: {', '.join(prompts)}"
        raise refusal(message, hint=did_you_mean(name, prompts))
    fields = ("doc_to_text", "doc_to_target", "doc_to_choice") if has_choices else ("doc_to_text", "doc_to_target")
    return dict.fromkeys(fields, prompts[name])


def _from_file(
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
    return {key: _template(prompt, key, name, path) for key in ("doc_to_text", "doc_to_target")}


def _template(prompt: Mapping[Any, Any], key: str, name: str, path: Path) -> str:
    template = prompt.get(key)
    if not isinstance(template, str):
        raise SourceError(f"{key} of the prompt {name!r} must be text", position=Position(path))
    # lm-eval reads these as templates only, never as column names; an empty comment keeps a bare word a template.
    return template if "{" in template else f"{template}{{##}}"

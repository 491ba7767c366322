"""How one model sees a prompt: chat template, its arguments, system instruction, few-shot as turns or as text.

`PLAIN` is the profile without a chat template. The built-in chat profiles are archetypes: templates written for
this project from the documented prompt layouts of the model families, not copies of any model's own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_promptfmt.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from pytest_promptfmt.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One way a model sees prompts.

    `chat_template` is Jinja source in the dialect of transformers 5.23, or None for plain text. `special_tokens`
    are variables of the template (`bos_token` …); `template_args` win over them. `fewshot_as_turns` renders
    demonstrations as user and assistant turns (lm-eval's multi-turn), else as text inside one user turn. `clock` is
    what `strftime_now` sees, pinned so that snapshots do not change overnight.
    """

    name: str
    chat_template: str | None = field(default=None, repr=False)
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    system_instruction: str | None = None
    fewshot_as_turns: bool = True
    clock: datetime = datetime(2024, 7, 26, 12, 0, 0)


PLAIN = Profile(name="plain")

_ARCHETYPES: Mapping[str, Mapping[str, str]] = {
    "chat-chatml": {"bos_token": "", "eos_token": "<|im_end|>"},
    "chat-gemma": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "chat-llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "chat-mistral": {"bos_token": "<s>", "eos_token": "</s>"},
}
_SINGLE = "-single"
BUILTIN_PROFILES: tuple[str, ...] = ("plain", *_ARCHETYPES, *(f"{name}{_SINGLE}" for name in _ARCHETYPES))
DEFAULT_PROFILES: tuple[str, ...] = ("plain", "chat-chatml")


@cache
def builtin_profile(name: str) -> Profile:
    """Return the built-in profile of that name; `-single` puts the demonstrations into one user turn.

    Raises SettingsError with a did-you-mean when there is none.
    """
    if name == PLAIN.name:
        return PLAIN
    archetype = name.removesuffix(_SINGLE)
    if archetype not in _ARCHETYPES:
        raise SettingsError(
            f"there is no profile {name!r}; built in are {', '.join(BUILTIN_PROFILES)}",
            hint=did_you_mean(name, (*BUILTIN_PROFILES, "chat")),
        )
    file = resources.files("pytest_promptfmt") / "data" / "chat_templates" / f"{archetype.removeprefix('chat-')}.jinja"
    return Profile(
        name=name,
        chat_template=file.read_text("utf-8"),
        special_tokens=_ARCHETYPES[archetype],
        fewshot_as_turns=archetype == name,
    )


def resolve_profiles(names: Iterable[str]) -> tuple[Profile, ...]:
    """Return the profiles of these names, each once, in order of first mention.

    `chat` stands for the four archetypes with demonstrations as turns. Raises SettingsError with a did-you-mean for
    a name that is not known.
    """
    wanted: dict[str, None] = {}
    for name in names:
        wanted.update(dict.fromkeys(_ARCHETYPES if name == "chat" else (name,)))
    return tuple(builtin_profile(name) for name in wanted)


def profiles_of(task: Task, names: Iterable[str]) -> tuple[Profile, ...]:
    """Return the profiles of these names, and those that the task adds under `metadata.promptfmt.profiles`.

    Raises SettingsError with the position when the task names one that is not known.
    """
    added = task.own_metadata.get("profiles", [])
    if isinstance(added, str):
        added = [added]
    position = task.position("metadata", "promptfmt", "profiles")
    if not isinstance(added, Sequence) or not all(isinstance(name, str) for name in added):
        raise SettingsError(
            f"metadata.promptfmt.profiles is {added!r}", position=position, hint="write a list of profile names"
        )
    try:
        return resolve_profiles((*names, *added))
    except SettingsError as error:
        raise SettingsError(error.message, position=position, hint=error.hint) from None

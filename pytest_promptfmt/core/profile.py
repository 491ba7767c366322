"""How one model sees a prompt: tokenizer, chat template, its arguments, system instruction, few-shot as turns or text.

`PLAIN` is the profile without a chat template. The built-in chat profiles are archetypes: templates and tokenizers
written for this project that approximate those of the model families, not the models' own files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import Position, SettingsError, did_you_mean

Mode = Literal["loglikelihood", "generate"]
Split = Literal["lm-eval", "pairwise"]
SPLITS: Final[tuple[Split, ...]] = ("lm-eval", "pairwise")

ENGINES: Final = ("minijinja", "@huggingface/jinja", "llama.cpp")
"""Engines that render chat templates here, besides Jinja."""

RECORDED: Final = ".jsonl"
"""The ending of a file that keeps what an engine behind a server rendered."""

SEPARATE_ENGINES: Final = frozenset(ENGINES[1:])
"""The engines that are separate programs, whose inputs are unknown."""

OWN: Final = "own"
"""The name of a tokenizer's default chat template."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One way a model sees prompts.

    `tokenizer` is what `load_tokenizer` takes, `tokenizer_name` how reports and snapshots name it (where empty: by the
    digest of its content); None where only text is rendered. `chat_template` is Jinja source in the dialect of
    transformers 5.23, or None for plain text; `template_file` is the file it was read from, `template_name` the
    tokenizer's own template that `load_profile` inserts. `special_tokens` are variables of the template (`bos_token`
    …); `template_args` win over them.
    `fewshot_as_turns` renders shots as user and assistant turns (lm-eval's multi-turn), otherwise as text inside one
    user turn. `mode` is the kind of request, `split` how context and continuation become tokens: encoded
    together and cut (lm-eval), or separately. `formatter` is a formatter of eval-framework that joins the messages
    instead of a chat template. `engine` renders the chat template besides, to be compared: one of `ENGINES`, or the
    path of a recording of a server. `clock` is what `strftime_now` sees, pinned so that snapshots do not change
    overnight. `origin` is where the profile was defined.
    """

    name: str
    tokenizer: str | None = None
    tokenizer_name: str = ""
    chat_template: str | None = field(default=None, repr=False)
    template_name: str | None = None
    template_file: Path | None = field(default=None, repr=False, compare=False)
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    system_instruction: str | None = None
    fewshot_as_turns: bool = True
    mode: Mode = "loglikelihood"
    split: Split = "lm-eval"
    formatter: str | None = None
    engine: str | None = None
    clock: datetime = datetime(2024, 7, 26, 12, 0, 0)
    origin: Position | None = field(default=None, repr=False, compare=False)

    @property
    def is_chat(self) -> bool:
        """Return whether a chat template lays prompts out."""
        return self.chat_template is not None or self.template_name is not None

    @property
    def shows_text(self) -> bool:
        """Return whether its snapshots show the text; otherwise the text is that of `plain` and is not repeated."""
        return self.tokenizer is None or self.is_chat or self.system_instruction is not None

    @property
    def joins_messages(self) -> bool:
        """Return whether a chat template or formatter joins the messages, not the delimiters of the task."""
        return self.chat_template is not None or self.formatter is not None

    @property
    def is_archetype(self) -> bool:
        """Return whether its template or tokenizer is a built-in approximation of a model family's."""
        return (self.tokenizer or "").startswith(ARCHETYPE_PREFIX) or (
            self.chat_template is not None and self.chat_template in map(builtin_template, CHAT_TEMPLATES)
        )


_ARGUMENT: Final = re.compile(r"[^\s\[\]:/\\]*")
ARCHETYPE_PREFIX: Final = "archetype:"
MISTRAL_PREFIX: Final = "mistral:"
"""The prefix of the path of a tokenizer that mistral-common is to read."""
TOKENIZER: Final = "tokenizer="
TEMPLATE: Final = "template="
"""Prefixes of the names of profiles that only the command line or ini defines."""

PLAIN: Final = Profile(name="plain")


TEMPLATE_ARCHETYPES: Final[Mapping[str, tuple[str, str, str]]] = {
    "chatml": ("bytelevel-qwen", "", "<|im_end|>"),
    "gemma": ("sentencepiece-gemma", "<bos>", "<eos>"),
    "llama2": ("sentencepiece-llama2", "<s>", "</s>"),
    "llama3": ("bytelevel-llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("sentencepiece-llama2", "<s>", "</s>"),
}
"""The tokenizer of each built-in chat template, with its tokens for beginning and end."""

_CHAT: Final = "chat-"
_SINGLE: Final = "-single"
ALL_CHAT: Final = "chat"
"""The name for all built-in chat profiles with shots as turns."""

_FORMATTER: Final = "formatter-"
FORMATTER_NAMES: Final = ("concat", "no-strip-concat", "llama3")
"""The formatters of eval-framework that are built-in profiles; what they do is in profiles/chat_prompt.py."""

CHAT_TEMPLATES: Final[tuple[str, ...]] = tuple(TEMPLATE_ARCHETYPES)
"""The names of the built-in chat templates."""
BUILTIN_PROFILES: Final[tuple[str, ...]] = (
    "plain",
    *(f"{_CHAT}{name}" for name in TEMPLATE_ARCHETYPES),
    *(f"{_CHAT}{name}{_SINGLE}" for name in TEMPLATE_ARCHETYPES),
    *(f"{_FORMATTER}{name}" for name in FORMATTER_NAMES),
)
DEFAULT_PROFILES: Final[tuple[str, ...]] = ("plain", "chat-chatml", "chat-llama2")
"""Only text, a byte-level tokenizer, and a SentencePiece one."""


@cache
def builtin_profile(name: str) -> Profile:
    """Return the built-in profile of that name; `-single` puts the shots into one user turn.

    Raises SettingsError with a did-you-mean for an unknown name.
    """
    if name == PLAIN.name:
        return PLAIN
    if name not in BUILTIN_PROFILES:
        raise _unknown(name, BUILTIN_PROFILES)
    if name.startswith(_FORMATTER):
        return Profile(name=name, formatter=name.removeprefix(_FORMATTER))
    template = name.removeprefix(_CHAT).removesuffix(_SINGLE)
    tokenizer = f"{ARCHETYPE_PREFIX}{TEMPLATE_ARCHETYPES[template][0]}"
    profile = Profile(
        name=name, tokenizer=tokenizer, tokenizer_name=tokenizer, fewshot_as_turns=not name.endswith(_SINGLE)
    )
    return with_builtin_template(profile, template)


def with_builtin_template(profile: Profile, name: str) -> Profile:
    """Return the profile with a built-in chat template and its special tokens."""
    _, bos, eos = TEMPLATE_ARCHETYPES[name]
    return replace(
        profile,
        chat_template=builtin_template(name),
        template_name=None,
        template_file=None,
        special_tokens={"bos_token": bos, "eos_token": eos},
    )


@cache
def builtin_template(name: str) -> str:
    """Return the Jinja source of a built-in chat template."""
    file = resources.files("pytest_promptfmt") / "data" / "chat_templates" / f"{name}.jinja"
    return file.read_text("utf-8")


def is_profile_name(name: str, defined: Mapping[str, Profile]) -> bool:
    """Return whether a name, with or without arguments, is a built-in or defined profile's."""
    base = name.partition(":")[0]
    return base in defined or base in BUILTIN_PROFILES or name == ALL_CHAT


def resolve_profiles(
    names: Iterable[str], defined: Mapping[str, Profile] = MappingProxyType({})
) -> tuple[Profile, ...]:
    """Return the profiles of these names, each once, in order of first mention.

    `defined` are profiles besides the built-in ones. `chat` means the built-in chat profiles with shots as turns;
    `NAME:key=value,key=value` gives a profile other template arguments, which become part of its name. Raises
    SettingsError with a did-you-mean for an unknown name.
    """
    wanted: dict[str, None] = {}
    for name in names:
        chats = (f"{_CHAT}{template}" for template in CHAT_TEMPLATES)
        wanted.update(dict.fromkeys(chats if name == ALL_CHAT and name not in defined else (name,)))
    found = (_resolve(name, defined) for name in wanted)
    return tuple({profile.name: profile for profile in found}.values())


def _resolve(reference: str, defined: Mapping[str, Profile]) -> Profile:
    if reference in defined:
        return defined[reference]
    name, colon, arguments = reference.partition(":")
    if name not in defined and name not in BUILTIN_PROFILES:
        raise _unknown(name, (*BUILTIN_PROFILES, *defined))
    profile = defined[name] if name in defined else builtin_profile(name)
    return with_arguments(profile, arguments) if colon else profile


def with_arguments(profile: Profile, written: str) -> Profile:
    """Return the profile with the template arguments of `key=value,key=value`, sorted into its name.

    `true`, `false`, `null` and numbers are read as such, everything else as text. Values are part of node ids and file
    names, so spaces, brackets, colons and slashes are refused. Raises SettingsError for such values, other shapes, and
    for a profile without chat template.
    """
    given: dict[str, Any] = {}
    shown: dict[str, str] = {}
    for part in written.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier() or not _ARGUMENT.fullmatch(value):
            raise SettingsError(
                f"profile {f'{profile.name}:{written}'!r}: {part!r} is not a template argument",
                hint=f"write {profile.name}:enable_thinking=false; separate several arguments with commas",
            )
        given[key], shown[key] = _argument(value), value
    if not profile.is_chat:
        raise SettingsError(f"profile {profile.name!r} has no chat template, so it takes no template arguments")
    name = ",".join([profile.name, *(f"{key}={shown[key]}" for key in sorted(shown))])
    return replace(profile, name=name, template_args=MappingProxyType({**profile.template_args, **given}))


def _argument(value: str) -> Any:
    words: Mapping[str, Any] = {"true": True, "false": False, "null": None}
    if value.lower() in words:
        return words[value.lower()]
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


def _unknown(name: str, known: Iterable[str]) -> SettingsError:
    listed = "`promptfmt profiles` lists all profiles; `profiles` in promptfmt.yaml defines more"
    return SettingsError(f"unknown profile {name!r}", hint=did_you_mean(name, (*known, ALL_CHAT)) or listed)

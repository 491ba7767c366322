"""Profiles as `promptfmt.yaml`, the command line and tasks define them, made into `Profile` values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, SettingsError, did_you_mean, display_path, raising
from pytest_promptfmt.core.files import expanded_home
from pytest_promptfmt.core.profile import (
    ALL_CHAT,
    ARCHETYPE_PREFIX,
    BUILTIN_PROFILES,
    CHAT_TEMPLATES,
    ENGINES,
    MISTRAL_PREFIX,
    PLAIN,
    RECORDED,
    TEMPLATE,
    TOKENIZER,
    Profile,
    builtin_profile,
    resolve_profiles,
    with_builtin_template,
)
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.settings.file import SettingsFile

RESERVED: Final = (*BUILTIN_PROFILES, ALL_CHAT, "extraction")
"""Names that no file may give to a profile."""

NONE: Final = "none"
_MAX_TEMPLATE_BYTES: Final = 4 * 1024 * 1024
_TEMPLATE_SUFFIXES: Final = (".jinja", ".jinja2", ".j2", ".txt")
_TOKENIZER_SUFFIXES: Final = (".json", ".model", ".gguf")


def defined_profiles(
    file: SettingsFile, outer: Mapping[str, Profile] = MappingProxyType({}), *, rootdir: Path
) -> dict[str, Profile]:
    """Return the profiles that a file defines, by name; they may extend each other, `outer` ones and built-in ones.

    Raises SettingsError with the position for a reserved name, an unknown profile to extend or one that goes
    round in a circle, and a chat template that cannot be read.
    """
    built: dict[str, Profile] = {}

    def build(name: str, route: tuple[str, ...]) -> Profile:
        if name in built:
            return built[name]
        written = file.profiles[name]
        base = PLAIN
        if "extends" in written:
            wanted = written["extends"]
            where = file.position("profiles", name, "extends")
            if wanted in file.profiles and wanted in (*route, name) and not (wanted == name and name in outer):
                circle = " -> ".join((*route, name, wanted))
                raise SettingsError(f"profiles extend each other in a circle: {circle}", position=where)
            if wanted in file.profiles and wanted != name:
                base = build(wanted, (*route, name))
            elif wanted in outer:
                base = outer[wanted]
            elif wanted in BUILTIN_PROFILES:
                base = builtin_profile(wanted)
            else:
                known = (*file.profiles, *outer, *BUILTIN_PROFILES)
                raise SettingsError(
                    f"profile {name!r} extends the unknown profile {wanted!r}",
                    position=where,
                    hint=did_you_mean(wanted, known) or f"known: {', '.join(dict.fromkeys(known))}",
                )
        built[name] = _extended(base, name, written, file, rootdir)
        return built[name]

    for name in file.profiles:
        if name in RESERVED:
            raise SettingsError(
                f"the profile {name!r} is built in",
                position=file.position("profiles", name),
                hint="choose another name" + (f", and add `extends: {name}`" if name in BUILTIN_PROFILES else ""),
            )
        build(name, ())
    return built


def _extended(base: Profile, name: str, written: Mapping[str, Any], file: SettingsFile, rootdir: Path) -> Profile:
    profile = replace(base, name=name, origin=file.position("profiles", name))
    plain_keys = ("system_instruction", "fewshot_as_turns", "mode", "split", "clock", "formatter")
    profile = replace(profile, **{key: written[key] for key in plain_keys if key in written})
    if "template_args" in written:
        merged = {**base.template_args, **written["template_args"]}
        profile = replace(profile, template_args=MappingProxyType(merged))
    if "tokenizer" in written:
        profile = with_tokenizer(profile, written["tokenizer"], file.path.parent, rootdir)
    if "chat_template" in written:
        where = file.position("profiles", name, "chat_template")
        profile = with_template(profile, written["chat_template"], file.path.parent, where)
    if "engine" in written:
        where = file.position("profiles", name, "engine")
        profile = replace(profile, engine=known_engine(written["engine"], file.path.parent, where))
    return profile


def known_engine(written: str, folder: Path, where: Position | None) -> str:
    """Return an engine by its name and address; of a recording the path. Raises SettingsError for an unknown one.

    A server is not reached here: settings of a repository must not open connections.
    """
    if written in ENGINES:
        return written
    if not written.endswith(RECORDED):
        server = written.partition(":")[0]
        hint = f"make a recording with promptfmt record --engine {server}:URL --to FILE.jsonl, and name FILE.jsonl"
        raise SettingsError(
            f"unknown template engine {written!r}; expected one of {', '.join(ENGINES)}, or a file *.jsonl",
            position=where,
            hint=did_you_mean(written, ENGINES) or hint,
        )
    return str(_there(folder, written, where, "recording", "to make the recording, use promptfmt record"))


def known_host(written: str, where: Position | None) -> str:
    """Return the name of a host of `data/hosts.yaml`; raises SettingsError for an unknown one."""
    known = data_table("hosts")["hosts"]
    if written not in known:
        message = f"unknown host {written!r}; known: {', '.join(known)}"
        raise SettingsError(message, position=where, hint=did_you_mean(written, known))
    return written


def trained_template(written: str, folder: Path, where: Position | None) -> Path:
    """Return the path of a template that others train for; raises SettingsError where it is missing."""
    return _there(folder, written, where, "template", "paths are relative to this file")


def _there(folder: Path, written: str, where: Position | None, what: str, hint: str) -> Path:
    path = _named(folder, written, where)
    if not gate.is_there(path):
        raise SettingsError(
            f"the {what} {display_path(path)} does not exist",
            position=where,
            hint=did_you_mean(path.name, gate.names_in(path.parent)) or hint,
        )
    return path


def with_tokenizer(profile: Profile, written: str | None, folder: Path, rootdir: Path) -> Profile:
    """Return the profile with another tokenizer: a path below `folder` where there is one, else as written.

    Its shown name is relative to the rootdir where it lies below it, else the name of its folder: no snapshot shows
    where a user keeps models.
    """
    if written is None:
        return replace(profile, tokenizer=None, tokenizer_name="")
    prefix = MISTRAL_PREFIX if written.startswith(MISTRAL_PREFIX) else ""
    path = (folder / expanded_home(written.removeprefix(prefix))).absolute()
    is_name = written.startswith(ARCHETYPE_PREFIX) or "\0" in written
    is_path = written.startswith((".", "/", "~")) or written.count("/") > 1 or written.endswith(_TOKENIZER_SUFFIXES)
    if is_name or not (is_path or gate.is_there(path)):
        return replace(profile, tokenizer=written, tokenizer_name=written)
    real, root = path.resolve(), rootdir.resolve()
    shown = real.relative_to(root).as_posix() if real.is_relative_to(root) else path.name
    return replace(profile, tokenizer=f"{prefix}{path}", tokenizer_name=f"{prefix}{shown}")


def with_template(profile: Profile, written: str | None, folder: Path, where: Position | None) -> Profile:
    """Return the profile with the chosen chat template; that of a tokenizer is looked up when it loads.

    Raises SettingsError for a file that cannot be read and, where no tokenizer could know it, an unknown name.
    """
    if written is None or written == NONE:
        return replace(profile, chat_template=None, template_name=None, template_file=None)
    path = _named(folder, written, where)
    if gate.is_there(path) and not path.is_dir():
        return replace(profile, chat_template=_read_template(path, where), template_name=None, template_file=path)
    if written in CHAT_TEMPLATES:
        return with_builtin_template(profile, written)
    if "/" in written or written.endswith(_TEMPLATE_SUFFIXES):
        raise SettingsError(
            f"the chat template {display_path(path)} does not exist",
            position=where,
            hint=did_you_mean(path.name, gate.names_in(path.parent)),
        )
    if profile.tokenizer is None:
        raise SettingsError(
            f"unknown chat template {written!r}: the profile has no tokenizer in which to look for it",
            position=where,
            hint=did_you_mean(written, CHAT_TEMPLATES)
            or f"use a file, or one of {', '.join((NONE, *CHAT_TEMPLATES))}. Other templates need a tokenizer",
        )
    return replace(
        profile, chat_template=None, template_name=written, template_file=None, origin=where or profile.origin
    )


def _named(folder: Path, written: str, where: Position | None) -> Path:
    with raising(SettingsError, f"{written!r} cannot be read", where):
        return gate.named(folder, expanded_home(written)).absolute()


def _read_template(path: Path, where: Position | None) -> str:
    with raising(SettingsError, f"{display_path(path)} cannot be read", where):
        return gate.read_bytes(path, limit=_MAX_TEMPLATE_BYTES).decode()


def given_profiles(
    tokenizers: Sequence[str], templates: Sequence[str], folder: Path, rootdir: Path
) -> tuple[Profile, ...]:
    """Return the profiles that only tokenizers and chat templates make: each tokenizer with each template.

    They are named after both, `tokenizer=qwen3,template=chatml`. Paths are relative to `folder`. Raises SettingsError
    as `with_template`.
    """
    made = []
    for tokenizer, template in product(tokenizers or (None,), templates or (None,)):
        profile = with_tokenizer(PLAIN, tokenizer, folder, rootdir)
        profile = with_template(profile, template, folder, None)
        parts = [f"{TOKENIZER}{_slug(profile.tokenizer_name)}"] if tokenizer else []
        parts += [f"{TEMPLATE}{_slug(Path(template).stem)}"] if template else []
        made.append(replace(profile, name=",".join(parts)))
    return tuple(made)


def _slug(text: str) -> str:
    name = text.removeprefix(ARCHETYPE_PREFIX).rstrip("/").rpartition("/")[2]
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in name) or "_"


def overridden(
    profiles: Iterable[Profile], tokenizer: Sequence[str], template: Sequence[str], folder: Path, rootdir: Path
) -> tuple[Profile, ...]:
    """Return chosen profiles with the tokenizer and chat template of the command line instead of theirs.

    Raises SettingsError when there are several of either, for `plain`, which is text, and as `with_template`.
    """
    changed = []
    for profile in profiles:
        for option, values in (("--promptfmt-tokenizer", tokenizer), ("--promptfmt-chat-template", template)):
            if len(values) > 1:
                raise SettingsError(f"with --promptfmt-profile, use {option} only once, not {len(values)} times")
            if values and profile == PLAIN:
                raise SettingsError(
                    "the profile 'plain' cannot have a tokenizer or chat template",
                    hint=f"leave out --promptfmt-profile. Then {option} makes a separate profile",
                )
        if tokenizer:
            profile = with_tokenizer(profile, tokenizer[0], folder, rootdir)
        if template:
            profile = with_template(profile, template[0], folder, None)
        changed.append(profile)
    return tuple(changed)


def task_profiles(task: Task, chosen: Sequence[Profile], defined: Mapping[str, Profile]) -> tuple[Profile, ...]:
    """Return the profiles of a run as the task wants them under `metadata.promptfmt.profiles`.

    A list adds profiles; a mapping adds those of `add`, and of the chosen ones keeps those that a name or glob of
    `only` matches. Raises SettingsError with the position for other shapes, and for a name that is not known.
    """
    written = task.own_metadata.get("profiles", [])
    position = task.position("metadata", "promptfmt", "profiles")
    wanted = written if isinstance(written, Mapping) else {"add": written}
    for key in wanted:
        if key not in ("only", "add"):
            raise SettingsError(
                f"unknown key {key!r} in metadata.promptfmt.profiles; known keys: 'only', 'add'",
                position=task.position("metadata", "promptfmt", "profiles", str(key)) or position,
                hint=did_you_mean(str(key), ("only", "add")),
            )
    lists: dict[str, list[str]] = {}
    for key, value in wanted.items():
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise SettingsError(
                f"metadata.promptfmt.profiles is {written!r}", position=position, hint="write a list of profile names"
            )
        lists[key] = list(names)
    kept = list(chosen)
    if "only" in lists:
        known = (*BUILTIN_PROFILES, *defined)
        for pattern in lists["only"]:
            if not any(fnmatchcase(name, pattern) for name in (*known, *(profile.name for profile in chosen))):
                raise SettingsError(
                    f"metadata.promptfmt.profiles.only: no profile is called {pattern!r}",
                    position=position,
                    hint=did_you_mean(pattern, known),
                )
        kept = [each for each in chosen if any(fnmatchcase(each.name, pattern) for pattern in lists["only"])]
    with raising(SettingsError, position=position):
        added = resolve_profiles(lists.get("add", ()), defined)
    return tuple({profile.name: profile for profile in (*kept, *added)}.values())

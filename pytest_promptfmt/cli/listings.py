"""`promptfmt profiles` and `promptfmt checks`: what there is, in short."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_promptfmt.cli.output import visible
from pytest_promptfmt.cli.template_facts import fact_lines, facts_as_data, facts_of
from pytest_promptfmt.core.errors import SettingsError, display_path


def profiles(
    folder: Annotated[Path, typer.Argument(help="The folder whose promptfmt.yaml counts.")] = Path(),
    facts: Annotated[bool, typer.Option("--facts", help="Say what each chat template does to a conversation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """List the profiles: built in, and those that promptfmt.yaml of this folder and above it define."""
    from pytest_promptfmt.core.profile import (
        BUILTIN_PROFILES,
        DEFAULT_PROFILES,
        Profile,
        builtin_profile,
        resolve_profiles,
    )
    from pytest_promptfmt.settings.file import find_settings_file, read_settings_file
    from pytest_promptfmt.settings.profiles import defined_profiles

    if not folder.is_dir():
        raise SettingsError(f"there is no folder {display_path(folder)}")
    defined: dict[str, Profile] = {}
    chosen: Sequence[str] | None = None
    for above in reversed([folder.resolve(), *folder.resolve().parents]):
        path = find_settings_file(above)
        if path is not None:
            file = read_settings_file(path, is_at_rootdir=True)
            defined |= defined_profiles(file, defined, rootdir=above)
            chosen = file.values.get("default_profiles", chosen)
    shown = {name: builtin_profile(name) for name in BUILTIN_PROFILES} | defined
    found = {name: facts_of(profile) for name, profile in shown.items()} if facts else {}
    names = chosen if chosen is not None else ("plain", *defined) if defined else DEFAULT_PROFILES
    default = {profile.name for profile in resolve_profiles(names, defined)}
    data = [_as_data(profile, name in default) for name, profile in shown.items()]
    if as_json:
        told_facts = {name: facts_as_data(each) for name, each in found.items() if each is not None}
        data = [{**entry, "facts": told_facts.get(entry["name"])} for entry in data] if facts else data
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    width = max(len(entry["name"]) for entry in data)
    for entry in data:
        template = entry["template"] and f"chat template {entry['template']}"
        given = sorted(entry["template_args"].items())
        arguments = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given]
        told = ["by default" if entry["default"] else "", template or "text", *arguments]
        told += [entry["tokenizer"], entry["origin"]]
        typer.echo(visible(f"{entry['name']:<{width}}  {', '.join(part for part in told if part)}"))
        known = found.get(entry["name"])
        for line in fact_lines(known) if known is not None else ():
            typer.echo(visible(f"    {line}"))


def checks(
    files: Annotated[
        list[Path] | None, typer.Option("--checks", metavar="FILE", help="A file with rules of your own. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """List the rules of the checks: code, severity, name. `promptfmt explain CODE` tells more."""
    from pytest_promptfmt.checks.registry import known_checks

    known = known_checks(tuple(files or ())).values()
    if as_json:
        data = [
            {"code": each.code, "name": each.name, "severity": each.severity.value, "family": each.family.value}
            for each in known
        ]
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    for check in known:
        typer.echo(f"{check.code}  {check.severity:<7}  {check.name}")


def _as_data(profile: Any, is_default: bool) -> dict[str, Any]:
    template = None
    if profile.is_chat:
        template = profile.template_name or "of its own"
    return {
        "name": profile.name,
        "tokenizer": profile.tokenizer_name or profile.tokenizer or "",
        "template": template,
        "template_args": dict(profile.template_args),
        "fewshot_as_turns": profile.fewshot_as_turns,
        "mode": profile.mode,
        "default": is_default,
        "origin": "" if profile.origin is None else str(profile.origin),
    }

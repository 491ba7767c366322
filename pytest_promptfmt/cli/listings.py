"""`promptfmt profiles` and `promptfmt rules`: one line for each profile or rule."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, display_path
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from pytest_promptfmt.profiles.template_facts import TemplateFacts
    from pytest_promptfmt.rules.rule_registry import Rule


def profiles(
    folder: Annotated[Path, typer.Argument(help="The folder whose promptfmt.yaml is read.")] = Path(),
    facts: Annotated[bool, typer.Option("--facts", help="Show what each chat template does.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """List the profiles: built in, and those that promptfmt.yaml of this folder and above it define."""
    from pytest_promptfmt.core.profile import (
        BUILTIN_PROFILES,
        DEFAULT_PROFILES,
        builtin_profile,
        resolve_profiles,
    )
    from pytest_promptfmt.settings.file import find_settings_file, read_settings_file
    from pytest_promptfmt.settings.profiles import defined_profiles

    if not folder.is_dir():
        raise SettingsError(f"no such folder: {display_path(folder)}")
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
        known_facts = {name: facts_as_data(each) for name, each in found.items() if each is not None}
        data = [{**entry, "facts": known_facts.get(entry["name"])} for entry in data] if facts else data
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    width = max(len(entry["name"]) for entry in data)
    for entry in data:
        template = entry["template"] and f"chat template {entry['template']}"
        given = sorted(entry["template_args"].items())
        arguments = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given]
        parts = ["by default" if entry["default"] else "", template or "text", *arguments]
        parts += [entry["tokenizer"], entry["origin"]]
        typer.echo(escape_controls(f"{entry['name']:<{width}}  {', '.join(part for part in parts if part)}"))
        known = found.get(entry["name"])
        for line in fact_lines(known) if known is not None else ():
            typer.echo(escape_controls(f"    {line}"))


def rules(
    files: Annotated[
        list[Path] | None, typer.Option("--rules", metavar="FILE", help="A file with rules of your own. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """List the rules: code, severity, name and what each reports. `promptfmt explain CODE` shows more."""
    from pytest_promptfmt.rules.documentation import documentation_of
    from pytest_promptfmt.rules.rule_registry import known_rules

    known = known_rules(tuple(files or ())).values()
    if as_json:
        data = [
            {
                "code": each.code,
                "name": each.name,
                "severity": each.severity.value,
                "family": each.family.value,
                "summary": documentation_of(each).summary,
            }
            for each in known
        ]
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    for line in rule_lines(known):
        typer.echo(line)


def rule_lines(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield a line for each rule: code, severity, name, and the first sentence of its documentation."""
    from pytest_promptfmt.rules.documentation import documentation_of

    known = list(rules)
    width = max((len(rule.name) for rule in known), default=0)
    for rule in known:
        yield f"{rule.code}  {rule.severity:<7}  {rule.name:<{width}}  {documentation_of(rule).summary}"


def _as_data(profile: Any, is_default: bool) -> dict[str, Any]:
    template = None
    if profile.is_chat:
        template = profile.template_name or "inline"
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


def facts_of(profile: Profile) -> TemplateFacts | None:
    """Return the facts of a profile's chat template, its tokenizer loaded; None for a profile without one.

    Where the template is not available, its facts hold the reason.
    """
    from pytest_promptfmt.profiles.profile_loading import load_profile
    from pytest_promptfmt.profiles.template_facts import TemplateFacts
    from pytest_promptfmt.profiles.template_probes import template_facts

    if not profile.is_chat:
        return None
    try:
        return template_facts(load_profile(profile).profile)
    except PromptfmtError as error:
        return TemplateFacts(failure=error.message)


def facts_as_data(facts: TemplateFacts) -> dict[str, Any]:
    """Return the facts as JSON's types, under their own names."""
    data: dict[str, Any] = asdict(replace(facts, errors={}))  # asdict cannot copy a read-only mapping
    return {**data, "errors": dict(facts.errors)}


def fact_lines(facts: TemplateFacts) -> Iterator[str]:
    """Yield the facts as short sentences; texts are quoted as in JSON."""
    if facts.failure:
        yield f"renders nothing: {facts.failure}"
        return
    yield f"user {facts.user}, assistant {facts.assistant}, system {facts.system}, developer {facts.developer}"
    taken = {"two user messages in a row": facts.takes_two_users, "an answer first": facts.takes_assistant_first}
    refused = [what for what, is_taken in taken.items() if not is_taken]
    if refused:
        yield f"refuses {' and '.join(refused)}"
    if facts.opening:
        yield f"begins with {_quoted(facts.opening)}"
    if facts.default_system:
        yield "adds a system text where none is given"
    if facts.follows_clock or facts.dates:
        dates = ", ".join(facts.dates) or "the date"
        yield f"writes {dates}, {'which follows the clock' if facts.follows_clock else 'hard-coded'}"
    yield from _about_answers(facts)
    think = "stays in" if facts.keeps_think else "is cut out of"
    reasoning = "printed" if facts.keeps_reasoning else "left out"
    yield f"<think>…</think> {think} earlier answers, their reasoning_content is {reasoning}"
    yield f"tools {facts.tools}, arguments of calls {facts.tool_arguments}, as JSON text {facts.tool_arguments_text}"
    yield f"contents in parts {facts.parts}, contents without value {facts.none}"


def _about_answers(facts: TemplateFacts) -> Iterator[str]:
    if facts.generation_prompt is None:
        yield "changes the text before an answer when it adds the generation prompt"
    elif facts.generation_prompt:
        yield f"adds the generation prompt {_quoted(facts.generation_prompt)}"
    else:
        yield "adds no generation prompt"
    if facts.answer == "gap":
        yield f"has {_quoted(facts.answer_gap)} before a finished answer"
    elif facts.answer == "differs":
        yield "begins finished answers with other text than the generation prompt"
    if facts.answer_end:
        yield f"ends an answer with {_quoted(facts.answer_end)}"
    if not facts.keeps_prefix:
        yield "rewrites earlier turns when the conversation continues"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

"""`promptfmt explain`, `formats`, `profiles` and `schema`: rules, formats and profiles explained."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markdown import Markdown

from pytest_promptfmt.cli.options import AsJson, RuleFiles, require_path
from pytest_promptfmt.cli.output import print_json, say
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.json_values import data_of
from pytest_promptfmt.core.profile import BUILTIN_PROFILES, DEFAULT_PROFILES, Profile, builtin_profile, resolve_profiles
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.formats.apply import lay_out
from pytest_promptfmt.formats.format import DOCUMENTATION_FIELDS, Format, make_scorer
from pytest_promptfmt.formats.format_registry import FOLDER, known_formats, published_format, published_names
from pytest_promptfmt.formats.labels import label_count
from pytest_promptfmt.profiles.profile_loading import load_profile, profile_trial
from pytest_promptfmt.profiles.template_facts import TemplateFacts, template_facts
from pytest_promptfmt.results.clusters import grouped
from pytest_promptfmt.settings.file import find_settings_file, read_settings_file, settings_schema
from pytest_promptfmt.settings.profiles import defined_profiles
from pytest_promptfmt.tasks import synthetic_docs, task_schema

_CHOICES: Final = ("Berlin", "Madrid", "Paris", "London")
_GOLD: Final = 2
_DOC: Final = {"question": "What is the capital of France?", "topic": "geography"}
"""The doc that samples show: the one of lm-eval's prompt-formats proposal."""


class SchemaKind(StrEnum):
    """The files that have a schema."""

    TASK = "task"
    SETTINGS = "settings"


def explain(
    code: Annotated[
        str | None, typer.Argument(help="The code or name of a rule, such as PF201.", show_default=False)
    ] = None,
    rules: RuleFiles = None,
    as_json: AsJson = False,
) -> None:
    """Explain what a rule reports, why, and what to do.

    Without a code, list all rules.
    """
    # The other commands of this module need no rules, which take long to import.
    from pytest_promptfmt.rules.documentation import documentation_of, page
    from pytest_promptfmt.rules.rule_registry import find_rule, known_rules

    files = tuple(rules or ())
    found = [find_rule(code, files)] if code is not None else [*known_rules(files).values()]
    if as_json:
        data = [
            {"code": each.code, "name": each.name, "severity": each.severity.value, "family": each.family.value}
            | asdict(documentation_of(each))
            for each in found
        ]
        print_json(data[0] if code is not None else data)
    elif code is None:
        width = max(len(rule.name) for rule in found)
        for rule in found:
            typer.echo(f"{rule.code}  {rule.severity:<7}  {rule.name:<{width}}  {documentation_of(rule).summary}")
    else:
        _print_page(page(found[0]))


def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Show only these formats.", show_default=False)] = None,
    tasks: Annotated[
        Path, typer.Option("--tasks", metavar="FOLDER", help="A folder with your own formats in formats/*.yaml.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Show a format with a sample of its prompt, or list all formats.

    The list has built-in formats, formats from the literature, and your own.
    """
    require_path(tasks, "folder")
    known = known_formats(tasks)
    for name in names or ():
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
            raise SettingsError(f"unknown format {name!r}", hint=hint)
    shown = [known[name] for name in (dict.fromkeys(names) if names else known)]
    if as_json:
        print_json([_format_as_data(each, _kind(each, tasks)) for each in shown], indent=2)
    elif names:
        _print_page(catalogue(shown))
    else:
        width = max(map(len, known))
        for kind, members in grouped(shown, lambda each: _kind(each, tasks)).items():
            say(f"{kind}:")
            for each in members:
                say(f"  {each.name:<{width}}  {each.summary}")


def profiles(
    folder: Annotated[Path, typer.Argument(help="The folder with the promptfmt.yaml.")] = Path(),
    facts: Annotated[bool, typer.Option("--facts", help="Show what each chat template does.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the profiles (chat templates with tokenizers): built-in and your own.

    Your own profiles are in promptfmt.yaml, in this folder or the folders above it.
    """
    require_path(folder, "folder")
    defined: dict[str, Profile] = {}
    chosen: Sequence[str] | None = None
    for above in reversed([folder.resolve(), *folder.resolve().parents]):
        path = find_settings_file(above)
        if path is not None:
            file = read_settings_file(path, is_at_rootdir=True)
            defined |= defined_profiles(file, defined, rootdir=above)
            chosen = file.values.get("default_profiles", chosen)
    shown = {name: builtin_profile(name) for name in BUILTIN_PROFILES} | defined
    names = chosen if chosen is not None else ("plain", *defined) if defined else DEFAULT_PROFILES
    default = {profile.name for profile in resolve_profiles(names, defined)}
    found = {name: _facts_of(profile) if facts else None for name, profile in shown.items()}
    entries = [_profile_as_data(profile, is_default=name in default) for name, profile in shown.items()]
    if as_json:
        print_json([each | ({"facts": data_of(found[each["name"]])} if facts else {}) for each in entries])
        return
    width = max(map(len, shown))
    for entry in entries:
        template = entry["template"] and f"chat template {entry['template']}"
        given = sorted(entry["template_args"].items())
        arguments = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given]
        parts = ["by default" if entry["default"] else "", template or "text", *arguments]
        parts += [entry["tokenizer"], entry["origin"]]
        say(f"{entry['name']:<{width}}  {', '.join(part for part in parts if part)}")
        known = found[entry["name"]]
        for line in known.lines() if known is not None else ():
            say(f"    {line}")


def schema(
    kind: Annotated[
        SchemaKind, typer.Argument(help="Which schema: of task files, or of promptfmt.yaml.")
    ] = SchemaKind.TASK,
) -> None:
    """Print the JSON Schema of task files or of promptfmt.yaml.

    Editors with yaml-language-server can read it.
    """
    print_json(task_schema() if kind is SchemaKind.TASK else settings_schema())


def _print_page(text: str) -> None:
    """Print Markdown, formatted on a terminal."""
    shown = escape_controls(text)
    if sys.stdout.isatty():
        console = Console()
        console.print(Markdown(shown), width=min(console.width, 100))  # longer lines are hard to read
    else:
        typer.echo(shown, nl=False)


# -- formats -----------------------------------------------------------------------------------------------------------


def sample(format_: Format) -> str:
    """Return the prompt of a doc followed by its answer, as in a few-shot example."""
    asked = Task(name="sample", doc_to_text="question", doc_to_choice="choices", doc_to_target="answer")
    task = lay_out(asked, format_)
    count = label_count(format_.choice_labels) or len(_CHOICES)
    skipped = max(0, min(_GOLD, len(_CHOICES) - count))
    choices = _CHOICES[skipped:][:count]
    doc = {**synthetic_docs(task, count=1)[0], **_DOC, "choices": choices, "answer": _GOLD - skipped}
    docs = TaskDocs.in_memory([{**doc, "question": ""}], [doc, doc])
    prompt = next(task.render(docs, num_fewshot=1)).prompts[0]
    return "".join(
        span.text
        for span in prompt.spans
        if span.origin.part == "description" or (span.origin.shot == 0 and span.origin.part != "fewshot delimiter")
    )


def catalogue(formats: Iterable[Format]) -> str:
    """Return formats as a section of a Markdown page: what each is, a sample, and where it comes from."""
    blocks = []
    for format_ in formats:
        scorer = make_scorer(format_.scorer, format_.choice_labels)
        facts = [f"Output type `{format_.output_type}`."]
        facts += [f"The scorer `{scorer.name}` extracts {scorer.extracts}."] if scorer is not None else []
        facts += [format_.notes] if format_.notes else []
        facts += [f"Source: {format_.citation}."] if format_.citation else []
        lines = [f"### `{format_.name}`", "", format_.summary, "", "```text", sample(format_), "```", ""]
        blocks.append("\n".join([*lines, " ".join(facts)]))
    return "\n\n".join(blocks) + "\n"


def _kind(format_: Format, folder: Path) -> str:
    """Return where a format comes from, as a heading."""
    for kind, names in published_names().items():
        if format_.name in names and format_ == published_format(format_.name):
            return kind
    if (folder / FOLDER / f"{format_.name}.yaml").is_file():
        return f"from {display_path(folder / FOLDER)}"
    return "from installed packages"


def _format_as_data(format_: Format, kind: str) -> Mapping[str, Any]:
    scorer = make_scorer(format_.scorer, format_.choice_labels)
    shown = [field.name for field in fields(format_) if field.name not in ("name", *DOCUMENTATION_FIELDS)]
    return {
        "name": format_.name,
        "origin": kind,
        "summary": format_.summary,
        "sample": sample(format_),
        "output_type": format_.output_type,
        "scorer": None if scorer is None else {"name": scorer.name, "extracts": scorer.extracts},
        "notes": format_.notes,
        "citation": format_.citation,
        "fields": {name: getattr(format_, name) for name in shown},
    }


# -- profiles ----------------------------------------------------------------------------------------------------------


def _profile_as_data(profile: Profile, *, is_default: bool) -> dict[str, Any]:
    return {
        "name": profile.name,
        "tokenizer": profile.tokenizer_name or profile.tokenizer or "",
        "template": profile.template_name or "inline" if profile.is_chat else None,
        "template_args": dict(profile.template_args),
        "fewshot_as_turns": profile.fewshot_as_turns,
        "mode": profile.mode,
        "default": is_default,
        "origin": "" if profile.origin is None else str(profile.origin),
    }


def _facts_of(profile: Profile) -> TemplateFacts | None:
    """Return the facts of a profile's chat template, its tokenizer loaded; None for a profile without one.

    Where the template is not available, its facts hold the reason.
    """
    if not profile.is_chat:
        return None
    try:
        return template_facts(profile_trial(load_profile(profile).profile))
    except PromptfmtError as error:
        return TemplateFacts(failure=error.message)

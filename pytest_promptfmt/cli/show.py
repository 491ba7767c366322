"""`promptfmt show`: the prompts of a task as one sees them, with where each piece came from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, UnavailableError, did_you_mean
from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from pytest_promptfmt.core.finding import Reported
    from pytest_promptfmt.core.prompt import Instance
    from pytest_promptfmt.plugin.collected import CollectedPrompts
    from pytest_promptfmt.study import ProfileView


_SUFFIXES: Final = (".yaml", ".yml", ".json", ".py", ".jinja")
_NAMED: Final = re.compile(rb"""^(?:task|group): *["']?([\w.-]{1,200})["']? *$""", re.MULTILINE)
"""A line of YAML that names a task or group, for a hint."""


def show(
    task: Annotated[str, typer.Argument(help="A task, `task@format`, or a glob of either.", show_default=False)],
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Where to look; by default as pytest does.", show_default=False)
    ] = None,
    profile: Annotated[list[str] | None, typer.Option("--profile", metavar="NAME", help="Repeatable.")] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Lay tasks without a format out by this one.")
    ] = None,
    doc: Annotated[int | None, typer.Option("--doc", min=1, help="Only this doc, counted from 1.")] = None,
    spaces: Annotated[bool, typer.Option("--blanks/--no-blanks", help="Show every space as a dot.")] = True,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show where the tokens end.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Show the ids of the tokens too.")] = False,
    allow_code: Annotated[
        list[Path] | None, typer.Option("--allow-code", metavar="PATH", help="As --promptfmt-allow-code.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """Show the prompts of a task, each piece in the colour of its origin, with requests and findings."""
    chosen = paths or []
    files, names = _narrowed(task, chosen)
    in_root = bool(chosen) or _is_root(Path())
    if files is None and in_root:
        if as_json:
            typer.echo("[]")
        raise _unknown(task, names)
    from pytest_promptfmt.plugin.collected import Collection, with_collected  # later: an unknown name is said at once

    options = ["--promptfmt-task", task]
    for name in profile or ():
        options += ["--promptfmt-profile", name]
    if format_name is not None:
        options += ["--promptfmt-format", format_name]
    for path in allow_code or ():
        options += ["--promptfmt-allow-code", str(path)]
    if doc is not None:
        options += ["--promptfmt-docs", str(doc)]
    shown: list[dict[str, Any]] = []
    problems: list[str] = []

    def use(found: Sequence[CollectedPrompts]) -> None:
        for prompts in found:
            try:
                seen = prompts.seen
                instances = [each for each in seen.render() if doc is None or each.index + 1 == doc]
            except PromptfmtError as error:
                problems.append(f"{prompts.task.id} [{prompts.profile_id}]: {error}")
                if isinstance(error, UnavailableError) or len(found) > 1:
                    continue
                raise
            if doc is not None and not instances:
                problems.append(f"{prompts.task.id} [{prompts.profile_id}]: no doc {doc}")
                continue
            shown.append(_as_data(prompts, instances))
            if not as_json:
                _print(prompts, instances, seen if tokens or ids else None, spaces=spaces, ids=ids)
                if (tokens or ids) and seen.tokenizer is None:
                    problems.append(f"{prompts.task.id} [{prompts.profile_id}]: this profile has no tokenizer")

    collected = with_collected(use, files, options) if files is not None else Collection()
    if not collected.found and files != chosen and not in_root:
        collected = with_collected(use, chosen, options)  # the project begins above the working directory
    if as_json:
        typer.echo(json.dumps(shown, indent=1, ensure_ascii=False))
    for problem in problems:
        typer.echo(escape_controls(problem), err=True)
    if not collected.found:
        named = [error for error in collected.errors if task.partition("@")[0] in str(error)]
        for line in [str(error) for error in named] or collected.unmatched:
            typer.echo(escape_controls(line), err=True)
        if named:
            raise typer.Exit(1)
        raise _unknown(task, names)
    if not shown:
        raise typer.Exit(1)


def _unknown(task: str, names: Iterable[str]) -> SettingsError:
    hint = did_you_mean(task.partition("@")[0], names) or "give the files or folders to search, or a glob of names"
    return SettingsError(f"no task matches {task!r}", hint=hint)


def _narrowed(task: str, paths: Sequence[Path]) -> tuple[Sequence[Path] | None, set[str]]:
    """Return the files that write the task's name, None for none, so that a large tree need not be collected for it.

    With the names of tasks and groups that were met. For a glob these are the given paths.
    """
    name = task.partition("@")[0]
    if any(wildcard in task for wildcard in "*?["):
        return paths, set()
    text = name.encode()
    written = re.compile(rb"(?<![\w.-])" + re.escape(text) + rb"(?![\w-])")
    found: list[Path] = []
    names: set[str] = set()
    for file in _candidates(list(paths) or [Path()]):
        try:
            content = gate.read_bytes(file)
        except OSError:
            found.append(Path(file))  # collecting it says why it cannot be read
            continue
        if text in content and written.search(content):
            found.append(Path(file))
        names |= {each.decode() for each in _NAMED.findall(content)}
    return found or None, names


def _candidates(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the files that may define a task, in the order of their folders."""
    from pytest_promptfmt.settings.file import FILE_NAMES
    from pytest_promptfmt.snapshots.paths import DIRECTORY

    for root in paths:
        if not root.is_dir():
            yield str(root)
            continue
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(each for each in folders if each != DIRECTORY and not each.startswith((".", "__")))
            for name in sorted(names):
                if name.endswith(_SUFFIXES) and name not in FILE_NAMES:
                    yield os.path.join(folder, name)


def _is_root(folder: Path) -> bool:
    """Return whether a project begins in a folder."""
    return any((folder / name).exists() for name in (".git", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"))


def _as_data(prompts: CollectedPrompts, instances: Sequence[Instance]) -> dict[str, Any]:
    from pytest_promptfmt.cli.display import as_data

    return {
        "task": prompts.task.id,
        "profile": prompts.profile_id,
        "file": str(prompts.path),
        "output_type": prompts.task.output_type,
        "docs": [as_data(instance) for instance in instances],
        "findings": [finding.to_json() for finding in prompts.findings()],
    }


def _inert(line: Text) -> Text:
    """Return a line of a prompt; a command that a CI server would obey gets a backslash, and costs its style."""
    said = escape_controls(line.plain)
    return line if said == line.plain else type(line)(said)


def _print(
    prompts: CollectedPrompts, instances: Sequence[Instance], tokens: ProfileView | None, *, spaces: bool, ids: bool
) -> None:
    """Print the prompts; with `tokens` the tokens of what was rendered as well, where the profile has a tokenizer."""
    from rich.console import Console
    from rich.text import Text

    from pytest_promptfmt.cli.display import legend, prompt_lines, request_lines, token_lines
    from pytest_promptfmt.results.html import scored_pairs

    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{prompts.task.id} [{prompts.profile_id}]", "bold underline"))
    console.print(Text(escape_controls(str(prompts.task.position("task") or prompts.path)), "dim"))
    tokenizer = tokens.tokenizer if tokens is not None else None
    findings = prompts.findings()
    for instance in instances:
        console.print(Text(f"doc {instance.index + 1}", "bold"))
        of_doc = [finding for finding in findings if finding.doc == instance.index]
        pairs = scored_pairs(instance, tokens.pairs) if tokens is not None else {}
        requests = list(enumerate(instance.requests))
        for number, prompt in enumerate(instance.prompts):
            if len(instance.prompts) > 1:
                console.print(Text(f"prompt {number + 1} of {len(instance.prompts)}", "bold dim"))
            marked = [finding.span for finding in of_doc if finding.span is not None] if number == 0 else []
            for line in prompt_lines(prompt, spaces=spaces, marked=marked):
                console.print(_inert(line))
            if tokenizer is not None:
                for line in token_lines(tokenizer, prompt.text, ids=ids, special=not prompts.profile.is_chat):
                    console.print(_inert(line))
            for line in request_lines([each for each in requests if each[1].prompt == number], tokenizer, pairs, ids):
                console.print(_inert(line))
        for line in request_lines([each for each in requests if each[1].prompt is None], tokenizer, pairs, ids):
            console.print(_inert(line))
        _print_findings(console, of_doc)
        console.print()
    console.print(legend([prompt for instance in instances for prompt in instance.prompts]))
    shown = {instance.index for instance in instances}
    _print_findings(console, [finding for finding in findings if finding.doc not in shown])
    console.print()


def _print_findings(console: Console, findings: Sequence[Reported]) -> None:
    from rich.text import Text

    for finding in findings:
        style = {"error": "bold red", "warning": "yellow"}.get(finding.severity.value, "cyan")
        console.print(Text(escape_controls(f"{finding.where}: {finding.code} {finding.message}"), style))
        if finding.saw:
            console.print(Text(escape_controls(f"  saw: {finding.saw}"), "dim"))
        console.print(Text(escape_controls(f"  do: {finding.do}"), "dim"))

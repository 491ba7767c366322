"""`promptfmt diff`: what changed between the prompts of two git revisions, each change shown once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pytest_promptfmt.results.clusters import Cluster, FindingGroup
    from pytest_promptfmt.revisions import RevisionComparison, Unknown

COMMENT_LIMIT = 65_000
"""Bytes of Markdown: a comment on GitHub takes 65,536 characters."""

UNKNOWN = 3
"""The exit code where nothing is seen to have changed, and not everything could be seen."""

SHOWN_UNKNOWN = 12
"""Tasks of one reason that are named."""


class UnknownTasks(StrEnum):
    """What tasks do of which nobody can say whether they changed."""

    FAIL = "fail"
    WARN = "warn"


def diff(
    old: Annotated[
        str | None,
        typer.Argument(
            metavar="REV",
            help="A revision of git; by default HEAD, or where this branch left the default branch if nothing is "
            "uncommitted.",
            show_default=False,
        ),
    ] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="REV2", help="Another one; by default the work tree.", show_default=False)
    ] = None,
    paths: Annotated[
        list[str] | None, typer.Option("--path", metavar="PATH", help="Only tasks below this path. Repeatable.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", metavar="GLOB", help="Like --promptfmt-task.")] = None,
    profile: Annotated[list[str] | None, typer.Option("--profile", metavar="NAME", help="Repeatable.")] = None,
    findings: Annotated[bool, typer.Option("--findings", help="Report new findings too.")] = False,
    versions: Annotated[
        bool, typer.Option("--versions", help="Exit with 1 only where a change needs a new version.")
    ] = False,
    bump: Annotated[bool, typer.Option("--bump", help="Raise those versions in the work tree; as --versions.")] = False,
    no_code: Annotated[bool, typer.Option("--no-code", help="As --promptfmt-no-code, and no conftest.py.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes, with pytest-xdist.")] = 1,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown for a pull request; - prints it.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=2_000, help="Bytes of Markdown at most.")] = COMMENT_LIMIT,
    unknown: Annotated[
        UnknownTasks, typer.Option("--unknown", help="What tasks that may have changed do to the exit code.")
    ] = UnknownTasks.FAIL,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Print an HTML page instead of text.")] = False,
    in_browser: Annotated[bool, typer.Option("--open", help="Show that page in the browser instead.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show whole diffs and all tasks.")] = False,
) -> None:
    """Show which prompts changed between two revisions.

    Exit code: 0 none, 1 some, 2 the comparison failed, 3 none that this comparison could see, but some are unknown.

    Both revisions are rendered in separate folders; the work tree is not touched, except by --bump. Without REV2, REV
    is compared with the work tree as it is.
    """
    from pytest_promptfmt.cli.display import waiting
    from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
    from pytest_promptfmt.revisions import compare_revisions
    from pytest_promptfmt.revisions.git import WORK_TREE
    from pytest_promptfmt.revisions.task_changes import short_name

    prints_data = as_json or html or str(markdown) == "-"
    if as_json + html + (str(markdown) == "-") > 1:
        raise SettingsError("--json, --html and --markdown - all print: choose one")

    if markdown is not None and str(markdown) != "-" and not markdown.parent.is_dir():
        raise SettingsError(f"no such folder for --markdown {markdown}")  # before the work is done
    if bump and new is not None:
        raise SettingsError("--bump edits the work tree", hint="leave REV2 out")
    options = []
    for name in profile or ():
        options += ["--promptfmt-profile", name]
    if no_code:
        options += ["--promptfmt-no-code", "--noconftest"]
    if jobs > 1:
        options += ["-n", str(jobs)]
    try:
        if old is None:
            old, why = _default_base()
            typer.echo(f"comparing the work tree with {short_name(old)}: {why}", err=prints_data)
        with waiting(f"rendering {short_name(old)} and {short_name(new or WORK_TREE)}"):
            compared = compare_revisions(
                old, new, paths=paths or [], tasks=task or [], options=options, findings=findings
            )
    except PromptfmtError as error:
        raise SettingsError(error.message, position=error.position, hint=error.hint) from error  # exit code 2
    if as_json:
        unknown_tasks = [each.to_json() for each in compared.unknown]
        data = {**compared.result, "unknown": unknown_tasks, "same": dict(compared.same)}
        data["unaffected_files"] = compared.unaffected
        data["versions"] = [finding.to_json() for finding in compared.versions]
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
    elif html or in_browser:
        page = _page(compared)
        if in_browser:
            from pytest_promptfmt.cli.diff_page import open_in_browser

            typer.echo(open_in_browser(page))
        else:
            typer.echo(page, nl=False)
    elif markdown is not None and str(markdown) == "-":
        typer.echo(_markdown(compared, limit))
    else:
        _print(compared, verbose=verbose)
    if markdown is not None and str(markdown) != "-":
        try:
            markdown.write_bytes(_markdown(compared, limit).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise SettingsError(f"--markdown {markdown} cannot be written: {error.strerror or error}") from error
    if bump:
        from pytest_promptfmt.cli.version_lines import raise_versions

        is_wrong = not raise_versions(compared.versions)
    elif versions:
        is_wrong = any(finding.is_error for finding in compared.versions)
    else:
        changes = [each for each in compared.result["clusters"] if each["category"] != "header-only"]
        is_wrong = bool(changes or _errors(compared))
    is_unknown = bool(compared.unknown)
    if bump or versions:
        is_unknown = any(finding.kind == "unsure" for finding in compared.versions)
    if is_wrong:
        raise typer.Exit(1)
    if is_unknown and unknown is UnknownTasks.FAIL:
        raise typer.Exit(UNKNOWN)


def _default_base() -> tuple[str, str]:
    from pytest_promptfmt.revisions.git import Repository

    return Repository.around(Path.cwd()).default_base()


def _page(compared: RevisionComparison) -> str:
    from pytest_promptfmt.cli.diff_page import diff_page
    from pytest_promptfmt.cli.version_lines import version_lines
    from pytest_promptfmt.results.wording import counted, listed
    from pytest_promptfmt.revisions.task_changes import short_name

    notes = [_headline(compared)]
    for (reason, step), tasks in _by_reason(compared).items():
        names = _names(tasks)
        shown = listed(names, SHOWN_UNKNOWN)
        notes.append(f"unknown, {counted(len(names), 'task')} ({shown}): {reason}; to see it: {step}")
    notes += map(str, version_lines(compared.versions, verbose=False))
    old, new = short_name(compared.old), short_name(compared.new)
    return diff_page(_clusters(compared), _findings(compared), old=old, new=new, notes=notes)


def _clusters(compared: RevisionComparison) -> list[Cluster]:
    from pytest_promptfmt.results.clusters import Cluster

    return [Cluster.from_json(cluster) for cluster in compared.result["clusters"]]


def _findings(compared: RevisionComparison) -> list[FindingGroup]:
    from pytest_promptfmt.results.clusters import FindingGroup

    return [FindingGroup.from_json(group) for group in compared.result["findings"]]


def _errors(compared: RevisionComparison) -> list[FindingGroup]:
    return [group for group in _findings(compared) if group.severity == "error"]


def _by_reason(compared: RevisionComparison) -> dict[tuple[str, str], list[Unknown]]:
    """Return the unknown tasks by reason, the most frequent first, each with the step for its first task."""
    found: dict[str, list[Unknown]] = {}
    for each in compared.unknown:
        found.setdefault(each.reason, []).append(each)
    return {(reason, tasks[0].step): tasks for reason, tasks in sorted(found.items(), key=lambda pair: -len(pair[1]))}


def _names(tasks: Sequence[Unknown]) -> list[str]:
    return [*dict.fromkeys(each.task for each in tasks)]


def _headline(compared: RevisionComparison) -> str:
    from pytest_promptfmt.core.outcome import CATEGORIES
    from pytest_promptfmt.results.wording import counted
    from pytest_promptfmt.revisions.task_changes import short_name

    counts = compared.result["counts"]
    changes = [f"{counts[name]:,} {name}" for name in CATEGORIES if counts.get(name)]
    changes += (
        [counted(len(_errors(compared)), "new kind of finding", "new kinds of findings")] if _errors(compared) else []
    )
    unknown = len(_names(compared.unknown))
    changes += [f"{counted(unknown, 'task')} unknown"] if unknown else []
    same = counted(counts.get("passed", 0), "prompt")
    skipped = counts.get("skipped", 0) + counts.get("accepted", 0)
    unseen = f", {counted(skipped, 'prompt')} not rendered" if skipped else ""
    untouched = f", {counted(compared.unaffected, 'task file')} unchanged" if compared.unaffected else ""
    names = f"{short_name(compared.old)} → {short_name(compared.new)}"
    return f"{names}: {', '.join(changes) or 'nothing changed'}; {same} the same{unseen}{untouched}"


def _print(compared: RevisionComparison, *, verbose: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from pytest_promptfmt.cli.display import cluster_lines
    from pytest_promptfmt.cli.version_lines import version_lines
    from pytest_promptfmt.core.text import escape_controls
    from pytest_promptfmt.results.wording import counted, listed

    console = Console(soft_wrap=True, highlight=False)
    for cluster in _clusters(compared):
        for line in cluster_lines(cluster, verbose=verbose):
            console.print(line)
    for group in _findings(compared):
        style = "bold red" if group.severity == "error" else "yellow"
        console.print(Text(escape_controls(f"{group.where}: {group.code} {group.message} ({group.count:,})"), style))
    for (reason, step), tasks in _by_reason(compared).items():
        names = _names(tasks)
        text = f"unknown, {counted(len(names), 'task')}: {listed(names, None if verbose else SHOWN_UNKNOWN)}"
        console.print(Text(escape_controls(text), "bold yellow"))
        console.print(Text(escape_controls(f"  why: {reason}\n  do: {step}")))
    if compared.same:
        text = f"written differently, the same text: {listed([*compared.same], None if verbose else SHOWN_UNKNOWN)}"
        console.print(Text(escape_controls(text), "dim"))
    for name, note in compared.same.items() if verbose else ():
        console.print(Text(escape_controls(f"  {name}: {note}"), "dim"))
    for version_line in version_lines(compared.versions, verbose=verbose):
        console.print(version_line)
    for skipped in compared.result["skipped"]:
        text = f"not rendered, {counted(len(skipped['tasks']), 'prompt')}: {skipped['reason']}"
        console.print(Text(escape_controls(text), "dim"))
    console.print(Text(escape_controls(_headline(compared)), "bold"))


def _markdown(compared: RevisionComparison, limit: int) -> str:
    from pytest_promptfmt.cli.version_lines import version_block
    from pytest_promptfmt.results.markdown import bounded, cluster_blocks, code, finding_table
    from pytest_promptfmt.results.wording import counted

    old, _, rest = _headline(compared).partition(" → ")
    new, _, summary = rest.partition(": ")
    head = f"## Prompts\n\n{code(old)} → {code(new)}: {summary}\n"
    blocks = cluster_blocks(_clusters(compared), "prompt")
    for (reason, step), tasks in _by_reason(compared).items():
        names = _names(tasks)
        listed_names = ", ".join(code(task) for task in names[:30])
        title = f"### unknown: {counted(len(names), 'task')}"
        blocks.append(f"{title}\n\n{code(reason)}\n\nTo see it: {code(step)}\n\nIn {listed_names}\n")
    blocks += version_block(compared.versions)
    return bounded(head, [*blocks, *finding_table(_findings(compared))], limit)

"""`promptfmt check`: the tests of `pytest --promptfmt` as a linter: only findings are printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from pytest_promptfmt.cli.options import (
    AllowCode,
    NoCode,
    Paths,
    Profiles,
    Select,
    Tasks,
    Verbose,
    pytest_options,
    require_path,
)
from pytest_promptfmt.cli.output import note, print_json, say
from pytest_promptfmt.cli.version_lines import version_lines
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.plugin.collected import CheckSummary, check as checked_by_pytest
from pytest_promptfmt.results.lint_formats import (
    concise_lines,
    github_annotation,
    github_annotations,
    sarif_report,
    sarif_result,
)
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.terminal import SHOWN_CAUSES, finding_lines, sections, statistics_lines
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.results.writers import json_report
from pytest_promptfmt.revisions.versions import VersionFinding

_PASSED_OVER: Final = (".git", ".pytest_cache", "__pycache__")


class OutputFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def check(
    paths: Paths = None,
    output_format: Annotated[
        OutputFormat,
        typer.Option("--output-format", help="Full text, a line per finding, JSON, GitHub annotations or SARIF."),
    ] = OutputFormat.TEXT,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="REV",
            help="Also report tasks that changed since the git revision REV, but have no new version.",
        ),
    ] = None,
    statistics: Annotated[bool, typer.Option("--statistics", help="Count the findings of each rule.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="First apply the fixes of `promptfmt fix --write`.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Check again whenever a file changes.")] = False,
    task: Tasks = None,
    profile: Profiles = None,
    select: Select = None,
    allow_code: AllowCode = None,
    no_code: NoCode = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Also test unchanged files, and do not use the cache.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Report mistakes in tasks and chat templates, and changed prompts.

    It runs the same tests as `pytest --promptfmt`, but tasks need no snapshots. Unchanged files are not tested again.
    Exit code: 0 no errors, 1 errors or changed prompts, 2 usage error. With --base, also 3: no errors, but for some
    tasks it is unknown whether they changed.
    """
    if watch:
        _watch(paths or [])
    if fix:
        if output_format is not OutputFormat.TEXT:
            raise SettingsError("--fix works only with --output-format text", hint="run `promptfmt fix --write` first")
        from pytest_promptfmt.cli.fix import fix_files

        fix_files(paths or [], pytest_options(select=select, allow_code=allow_code, no_code=no_code), write=True)
    accepting = pytest_options(tasks=task, profiles=profile, select=select, allow_code=allow_code, no_code=no_code)
    options = [*accepting, *(["--promptfmt-no-cache"] if no_cache else [])]
    checked = checked_by_pytest(paths or [], options)
    if not checked.files and not paths and checked.template_folders:
        paths = [Path(os.path.relpath(folder)) for folder in sorted(checked.template_folders)]
        note(f"there are no task files; checking the chat templates in {', '.join(map(str, paths))}")
        checked = checked_by_pytest(paths, options)
    if checked.result.unmatched and not checked.files:
        raise SettingsError(checked.result.unmatched[0])
    versions = None
    if base is not None:
        from pytest_promptfmt.cli.diff import compared

        general = pytest_options(profiles=profile, no_code=no_code)
        versions = compared(base, None, [*map(str, paths or ())], task or [], general, findings=False).versions
    status = 3 if any(finding.kind == "unsure" for finding in versions or ()) else 0
    if not checked.is_good or any(finding.is_error for finding in versions or ()):
        status = 1
    # The command that accepts changes is one of pytest.
    arguments = ("--promptfmt", *accepting, *map(str, paths or ()))
    result = replace(checked.result, arguments=arguments, exit_status=status)
    if statistics:
        for counted in statistics_lines(result.findings):
            typer.echo(counted)
    else:
        _print(result, versions, output_format, verbose=verbose)
    for line in (*checked.notes, _ending(checked)):
        note(line)
    raise typer.Exit(status)


def _print(
    result: RunResult, versions: Sequence[VersionFinding] | None, output_format: OutputFormat, *, verbose: bool
) -> None:
    """Print the result; `versions` is None where no revision is compared."""
    if output_format is OutputFormat.JSON:
        found = {"versions": [finding.to_json() for finding in versions]} if versions is not None else {}
        print_json(json.loads(json_report(result)) | found)
    elif output_format is OutputFormat.SARIF:
        more = [
            sarif_result("version", level, text, [(file, line, None)], [file, *tasks])
            for level, file, line, text, tasks in _versions(versions or ())
            if level == "error"
        ]
        typer.echo(sarif_report(result, more), nl=False)
    elif output_format is OutputFormat.CONCISE:
        for placed in concise_lines(result):
            say(placed)
        for level, file, line, text, _ in _versions(versions or ()):
            say(f"{file}:{line}:1: {level}: version: {text}")
    elif output_format is OutputFormat.GITHUB:
        for annotation in github_annotations(result):
            typer.echo(annotation)
        for level, file, line, text, _ in _versions(versions or ()):
            if level == "error":
                place = {"file": file, "line": str(line)}
                typer.echo(github_annotation("error", place, "a task changed without a new version", text))
    else:
        for shown in (*_text(result, verbose=verbose), *version_lines(versions or (), verbose=verbose)):
            say(shown)


def _text(result: RunResult, *, verbose: bool) -> Iterator[str]:
    """Yield the findings, then each distinct problem of snapshots and answers in full, and a summary of those."""
    yield from finding_lines(result.findings, is_verbose=verbose, result=result)
    detailed = [cluster for cluster in result.unexplained if cluster.detail][: None if verbose else SHOWN_CAUSES]
    for number, cluster in enumerate(detailed):
        yield from ([""] if number or result.findings else [])
        yield from cluster.detail.splitlines()
    repeated = {cluster.line for cluster in detailed if len(cluster.members) == 1 and cluster.title in cluster.detail}
    lines = [line for _, shown in sections(result, verbosity=int(verbose)) for line in shown if line not in repeated]
    yield from ([""] if lines and (detailed or result.findings) else [])
    yield from lines


def _versions(findings: Sequence[VersionFinding]) -> Iterator[tuple[str, str, int, str, Sequence[str]]]:
    """Yield level, file, line and text of each finding about versions, with its tasks."""
    for finding, text in zip(findings, version_lines(findings, verbose=True), strict=True):
        level, place = "error" if finding.is_error else "warning" if finding.kind == "unsure" else "info", finding.place
        file, line = (place.path.as_posix(), place.line) if place is not None else (".", None)
        yield level, file, line or 1, str(text).removeprefix(f"{place}: "), finding.tasks


def _ending(checked: CheckSummary) -> str:
    counts = checked.result.counts
    parts = [f"{counted(checked.files, 'file')} checked"]
    if checked.result.not_run:
        parts.append(f"{counted(len(checked.result.not_run), 'test')} did not run")
    if checked.unchanged:
        parts.append(f"{checked.unchanged:,} unchanged and not tested again")
    if counts.get("skipped"):
        parts.append(f"{counted(counts['skipped'], 'test')} skipped")
    if checked.without_snapshots:
        parts.append(f"{checked.without_snapshots:,} without snapshots; to write snapshots: `promptfmt accept`")
    is_partly_seen = counts.get("skipped") or any(group.severity != "info" for group in checked.result.findings)
    well = "nothing to check" if not checked.files else "no errors" if is_partly_seen else "all is well"
    problems = "the run ended early" if checked.result.not_run else "found problems"
    return f"{well if checked.is_good else problems} ({', '.join(parts)})"


def _watch(paths: list[Path]) -> None:
    """Run this command without `--watch` now and after each change of a file, until Ctrl-C."""
    try:
        from watchfiles import DefaultFilter, watch
    except ImportError:
        hint = "pip install 'pytest-promptfmt[watch]'"
        raise SettingsError("--watch needs the package watchfiles", hint=hint) from None
    places = [*paths] or [Path()]
    for path in places:
        require_path(path)
    # -P: only this command's own start, `python -m`, would import modules of the working directory.
    command = [sys.executable, "-P", "-m", "pytest_promptfmt", *(each for each in sys.argv[1:] if each != "--watch")]
    try:
        subprocess.run(command, check=False)
        for _ in watch(*places, watch_filter=DefaultFilter(ignore_dirs=_PASSED_OVER), raise_interrupt=True):
            typer.echo("", err=True)
            subprocess.run(command, check=False)
    except KeyboardInterrupt:
        raise typer.Exit from None

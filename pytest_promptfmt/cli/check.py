"""`promptfmt check`: the tests of `pytest --promptfmt` with the manners of a linter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pytest_promptfmt.cli.version_lines import version_lines
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, display_path
from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collected import CheckSummary
    from pytest_promptfmt.results.run_result import RunResult
    from pytest_promptfmt.revisions.versions import VersionFinding

_SHOWN_DETAILS: Final = 10
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "notice"}
_PASSED_OVER: Final = (".git", ".pytest_cache", "__pycache__")


class OutputFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders; by default as pytest does.", show_default=False)
    ] = None,
    output_format: Annotated[
        OutputFormat, typer.Option("--output-format", help="As text, JSON, annotations of GitHub, or SARIF.")
    ] = OutputFormat.TEXT,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REV", help="Also tell prompts that changed since REV without a new version."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Before, do what `promptfmt fix --write` does.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Check again whenever a file changes.")] = False,
    task: Annotated[list[str] | None, typer.Option("--task", metavar="GLOB", help="As --promptfmt-task.")] = None,
    profile: Annotated[list[str] | None, typer.Option("--profile", metavar="NAME", help="Repeatable.")] = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="CODES", help="As --promptfmt-select. Repeatable.")
    ] = None,
    allow_code: Annotated[
        list[Path] | None, typer.Option("--allow-code", metavar="PATH", help="As --promptfmt-allow-code.")
    ] = None,
    no_code: Annotated[bool, typer.Option("--no-code", help="As --promptfmt-no-code, and no conftest.py.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="As --promptfmt-no-cache.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all of everything.")] = False,
) -> None:
    """Compare prompts with their snapshots, apply the rules and try how answers are read, as `pytest --promptfmt` does.

    Files of which nothing has changed since an earlier run are not tested again. Exit code: 0 all is well, 1 something
    was found, 2 the command was used wrongly, 3 with --base: nothing was found, but some versions are unknown.
    """
    if watch:
        _watch(paths or [])
    if fix:
        if output_format is not OutputFormat.TEXT:
            raise SettingsError("--fix prints differences, so that it goes with --output-format text alone")
        from pytest_promptfmt.cli.fix import fix_files

        fix_files(paths or [], write=True, select=select or (), allow_code=allow_code or ())
    from pytest_promptfmt.plugin.collected import check as checked_by_pytest

    options = [f"--promptfmt-task={name}" for name in task or ()]
    options += [f"--promptfmt-profile={name}" for name in profile or ()]
    options += [f"--promptfmt-select={codes}" for codes in select or ()]
    options += [f"--promptfmt-allow-code={path}" for path in allow_code or ()]
    options += ["--promptfmt-no-code", "--noconftest"] if no_code else []
    options += ["--promptfmt-no-cache"] if no_cache else []
    checked = checked_by_pytest(paths or [], options)
    # What accepts it is a command of pytest.
    arguments = ("--promptfmt", *(each for each in options if each != "--promptfmt-no-cache"), *map(str, paths or ()))
    result = replace(checked.result, arguments=arguments)
    versions = _versions(base, paths or [], task or [], profile or [], no_code=no_code) if base is not None else []
    if output_format is OutputFormat.JSON:
        from pytest_promptfmt.results.writers import json_report

        data = json.loads(json_report(result))
        data |= {"versions": [finding.to_json() for finding in versions]} if base is not None else {}
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
    elif output_format is OutputFormat.SARIF:
        from pytest_promptfmt.results.sarif import sarif_report

        typer.echo(sarif_report(result, [*_sarif_of_versions(versions)]), nl=False)
    else:
        if output_format is OutputFormat.GITHUB:
            lines = [*_annotations(result), *_annotations_of_versions(versions)]
        else:
            lines = [*_text(result, verbose=verbose), *(str(line) for line in version_lines(versions, verbose=verbose))]
        for line in lines:
            typer.echo(line if output_format is OutputFormat.GITHUB else escape_controls(line))
    for note in checked.notes:
        typer.echo(escape_controls(note), err=True)
    typer.echo(_ending(checked), err=True)
    if not checked.is_good or any(finding.is_error for finding in versions):
        raise typer.Exit(1)
    if any(finding.kind == "unsure" for finding in versions):
        raise typer.Exit(3)


def _versions(
    base: str, paths: Sequence[Path], tasks: Sequence[str], profiles: Sequence[str], *, no_code: bool
) -> Sequence[VersionFinding]:
    """Return what a comparison with a revision says of versions."""
    from pytest_promptfmt.revisions import compare_revisions

    options = [f"--promptfmt-profile={name}" for name in profiles]
    options += ["--promptfmt-no-code", "--noconftest"] if no_code else []
    try:
        compared = compare_revisions(base, None, paths=[*map(str, paths)], tasks=tasks, options=options, findings=False)
    except PromptfmtError as error:
        raise SettingsError(error.message, position=error.position, hint=error.hint) from error
    return compared.versions


def _text(result: RunResult, *, verbose: bool) -> Iterator[str]:
    """Yield each distinct problem of snapshots and answers in full, then the same summary as pytest's."""
    from pytest_promptfmt.results.terminal import sections

    told = [cluster.detail for cluster in result.clusters if cluster.detail]
    for detail in told if verbose else told[:_SHOWN_DETAILS]:
        yield from (*detail.splitlines(), "")
    for _, lines in sections(result, verbosity=int(verbose)):
        yield from lines


def _annotations(result: RunResult) -> Iterator[str]:
    """Yield commands of GitHub's runner: each place of a finding, and the first snapshot of each distinct change."""
    from pytest_promptfmt.results.wording import below, counted

    for group in result.findings:
        for place in group.places:
            at = {"file": below(place.file, result.rootdir)} if place.file else {}
            at |= {"line": str(place.line)} if place.line else {}
            at |= {"col": str(place.column)} if place.line and place.column else {}
            yield _command(
                _LEVELS[group.severity.value], at, f"{group.code} {group.name}", f"{group.message}: {group.do}"
            )
    for cluster in result.clusters:
        level = "notice" if cluster.category == "header-only" else "error"
        at = {"file": below(cluster.members[0].file, result.rootdir)}
        size = f"{counted(len(cluster.members), 'item')} of {counted(len(cluster.tasks), 'task')}"
        yield _command(level, at, f"{cluster.category}, {size}", cluster.title)


def _annotations_of_versions(findings: Sequence[VersionFinding]) -> Iterator[str]:
    for finding, line in _forgotten(findings):
        place = finding.place
        at = {"file": place.path.as_posix(), "line": str(place.line)} if place is not None else {}
        yield _command("error", at, "a change without a new version", line)


def _sarif_of_versions(findings: Sequence[VersionFinding]) -> Iterator[dict[str, Any]]:
    from pytest_promptfmt.results.sarif import sarif_result

    for finding, line in _forgotten(findings):
        place = finding.place
        at = [(place.path.as_posix(), place.line, None)] if place is not None else []
        yield sarif_result("version", "error", line, at, [*(file for file, _, _ in at), *finding.tasks])


def _forgotten(findings: Sequence[VersionFinding]) -> Iterator[tuple[VersionFinding, str]]:
    """Yield the versions that were not raised, each with the line about it."""
    for finding in findings:
        if finding.is_error:
            (line,) = version_lines([finding], verbose=True)
            yield finding, str(line)


def _command(level: str, place: dict[str, str], title: str, message: str) -> str:
    """Return one command; nothing of a name or message can end it or begin another."""
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
    return f"::{level} {named}::{_data(message)}"


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _ending(checked: CheckSummary) -> str:
    from pytest_promptfmt.results.wording import counted

    counts = checked.result.counts
    parts = [counted(checked.files, "task file")]
    if checked.unchanged:
        parts.append(f"{checked.unchanged:,} unchanged since the last run")
    if counts.get("skipped"):
        parts.append(f"{counted(counts['skipped'], 'item')} skipped")
    well = "no errors" if any(group.severity != "info" for group in checked.result.findings) else "all is well"
    return f"{well if checked.is_good else 'something is wrong'}: {', '.join(parts)}"


def _watch(paths: list[Path]) -> None:
    """Run this command without `--watch` now and after each change of a file, until Ctrl-C."""
    try:
        from watchfiles import DefaultFilter, watch
    except ImportError:
        hint = "pip install 'pytest-promptfmt[watch]'"
        raise SettingsError("--watch needs the package watchfiles", hint=hint) from None
    places = [*paths] or [Path()]
    for path in places:
        if not path.exists():
            raise SettingsError(f"no such file or folder: {display_path(path)}")
    command = [sys.executable, "-m", "pytest_promptfmt", *(each for each in sys.argv[1:] if each != "--watch")]
    try:
        subprocess.run(command, check=False)
        for _ in watch(*places, watch_filter=DefaultFilter(ignore_dirs=_PASSED_OVER), raise_interrupt=True):
            typer.echo("", err=True)
            subprocess.run(command, check=False)
    except KeyboardInterrupt:
        raise typer.Exit from None

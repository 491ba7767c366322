"""`promptfmt check`: the tests of `pytest --promptfmt` as a linter: only findings are printed."""

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

from pytest_promptfmt.cli.options import AllowCode, NoCode, Paths, Profiles, Select, Tasks, Verbose, pytest_options
from pytest_promptfmt.cli.output import note, print_json, say
from pytest_promptfmt.cli.version_lines import version_lines
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, display_path

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collected import CheckSummary
    from pytest_promptfmt.results.run_result import RunResult
    from pytest_promptfmt.revisions.versions import VersionFinding

_SHOWN_DETAILS: Final = 10
_PASSED_OVER: Final = (".git", ".pytest_cache", "__pycache__")


class OutputFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def check(
    paths: Paths = None,
    output_format: Annotated[
        OutputFormat, typer.Option("--output-format", help="As text, JSON, annotations of GitHub, or SARIF.")
    ] = OutputFormat.TEXT,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REV", help="Also report prompts that changed since REV without a new version."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="First do what `promptfmt fix --write` does.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Check again whenever a file changes.")] = False,
    task: Tasks = None,
    profile: Profiles = None,
    select: Select = None,
    allow_code: AllowCode = None,
    no_code: NoCode = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Test all files, as `--promptfmt-no-cache`.")] = False,
    verbose: Verbose = False,
) -> None:
    """Compare prompts with their snapshots, apply the rules and try how answers are read, as `pytest --promptfmt` does.

    Files that are unchanged since an earlier run are not tested again. Exit code: 0 all is well, 1 something was found,
    2 the command was used wrongly, 3 with --base: nothing was found, but some versions are unknown.
    """
    if watch:
        _watch(paths or [])
    if fix:
        if output_format is not OutputFormat.TEXT:
            raise SettingsError("--fix requires --output-format text")
        from pytest_promptfmt.cli.fix import fix_files

        fix_files(paths or [], write=True, select=select or (), allow_code=allow_code or ())
    from pytest_promptfmt.plugin.collected import check as checked_by_pytest

    options = pytest_options(tasks=task, profiles=profile, select=select, allow_code=allow_code, no_code=no_code)
    checked = checked_by_pytest(paths or [], [*options, *(["--promptfmt-no-cache"] if no_cache else [])])
    # The command that accepts changes is one of pytest.
    result = replace(checked.result, arguments=("--promptfmt", *options, *map(str, paths or ())))
    versions = _versions(base, paths or [], task or [], profile or [], no_code=no_code) if base is not None else None
    _print(result, versions, output_format, verbose=verbose)
    for line in checked.notes:
        note(line)
    note(_ending(checked))
    if not checked.is_good or any(finding.is_error for finding in versions or ()):
        raise typer.Exit(1)
    if any(finding.kind == "unsure" for finding in versions or ()):
        raise typer.Exit(3)


def _print(
    result: RunResult, versions: Sequence[VersionFinding] | None, output_format: OutputFormat, *, verbose: bool
) -> None:
    """Print the result; `versions` is None where no revision is compared."""
    if output_format is OutputFormat.JSON:
        from pytest_promptfmt.results.writers import json_report

        more = {"versions": [finding.to_json() for finding in versions]} if versions is not None else {}
        print_json(json.loads(json_report(result)) | more)
    elif output_format is OutputFormat.SARIF:
        from pytest_promptfmt.results.sarif import sarif_report

        typer.echo(sarif_report(result, [*_sarif_of_versions(versions or ())]), nl=False)
    elif output_format is OutputFormat.GITHUB:
        from pytest_promptfmt.results.sarif import github_annotations

        for annotation in (*github_annotations(result), *_annotations_of_versions(versions or ())):
            typer.echo(annotation)
    else:
        for line in (*_text(result, verbose=verbose), *version_lines(versions or (), verbose=verbose)):
            say(line)


def _versions(
    base: str, paths: Sequence[Path], tasks: Sequence[str], profiles: Sequence[str], *, no_code: bool
) -> Sequence[VersionFinding]:
    """Return the versions that a comparison with a revision finds missing, raised or unknown."""
    from pytest_promptfmt.revisions import compare_revisions

    options = pytest_options(profiles=profiles, no_code=no_code)
    try:
        compared = compare_revisions(base, None, paths=[*map(str, paths)], tasks=tasks, options=options, findings=False)
    except PromptfmtError as error:
        raise SettingsError(error.message, position=error.position, hint=error.hint) from error
    return compared.versions


def _text(result: RunResult, *, verbose: bool) -> Iterator[str]:
    """Yield each distinct problem of snapshots and answers in full, then the same summary as pytest's."""
    from pytest_promptfmt.results.terminal import sections

    details = [cluster.detail for cluster in result.clusters if cluster.detail]
    for detail in details if verbose else details[:_SHOWN_DETAILS]:
        yield from (*detail.splitlines(), "")
    for _, lines in sections(result, verbosity=int(verbose)):
        yield from lines


def _annotations_of_versions(findings: Sequence[VersionFinding]) -> Iterator[str]:
    from pytest_promptfmt.results.sarif import github_annotation

    for finding, line in _forgotten(findings):
        place = finding.place
        at = {"file": place.path.as_posix(), "line": str(place.line)} if place is not None else {}
        yield github_annotation("error", at, "a change without a new version", line)


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


def _ending(checked: CheckSummary) -> str:
    from pytest_promptfmt.results.wording import counted

    counts = checked.result.counts
    parts = [counted(checked.files, "task file")]
    if checked.unchanged:
        parts.append(f"{checked.unchanged:,} unchanged since the last run")
    if counts.get("skipped"):
        parts.append(f"{counted(counts['skipped'], 'item')} skipped")
    well = "no errors" if any(group.severity != "info" for group in checked.result.findings) else "all is well"
    return f"{well if checked.is_good else 'found problems'}: {', '.join(parts)}"


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

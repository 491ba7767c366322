"""`promptfmt diff`: what changed between the prompts of two git revisions, each change shown once."""

from __future__ import annotations

import shlex
import tempfile
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from pytest_promptfmt.cli.display import cluster_lines, waiting
from pytest_promptfmt.cli.options import AsJson, NoCode, Profiles, Tasks, Verbose, pytest_options, repeatable
from pytest_promptfmt.cli.output import print_json, print_lines, styled, write_file
from pytest_promptfmt.cli.version_lines import raise_versions, version_block, version_lines
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError, display_path, raising
from pytest_promptfmt.core.json_values import value_of
from pytest_promptfmt.core.outcome import CATEGORIES
from pytest_promptfmt.results.clusters import Cluster, FindingGroup, grouped
from pytest_promptfmt.results.html import html_comparison
from pytest_promptfmt.results.markdown import bounded, cluster_blocks, code, finding_table
from pytest_promptfmt.results.terminal import finding_lines
from pytest_promptfmt.results.wording import NAMES, counted, listed
from pytest_promptfmt.revisions import RevisionComparison, Unknown, compare_revisions
from pytest_promptfmt.revisions.git import WORK_TREE, Repository
from pytest_promptfmt.revisions.task_changes import short_name

COMMENT_LIMIT = 65_000
"""Bytes of Markdown: a comment on GitHub takes 65,536 characters."""

MOST_DIGESTS = 100
"""Changes and findings that a comment remembers for the next push."""

UNKNOWN = 3
"""The exit code where no change was found, and some tasks are unknown."""


class UnknownTasks(StrEnum):
    """The effect on the exit code of tasks that may have changed."""

    FAIL = "fail"
    WARN = "warn"


def diff(
    old: Annotated[
        str | None,
        typer.Argument(
            metavar="REV",
            help="A git revision. Default: HEAD if files are uncommitted, else the commit where the branch began.",
            show_default=False,
        ),
    ] = None,
    new: Annotated[
        str | None,
        typer.Argument(metavar="REV2", help="A second revision. Default: the work tree.", show_default=False),
    ] = None,
    paths: Annotated[list[str] | None, repeatable("--path", "PATH", "Only tasks below this path.")] = None,
    task: Tasks = None,
    profile: Profiles = None,
    findings: Annotated[bool, typer.Option("--findings", help="Also report new findings.")] = False,
    versions: Annotated[bool, typer.Option("--versions", help="Fail only if a task needs a new version.")] = False,
    bump: Annotated[bool, typer.Option("--bump", help="Raise the versions of changed tasks in the work tree.")] = False,
    harness: Annotated[
        str | None,
        typer.Option("--harness", metavar="OLD..NEW", help="Compare two releases of lm-eval, as in 0.4.9..0.4.13."),
    ] = None,
    lm_eval: Annotated[
        list[Path] | None,
        repeatable(
            "--lm-eval",
            "FOLDER",
            "With --harness: the folder of a checkout or environment with one of the releases, to compare scores.",
        ),
    ] = None,
    no_code: NoCode = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Number of worker processes. Default: one for each core.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write Markdown for a pull request. Use - to print it."),
    ] = None,
    unknown: Annotated[
        UnknownTasks,
        typer.Option("--unknown", help="If it is unknown whether a task changed: fail (exit code 3), or only warn."),
    ] = UnknownTasks.FAIL,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page. Use - to print it.")
    ] = None,
    as_json: AsJson = False,
    in_browser: Annotated[bool, typer.Option("--open", help="Write an HTML page, and open it in the browser.")] = False,
    verbose: Verbose = False,
) -> None:
    """Show which prompts changed between two revisions.

    Exit code: 0 no changes, 1 changes, 2 error, 3 no changes, but some tasks may have changed.

    Both revisions are rendered in separate folders. Only --bump changes the work tree. Without REV2, REV is compared
    with the work tree. With --harness, the work tree is rendered twice: as two releases of lm-eval would render it.
    """
    if harness is not None:
        if any((old, new, bump, versions, findings, markdown, html, in_browser)):
            allowed = "--lm-eval, --path, --task, --profile, --no-code, --json and -v"
            raise SettingsError(f"--harness can only be combined with {allowed}")
        asked = pytest_options(tasks=task, profiles=profile, no_code=no_code)
        below = [Path(path) for path in paths or ()]
        from pytest_promptfmt.cli.verify import diff_releases  # which imports pytest: revisions are run in forks before

        diff_releases(harness, below, asked, folders=lm_eval or (), as_json=as_json, verbose=verbose)
        return
    if lm_eval:
        raise SettingsError("--lm-eval can only be combined with --harness")
    prints_data = as_json + sum(str(file) == "-" for file in (markdown, html))
    if prints_data > 1:
        raise SettingsError(
            "use only one of --json, `--html -` and `--markdown -`, because each of them prints to the terminal",
            hint="print one of them, and write the others to files, as in --html FILE",
        )
    for file in (markdown, html):
        if file is not None and not file.parent.is_dir():
            raise SettingsError(f"no such folder: {display_path(file.parent)}", hint=gate.missing_hint(file.parent))
    if bump and new is not None:
        raise SettingsError(
            "--bump changes the work tree, so only one revision can be given", hint="leave out the second revision"
        )
    options = pytest_options(profiles=profile, no_code=no_code) + ([f"--promptfmt-workers={jobs}"] if jobs else [])
    given = {"--path": paths, "--task": task, "--profile": profile}
    words = [word for name, values in given.items() for value in values or () for word in (name, value)]
    flags = [name for name, is_on in {"--findings": findings, "--no-code": no_code}.items() if is_on]
    command = shlex.join(["promptfmt", "diff", *(each for each in (old, new) if each is not None), *words, *flags])
    base = old if old is not None else _default_base(prints_data=bool(prints_data))
    report = _Report(compared(base, new, paths or [], task or [], options, findings=findings), command)
    if as_json:
        print_json(report.data())
    elif in_browser:
        typer.echo(_open_in_browser(report.page()))
    elif not prints_data:
        print_lines(report.lines(verbose=verbose))
    for file, content in ((markdown, report.markdown), (html, report.page)):
        if str(file) == "-":
            typer.echo(content())
        elif file is not None:
            write_file(file, content().encode("utf-8", "backslashreplace"))
    code = _exit_code(report, versions=versions, bump=bump, fail_unknown=unknown is UnknownTasks.FAIL)
    if code:
        raise typer.Exit(code)


def compared(
    old: str, new: str | None, paths: Sequence[str], tasks: Sequence[str], options: Sequence[str], *, findings: bool
) -> RevisionComparison:
    """Return the comparison of two revisions; raises SettingsError where it fails."""
    with raising(SettingsError), waiting(f"rendering {short_name(old)} and {short_name(new or WORK_TREE)}"):
        return compare_revisions(old, new, paths=paths, tasks=tasks, options=options, findings=findings)


def _default_base(*, prints_data: bool) -> str:
    with raising(SettingsError):
        base, why = Repository.around(Path.cwd()).default_base()
    typer.echo(f"comparing the work tree with {short_name(base)}: {why}", err=prints_data)
    return base


def _exit_code(report: _Report, *, versions: bool, bump: bool, fail_unknown: bool) -> int:
    """Return the exit code; with --bump, raise the versions first."""
    found = report.compared.versions
    if versions or bump:
        is_wrong = any(each.is_error for each in found) if not bump else not raise_versions(found)
        is_unknown = any(each.kind == "unsure" for each in found)
    else:
        is_wrong = bool(report.errors or report.compared.other_docs)
        is_wrong = is_wrong or any(each.category != "header-only" for each in report.clusters)
        is_unknown = bool(report.compared.unknown)
    return 1 if is_wrong else UNKNOWN if is_unknown and fail_unknown else 0


@dataclass(frozen=True)
class _Report:
    """A comparison as lines, Markdown, data, or an HTML page; `command` repeats it."""

    compared: RevisionComparison
    command: str

    @cached_property
    def clusters(self) -> Sequence[Cluster]:
        return [Cluster.from_json(cluster) for cluster in self.compared.result["clusters"]]

    @cached_property
    def findings(self) -> Sequence[FindingGroup]:
        return [value_of(FindingGroup, group) for group in self.compared.result["findings"]]

    @property
    def errors(self) -> Sequence[FindingGroup]:
        return [group for group in self.findings if group.severity == "error"]

    @property
    def unknown(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Yield reasons why tasks are unknown, the most frequent first: with the step of the first, and the names."""
        groups = grouped(self.compared.unknown, lambda each: each.reason)
        for reason, tasks in sorted(groups.items(), key=lambda pair: -len(pair[1])):
            yield reason, tasks[0].step, _names(tasks)

    def notes(self, most: int | None) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield what no diff shows, each with its details: docs from elsewhere, unknown tasks, files not in the clone.

        At most `most` tasks are named.
        """
        for keys, tasks in grouped(self.compared.other_docs.items(), lambda pair: pair[1]).items():
            yield (
                f"the docs have another source now, {counted(len(tasks), 'task')}: "
                f"{listed([name for name, _ in tasks], most)}: {keys}",
                (),
            )
        for reason, step, names in self.unknown:
            yield (
                f"unknown whether prompts changed, {counted(len(names), 'task')}: {listed(names, most)}",
                (f"why: {reason}", f"do: {step}"),
            )
        if self.compared.pointers:
            yield _about_pointers(self.compared.pointers), ("do: git lfs fetch, then compare again",)

    @property
    def sides(self) -> tuple[str, str]:
        return short_name(self.compared.old), short_name(self.compared.new)

    @property
    def summary(self) -> str:
        """Return how many prompts and tasks changed, are unknown, and are the same."""
        counts = self.compared.result["counts"]
        changes = [f"{counts[name]:,} {name}" for name in CATEGORIES if counts.get(name)]
        if self.errors:
            changes.append(counted(len(self.errors), "new kind of finding", "new kinds of findings"))
        if self.compared.other_docs:
            changes.append(f"{counted(len(self.compared.other_docs), 'task')} with docs from another source")
        if self.compared.unknown:
            changes.append(f"{counted(len(_names(self.compared.unknown)), 'task')} unknown")
        skipped = counts.get("skipped", 0) + counts.get("accepted", 0)
        unseen = f", {counted(skipped, 'prompt')} not rendered" if skipped else ""
        files = self.compared.unaffected
        untouched = f", {counted(files, 'file')} untouched" if files else ""
        same = counted(counts.get("passed", 0), "prompt")
        return f"{', '.join(changes) or 'nothing changed'}; {same} unchanged{unseen}{untouched}"

    @property
    def next_steps(self) -> Iterator[str]:
        """Yield commands that show more or settle a problem, as sentences of Markdown."""
        failing = [cluster.members[0].file for cluster in self.clusters if cluster.category == "error"]
        for file in dict.fromkeys(failing):
            yield f"The file has a new error. To see the error: `pytest --promptfmt {shlex.quote(file)}`."
        for _, step, names in self.unknown:
            yield f"For {counted(len(names), 'task')} it is unknown whether prompts changed: {step}."
        if self.compared.pointers:
            yield f"{_about_pointers(self.compared.pointers)}: `git lfs fetch`, then `{self.command}`."
        if any(each.is_error for each in self.compared.versions) and self.compared.new == WORK_TREE:
            yield f"Some changed tasks have no new version. To raise the versions: `{self.command} --bump`."
        if any(cluster.detail for cluster in self.clusters):
            yield f"To see all differences in full: `{self.command} -v`."

    def data(self) -> Mapping[str, Any]:
        """Return the result with what is unknown, the same, and the versions."""
        return {
            **self.compared.result,
            "command": self.command,
            "next_steps": [*self.next_steps],
            "pointers": [*self.compared.pointers],
            "unknown": [each.to_json() for each in self.compared.unknown],
            "same": dict(self.compared.same),
            "other_docs": dict(self.compared.other_docs),
            "unaffected_files": self.compared.unaffected,
            "versions": [finding.to_json() for finding in self.compared.versions],
        }

    def lines(self, *, verbose: bool) -> Iterator[Text]:
        """Yield the comparison as lines for a terminal."""
        most = None if verbose else NAMES
        for cluster in self.clusters:
            yield from cluster_lines(cluster, verbose=verbose)
        yield from map(styled, finding_lines(self.findings, is_verbose=verbose))
        for title, details in self.notes(most):
            yield styled(title, "bold yellow")
            yield from (styled(f"  {line}") for line in details)
        if self.compared.same:
            text = f"edited, but prompts are unchanged: {listed([*self.compared.same], most)}"
            yield styled(text, "dim")
        for name, note in self.compared.same.items() if verbose else ():
            yield styled(f"  {name}: {note}", "dim")
        yield from version_lines(self.compared.versions, verbose=verbose)
        for skipped in self.compared.result["skipped"]:
            text = f"not rendered, {counted(len(skipped['tasks']), 'prompt')}: {skipped['reason']}"
            yield styled(text, "dim")
        yield styled(f"{' → '.join(self.sides)}: {self.summary}", "bold")

    def markdown(self) -> str:
        """Return the comparison as a comment on a pull request of at most `COMMENT_LIMIT` bytes."""
        head = f"## Prompts\n\n{' → '.join(map(code, self.sides))}: {self.summary}\n"
        blocks = cluster_blocks(self.clusters, "prompt")
        for title, details in self.notes(NAMES):
            blocks.append("\n".join([f"**{code(title)}**", "", *(f"- {code(line)}" for line in details), ""]))
        blocks += [*version_block(self.compared.versions), *finding_table(self.findings)]
        return bounded(head, blocks, COMMENT_LIMIT, self._digests())

    def _digests(self) -> str:
        """Return a line that is not shown: what changed, for the comment after the next push to compare with."""
        texts = [f"{each.category} {each.title} {each.detail}" for each in self.clusters]
        texts += [f"{each.code} {each.message}" for each in self.findings]
        found = sorted(sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12] for text in texts)
        return f"<!-- promptfmt-changes {' '.join(found[:MOST_DIGESTS])} -->\n"

    def page(self) -> str:
        """Return the HTML page: each change with the example that the comparison has of it, and new findings."""
        old, new = self.sides
        notes = [f"{old} → {new}: {self.summary}"]
        notes += ["; ".join([title, *details]) for title, details in self.notes(NAMES)]
        notes += map(str, version_lines(self.compared.versions, verbose=False))
        return html_comparison(self.clusters, self.findings, old=old, new=new, notes=notes)


def _about_pointers(names: Sequence[str]) -> str:
    number, shown = counted(len(names), "file"), listed(names, NAMES)
    return f"this clone has only the Git LFS pointers of {number}, so only the pointers were compared: {shown}"


def _names(tasks: Iterable[Unknown]) -> list[str]:
    return [*dict.fromkeys(each.task for each in tasks)]


def _open_in_browser(page: str) -> str:
    """Write the page to a temporary file that stays, show it in the browser, and return a line that names the file."""
    with tempfile.NamedTemporaryFile("wb", prefix="promptfmt-diff-", suffix=".html", delete=False) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    path = Path(file.name)
    is_open = webbrowser.open(path.as_uri())
    return f"{display_path(path)} is open in the browser" if is_open else f"no browser found: open {display_path(path)}"

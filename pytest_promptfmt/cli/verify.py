"""`promptfmt verify` and `promptfmt diff --harness`: requests made in two ways, each difference with its cause."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from pytest_promptfmt.cli.display import waiting
from pytest_promptfmt.cli.options import AllowCode, AsJson, NoCode, Paths, Profiles, Tasks, Verbose, pytest_options
from pytest_promptfmt.cli.output import print_json
from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.core.json_values import data_of, value_of
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.core.text import show_inner
from pytest_promptfmt.plugin.collected import check
from pytest_promptfmt.results.clusters import grouped
from pytest_promptfmt.results.wording import counted, listed
from pytest_promptfmt.revisions.release_scores import COMPARISON, release_scores, with_scores
from pytest_promptfmt.settings.setting_values import RELEASE
from pytest_promptfmt.study.request_comparison import AsksHarness, Compared, Difference, ScoreChange
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import installed_harness, package_in, use_package

_SHOWN_TASKS = 6


def _folder(harness: str) -> Any:
    return typer.Option(f"--{harness.lower()}", metavar="FOLDER", help=f"A checkout or environment with {harness}.")


def verify(
    paths: Paths = None,
    sample: Annotated[int | None, typer.Option("--sample", metavar="N", min=1, help="Only N tasks.")] = None,
    lm_eval: Annotated[Path | None, _folder("lm-eval")] = None,
    eval_framework: Annotated[Path | None, _folder("eval-framework")] = None,
    helm: Annotated[Path | None, _folder("HELM")] = None,
    task: Tasks = None,
    profile: Profiles = None,
    allow_code: AllowCode = None,
    no_code: NoCode = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Compare prompts and requests with those of the installed harness.

    lm-eval, eval-framework and HELM make the requests of their tasks themselves, with the docs of the tests in place of
    their datasets. Every byte counts. Exit code: 0 all are equal, 1 some differ, 2 the command was used wrongly, 3 none
    differs, and none could be compared.
    """
    asked = [each for each in known_systems().values() if isinstance(each, AsksHarness)]
    folders = {"lm-eval": lm_eval, "eval-framework": eval_framework, "helm": helm}
    for system in asked:
        folder = folders.get(system.name)
        if folder is not None:
            _use(folder, system.packages)
    titles = {each.name: title for each in asked if (title := _title(each))}
    if not titles:
        hint = f"install one of {', '.join(folders)}, or name a checkout, as with --lm-eval"
        raise SettingsError("no harness is installed", hint=hint)
    release = titles.get("lm-eval", "").partition(" ")[2]
    options = pytest_options(tasks=task, profiles=profile, allow_code=allow_code, no_code=no_code)
    options += [f"--promptfmt-sample={sample or 0}"]
    options += [f"--promptfmt-lm-eval={release}"] if release else []
    results = compared(paths or [], options)
    used = {each.compared.system for each in results}
    title = ", ".join(title for name, title in titles.items() if name in used)
    _show(results, title or "no harness", ("ours", ""), as_json=as_json, verbose=verbose)


def _use(folder: Path, packages: Sequence[str]) -> None:
    """Import packages from a checkout or environment, and what they need from there where it is not installed."""
    root = package_in(folder, packages[0]).parent
    for package in packages:
        use_package(root / package)
    sys.path.append(str(root))


def _title(system: AsksHarness) -> str:
    """Return the name and release of the harness of a system, "" without one."""
    if find_spec(system.packages[0]) is None:
        return ""
    found = installed_harness()
    if found is not None and found.folder.name == system.packages[0]:
        return found.title
    with suppress(PackageNotFoundError):
        return f"{system.name} {version(system.distribution)}"
    return system.name


def diff_releases(
    releases: str,
    paths: Sequence[Path],
    options: Sequence[str],
    *,
    folders: Sequence[Path],
    as_json: bool,
    verbose: bool,
) -> None:
    """Print how requests and scores change from one release of lm-eval to another, given as `0.4.9..0.4.13`.

    Scores are computed by releases that are installed, or in one of the folders. Exits as `diff`; raises SettingsError
    for anything else.
    """
    old, dots, new = releases.partition("..")
    try:
        known = [release_of(RELEASE.parse(each)).is_compared for each in (old, new)]
    except ValueError:
        known = []
    if not dots or not known:
        raise SettingsError(f"invalid --harness {releases!r}", hint="two releases of lm-eval, as in 0.4.9..0.4.13")
    if not all(known):
        raise SettingsError(f"invalid --harness {releases!r}", hint="releases from 0.4.3 to 0.4.13 are known")
    options = [*options, f"--promptfmt-lm-eval={old}"]
    sides = []
    for release in (old, new):
        with waiting(f"scoring as lm-eval {release}"):
            sides.append(release_scores(release, folders, paths, options))
    results = [
        replace(each, compared=with_scores(each.compared, each.file, *sides))
        for each in compared(paths, [*options, f"--promptfmt-with={new}"])
    ]
    _show(results, f"lm-eval {old} -> {new}", (old, new), as_json=as_json, verbose=verbose)


@dataclass(frozen=True, slots=True)
class _Result:
    """The result for one task of a file."""

    file: str
    compared: Compared

    @property
    def name(self) -> str:
        return self.compared.task


def compared(paths: Sequence[Path], options: Sequence[str]) -> list[_Result]:
    """Return the result of each task, in the order of files; raises SettingsError if the run does not start."""
    with TemporaryDirectory(prefix="promptfmt-") as folder:
        summary = check(paths, [*COMPARISON, f"--promptfmt-comparisons={folder}", *options])
        read = [json.loads(path.read_text("utf-8", "surrogateescape")) for path in Path(folder).glob("*.json")]
    results = [_Result(data.pop("file"), value_of(Compared, data)) for data in read]
    done = {(each.file, each.name) for each in results}
    results += [
        _Result(outcome.file, Compared(task=outcome.task, unknown="no test ran; `promptfmt check` reports why"))
        for outcome in summary.result.outcomes
        if (outcome.file, outcome.task) not in done and outcome.category not in ("passed", "obsolete")
    ]
    if not results:
        raise SettingsError("there is no task here", hint="name a file or folder with tasks")
    return sorted(results, key=lambda each: (each.file, each.name))


def _show(results: Sequence[_Result], title: str, sides: tuple[str, str], *, as_json: bool, verbose: bool) -> None:
    differing = [each for each in results if each.compared.is_different]
    unknown = [each for each in results if each.compared.unknown]
    if as_json:
        print_json([{"file": display_path(Path(each.file)), **data_of(each.compared)} for each in results])
    else:
        for line in _lines(results, title, sides, verbose=verbose):
            typer.echo(line)
    if differing:
        raise typer.Exit(1)
    if len(unknown) == len(results):
        raise typer.Exit(3)


def _lines(results: Sequence[_Result], title: str, sides: tuple[str, str], *, verbose: bool) -> Iterator[str]:
    def text(side: str, shown: str) -> str:
        return f"    {side:8} {show_inner(shown).replace(chr(10), '⏎')}"

    found: list[tuple[_Result, Difference]] = [(each, one) for each in results for one in each.compared.differences]
    for cause, members in grouped(found, lambda pair: pair[1].cause).items():
        names = list(dict.fromkeys(result.name for result, _ in members))
        shown = listed(names, None if verbose else _SHOWN_TASKS)
        yield f"{cause or 'unknown cause'}, {counted(len(names), 'task')}: {shown}"
        for result, one in members if verbose else members[:1]:
            where = f"{display_path(Path(result.file))} {result.name}[{one.profile}], {counted(one.shots, 'shot')}"
            at = f", doc {one.doc}, request {one.request}: {one.part}, from character {one.offset}"
            yield f"  {where}{at if one.doc else ''}"
            yield text(sides[0], one.old)
            yield text(sides[1] or result.compared.system, one.new)
    changed = [each for each in results if each.compared.changed_scores]
    for why, scored in grouped(changed, lambda each: "; ".join(each.compared.scores)).items():
        shown = listed([each.name for each in scored], None if verbose else _SHOWN_TASKS)
        answers = sum(len(each.compared.changed_scores) for each in scored)
        yield f"{counted(answers, 'score')} changed, {counted(len(scored), 'task')}: {shown}{f': {why}' if why else ''}"
        for each in scored if verbose else scored[:1]:
            for change in each.compared.changed_scores if verbose else each.compared.changed_scores[:1]:
                yield f"  {display_path(Path(each.file))} {each.name}, {_about(change)}"
                yield text(sides[0], change.old)
                yield text(sides[1], change.new)
    may = [each for each in results if each.compared.scores and not each.compared.changed_scores]
    for what, tasks in grouped(may, lambda each: "; ".join(each.compared.scores)).items():
        shown = listed([each.name for each in tasks], None if verbose else _SHOWN_TASKS)
        yield f"scores may change, {counted(len(tasks), 'task')}: {shown}: {what}"
    lacking = [each for each in results if each.compared.not_scored]
    for reason, tasks in grouped(lacking, lambda each: each.compared.not_scored).items():
        shown = listed([each.name for each in tasks], None if verbose else _SHOWN_TASKS)
        yield f"scores not computed, {counted(len(tasks), 'task')}: {shown}: {reason}"
    unknown = [each for each in results if each.compared.unknown]
    for reason, tasks in grouped(unknown, lambda each: each.compared.unknown).items():
        shown = listed([each.name for each in tasks], None if verbose else _SHOWN_TASKS)
        yield f"not compared, {counted(len(tasks), 'task')}: {shown}: {reason}"
    differing = sum(bool(each.compared.differences) for each in results)
    requests = sum(each.compared.requests for each in results)
    tried = sum(each.compared.tried for each in results)
    failures = sum(each.compared.failures for each in results)
    made = f" and {counted(tried, 'score')}" if tried else ""
    parts = [f"{counted(len(results) - len(unknown), 'task')}, {counted(requests, 'request')}{made} compared"]
    if differing:
        parts.append(f"{counted(differing, 'task')} {'differs' if differing == 1 else 'differ'}")
    elif len(unknown) < len(results) and not changed:
        parts.append("all equal")
    parts += [f"scores of {counted(len(changed), 'task')} changed"] if changed else []
    parts += [f"scores of {counted(len(may), 'task')} may change"] if may else []
    parts += [f"scores of {counted(len(lacking), 'task')} not computed"] if lacking else []
    parts += [f"{failures:,} prompts fail on both sides"] if failures else []
    parts += [f"{len(unknown):,} not compared"] if unknown else []
    yield f"{title}: {', '.join(parts)}"


def _about(change: ScoreChange) -> str:
    where = f"doc {change.doc}, filter {change.pipeline}" if change.doc else f"filter {change.pipeline}"
    return f"{where}: {change.metric or 'the score'} of {change.answer}"

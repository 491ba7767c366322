"""`promptfmt verify` and `promptfmt diff --harness`: requests made in two ways, each difference with its cause."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
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
from pytest_promptfmt.results.wording import NAMES, counted, listed
from pytest_promptfmt.revisions.release_scores import COMPARISON, release_scores, with_scores
from pytest_promptfmt.settings.table import RELEASE
from pytest_promptfmt.study.request_comparison import AsksHarness, Compared, Difference
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import installed_harness, package_in, use_package


def _folder(harness: str) -> Any:
    return typer.Option(
        f"--{harness.lower()}", metavar="FOLDER", help=f"The folder of a checkout or environment with {harness}."
    )


def verify(
    paths: Paths = None,
    sample: Annotated[int | None, typer.Option("--sample", metavar="N", min=1, help="Compare only N tasks.")] = None,
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
    """Compare prompts and requests with those that the installed harness makes.

    The harness uses the same docs as your tests. Its requests must be equal to those of promptfmt, byte for byte.
    Exit code: 0 all are equal, 1 some differ, 2 usage error, 3 none could be compared.
    """
    asked = [each for each in known_systems().values() if isinstance(each, AsksHarness)]
    folders = {"lm-eval": lm_eval, "eval-framework": eval_framework, "helm": helm}
    for system in asked:
        folder = folders.get(system.name)
        if folder is not None:
            _use(folder, system.packages)
    titles = {each.name: title for each in asked if (title := _title(each))}
    if not titles:
        hint = f"install one of {', '.join(folders)}, or name the folder of a checkout, such as --lm-eval FOLDER"
        raise SettingsError("neither lm-eval, eval-framework nor HELM is installed", hint=hint)
    release = titles.get("lm-eval", "").partition(" ")[2]
    options = pytest_options(tasks=task, profiles=profile, allow_code=allow_code, no_code=no_code)
    options += [f"--promptfmt-sample={sample or 0}"]
    options += [f"--promptfmt-lm-eval={release}"] if release else []
    results = compared(paths or [], options)
    used = {each.system for each in results}
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
    old, _, new = releases.partition("..")
    try:
        known = [release_of(RELEASE.parse(each)).is_compared for each in (old, new)]
    except ValueError:
        known = []
    if not known or not all(known):
        hint = "use releases from 0.4.3 to 0.4.13" if known else "write two releases of lm-eval, as in 0.4.9..0.4.13"
        raise SettingsError(f"invalid --harness {releases!r}", hint=hint)
    options = [*options, f"--promptfmt-lm-eval={old}"]
    sides = []
    for release in (old, new):
        with waiting(f"scoring as lm-eval {release}"):
            sides.append(release_scores(release, folders, paths, options))
    results = [with_scores(each, *sides) for each in compared(paths, [*options, f"--promptfmt-with={new}"])]
    _show(results, f"lm-eval {old} -> {new}", (old, new), as_json=as_json, verbose=verbose)


def compared(paths: Sequence[Path], options: Sequence[str]) -> list[Compared]:
    """Return the result of each task, in the order of files; raises SettingsError if the run does not start."""
    with TemporaryDirectory(prefix="promptfmt-") as folder:
        summary = check(paths, [*COMPARISON, f"--promptfmt-comparisons={folder}", *options])
        read = [json.loads(path.read_text("utf-8", "surrogateescape")) for path in Path(folder).glob("*.json")]
    results = [value_of(Compared, data) for data in read]
    done = {(each.file, each.task) for each in results}
    results += [
        Compared(file=outcome.file, task=outcome.task, unknown="no test ran; `promptfmt check` reports why")
        for outcome in summary.result.outcomes
        if (outcome.file, outcome.task) not in done and outcome.category not in ("passed", "obsolete")
    ]
    if not results:
        raise SettingsError("there is no task here", hint="name a file or folder with tasks")
    return sorted(results, key=lambda each: (each.file, each.task))


def _show(results: Sequence[Compared], title: str, sides: tuple[str, str], *, as_json: bool, verbose: bool) -> None:
    if as_json:
        print_json([{**data_of(each), "file": display_path(Path(each.file))} for each in results])
    else:
        for line in _lines(results, title, sides, verbose=verbose):
            typer.echo(line)
    if any(each.is_different for each in results):
        raise typer.Exit(1)
    if all(each.unknown for each in results):
        raise typer.Exit(3)


def _lines(results: Sequence[Compared], title: str, sides: tuple[str, str], *, verbose: bool) -> Iterator[str]:
    def text(side: str, shown: str) -> str:
        return f"    {side:8} {show_inner(shown).replace(chr(10), '⏎')}"

    def tasks(members: Iterable[Compared]) -> str:
        names = list(dict.fromkeys(each.task for each in members))
        return f"{counted(len(names), 'task')}: {listed(names, None if verbose else NAMES)}"

    found: list[tuple[Compared, Difference]] = [(each, one) for each in results for one in each.differences]
    for cause, members in grouped(found, lambda pair: pair[1].cause).items():
        yield f"{cause or 'unknown cause'}, {tasks(result for result, _ in members)}"
        for result, one in members if verbose else members[:1]:
            where = f"{display_path(Path(result.file))} {result.task}[{one.profile}], {counted(one.shots, 'shot')}"
            at = f", doc {one.doc}, request {one.request}: {one.part}, from character {one.offset}"
            yield f"  {where}{at if one.doc else ''}"
            yield text(sides[0], one.old)
            yield text(sides[1] or result.system, one.new)
    changed = [each for each in results if each.changed_scores]
    for why, scored in grouped(changed, lambda each: "; ".join(each.scores)).items():
        answers = sum(len(each.changed_scores) for each in scored)
        yield f"{counted(answers, 'score')} changed, {tasks(scored)}{f': {why}' if why else ''}"
        for each in scored if verbose else scored[:1]:
            for change in each.changed_scores if verbose else each.changed_scores[:1]:
                doc, metric = f"doc {change.doc}, " if change.doc else "", change.metric or "the score"
                at = f"{doc}filter {change.pipeline}: {metric} of {change.answer}"
                yield f"  {display_path(Path(each.file))} {each.task}, {at}"
                yield text(sides[0], change.old)
                yield text(sides[1], change.new)
    may = [each for each in results if each.scores and not each.changed_scores]
    lacking = [each for each in results if each.not_scored]
    unknown = [each for each in results if each.unknown]
    reasons: tuple[tuple[str, Sequence[Compared], Callable[[Compared], str]], ...] = (
        ("scores may change", may, lambda each: "; ".join(each.scores)),
        ("scores not computed", lacking, lambda each: each.not_scored),
        ("not compared", unknown, lambda each: each.unknown),
    )
    for what, concerned, reason_of in reasons:
        for reason, same in grouped(concerned, reason_of).items():
            yield f"{what}, {tasks(same)}: {reason}"
    differing = sum(bool(each.differences) for each in results)
    requests, tried, failures = (
        sum(getattr(each, name) for each in results) for name in ("requests", "tried", "failures")
    )
    made = f" and {counted(tried, 'score')}" if tried else ""
    parts = [f"{counted(len(results) - len(unknown), 'task')}, {counted(requests, 'request')}{made} compared"]
    if differing:
        parts.append(f"{counted(differing, 'task')} {'differs' if differing == 1 else 'differ'}")
    elif len(unknown) < len(results) and not changed:
        parts.append("all equal")
    of_scores = {"changed": changed, "may change": may, "not computed": lacking}
    parts += [f"scores of {counted(len(each), 'task')} {what}" for what, each in of_scores.items() if each]
    parts += [f"{failures:,} prompts cannot be rendered by either side"] if failures else []
    parts += [f"{len(unknown):,} not compared"] if unknown else []
    yield f"{title}: {', '.join(parts)}"

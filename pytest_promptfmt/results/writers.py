"""The files that a run writes: each is made by a writer, a function of the run's result; packages may add some."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import writing
from pytest_promptfmt.core.errors import SettingsError, did_you_mean, display_path, load_entry
from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.results.baseline import write_baseline
from pytest_promptfmt.results.html import html_report
from pytest_promptfmt.results.lint_formats import sarif_report
from pytest_promptfmt.results.markdown import STEP_LIMIT, markdown_report
from pytest_promptfmt.results.pending import git_patch, write_pending
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.wording import NAMES, below, counted, listed

GROUP: Final = "pytest_promptfmt.writers"
"""The entry points of other packages: each is a function that is given a RunResult and returns text or bytes."""

JSON_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Makes a file: `content` returns its content, `summary` a few words for the closing line.

    `needs_edits` and `needs_views`: whether it reads these parts of a result, which cost something to keep.
    """

    content: Callable[[RunResult], str | bytes]
    summary: Callable[[RunResult], str] = lambda _result: ""
    needs_edits: bool = True
    needs_views: bool = False


def _about_patch(result: RunResult) -> str:
    changed = [edit for edit in result.all_edits if edit.old != edit.new]
    outside = [display_path(edit.path) for edit in changed if not edit.path.is_relative_to(result.top)]
    summary = f"a patch of {counted(len(changed) - len(outside), 'file')}"
    return f"{summary}, without {', '.join(outside)} outside {display_path(result.top)}" if outside else summary


def next_steps(result: RunResult) -> Iterator[str]:
    """Yield what is left to do until a run passes, as sentences of Markdown, one for each kind of problem."""
    counts = result.counts
    errors = counts.get("error", 0)
    if errors:
        yield f"{counted(errors, 'test')} cannot read or render a task: fix the files, or accept this in a baseline."
    failing = [group for group in result.findings if group.severity is Severity.ERROR]
    if failing:
        codes = listed(sorted({group.code for group in failing}), NAMES)
        number = sum(group.count for group in failing)
        fixes = "try `promptfmt fix --write`, " if any(group.is_fixable for group in failing) else ""
        yield (
            f"{counted(number, 'finding')} ({codes}): {fixes}fix the findings, ignore them with a reason "
            "(`promptfmt explain CODE`), or accept them in a baseline. --snapshot-update does not fix findings."
        )
    if counts.get("misread"):
        number = counts["misread"]
        yield f"{counted(number, 'test')} with misread answers: fix filters or prompts, or accept this in a baseline."
    if errors or failing or counts.get("misread"):
        yield "To write a baseline: `--promptfmt-baseline FILE --promptfmt-baseline-update write`."
    for reason, remedy in result.remedies.items():
        yield f"{counted(len(result.skipped[reason]), 'test')} skipped: {reason}. To run them: `{remedy}`."
    if result.accept_command:
        patch = f"`git apply {result.patch}`, or " if result.patch else ""
        yield f"If the prompts changed on purpose: run {patch}`{result.accept_command}`, then commit the snapshots."


def json_report(result: RunResult) -> str:
    """Return the result as JSON: `counts` of items by category, `clusters` with their members, `findings`, `skipped`.

    Paths are below the rootdir, with slashes.
    """
    rootdir, baseline = result.rootdir, result.baseline
    data: dict[str, Any] = {
        "version": JSON_VERSION,
        "pytest_promptfmt": version("pytest-promptfmt"),
        "command": shlex.join(["pytest", *result.arguments]),
        "exit": result.exit_status,
        "archetypes": list(result.archetypes),
        "next_steps": list(next_steps(result)),
        "counts": dict(sorted(result.counts.items())),
        "clusters": [cluster.to_json(rootdir) for cluster in result.clusters],
        "findings": [group.to_json(rootdir) for group in result.findings],
        "skipped": [
            {
                "reason": reason,
                "remedy": result.remedies.get(reason, ""),
                "tasks": tasks,
                "causes": dict(result.skip_causes[reason]),
            }
            for reason, tasks in result.skipped.items()
        ],
        "unseen": [{"keys": keys, "tasks": tasks} for keys, tasks in result.unseen.items()],
        "unrendered": {below(file, rootdir): sorted(tasks) for file, tasks in result.unrendered.items()},
        "not_run": list(result.not_run),
        "unmatched": list(result.unmatched),
        "accepted_by_baseline": baseline.accepted if baseline is not None else 0,
    }
    if result.defined is not None:
        data["defined"] = {below(file, rootdir): list(names) for file, names in result.defined.items()}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


WRITERS: Final[Mapping[str, Writer]] = {
    "patch": Writer(content=lambda result: git_patch(result.all_edits, result.top), summary=_about_patch),
    "pending": Writer(
        content=lambda result: write_pending(result.all_edits if result.edits else (), result.top),
        summary=lambda result: f"{counted(len(result.edits), 'snapshot')} for promptfmt review",
    ),
    "json": Writer(content=json_report, needs_edits=False),
    "markdown": Writer(content=markdown_report, needs_edits=False),
    "sarif": Writer(content=sarif_report, needs_edits=False),
    "html": Writer(content=html_report, needs_edits=False, needs_views=True),
    "next-steps": Writer(
        content=lambda result: "".join(f"- {step}\n" for step in next_steps(result)), needs_edits=False
    ),
}
"""The writers of this package, by the name that options have for them."""


@cache
def find_writer(name: str) -> Writer:
    """Return a writer of this or another package. Raises SettingsError for a name that none has."""
    if name in WRITERS:
        return WRITERS[name]
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = [*WRITERS, *found]
        hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
        raise SettingsError(f"there is no output {name!r}", hint=hint)
    return Writer(content=load_entry(found[name], f"the writer {name!r} of", SettingsError))


def publish(result: RunResult, files: Sequence[tuple[str, Path]], *, step_summary: Path | None = None) -> Iterator[str]:
    """Write what is wanted, and yield a line for each file, also for one that cannot be written.

    `files` are names of writers with the files they write; `step_summary` is a file that gets the Markdown appended.
    """
    baseline = result.baseline
    if baseline is not None and baseline.written is not None:
        try:
            write_baseline(baseline.written, baseline.path)
        except OSError as error:
            yield _cannot(baseline.path, error)
    for name, path in files:
        yield _written(name, path, result)
    if step_summary is not None:
        try:
            room = STEP_LIMIT - (step_summary.stat().st_size if step_summary.exists() else 0)
            writing.append(step_summary, _bytes(markdown_report(result, limit=room)), also=[step_summary])
        except OSError as error:
            yield f"the step summary cannot be written: {error.strerror or error}"


def _written(name: str, path: Path, result: RunResult) -> str:
    writer = find_writer(name)
    try:
        content = _bytes(writer.content(result))
        if name == "patch" and not content:
            writing.remove(path)  # of an earlier run
            return f"{display_path(path)}: not written, because no snapshot changed"
        writing.write(path, content)
    except OSError as error:
        return _cannot(path, error)
    except Exception as error:
        if name in WRITERS:
            raise
        return f"{display_path(path)} cannot be written: writer {name!r} raised {type(error).__name__}: {error}"
    summary = writer.summary(result)
    return f"{display_path(path)}: {summary}" if summary else f"{display_path(path)} written"


def _cannot(path: Path, error: OSError) -> str:
    return f"{display_path(path)} cannot be written: {error.strerror or error}"


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")

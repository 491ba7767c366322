"""`promptfmt comparable`: whether two finished runs asked the same bytes, and what explains it where they did not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from pytest_promptfmt.answers.run_comparison import TaskComparison
    from pytest_promptfmt.answers.run_samples import FinishedRun, TaskSamples

_SHOWN: Final = 5
_WIDTH: Final = 120


def comparable(
    first: Annotated[Path, typer.Argument(metavar="A", help="lm-eval's results, or a recording.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Those of another run.", show_default=False)],
    repository: Annotated[
        Path | None, typer.Option("--repository", metavar="FOLDER", help="Where the tasks of both runs are.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text, with every sample.")] = False,
) -> None:
    """Say whether two runs asked the same bytes, which samples differ and why. Exit code: 0 the same, 1 not or unknown.

    Reads folders of lm-eval with --log_samples, checks their hashes, and compares every request, not only the first,
    which lm-eval hashes. With --repository, names the line of the key that differs, and the commits that touch it.
    """
    from pytest_promptfmt.answers.run_comparison import comparison
    from pytest_promptfmt.answers.run_samples import read_run

    runs = read_run(first), read_run(second)
    tasks = comparison(*runs)
    places = {task.task: dict(_places(task, runs, repository)) for task in tasks} if repository is not None else {}
    if as_json:
        data = {
            "tasks": [_data(task, places.get(task.task, {})) for task in tasks],
            "hashes": {name: _hashes(run) for name, run in zip("AB", runs, strict=True)},
        }
        typer.echo(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        for task in tasks:
            for line in _lines(task, runs, places.get(task.task, {})):
                typer.echo(escape_controls(line))
        for name, run in zip("AB", runs, strict=True):
            found = _hashes(run)
            if found["checked"] or found["wrong"]:
                wrong = f", not {found['wrong'][0]}" if found["wrong"] else ""
                typer.echo(
                    escape_controls(f"{name}: {found['reproduced']:,} of {found['checked']:,} hashes reproduced{wrong}")
                )
    if any(task.verdict != "same" for task in tasks) or any(_hashes(run)["wrong"] for run in runs):
        raise typer.Exit(1)


def _hashes(run: FinishedRun) -> dict[str, Any]:
    """Return how many digests of a run were made again; a wrong one means that the file was edited."""
    said = run.facts.get("task_hashes") or {}
    wrong = [name for samples in run.tasks.values() for name in samples.wrong]
    wrong += [f"task_hashes {name}" for name, samples in run.tasks.items() if _is_wrong(samples, said.get(name))]
    checked = sum(samples.checked for samples in run.tasks.values())
    checked += sum(name in said and samples.digest is not None for name, samples in run.tasks.items())
    return {"checked": checked, "reproduced": checked - len(wrong), "wrong": wrong}


def _is_wrong(samples: TaskSamples, said: object) -> bool:
    return said is not None and samples.digest is not None and samples.digest != said


def _data(task: TaskComparison, places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    causes = [{**asdict(cause), "parts": sorted(cause.parts), **places.get(cause.name, {})} for cause in task.causes]
    return {
        "task": task.task,
        "verdict": task.verdict,
        "same": task.same,
        "only_in_A": task.only_first,
        "only_in_B": task.only_second,
        "tokens": task.tokens,
        "version": list(task.version),
        "differing": [
            {"A": each.first.number, "B": each.second.number, "parts": each.parts} for each in task.differing
        ],
        "causes": causes,
        "unexplained": list(task.unexplained),
    }


def _lines(
    task: TaskComparison, runs: tuple[FinishedRun, FinishedRun], places: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    from pytest_promptfmt.answers.run_comparison import counted_parts
    from pytest_promptfmt.results.wording import counted

    parts = [f"{counted(task.same, 'sample')} asked the same"]
    if task.differing:
        what = ", ".join(f"{part} of {count:,}" for part, count in counted_parts(task.differing).items())
        parts.append(f"{len(task.differing):,} not ({what})")
    for name, count in (("A", task.only_first), ("B", task.only_second)):
        if count:
            parts.append(f"{count:,} only in {name}")
    yield f"{task.task}: {task.verdict}; {', '.join(parts)}"
    if task.tokens != "unknown":
        yield f"  token ids: {task.tokens}"
    for cause in task.causes:
        place = places.get(cause.name, {})
        at = f", {place['place']}" if place.get("place") else ""
        yield f"  {'because of' if _is_alone(task) else 'perhaps because of'} {_cause(cause)}{at}"
        yield from (f"    {commit}" for commit in place.get("commits", ()))
    for part in task.unexplained:
        yield f"  unknown why {part} differs: nothing in the result files that can change it does"
    if task.differing and task.version[0] == task.version[1] and task.version[0]:
        yield f"  both say version {task.version[0]}"
    if task.differing and not runs[0].tasks[task.task].path.name.endswith("recording.jsonl"):
        yield from _example(task, runs)


def _is_alone(task: TaskComparison) -> bool:
    return len(task.causes) == 1 and not task.unexplained


def _cause(cause: Any) -> str:
    if cause.kind == "data":
        return "other data in the docs"
    names = [_short(text) for text in (cause.first, cause.second)]
    return f"{cause.kind} {cause.name}: {names[0]} → {names[1]}"


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 1]}…"


def _example(task: TaskComparison, runs: tuple[FinishedRun, FinishedRun]) -> Iterator[str]:
    """Yield the first request that differs, of the first sample that does."""
    from pytest_promptfmt.answers.run_samples import arguments_of, line_of
    from pytest_promptfmt.core.text import shared_start

    samples = [run.tasks[task.task] for run in runs]
    shown = [line_of(samples[0], task.differing[0].first), line_of(samples[1], task.differing[0].second)]
    requests = [[str(value) for arguments in arguments_of(line) for value in arguments] for line in shown]
    for old, new in zip(*requests, strict=False):
        if old != new:
            start = max(0, shared_start(old, new) - 30)
            yield f"  doc {task.differing[0].first.number}: {_short(old[start : start + _WIDTH])}"
            yield f"  {'became':>{len(f'doc {task.differing[0].first.number}:')}} {_short(new[start : start + _WIDTH])}"
            return


def _places(
    task: TaskComparison, runs: tuple[FinishedRun, FinishedRun], repository: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for each key of the task that differs where it is written now, and the commits between both runs."""
    from pytest_promptfmt.core.errors import PromptfmtError
    from pytest_promptfmt.revisions.git import Repository
    from pytest_promptfmt.systems.task_files import read_task_file
    from pytest_promptfmt.tasks import TaskIndex

    index = TaskIndex([repository])
    entry = index.find(task.task)
    file = read_task_file(entry.path, index) if entry is not None and entry.path is not None else None
    known = next((each for each in file.tasks if each.name == task.task), None) if file is not None else None
    if known is None:
        return
    revisions = [str(run.facts.get("git_hash") or "") for run in runs]
    for cause in task.causes:
        position = known.position(cause.name) if cause.kind == "edit" else None
        if position is None:
            continue
        try:
            commits = Repository.around(repository).commits_between(revisions[0], revisions[1], [position.path])
        except PromptfmtError:
            commits = []
        yield cause.name, {"place": str(position), "commits": commits}

"""The files that a run leaves behind where they are wanted: patch, pending edits, JSON, Markdown, step summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.results.baseline import below
from pytest_promptfmt.results.edits import Edit, git_patch, top_of, write_pending
from pytest_promptfmt.results.markdown import STEP_LIMIT, markdown_report
from pytest_promptfmt.results.outcomes import Tally
from pytest_promptfmt.results.outputs import Outputs
from pytest_promptfmt.results.result import result_json
from pytest_promptfmt.results.terminal import ACCEPTABLE
from pytest_promptfmt.results.wording import accept_all, archetype_note, counted


def publish(
    outputs: Outputs,
    tally: Tally,
    *,
    rootdir: Path,
    arguments: Sequence[str],
    exit_status: int,
    lock: tuple[Path, str] | None = None,
    unmatched: Sequence[str] = (),
    defined: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[str]:
    """Write what is wanted, and yield a line for each file, also for one that cannot be written.

    `lock` is the lock file with the text that it would get; `unmatched` and `defined` are those of `result_json`.
    """
    if outputs.patch is not None or outputs.pending is not None:
        edits = edits_of(tally)
        top = top_of(rootdir)
        if outputs.patch is not None:
            more = [] if lock is None else [Edit(path=lock[0], old=_content(lock[0]), new=lock[1].encode())]
            more = [edit for edit in more if edit.old != edit.new]  # this very run may have written it
            patch, outside = git_patch([*edits, *more], top)
            told = f"{display_path(outputs.patch)}: a patch of {counted(len(edits) + len(more) - len(outside), 'file')}"
            yield _written(outputs.patch, lambda path: path.write_bytes(patch), told)
            yield from (
                f"{display_path(path)} lies outside {display_path(top)} and is not in the patch" for path in outside
            )
        if outputs.pending is not None:
            pending = write_pending(edits, top)
            told = f"{display_path(outputs.pending)}: {counted(len(edits), 'snapshot')} for promptfmt review"
            yield _written(outputs.pending, lambda path: path.write_text(pending, "utf-8"), told)
    if outputs.json is not None:
        result = result_json(
            tally,
            rootdir=rootdir,
            arguments=arguments,
            exit_status=exit_status,
            unmatched=unmatched,
            defined=defined,
        )
        yield _written(outputs.json, lambda path: path.write_bytes(result.encode("utf-8", "backslashreplace")))
    name = display_path(outputs.patch) if outputs.patch is not None else ""
    if outputs.markdown is not None:
        text = markdown_report(tally, arguments=arguments, patch=name)
        yield _written(outputs.markdown, lambda path: path.write_bytes(text.encode("utf-8", "backslashreplace")))
    if outputs.html is not None and tally.html is not None:
        title = f"Prompt formats: {rootdir.name}"
        accept = "" if ACCEPTABLE.isdisjoint(tally.clusters.counts()) else accept_all(arguments)
        page = tally.html.page(
            tally.clusters,
            title=title,
            note=archetype_note(tally.archetypes),
            shown_path=lambda file: below(file, rootdir),
            accept=accept,
        )
        yield _written(outputs.html, lambda path: path.write_bytes(page.encode("utf-8", "backslashreplace")))
    if outputs.step_summary is not None:
        summary = outputs.step_summary
        try:
            room = STEP_LIMIT - (summary.stat().st_size if summary.exists() else 0)
            text = markdown_report(tally, arguments=arguments, limit=room, patch=name)
            with summary.open("ab") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            yield f"the step summary cannot be written: {error.strerror or error}"


def edits_of(tally: Tally) -> list[Edit]:
    """Return what --snapshot-update would do to the files as they are now."""
    edits = [
        Edit(
            path=Path(outcome.snapshot),
            old=_content(Path(outcome.snapshot)),
            new=(outcome.new_text or "").encode(),
            category=outcome.category if outcome.category != "passed" else "header-only",
            task=outcome.task,
            profile=outcome.profile,
            key=outcome.key,
            title=outcome.title,
        )
        for outcome in tally.edits
    ]
    for path in tally.obsolete:
        title = "a snapshot that no task defines"
        edits.append(Edit(path=path, old=_content(path), new=None, category="obsolete", title=title))
    return edits


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _written(path: Path, write: Callable[[Path], object], told: str = "") -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        return f"{display_path(path)} cannot be written: {error.strerror or error}"
    return told or f"{display_path(path)} written"

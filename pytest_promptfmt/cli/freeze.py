"""`promptfmt freeze`: a few real docs for a task, so that its tests need neither network nor dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from pytest_promptfmt.cli.options import NoCode, pytest_options, repeatable, require_path
from pytest_promptfmt.cli.output import note, say
from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    DocsError,
    Position,
    PromptfmtError,
    SettingsError,
    SourceError,
    display_path,
    raising,
)
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.plugin.collected import settings_around
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.systems.task_files import load_tasks
from pytest_promptfmt.tasks import (
    LOOKED_AT,
    Redaction,
    Rows,
    as_lines,
    covering_rows,
    freeze as frozen_docs,
    read_data_file,
    redacted,
    shot_split,
)

ORIGIN: Final = ".docs.origin.json"
"""The suffix of the file that describes where frozen docs come from; it is never read as docs."""


def freeze(
    file: Annotated[Path, typer.Argument(help="A task file, or a folder with task files.", show_default=False)],
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="The number of docs to save.")] = 3,
    rows: Annotated[str | None, typer.Option("--rows", metavar="N,N,…", help="Row numbers, from 0.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Draw random rows, with this seed.")] = None,
    cover: Annotated[
        bool, typer.Option("--cover", help="Choose rows so that many lines of the task's code run.")
    ] = False,
    split: Annotated[
        str | None,
        typer.Option("--split", help="The split of the dataset. Default: the split that the task evaluates."),
    ] = None,
    shots: Annotated[bool, typer.Option("--shots", help="Also save rows of the split with few-shot examples.")] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take the rows from this JSON, JSONL, CSV or Parquet file."),
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Revision of the dataset on the hub.")] = None,
    redact: Annotated[list[str] | None, repeatable("--redact", "RULE", "column=TEXT or column~PATTERN=TEXT.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing docs.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the docs. Write no file.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only list saved docs whose columns differ from the dataset.")
    ] = False,
    no_code: NoCode = False,
) -> None:
    """Save a few docs (rows of the dataset) next to a task file.

    A second file has the revision, licence and row numbers. The setting docs_dir names another folder for both files.

    A dataset of the Hugging Face hub is downloaded: check its licence before you commit the docs. For a folder, docs
    are saved for each task that has none. If tasks fail, they are listed, and the exit code is 1.
    """
    require_path(file)
    tasks = load_tasks(file)
    if not file.is_dir() and len(tasks) != 1:
        hint = "put the task into a separate file"
        message = f"the file defines {counted(len(tasks), 'task')}, but docs can only be saved for a file with one task"
        raise SourceError(message, position=Position(file), hint=hint)
    if file.is_dir() and (source is not None or rows is not None or stdout):
        raise SettingsError("--from, --rows and --stdout need the file of a task, not a folder")
    if shots and (split is not None or source is not None or rows is not None or stdout):
        raise SettingsError("--shots cannot be combined with --split, --from, --rows or --stdout")
    if cover and (rows is not None or seed is not None):
        raise SettingsError("--cover cannot be combined with --rows or --seed")
    settings = settings_around(file, pytest_options(no_code=no_code))
    asked = _Asked(
        folder=file if file.is_dir() else file.parent,
        settings=settings,
        cover=cover,
        split=split,
        shots=shots or (check and split is None),
        source=source,
        rows=Rows(numbers=_numbers(rows), count=count, seed=seed),
        revision=revision,
        rules=[Redaction.parse(rule) for rule in redact or ()],
    )
    if not file.is_dir() and not check:
        for each in asked.splits(tasks[0]):
            _freeze_one(tasks[0], each, force=force, stdout=stdout)
        return
    failed, jobs = 0, [(task, each) for task in tasks for each in asked.splits(task)]
    for number, (task, each) in enumerate(jobs, 1):
        target, origin = each.places(task)
        if check and not origin.exists():
            continue
        if not check and (target.exists() and not force):
            say(f"{display_path(target)} already exists, and was not changed")
            continue
        note(f"{number:,} of {len(jobs):,}: {task.name}")
        try:
            if check:
                failed += not _check_one(task, each, target, origin)
            else:
                _freeze_one(task, each, force=force, stdout=False)
        except PromptfmtError as error:
            failed += 1
            note(f"{task.name}: {error}")
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The rows that the command line selects, where they are from and go to, and the settings of the project."""

    folder: Path
    settings: Settings
    cover: bool
    split: str | None
    shots: bool
    source: Path | None
    rows: Rows
    revision: str | None
    rules: Sequence[Redaction]

    def splits(self, task: Task) -> Iterator[_Asked]:
        """Yield the rows of each split of a task: of that of its shots one row more, for one may be left out."""
        yield self
        split = shot_split(task) if self.shots and task.assembly.renders_fields else None
        if split is not None and split != task.dataset.evaluation_split:
            yield replace(self, split=split, rows=replace(self.rows, count=max(self.rows.count, task.shots() + 1)))

    def rows_of(self, task: Task) -> Rows:
        """Return which rows of a task's split are kept; those that cover its branches are chosen once they are read."""
        return replace(self.rows, choose=partial(self._covering, task)) if self.cover else self.rows

    def _covering(self, task: Task, docs: Sequence[Doc]) -> Sequence[int]:
        first = [docs[number] for number in range(min(len(docs), LOOKED_AT))]
        found = covering_rows(task, first, self.rows.count, trusted=self.settings.trusts)
        count = counted(len(found.failed), "row")
        failed = f"; the code fails for {count}, such as row {found.failed[0]}" if found.failed else ""
        taken = (
            f"{len(found.rows)} rows (of the first {len(first):,}) run {found.taken:,} "
            f"of {found.steps:,} branches and lines of the code"
        )
        note(f"{task.name}: {taken}{failed}")
        return found.rows

    def places(self, task: Task) -> tuple[Path, Path]:
        """Return the file of a task's docs and that of the note about them."""
        file = task.path or Path()
        folder = self.settings.docs_folder(file.absolute()) or file.parent
        main = self.split is None or self.split == task.dataset.evaluation_split
        name = file.stem if main else f"{file.stem}.{self.split}"
        docs = f"{file.stem}.docs.jsonl" if main else f"{file.stem}.docs.{self.split}.jsonl"
        return folder / docs, folder / f"{name}{ORIGIN}"


def _freeze_one(task: Task, asked: _Asked, *, force: bool, stdout: bool) -> None:
    target, note_file = asked.places(task)
    if target.exists() and not (force or stdout):
        raise SettingsError(f"{display_path(target)} exists already", hint="to replace the docs, use --force")
    rows = asked.rows_of(task)
    found = frozen_docs(task, split=asked.split, rows=rows, file=asked.source, revision=asked.revision)
    lines = as_lines(redacted(found.docs, asked.rules))
    if stdout:
        typer.echo(lines, nl=False)
        return
    origin = {**found.origin, **({"redacted": [rule.column for rule in asked.rules]} if asked.rules else {})}
    with gate.limited_to([asked.settings.rootdir, asked.folder]):
        for path, content in (
            (target, lines.encode("utf-8", "surrogatepass")),
            (note_file, (json.dumps(origin, indent=1, ensure_ascii=False) + "\n").encode()),
        ):
            with raising(DocsError, "the docs cannot be written", Position(path)):
                writing.write(path, content)
    say(f"{display_path(target)}: {len(found.docs):,} docs, rows {', '.join(map(str, origin['rows'][:20]))}")
    licence, revision = (origin.get(name) or "unknown" for name in ("license", "revision"))
    say(f"{display_path(note_file)}: licence {licence}, revision {revision}")


def _check_one(task: Task, asked: _Asked, target: Path, origin: Path) -> bool:
    """Return whether frozen docs have the columns that the dataset has now, and report where not.

    Raises PromptfmtError where the dataset cannot be had: then it is unknown.
    """
    known = json.loads(gate.read_text(origin))
    if asked.source is None and "file" in known:
        raise DocsError(f"the docs were saved from the file {known['file']}", hint="name that file with --from")
    now = frozen_docs(task, split=asked.split, rows=Rows(count=1), file=asked.source, revision=asked.revision)
    before, after = ({name for doc in docs for name in doc} for docs in (read_data_file(target), now.docs))
    if before != after:
        gone, new = (", ".join(sorted(names)) or "none" for names in (before - after, after - before))
        say(f"{display_path(target)}: the columns of the dataset changed; removed: {gone}; new: {new}")
    return before == after


def _numbers(written: str | None) -> tuple[int, ...]:
    if written is None:
        return ()
    try:
        return tuple(int(part) for part in written.split(","))
    except ValueError:
        raise SettingsError(f"invalid --rows {written!r}", hint="write numbers with commas, as in 0,5,17") from None

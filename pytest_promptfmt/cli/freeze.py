"""`promptfmt freeze`: a few real docs beside the task, so that its tests need neither network nor dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pytest_promptfmt.core.errors import Position, SettingsError, SourceError, display_path
from pytest_promptfmt.core.text import escape_controls


def freeze(
    file: Annotated[Path, typer.Argument(help="The task file.", show_default=False)],
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="How many docs.")] = 3,
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="N,N,…", help="These rows of the split, counted from 0.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Draw the rows at random with this seed; by default the first rows.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="By default the one that is evaluated.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A json, jsonl, csv or parquet file.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Of the dataset on the hub.")] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option("--redact", metavar="RULE", help="column=TEXT or column~PATTERN=TEXT. Repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing docs.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the docs, write nothing.")] = False,
) -> None:
    """Keep docs of a task's dataset beside its file, with a note of their revision, licence and row numbers.

    A dataset of the Hugging Face hub is downloaded: check its licence before you commit its docs.
    """
    from pytest_promptfmt.systems.lm_eval.docs.frozen_docs import ORIGIN, Redaction, Rows, as_lines, redacted
    from pytest_promptfmt.systems.lm_eval.docs.frozen_docs import freeze as frozen_docs
    from pytest_promptfmt.systems.task_files import load_tasks

    tasks = load_tasks(file)
    if len(tasks) != 1 or file.is_dir():
        raise SourceError("only one task can be frozen at a time", position=Position(file), hint="give its file")
    [task] = tasks
    rules = [Redaction.parse(rule) for rule in redact or ()]
    main = split is None or split == task.dataset.evaluation_split
    target = file.with_name(f"{file.stem}.docs.jsonl" if main else f"{file.stem}.docs.{split}.jsonl")
    note = file.with_name(f"{file.stem}{'' if main else f'.{split}'}{ORIGIN}")
    if target.exists() and not (force or stdout):
        raise SettingsError(f"{display_path(target)} exists already", hint="--force replaces it")
    chosen = Rows(numbers=_numbers(rows), count=count, seed=seed)
    found = frozen_docs(task, split=split, rows=chosen, file=source, revision=revision)
    lines = as_lines(redacted(found.docs, rules))
    if stdout:
        typer.echo(lines, nl=False)
        return
    origin = {**found.origin, **({"redacted": [rule.column for rule in rules]} if rules else {})}
    target.write_bytes(lines.encode("utf-8", "surrogatepass"))
    note.write_text(json.dumps(origin, indent=1, ensure_ascii=False) + "\n", "utf-8")
    typer.echo(
        escape_controls(
            f"{display_path(target)}: {len(found.docs):,} docs, rows {', '.join(map(str, origin['rows'][:20]))}"
        )
    )
    licence = origin.get("license") or "unknown"
    typer.echo(
        escape_controls(f"{display_path(note)}: licence {licence}, revision {origin.get('revision') or 'unknown'}")
    )


def _numbers(written: str | None) -> tuple[int, ...]:
    if written is None:
        return ()
    try:
        return tuple(int(part) for part in written.split(","))
    except ValueError:
        raise SettingsError(f"invalid --rows {written!r}", hint="give numbers with commas, such as 0,5,17") from None

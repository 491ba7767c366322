"""`promptfmt formats`: which formats there are, what each looks like and how its answers are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pytest_promptfmt.core.errors import SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from pytest_promptfmt.formats.format import Format

_CHOICES: Final = ("Berlin", "Madrid", "Paris", "London")
_GOLD: Final = 2
_DOC: Final = {"question": "What is the capital of France?", "topic": "geography"}
"""The doc that samples show: the one of lm-eval's prompt-formats proposal."""


def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Only these formats.", show_default=False)] = None,
    tasks: Annotated[
        Path, typer.Option("--tasks", metavar="FOLDER", help="The folder of tasks that has formats/*.yaml beside them.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Print names and summaries only.")] = False,
) -> None:
    """Show the formats: built in, from the literature, and your own, each with a sample of its prompt."""
    from pytest_promptfmt.formats.format_registry import known_formats

    if not tasks.is_dir():
        raise SettingsError(f"there is no folder {display_path(tasks)}", hint="--tasks takes the folder of task files")
    known = known_formats(tasks)
    for name in names or ():
        if name not in known:
            raise SettingsError(
                f"there is no format {name!r}", hint=did_you_mean(name, known) or f"there are {', '.join(known)}"
            )
    shown = {name: known[name] for name in (dict.fromkeys(names) if names else known)}
    if as_json:
        import json

        typer.echo(
            json.dumps([_as_data(format_, _kind(format_, tasks)) for format_ in shown.values()], indent=2, default=dict)
        )
        return
    _print(shown, tasks, brief=brief)


def sample(format_: Format) -> str:
    """Return the prompt of a doc followed by its answer, as in a few-shot example."""
    from pytest_promptfmt.core.docs import TaskDocs
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.formats.apply import lay_out
    from pytest_promptfmt.formats.labels import label_count
    from pytest_promptfmt.tasks import synthetic_docs

    asked = Task(name="sample", doc_to_text="question", doc_to_choice="choices", doc_to_target="answer")
    task = lay_out(asked, format_)
    skipped = max(0, min(_GOLD, len(_CHOICES) - (label_count(format_.choice_labels) or len(_CHOICES))))
    choices = _CHOICES[skipped:][: label_count(format_.choice_labels)]
    doc = {**synthetic_docs(task, count=1)[0], **_DOC, "choices": choices, "answer": _GOLD - skipped}
    docs = TaskDocs.in_memory([{**doc, "question": ""}], [doc, doc])
    prompt = next(task.render(docs, num_fewshot=1)).prompts[0]
    return "".join(
        span.text
        for span in prompt.spans
        if span.origin.part == "description" or (span.origin.shot == 0 and span.origin.part != "fewshot delimiter")
    )


def catalogue(formats: Iterable[Format]) -> str:
    """Return formats as a section of a Markdown page: what each is, a sample, and where it comes from."""
    from pytest_promptfmt.formats.format import make_scorer

    blocks = []
    for format_ in formats:
        scorer = make_scorer(format_.scorer, format_.choice_labels)
        facts = [f"Output type `{format_.output_type}`."]
        facts += [f"Scorer `{scorer.name}`: reads {scorer.extracts}."] if scorer is not None else []
        facts += [format_.notes] if format_.notes else []
        facts += [f"Source: {format_.citation}."] if format_.citation else []
        lines = [f"### `{format_.name}`", "", format_.summary, "", "```text", sample(format_), "```", ""]
        blocks.append("\n".join([*lines, " ".join(facts)]))
    return "\n\n".join(blocks) + "\n"


def _kind(format_: Format, folder: Path) -> str:
    """Return where a format comes from, in words that are headings too."""
    from pytest_promptfmt.formats.format_registry import FOLDER, published_format, published_names

    for kind, names in published_names().items():
        if format_.name in names and format_ == published_format(format_.name):
            return kind
    if (folder / FOLDER / f"{format_.name}.yaml").is_file():
        return f"from {display_path(folder / FOLDER)}"
    return "from installed packages"


def _as_data(format_: Format, kind: str) -> Mapping[str, Any]:
    import dataclasses

    from pytest_promptfmt.formats.format import DOCUMENTATION_FIELDS, make_scorer

    scorer = make_scorer(format_.scorer, format_.choice_labels)
    fields = {
        field.name: getattr(format_, field.name)
        for field in dataclasses.fields(format_)
        if field.name not in ("name", *DOCUMENTATION_FIELDS)
    }
    return {
        "name": format_.name,
        "origin": kind,
        "summary": format_.summary,
        "sample": sample(format_),
        "output_type": format_.output_type,
        "scorer": None if scorer is None else {"name": scorer.name, "extracts": scorer.extracts},
        "notes": format_.notes,
        "citation": format_.citation,
        "fields": fields,
    }


def _print(shown: Mapping[str, Format], folder: Path, *, brief: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    kinds: dict[str, list[Format]] = {}
    for format_ in shown.values():
        kinds.setdefault(_kind(format_, folder), []).append(format_)
    for kind, formats in kinds.items():
        console.print(Text(kind, style="bold underline"))
        for format_ in formats:
            console.print(Text(escape_controls(format_.name), style="bold cyan"))
            console.print(Text(escape_controls(f"  {format_.summary}")))
            if brief:
                continue
            for line in _details(format_):
                console.print(Text(escape_controls(line), style="green" if line.startswith("  | ") else ""))
            console.print()


def _details(format_: Format) -> Iterator[str]:
    """Yield the indented lines below a format's summary: its sample, how answers are read, notes and source."""
    from pytest_promptfmt.formats.format import make_scorer

    yield from (f"  | {line}" for line in sample(format_).splitlines())
    yield f"  output type: {format_.output_type}"
    scorer = make_scorer(format_.scorer, format_.choice_labels)
    if scorer is not None:
        yield f"  scorer {scorer.name}: reads {scorer.extracts}"
    for title, text in (("notes", format_.notes), ("source", format_.citation)):
        if text:
            yield f"  {title}: {text}"

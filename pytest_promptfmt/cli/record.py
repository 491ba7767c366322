"""`promptfmt record`: the renderings of a server, and what its parser reads, kept for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import typer

from pytest_promptfmt.cli.options import NoCode, Paths, Profiles, pytest_options
from pytest_promptfmt.cli.output import note
from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.plugin.collected import CollectedPrompts, with_collected
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.systems import system_with


@runtime_checkable
class RecordsRenderings(Protocol):
    """A system that keeps what a server renders for views of tasks, and what its parser reads."""

    def record_renderings(self, views: Sequence[ProfileView], engine: str, file: Path) -> str:
        """Write the recording and return a summary; raises SettingsError."""
        ...

    def record_answers(self, views: Sequence[ProfileView], parser: str) -> str:
        """Write the recordings and return a summary; raises SettingsError and TokenizerError."""
        ...


def record(
    paths: Paths = None,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME:URL", help="`llama.cpp:URL` or `vllm:URL`.")] = "",
    parser: Annotated[str, typer.Option("--parser", metavar="NAME", help="`vllm/NAME` or `sglang/NAME`.")] = "",
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The recording.")] = Path("prompts.jsonl"),
    profile: Profiles = None,
    no_code: NoCode = False,
) -> None:
    """Record the prompts that a server renders, or how it parses answers.

    With --engine, a server renders each chat template with all built-in conversations, and the messages of your tasks.
    To use the recording, set it as `engine` of a profile, or in `template_engines`. Later runs compare their prompts
    with it, and need no server. No model runs.

    With --parser, an installed vLLM or SGLang parses the answers that each chat template writes. Later runs use the
    recording `NAME.answers.jsonl` next to the template.
    """
    if bool(engine) == bool(parser):
        hint = "--engine llama.cpp:URL, --engine vllm:URL, --parser vllm/NAME or --parser sglang/NAME"
        raise SettingsError("use either --engine or --parser", hint=hint)
    system = system_with(RecordsRenderings)
    if to.suffix != RECORDED:
        raise SettingsError(f"the name of a recording must end with {RECORDED}, not {to.suffix or to}")
    is_new = not parser and not gate.is_there(to)
    summaries: list[str] = []

    def use(found: Sequence[CollectedPrompts]) -> None:
        views = [each.seen for each in found]
        record = system.record_answers(views, parser) if parser else None
        summaries.append(record or system.record_renderings(views, engine, to.absolute()))

    try:
        if is_new:
            writing.write(to, "")  # a profile may name it already, and is read before the server is asked
        collected = with_collected(use, paths or [], pytest_options(profiles=profile, no_code=no_code))
    except OSError as error:
        raise SettingsError(f"the recording {to} cannot be written: {error.strerror}") from error
    finally:
        if is_new and not summaries:
            writing.remove(to)
    for unread in collected.errors:
        note(unread)
    for line in summaries:
        typer.echo(line)

"""`promptfmt record`: the renderings of a server, kept for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from pytest_promptfmt.cli.options import NoCode, Paths, Profiles, pytest_options
from pytest_promptfmt.cli.output import note
from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import SettingsError

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collected import CollectedPrompts
    from pytest_promptfmt.study import ProfileView


@runtime_checkable
class RecordsRenderings(Protocol):
    """A system that keeps what a server renders for views of tasks."""

    def record_renderings(self, views: Sequence[ProfileView], engine: str, file: Path) -> str:
        """Write the recording and return a summary; raises SettingsError."""
        ...


def record(
    paths: Paths = None,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME:URL", help="`llama.cpp:URL` or `vllm:URL`.")] = "",
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The recording.")] = Path("prompts.jsonl"),
    profile: Profiles = None,
    no_code: NoCode = False,
) -> None:
    """Have a server render all conversations, and keep what it renders.

    Chat templates are sent with all conversations, tasks with the messages of their docs for each profile that has a
    chat template. Name the recording as `engine` of a profile or in `template_engines`, and every run compares with it,
    without the server. This is the only command that needs one; no model is run.
    """
    from pytest_promptfmt.core.profile import RECORDED
    from pytest_promptfmt.plugin.collected import with_collected
    from pytest_promptfmt.systems import system_with

    if not engine:
        raise SettingsError("missing --engine", hint="--engine llama.cpp:URL or --engine vllm:URL")
    system = system_with(RecordsRenderings)
    if system is None:
        raise SettingsError("promptfmt record needs the system of chat templates, which this installation lacks")
    if to.suffix != RECORDED:
        raise SettingsError(f"the name of a recording ends with {RECORDED}, not {to.suffix or to}")
    is_new = not gate.is_there(to)
    summaries: list[str] = []

    def use(found: Sequence[CollectedPrompts]) -> None:
        summaries.append(system.record_renderings([each.seen for each in found], engine, to.absolute()))

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

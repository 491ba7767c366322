"""`promptfmt schema`: the JSON Schemas that let an editor complete and check task files and settings."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class SchemaKind(StrEnum):
    """The files that have a schema."""

    TASK = "task"
    SETTINGS = "settings"


def schema(
    kind: Annotated[SchemaKind, typer.Argument(help="Of task files, or of promptfmt.yaml.")] = SchemaKind.TASK,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Print the JSON Schema of task files or of promptfmt.yaml, for yaml-language-server and others."""
    if kind is SchemaKind.TASK:
        from pytest_promptfmt.tasks import task_schema as make
    else:
        from pytest_promptfmt.settings.pages import settings_schema as make
    text = json.dumps(make(), indent=1, ensure_ascii=False)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n", "utf-8")

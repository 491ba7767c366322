"""Chat templates as files under test: Jinja files, `chat_template.json`, `tokenizer_config.json`, GGUF metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.systems import HEAD_BYTES, ReadContext, System, head_of
from pytest_promptfmt.tasks import TaskFile

if TYPE_CHECKING:
    from pytest_promptfmt.core.finding import Reported

JSON_NAMES: Final = ("chat_template.json", "tokenizer_config.json")
"""The JSON files of transformers that hold chat templates."""

_GGUF: Final = b"GGUF"
_RULES: Final = ("content", "shape", "turn", "markup", "training", "loop", "engine")


class ChatTemplates(System):
    """Templates, tried with conversations."""

    name = "templates"
    suffixes = (".jinja", ".json", ".gguf")
    shape = "`messages` (chat template)"
    rules = tuple(f"{__name__}.{about}_rules" for about in _RULES)
    general_rules = tuple(f"PF4{number:02}" for number in (1, 2, *range(6, 10), *range(13, 19), *range(39, 43)))
    collected_by_name = True

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Return whether the beginning reads messages, or holds a chat template."""
        if path.suffix == ".jinja":
            return b"messages" in head
        if path.suffix == ".gguf":
            return head.startswith(_GGUF)
        return path.name in JSON_NAMES and (b'"chat_template"' in head or len(head) == HEAD_BYTES)

    def read(self, path: Path, context: ReadContext) -> TaskFile | None:
        """Return a task for each template of the file; None where another file of the folder takes its place.

        Raises SourceError for a file that is broken, and for broken conversations next to it.
        """
        from pytest_promptfmt.systems.templates.template_tasks import read_template_tasks

        return read_template_tasks(path, self.name)

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the templates of the folder itself, not of the folders below."""
        for path in sorted(folder.iterdir()):
            if path.suffix in self.suffixes and path.is_file():
                with suppress(gate.RefusedError):
                    if self.recognizes(path, head_of(path)):
                        yield path

    def inputs_of(self, path: Path) -> Collection[str] | None:
        """Return the files that are read with a template; None for a GGUF file, which is large."""
        from pytest_promptfmt.systems.templates.template_files import files_beside

        return None if path.suffix == ".gguf" else files_beside(path)

    def check_template(
        self,
        source: str | Path,
        tokenizer: str | Path | None = None,
        **options: Any,
    ) -> list[Reported]:
        """Return what the rules find in a template, errors first; options and errors are those of `check_template`."""
        from pytest_promptfmt.systems.templates.template_check import checked_template

        return checked_template(source, tokenizer, **options)

    def compare_files(self, first: Path, second: Path) -> list[str]:
        """Return a line for each difference of two templates, or of the tokenizers of two folders."""
        from pytest_promptfmt.systems.templates.template_check import compared

        return list(compared(first, second))

    def record_renderings(self, views: Sequence[Any], engine: str, file: Path) -> str:
        """Ask a server to render what the views show, write the recording, and return what was done.

        Raises SettingsError for an engine that is not a server or does not answer, and a file that is not a recording.
        """
        from pytest_promptfmt.systems.templates.server_engines import recorded

        return recorded(views, engine, file)

    def record_answers(self, views: Sequence[Any], parser: str) -> str:
        """Write what a parser reads in the answers of the templates under test, and return what was done.

        Raises TokenizerError for a parser that cannot be loaded, SettingsError for an unknown one.
        """
        from pytest_promptfmt.systems.templates.answers_read_back import recorded_answers

        return "\n".join(recorded_answers(views, parser)) or "no chat template is under test here"


SYSTEM: Final = ChatTemplates()

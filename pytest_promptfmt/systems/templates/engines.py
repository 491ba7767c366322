"""Other engines that render chat templates: minijinja here, others in processes, servers and their recordings.

Processes are asked in lines of JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from calendar import timegm
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Protocol
from weakref import finalize

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.errors import SettingsError, did_you_mean
from pytest_promptfmt.core.files import cache_directory
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.systems.templates.server_engines import SERVERS, RecordedEngine, server_at

MINIJINJA: Final = "minijinja"


class _MiniJinja:
    """A template compiled by minijinja, with the settings of Jinja that transformers uses."""

    name = MINIJINJA
    is_server = False

    def __init__(self, source: str) -> None:
        import minijinja

        def raise_exception(message: str) -> NoReturn:
            raise TemplateError(message)

        self._error = minijinja.TemplateError
        self._environment = minijinja.Environment(
            globals={"raise_exception": raise_exception},
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=lambda _name: False,
        )
        try:
            self._environment.add_template("chat", source)
        except self._error as error:
            raise RuntimeError(str(error).splitlines()[0]) from error

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text; raises jinja2's TemplateError for a refusal, RuntimeError for everything else."""
        try:
            return str(self._environment.render_template("chat", **variables))
        except self._error as error:
            refusal = error.__cause__
            if isinstance(refusal, TemplateError):
                raise TemplateError(str(refusal)) from error
            raise RuntimeError(str(error).splitlines()[0]) from error


PACKAGE: Final = "@huggingface/jinja"


class EngineProcess:
    """A template compiled by another program. Subclasses start it, and read its errors."""

    name: ClassVar[str]
    is_server: ClassVar[bool] = False

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "TZ": "UTC"},
        )
        self.close = finalize(self, _end, self._process)

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text; raises TemplateError for a refusal, RuntimeError where it fails or the two look alike."""
        clock = getattr(variables["strftime_now"], "__self__", None)
        plain = {key: value for key, value in variables.items() if not callable(value)}
        now = clock if isinstance(clock, datetime) else datetime(2024, 7, 26, 12)
        return str(self.asked({"variables": plain, "now": self.time(now)})["text"])

    def time(self, now: datetime) -> str | int:
        """Return a time as the program reads it."""
        return now.isoformat()

    def asked(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a question; raises as `render`."""
        stream = self._process.stdin
        if stream is None:
            raise RuntimeError(f"the process of {self.name} takes no input")
        stream.write(json.dumps(question) + "\n")
        stream.flush()
        answer = self.answer()
        if "error" in answer:
            raise self.failure(answer["error"])
        return answer

    def answer(self) -> Mapping[str, Any]:
        """Return the next line; raises RuntimeError where the program has ended."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"the process of {self.name} ended without an answer")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def failure(self, message: str) -> Exception:
        """Return the exception for an error."""
        return RuntimeError(message)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class NodeJinja(EngineProcess):
    """The package of transformers.js that node finds from the working directory."""

    name = PACKAGE

    def __init__(self, source: str) -> None:
        """Compile a template; raises SettingsError without node or package, RuntimeError for one it does not take."""
        node = shutil.which("node")
        if node is None:
            raise SettingsError(f"the template engine {PACKAGE} needs node", hint="install Node.js")
        script = (resources.files("pytest_promptfmt") / "data/engines/huggingface_jinja.js").read_text("utf-8")
        super().__init__([node, "--eval", script, PACKAGE])
        if "missing" in self.answer():
            self.close()
            raise SettingsError(f"the template engine {PACKAGE} is not installed", hint=f"npm install {PACKAGE}")
        self.asked({"source": source})


_AT_LINE: Final = re.compile(r" at line (\d+), column \d+ in source:")
_RAISED: Final = "Jinja Exception: "
LLAMA: Final = "llama.cpp"
BUILD: Final = "python -m pytest_promptfmt.systems.templates.llama_build"


class LlamaJinja(EngineProcess):
    """The engine of llama.cpp, if it was built (`llama_build.py`); the server changes some messages before it."""

    name = LLAMA

    def __init__(self, source: str) -> None:
        """Compile a template; raises SettingsError where it is not built, RuntimeError for one it does not take."""
        caches = cache_directory()
        program = shutil.which(PROGRAM, path=str(caches)) if caches is not None else None
        if program is None:
            raise SettingsError(f"the template engine {LLAMA} is not built", hint=BUILD)
        super().__init__([program])
        self.asked({"source": source})

    def time(self, now: datetime) -> int:
        """Return the seconds since 1970."""
        return timegm(now.timetuple())

    def failure(self, message: str) -> Exception:
        """Return a refusal as TemplateError; errors name the line of the template as minijinja does."""
        line = _AT_LINE.search(message)
        said = message.rpartition("Error: ")[2].strip()
        if said.startswith(_RAISED):
            return TemplateError(said.removeprefix(_RAISED))
        return RuntimeError(f"{said} (in chat:{line[1]})" if line else said)


PROGRAM: Final = "llama-jinja"
"""The name of the built program in the user's cache."""

RUNS_CODE: Final = frozenset({PACKAGE})
"""Engines that are found from the working directory, so that the repository under test can put its own there."""


class Engine(Protocol):
    """A template as another engine renders it; a server renders the one that it serves."""

    @property
    def name(self) -> str:
        """Return what messages call the engine."""

    @property
    def is_server(self) -> bool:
        """Return whether a server renders, or did when it was recorded: with its own clock and special tokens."""

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text; raises TemplateError for a refusal, RuntimeError where it fails or the two look alike."""


_ENGINES: Final[Mapping[str, Callable[[str], Engine]]] = {
    MINIJINJA: _MiniJinja,
    PACKAGE: NodeJinja,
    LLAMA: LlamaJinja,
}


def compiled_by(engine: str, source: str) -> Engine:
    """Return a template compiled by an engine, a server (`llama.cpp:URL`, `vllm:URL`) or a recording (`FILE.jsonl`).

    Raises SettingsError for one that is unknown or not installed, RuntimeError for a template that it does not take.
    """
    if (server := server_at(engine)) is not None:
        return server
    if engine.endswith(RECORDED):
        return RecordedEngine(Path(engine))
    if engine not in _ENGINES:
        raise SettingsError(f"unknown template engine {engine!r}", hint=did_you_mean(engine, (*_ENGINES, *SERVERS)))
    try:
        return _ENGINES[engine](source)
    except ImportError as error:
        raise SettingsError(f"the template engine {engine} is not installed", hint=f"pip install {engine}") from error

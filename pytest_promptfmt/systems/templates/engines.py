"""Other engines that render chat templates: minijinja, and `@huggingface/jinja` in a process of node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol
from weakref import finalize

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.errors import SettingsError, did_you_mean
from pytest_promptfmt.core.profile import RECORDED
from pytest_promptfmt.systems.templates.server_engines import SERVERS, RecordedEngine, server_at

PACKAGE: Final = "@huggingface/jinja"

_SCRIPT: Final = """
const RealDate = Date, lines = require('readline').createInterface({input: process.stdin});
let compiled, now = 0;
globalThis.Date = class extends RealDate { constructor(...given) { given.length ? super(...given) : super(now); } };
const answer = (value) => process.stdout.write(JSON.stringify(value) + '\\n');
let Template;
try { Template = require(process.argv[1]).Template; answer({}); } catch (error) { answer({missing: error.message}); }
lines.on('line', (line) => {
  const asked = JSON.parse(line);
  try {
    if (asked.source !== undefined) { compiled = new Template(asked.source); answer({}); return; }
    now = new RealDate(asked.now).getTime();
    answer({text: compiled.render(asked.variables)});
  } catch (error) { answer({error: String(error.message)}); }
});
"""


class NodeJinja:
    """A template compiled by the package that node finds from the working directory."""

    name = PACKAGE
    is_server = False

    def __init__(self, source: str) -> None:
        """Compile a template; raises SettingsError without node or package, RuntimeError for one it does not take."""
        node = shutil.which("node")
        if node is None:
            raise SettingsError(f"the template engine {PACKAGE} needs node", hint="install Node.js")
        self._process = subprocess.Popen(
            [node, "--eval", _SCRIPT, PACKAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.close = finalize(self, _end, self._process)
        if "missing" in self._answer():
            self.close()
            raise SettingsError(f"the template engine {PACKAGE} is not installed", hint=f"npm install {PACKAGE}")
        self._asked({"source": source})

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text; raises RuntimeError for a refusal and for everything else."""
        clock = getattr(variables["strftime_now"], "__self__", None)
        plain = {key: value for key, value in variables.items() if not callable(value)}
        now = clock.isoformat() if clock is not None else "2024-07-26T12:00:00"
        return str(self._asked({"variables": plain, "now": now})["text"])

    def _asked(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        stream = self._process.stdin
        if stream is None:
            raise RuntimeError("node takes no input")
        stream.write(json.dumps(question) + "\n")
        stream.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _answer(self) -> Mapping[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError("node ended without an answer")
        answer: Mapping[str, Any] = json.loads(line)
        return answer


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class _MiniJinja:
    """A template compiled by minijinja, with the settings of Jinja that transformers uses."""

    name = "minijinja"
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


_ENGINES: Final[Mapping[str, Callable[[str], Engine]]] = {"minijinja": _MiniJinja, PACKAGE: NodeJinja}


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

"""Engines that render chat templates in processes of their own, which are asked in lines of JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from calendar import timegm
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final
from weakref import finalize

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.files import cache_directory

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
            raise RuntimeError(f"{self.name} takes no input")
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
            raise RuntimeError(f"{self.name} ended without an answer")
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
        super().__init__([node, "--eval", _SCRIPT, PACKAGE])
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

"""`@huggingface/jinja`, the engine of transformers.js, in a process of node that renders line by line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, Final
from weakref import finalize

from pytest_promptfmt.core.errors import SettingsError

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

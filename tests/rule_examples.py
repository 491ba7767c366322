"""The examples in the docstrings of rules as files that a run can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_SETTINGS: Final = "promptfmt.yaml"
_TEMPLATE: Final = "chat_template.jinja"
_FILE: Final = re.compile(r"^# file: (\S+)\n", re.MULTILINE)
_KEY: Final = re.compile(r"^([A-Za-z_]\w*):", re.MULTILINE)

_DOCS: Final = """metadata:
  promptfmt:
    docs:
    - {question: Which metal is liquid at room temperature?, choices: [iron, mercury, zinc], answer: 1}
    - {question: Which metal rusts?, choices: [iron, gold, platinum], answer: 0}
    - {question: Which metal is yellow?, choices: [zinc, silver, gold], answer: 2}
"""
_ORDINARY: Final[Mapping[str, str]] = {
    "task": "task: example\n",
    "test_split": "test_split: test\n",
    "output_type": "output_type: multiple_choice\n",
    "doc_to_text": 'doc_to_text: "Question: {{question}}\\nAnswer:"\n',
    "doc_to_choice": 'doc_to_choice: "{{choices}}"\n',
    "doc_to_target": "doc_to_target: answer\n",
    "metadata": _DOCS,
}
_GENERATING: Final[Mapping[str, str]] = {
    **{key: text for key, text in _ORDINARY.items() if key not in ("output_type", "doc_to_choice")},
    "doc_to_target": 'doc_to_target: "{{choices[answer]}}"\n',
}


def write_example(example: str, folder: Path) -> tuple[Path, ...]:
    """Write the files of an example, completed, below a folder, and return them.

    A line `# file: name.yaml` begins a new file; text before the first one is `example.yaml`. An example of profiles
    only, with the files in their folders, gets an ordinary task. `␍` in a template is a carriage return.
    """
    task, *named = _FILE.split(example)
    files = {"example.yaml": task} if task.strip() or not named else {}
    files |= dict(zip(named[::2], named[1::2], strict=True))
    own = (".yaml", ".yml", ".json", _TEMPLATE)
    if not any(name.endswith(own) and name != _SETTINGS and "/" not in name for name in files):
        files["example.yaml"] = ""
    written = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_task = path.suffix in (".yaml", ".yml") and name != _SETTINGS
        path.write_bytes((complete(text) if is_task else text.replace("␍", "\r")).encode())
        written.append(path)
    return tuple(written)


def complete(fragment: str) -> str:
    """Return a fragment of a task with the missing keys added; groups and includes stay as they are."""
    shown = set(_KEY.findall(fragment))
    if shown & {"group", "class"} and not shown & {"doc_to_text"}:
        return fragment + "\n"
    generating = "generate_until" in fragment or "loglikelihood" in fragment
    ordinary = _GENERATING if generating else _ORDINARY
    return "".join(text for key, text in ordinary.items() if key not in shown) + fragment + "\n"

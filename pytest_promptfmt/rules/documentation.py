"""The documentation of a rule, read from its docstring: `promptfmt explain`, the pages of docs/rules, and two tests.

A docstring has a first line and the parts Why, Example, Silent example, Fix and Real. The examples of most built-in
rules, and the fixes of their further parts, are in `data/rule_cases.yaml`, those of a slice in its own
`rule_cases.yaml`. An example is the YAML of a task; keys that are not shown are those of an ordinary one, and other
files follow lines such as `# file: helper.py`. The part
`Silent with` shows only the keys and files that differ from the example. A line `# include: name.txt` is replaced by
that file next to the module of the rule.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.rules.rule_registry import Rule

_CASES: Final = {"fix": "Fix", "example": "Example", "silent": "Silent example", "with": "Silent with"}
_PARTS: Final = ("Why", "Example", "Silent example", "Silent with", "Fix", "Real")
_HEAD: Final = re.compile(rf"^({'|'.join(_PARTS)}):[ \t]*", re.MULTILINE)
_INCLUDE: Final = re.compile(r"^# include: (\S+)(?:\n|\Z)", re.MULTILINE)
_FILE: Final = re.compile(r"^# file: (\S+)\n", re.MULTILINE)
_PROJECTS: Final = ("lm-eval", "eval-framework", "transformers", "llama.cpp")
_KEY: Final = re.compile(r"^(?=([A-Za-z_]\w*):)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Documentation:
    """The parts of a rule's docstring; "" where a part is missing.

    `silent` is a complete example, `changes` the part of it that differs from `example` where only that is written.
    """

    summary: str
    why: str = ""
    example: str = ""
    silent: str = ""
    changes: str = ""
    fix: str = ""
    real: str = ""


def documentation_of(rule: Rule, case: str = "") -> Documentation:
    """Return the parts of a rule's docstring, with its example, or with that of another case."""
    parts = _parts_of(rule)
    parts |= _case_of(rule, case) if rule.is_builtin and "Example" not in parts else {}
    example, silent, changes = (
        _with_included(parts.get(head, ""), rule) for head in ("Example", "Silent example", "Silent with")
    )
    return Documentation(
        summary=" ".join(parts[""].split()),
        why=_flowing(parts.get("Why", "")),
        example=example,
        silent=changed_example(example, changes) if changes else silent,
        changes=changes,
        fix=_flowing(parts.get("Fix", "")),
        real=_flowing(parts.get("Real", "")),
    )


def _parts_of(rule: Rule) -> dict[str, str]:
    """Return the parts of the docstring by their heads, the first line under ""."""
    first, *pieces = _HEAD.split(inspect.getdoc(rule.function) or f"{rule.name} (no description).")
    bodies = (inspect.cleandoc(f"\n{body}").strip("\n") for body in pieces[1::2])
    return {"": first} | dict(zip(pieces[::2], bodies, strict=True))


def _case_of(rule: Rule, name: str = "") -> dict[str, str]:
    """Return the parts of a built-in rule that are in a table of cases, by their heads."""
    _, *folders, _ = rule.function.__module__.split(".")
    cases = data_table("rule_cases", "data" if folders == ["rules"] else "/".join(folders))
    case = cases.get(rule.code, {}).get(name or rule.function.__name__, {})
    return {_CASES[key]: text for key, text in case.items()}


def _with_included(example: str, rule: Rule) -> str:
    folder = Path(inspect.getfile(rule.function)).parent
    return _INCLUDE.sub(lambda found: (folder / found[1]).read_text("utf-8"), example)


def changed_example(example: str, changes: str) -> str:
    """Return an example with other files, and with other keys in its YAML files."""
    files = _files(example)
    for name, text in _files(changes).items():
        has_keys = name in files and (not name or name.endswith((".yaml", ".yml")))
        files[name] = "".join((_keys(files[name]) | _keys(text)).values()) if has_keys else text
    return "".join(f"# file: {name}\n{text}" if name else text for name, text in files.items()).rstrip("\n")


def _files(example: str) -> dict[str, str]:
    """Return name to text of the files of an example, each ending with a newline; the file of the task has no name."""
    task, *named = _FILE.split(f"{example}\n")
    return ({"": task} if task.strip() else {}) | dict(zip(named[::2], named[1::2], strict=True))


def _keys(text: str) -> dict[str, str]:
    """Return key to text of a YAML file that begins with a key."""
    _, *pieces = _KEY.split(text)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


@cache
def remedy_of(rule: Rule) -> str:
    """Return the default `do` of the rule's findings: its `Fix`, as one plain line."""
    fix = _parts_of(rule).get("Fix") or (_case_of(rule).get("Fix", "") if rule.is_builtin else "")
    return " ".join(fix.replace("`", "").split()).removesuffix(".")


def page(rule: Rule) -> str:
    """Return the page of a rule in docs/rules."""
    parts = documentation_of(rule)
    lines = [f"# {rule.code} {rule.name}", "", parts.summary, ""]
    is_fixable = any(part.fix is not None for part in rule.all_parts)
    fixable = " `promptfmt fix` fixes it if one edit is enough." if is_fixable else ""
    lines += [f"Severity: {rule.severity}. Family: {rule.family}.{fixable}", ""]
    if parts.why:
        lines += ["## Why", "", _sentence(parts.why), ""]
    others = [documentation_of(part) for part in rule.parts]
    if others:
        lines += ["## Variants", "", *(f"- {_form(each)}" for each in others), ""]
    if parts.example:
        lines += ["## Example that triggers it", "", "```yaml", parts.example, "```", ""]
    if parts.silent:
        same = ["The same task with:", ""] if parts.changes else []
        lines += ["## Example that does not trigger it", "", *same, "```yaml", parts.changes or parts.silent, "```", ""]
    if parts.fix:
        lines += ["## How to fix", "", _sentence(parts.fix), ""]
    if parts.real:
        lines += ["## Seen in", "", parts.real, ""]
    return "\n".join(lines)


def _form(part: Documentation) -> str:
    """Return one line about a further part of a rule: what it reports, and how to fix that."""
    summary = part.summary.removeprefix("Report ").removeprefix("that ")
    return f"{_sentence(summary)}{f' Fix: {part.fix}' if part.fix else ''}"


def _sentence(text: str) -> str:
    """Return a text with a capital at its start, unless it begins with the name of a project or key."""
    is_name = text.startswith(_PROJECTS) or "_" in text.partition(" ")[0]
    return text if is_name else text[:1].upper() + text[1:]


def _flowing(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))

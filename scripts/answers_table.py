"""Write docs/answers.md: which answers of the templates of a folder come back through a parser.

    python scripts/answers_table.py FOLDER --parsers trl/chat_template_utils.py

Each template that writes tool calls is tried with all response templates of TRL's file, and the one that reads most is
shown. `promptfmt_html` gives the same, answer by answer, for a template with its own `response_template`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates.answer_parsers import parser_of
from pytest_promptfmt.systems.templates.answers_read_back import Loss, loop_table, lost_parts, written_answers
from pytest_promptfmt.systems.templates.loop_rules import calls_look_alike

PAGE = Path(__file__).parents[1] / "docs" / "answers.md"
PLAIN = ("answer", "call-finished")
HEAD = """# Answers that come back

A model calls a tool with an answer such as `<tool_call>{{"name": "now"}}</tool_call>`. The server reads this text with
a parser, and makes a message of it. The next request contains the message, and the chat template renders it again. The
answer *comes back* if the new text is the same, and nothing is missing in the message.

This page shows how often answers come back, for {count} public chat templates that write tool calls. The answers are
those of the built-in conversations. `scripts/answers_table.py` wrote the page.

- *parser*: the parser of TRL 1.16 that reads the most answers. Some templates have none, because no parser
  reads their answers.
- *come back*: how many of the answers come back.
- *kept*: how many answers stay the same in later prompts.
- *calls that look alike*: the findings of [PF468](rules/PF468.md), that is, two different calls with the same text.

{read} templates have a parser. {back} of their {answers} answers come back.

| template | parser | come back | kept | calls that look alike |
|---|---|---|---|---|
"""


def main() -> None:
    """Read, count and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parsers", type=Path, required=True)
    given = parser.parse_args()
    parsers, rows, totals = response_templates(given.parsers), [], Counter[str]()
    causes: dict[str, set[str]] = defaultdict(set)
    for file in sorted(given.folder.glob("*.jinja")):
        trial = TemplateTrial(lone_profile(file.read_text("utf-8")))
        if trial.syntax_error is not None or "assay_metal" not in (trial.text("call-finished") or ""):
            continue
        name, lost, count = best(trial, parsers)
        kept = [cells[-1] for _, _, cells, _ in loop_table(trial)["rows"] if cells[-1] != "-"]
        alike = sum(1 for _ in calls_look_alike(trial))
        back = f"{count - len(lost)} of {count}" if name else ""
        rows.append(f"| {file.stem} | {name} | {back} | {kept.count('ok')} of {len(kept)} | {alike or ''} |\n")
        totals.update({"count": 1, "read": bool(name)})
        totals.update({"answers": count, "back": count - len(lost)} if name else {})
        for losses in lost.values() if name else ():
            for each in losses:
                causes[f"{each.what} | {name}"].add(file.stem)
    lines = [HEAD.format(**{key: totals[key] for key in ("count", "read", "answers", "back")}), *rows]
    lines.append(
        "\n## Why answers do not come back\n\n| cause | parser | templates with it | example |\n|---|---|---|---|\n"
    )
    for cause, names in sorted(causes.items(), key=lambda each: (-len(each[1]), each[0])):
        lines.append(f"| {cause} | {len(names)} | {min(names)} |\n")
    PAGE.write_text("".join(lines), "utf-8")


def response_templates(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the response templates that a module of TRL assigns to names such as `qwen3_template`."""
    names: dict[str, Any] = {"re": re, "_SUPPORTS_PARSE_RESPONSE_TOOLS": True}
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            with suppress(NameError, AttributeError):
                exec(compile(ast.Module([node], []), str(file), "exec"), names)
    return {
        name.removesuffix("_template"): value
        for name, value in names.items()
        if name.endswith("_template") and isinstance(value, dict) and json.dumps(value, default=str)
    }


def best(trial: TemplateTrial, parsers: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[int, list[Loss]], int]:
    """Return the parser that reads most answers of a template, what it loses by answer, and how many there are."""
    written = list(written_answers(trial))
    answers = list({each.key: each for each in written}.values())
    plain = [each for each in written if each.conversation.name in PLAIN]
    found: tuple[str, Mapping[int, list[Loss]]] = "", {number: [] for number, _ in enumerate(answers)}
    for name, response_template in parsers.items():
        trial.options = TrialOptions(parser=response_template)
        reader = parser_of(trial)
        if (
            reader is None
            or not plain
            or any(loss.step == "read whole" for each in plain for loss in lost_parts(trial, reader, each))
        ):
            continue
        lost = {number: list(lost_parts(trial, reader, each)) for number, each in enumerate(answers)}
        lost = {number: losses for number, losses in lost.items() if losses}
        found = min(found, (name, lost), key=lambda each: len(each[1]))
    trial.options = TrialOptions()
    return *found, len(answers)


if __name__ == "__main__":
    main()

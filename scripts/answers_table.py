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
from collections.abc import Mapping, Set
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates.answer_parsers import parser_of
from pytest_promptfmt.systems.templates.answers_read_back import Loss, loop_table, lost_parts, written_answers
from pytest_promptfmt.systems.templates.loop_rules import calls_look_alike

PAGE = Path(__file__).parents[1] / "docs" / "answers.md"
PLAIN = ("answer", "call-finished")
PAGE_TEXT = """# Answers that come back

A model generates an answer, such as a tool call, as text. The parser of a server converts the text into a message. For
the next request, the chat template renders this message. We say that the answer *comes back* if the message has
all parts of the answer, and if the rendered text is identical to the text that the model generated.

This page covers {count} public chat templates that support tool calls, with the parsers of TRL 1.16. For your own
template, the [HTML report](report.md) lists each answer.

- TRL has a parser for {read} of these templates. With these {read} templates, {back} of {answers} answers come back.
- In {kept} of the {count} templates, later prompts repeat each answer exactly as the model generated it.
- In {alike} of the {count} templates, two different tool calls are rendered as the same text ([PF468](rules/PF468.md)).

| parser | templates | answers that come back | templates whose answers all come back |
|---|---|---|---|
{parsers}
## Why answers do not come back

| cause | number of templates, by parser | example |
|---|---|---|
{causes}"""


def main() -> None:
    """Read, count and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parsers", type=Path, required=True)
    given = parser.parse_args()
    totals = Counter[str]()
    by_parser: dict[str, Counter[str]] = defaultdict(Counter)
    causes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    with ProcessPoolExecutor() as pool:
        for each in filter(None, pool.map(partial(tried, given.parsers), sorted(given.folder.glob("*.jinja")))):
            totals.update({"count": 1, "kept": each.stays, "alike": each.alike})
            if each.parser:
                back = each.answers - each.lost
                by_parser[each.parser].update(templates=1, answers=each.answers, back=back, whole=not each.lost)
                for cause in each.causes:
                    causes[cause][each.parser].add(each.name)
    for of_one in by_parser.values():
        totals.update({"read": of_one["templates"], "answers": of_one["answers"], "back": of_one["back"]})
    PAGE.write_text(
        PAGE_TEXT.format(
            **{name: f"{totals[name]:,}" for name in ("count", "read", "kept", "alike", "answers", "back")},
            parsers="".join(
                f"| {name} | {one['templates']} | {one['back']:,} of {one['answers']:,} | {one['whole']} |\n"
                for name, one in sorted(by_parser.items())
            ),
            causes="".join(row for _, row in sorted(map(cause_row, causes, causes.values()))),
        ),
        "utf-8",
    )


class Tried(NamedTuple):
    """A template that writes calls: its best parser with the answers that it loses and why, and two more facts."""

    name: str
    parser: str
    answers: int
    lost: int
    causes: Set[str]
    stays: bool
    alike: bool


def tried(parsers: Path, file: Path) -> Tried | None:
    """Return what was found about a template; None for one that writes no calls."""
    trial = TemplateTrial(lone_profile(file.read_text("utf-8")))
    if trial.syntax_error is not None or "assay_metal" not in (trial.text("call-finished") or ""):
        return None
    name, lost, count = best(trial, response_templates(parsers))
    stays = all(cells[-1] in ("-", "ok") for _, _, cells, _ in loop_table(trial)["rows"])
    why = {loss.what for losses in lost.values() for loss in losses}
    return Tried(file.stem, name, count, len(lost), why, stays, any(calls_look_alike(trial)))


def cause_row(cause: str, by_parser: Mapping[str, set[str]]) -> tuple[int, str]:
    """Return the row of a cause, with its place: the cause with the most templates is the first."""
    counts = Counter({name: len(files) for name, files in by_parser.items()}).most_common()
    example = min(set[str]().union(*by_parser.values()))
    parsers = ", ".join(f"{name}: {count}" for name, count in counts)
    return -sum(count for _, count in counts), f"| {cause} | {parsers} | {example} |\n"


@cache
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

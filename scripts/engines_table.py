r"""Write docs/engines.md: how each engine renders the templates of a folder, compared with Jinja as in transformers.

    python scripts/engines_table.py FOLDER --engine minijinja --engine @huggingface/jinja --engine llama.cpp \
        --versions "minijinja 3.1.0, @huggingface/jinja 0.5.11 and the engine of llama.cpp in llama-cpp-python 0.3.36" \
        --date "November 2026" --results engines.jsonl

Only counts, causes and names of templates are written; `promptfmt_template_engines` gives the same for your own.
A run that was interrupted continues with the templates that are not in the file of results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates.engine_deviations import DEVIATIONS
from pytest_promptfmt.systems.templates.engine_rules import JINJA_STOPS, UNKNOWN, engines_differ

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
FATES = ("clean", "same", "differ", "both refuse", UNKNOWN)
HEAD = """# Engines that render chat templates

Chat templates are written for the engine Jinja, which transformers uses. Servers use other engines. This page counts
how often these render another text than Jinja. It covers {templates} public templates, with {conversations}
conversations each ({date}). The engines are {versions}.
To test your own templates, see [Test a chat template](chat-templates.md#other-engines).

Most causes below are verified: if Jinja is changed to behave in the same way, it renders the same text as the engine.

| engine | templates without a difference | same text | different text | error in both engines | {unknown} |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Render, count and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", action="append", required=True)
    parser.add_argument("--versions", required=True)
    parser.add_argument("--date", required=True, help="such as 'November 2026'")
    parser.add_argument("--results", type=Path, required=True, help="one line of JSON for each template")
    given = parser.parse_args()
    lines = given.results.read_text("utf-8").splitlines() if given.results.exists() else []
    done = {each["template"]: each for each in map(json.loads, lines)}
    files = sorted(given.folder.glob("*.jinja"))
    waiting = [file for file in files if file.stem not in done]
    # Half of the time, a worker waits for the process of an engine.
    with given.results.open("a", encoding="utf-8") as results, ProcessPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for each in pool.map(partial(tried, given.engine), waiting):
            done[each["template"]] = each
            results.write(json.dumps(each) + "\n")
            results.flush()
    PAGE.write_text(page([done[file.stem] for file in files], given), "utf-8")


def tried(engines: Sequence[str], file: Path) -> Mapping[str, Any]:
    """Return what each engine makes of a template: how many conversations have each fate, and the causes."""
    found: dict[str, Any] = {"template": file.stem}
    for engine in engines:
        trial = TemplateTrial(lone_profile(file.read_text("utf-8")), options=TrialOptions(engines=(engine,)))
        reported = [each for each in engines_differ(trial) if each.message.startswith(engine)]
        differ = {each.conversation for each in reported if each.conversation}
        if reported and not differ:  # it does not compile
            differ = set(trial.given)
        refused = sum(trial.stopped(each) is not None for each in trial.given.values() if each.name not in differ)
        same = len(trial.given) - len(differ) - refused
        causes = Counter(_cause(each.message) for each in reported if ": " in each.message)  # else it is the summary
        fates = (not reported, same, len(differ), refused, causes[UNKNOWN])
        found[engine] = {"fates": dict(zip(FATES, fates, strict=True)), "causes": sorted(causes)}
    return found


def page(tried: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> str:
    """Return the page about all templates."""
    conversations = sum(tried[0][given.engine[0]]["fates"][fate] for fate in ("same", "differ", "both refuse"))
    named = {"versions": given.versions, "date": given.date, "unknown": UNKNOWN}
    lines = [HEAD.format(templates=len(tried), conversations=conversations, **named)]
    for engine in given.engine:
        counts = (sum(each[engine]["fates"][fate] for each in tried) for fate in FATES)
        lines.append(f"| {engine} | {' | '.join(map(str, counts))} |\n")
    for engine in given.engine:
        names: dict[str, list[str]] = defaultdict(list)
        for each in tried:
            for cause in each[engine]["causes"]:
                names[cause].append(each["template"])
        lines.append(f"\n## {engine}\n\n| cause | templates with it | example |\n|---|---|---|\n")
        for cause, those in sorted(names.items(), key=lambda each: (-len(each[1]), each[0])):
            lines.append(f"| {cause} | {len(those)} | {min(those)} |\n")
    return "".join(lines)


def _cause(message: str) -> str:
    """Return a cause without what differs from template to template."""
    cause = message.partition(": ")[2]
    if cause in DEVIATIONS:
        return cause
    if cause.startswith(JINJA_STOPS):
        cause = "the engine continues where Jinja stops with an error"
    cause = re.sub(r"[|`*<>]", " ", cause.splitlines()[0][:100]).strip()
    return re.sub(r"(?<=unknown statement )\w+", r"`\g<0>`", cause)


if __name__ == "__main__":
    main()

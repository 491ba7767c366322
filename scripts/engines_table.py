r"""Write docs/engines.md: how each engine renders the templates of a folder, compared with Jinja as in transformers.

    python scripts/engines_table.py FOLDER --engine minijinja --engine @huggingface/jinja --engine llama.cpp \
        --versions "minijinja 3.1.0, @huggingface/jinja 0.5.11 and that of llama.cpp in llama-cpp-python 0.3.36" \
        --date "November 2026"

Only counts, causes and names of templates are written; `promptfmt_template_engines` gives the same for your own.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates.engine_rules import JINJA_STOPS, engines_differ

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
FATES = ("same", "differ", "both refuse")
MOST_CAUSES = 8
HEAD = """# Engines that render chat templates

A chat template is written for the engine Jinja, which transformers uses. Servers use other engines. This page counts
how often their text differs, for {templates} public templates with {conversations} conversations each. The engines are
{versions} ({date}).
[Test a chat template](chat-templates.md#other-engines) describes how to test your own templates.

| engine | templates without a difference | same renderings | different renderings | refused by both |
|---|---|---|---|---|
"""


def main() -> None:
    """Render, count and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", action="append", required=True)
    parser.add_argument("--versions", required=True)
    parser.add_argument("--date", required=True, help="such as 'November 2026'")
    given = parser.parse_args()
    files = sorted(given.folder.glob("*.jinja"))
    fates: dict[str, Counter[str]] = defaultdict(Counter)
    causes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    conversations = 0
    for file in files:
        for engine in given.engine:
            trial = TemplateTrial(lone_profile(file.read_text("utf-8")), options=TrialOptions(engines=(engine,)))
            conversations = len(trial.given)
            found = [each for each in engines_differ(trial) if each.message.startswith(engine)]
            differ = {each.conversation for each in found if each.conversation}
            if found and not differ:  # it does not compile
                differ = set(trial.given)
            refused = sum(trial.stopped(each) is not None for each in trial.given.values() if each.name not in differ)
            fates[engine].update(same=len(trial.given) - len(differ) - refused, differ=len(differ))
            fates[engine].update({"both refuse": refused, "clean": not found})
            for each in found:
                if ": " in each.message:  # else it is the summary of an engine
                    causes[engine][_cause(each.message)].add(file.stem)
    lines = [HEAD.format(templates=len(files), conversations=conversations, versions=given.versions, date=given.date)]
    for engine, counts in fates.items():
        lines.append(f"| {engine} | {counts['clean']} | {' | '.join(str(counts[fate]) for fate in FATES)} |\n")
    for engine, by_cause in causes.items():
        lines.append(f"\n## {engine}\n\n| cause | templates with it | example |\n|---|---|---|\n")
        for cause, names in sorted(by_cause.items(), key=lambda each: (-len(each[1]), each[0]))[:MOST_CAUSES]:
            lines.append(f"| {cause} | {len(names)} | {min(names)} |\n")
    PAGE.write_text("".join(lines), "utf-8")


def _cause(message: str) -> str:
    """Return a cause without what differs from template to template."""
    cause = message.partition(": ")[2]
    if cause.startswith(JINJA_STOPS):
        cause = "the engine continues where Jinja stops with an error"
    cause = re.sub(r"[|`*<>]", " ", cause.splitlines()[0][:80]).strip()
    return re.sub(r"(?<=unknown statement )\w+", r"`\g<0>`", cause)


if __name__ == "__main__":
    main()

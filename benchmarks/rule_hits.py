"""What each rule comes from, and what it reports: on lm-eval's tree, on mutants, on described mistakes, on real bugs.

    python benchmarks/bench_rules.py --sample 1600 --seed rime --scoring --json tree.json
    python benchmarks/bench_mutations.py --seed 12 --json mutants.json
    python benchmarks/bench_bug_pairs.py --json pairs.json
    python benchmarks/rule_hits.py tree.json mutants.json pairs.json [BUGBENCH_FOLDER]

Prints a table in Markdown. The tree is counted in tasks, mutants by those that the rule kills with how many operators,
pairs and bugs by those on which it reports something that goes away with the mistake. Rules about HELM, task classes,
chat templates and models are left out: none of these files is one of theirs.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from bench_bugs import BUGBENCH, results

from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.rule_registry import known_rules

_WIDTH = 90
_ELSEWHERE = ("PF0", "PF15", "PF16", "PF4", "PF65", "PF75")
"""Rules about ignores, HELM, chat templates, what models answer and task classes."""


def by_rule(remarks: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return who has a finding of each rule, from pairs of who and what."""
    found: dict[str, set[str]] = defaultdict(set)
    for who, what in remarks:
        if what.startswith("PF"):
            found[what.split()[0]].add(who)
    return found


def main() -> None:
    """Read what the other scripts wrote, try the collected bugs, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tree", "mutants", "pairs"):
        parser.add_argument(name, type=Path)
    parser.add_argument("bugbench", type=Path, nargs="?", default=BUGBENCH)
    arguments = parser.parse_args()
    tree, mutants, pairs = (
        json.loads(path.read_text("utf-8")) for path in (arguments.tree, arguments.mutants, arguments.pairs)
    )
    tasks = by_rule((found["task"] or found["file"], found["code"]) for found in tree)
    killed = by_rule((f"{row['operator']} {number}", row["what"]) for number, row in enumerate(mutants))
    described = by_rule((name, what) for name, (before, after) in pairs.items() for what in {*before} - {*after})
    bugs = by_rule((one.case["id"], what) for one in results(arguments.bugbench) for what in one.caught)
    print("| rule | severity | seen in | tasks | mutants (operators) | pairs | bugs |\n|---|---|---|--:|--:|--:|--:|")
    for code, rule in sorted(known_rules().items()):
        if code.startswith(_ELSEWHERE):
            continue
        operators = {who.split()[0] for who in killed[code]}
        real = " ".join(documentation_of(rule).real.split()).replace("|", "\\|")
        real = real if len(real) <= _WIDTH else f"{real[:_WIDTH].rpartition(' ')[0]} …"
        shown = f"{len(killed[code])} ({len(operators)})" if operators else "0"
        figures = f"{len(tasks[code])} | {shown} | {len(described[code])} | {len(bugs[code])}"
        print(f"| {code} {rule.name} | {rule.severity.value} | {real} | {figures} |")


if __name__ == "__main__":
    main()

"""Findings about versions as lines of a terminal and as a section of Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.cli.version_lines import version_block, version_lines
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.revisions.versions import VersionFinding

PLACE = Position(Path("arc.yaml"), 3)
TASKS = tuple(f"t{number}" for number in range(13))


def found(kind: Any, tasks: tuple[str, ...] = ("arc",), **values: Any) -> VersionFinding:
    return VersionFinding(
        **{"parts": (), "before": 1, "after": 1, "place": PLACE, "kind": kind, "tasks": tasks, **values}
    )


@pytest.mark.parametrize(
    ("finding", "line", "style"),
    [
        (
            found("kept", parts=("prompts",)),
            "arc.yaml:3: changed (prompts), but still has version 1; 1 task: arc",
            "bold red",
        ),
        (found("unsure"), "arc.yaml:3: perhaps changed, but still has version 1; 1 task: arc", "dim"),
        (found("raised", after=2.0, parts=("prompts", "scoring")), "version 1 → 2.0", "dim"),
        (
            found("alone", before=None, after="x" * 41, place=None),
            f"version none → {'x' * 40}, but nothing else",
            "dim",
        ),
        (found("kept", TASKS), f"13 tasks: {', '.join(TASKS[:8])} and 5 more", "bold red"),
    ],
)
def test_a_finding_is_a_line_with_its_place_and_tasks(finding: VersionFinding, line: str, style: str) -> None:
    [shown] = version_lines([finding], verbose=False)
    assert line in shown.plain
    assert shown.plain.startswith("arc.yaml:3: ") is (finding.place is not None)
    assert str(shown.style) == style
    [whole] = version_lines([finding], verbose=True)
    assert whole.plain.endswith(", ".join(finding.tasks))


def test_tasks_without_any_version_are_lines_only_on_demand() -> None:
    missing = found("missing", before=None, after=None, place=None)
    assert [*version_lines([missing], verbose=False)] == []
    assert [line.plain for line in version_lines([missing], verbose=True)] == [
        "changed, but has no version; 1 task: arc"
    ]
    assert [*version_block([missing])] == []


def test_the_section_counts_what_was_forgotten_and_has_lines_for_a_changelog() -> None:
    findings = [
        found("kept", ("a", "b"), parts=("prompts",)),
        found("raised", TASKS, after=2, parts=("scoring",), place=None),
        found("alone", ("c",), after=5),
        found("kept", ("d",), before="new", after="new", parts=("prompts",)),
    ]
    heading, table, log = version_block(findings)
    assert heading == "### versions: 3 changed tasks without a new version\n"
    rows = table.splitlines()
    assert rows[2] == "| `a`, `b` | **changed (prompts), but still has version 1** | `arc.yaml:3` |"
    assert rows[3].endswith(" |  |")
    assert len(rows) == 6
    lines = ["- version 2: prompts changed (a, b)", f"- version 2: scoring changed ({', '.join(TASKS[:8])}, …)"]
    assert log == "For the changelog:\n\n```markdown\n" + "\n".join(lines) + "\n```\n"


def test_a_section_without_forgotten_versions_says_so() -> None:
    heading, table = version_block([found("alone", after=2)])
    assert heading == "### versions: none forgotten\n"
    assert len(table.splitlines()) == 3

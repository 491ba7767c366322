"""Findings in the order of what they are expected to do to the score, and the first screen of many of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Effect, Family, Reported, Severity
from pytest_promptfmt.core.json_values import data_of, value_of
from pytest_promptfmt.results.baseline import STYLE
from pytest_promptfmt.results.clusters import FindingGroup, finding_groups
from pytest_promptfmt.results.terminal import cause_lines, finding_lines
from pytest_promptfmt.rules.rule_registry import effect_of, known_rules

FINDING = Reported(
    code="PF201",
    name="double-delimiter",
    severity=Severity.ERROR,
    message="double space",
    do="remove it",
    task="a",
    file="a.yaml",
    position=Position(Path("a.yaml"), 3, 1),
    keys=("doc_to_text",),
    stable_keys=("0",),
)


def of(code: str, effect: Effect, *, tasks: int = 1, severity: Severity = Severity.ERROR) -> list[Reported]:
    made = replace(FINDING, code=code, name=code.lower(), message=f"about {code}", effect=effect, severity=severity)
    return [replace(made, task=f"t{number}") for number in range(tasks)]


def test_rules_about_style_report_only_warnings_about_texts_that_change_no_score() -> None:
    style = [
        code
        for code, rule in known_rules().items()
        if rule.family is Family.PROMPT
        and {part.severity for part in rule.all_parts} == {Severity.WARNING}
        and effect_of(rule, Severity.WARNING) is Effect.APPEARANCE
    ]
    assert tuple(style) == STYLE


def test_findings_of_templates_have_files_and_no_tasks() -> None:
    files = [f"{name}/chat_template.jinja" for name in "ab"]
    found = [
        replace(FINDING, code="PF442", task=file[0], file=file, position=Position(Path(file), 2)) for file in files
    ]
    [group] = finding_groups(found)
    assert [*cause_lines(group, Path.cwd(), None)] == ["  do: remove it", "  also at b/chat_template.jinja:2"]


def test_effect_comes_first_then_severity_then_the_number_of_tasks() -> None:
    groups = finding_groups(
        [
            *of("PF301", Effect.SHOTS, tasks=9),
            *of("PF203", Effect.SOME_DOCS, tasks=2),
            *of("PF203", Effect.SOME_DOCS, tasks=7, severity=Severity.WARNING),
            *of("PF201", Effect.APPEARANCE, tasks=99),
            *of("PF202", Effect.SOME_DOCS, tasks=3),
            *of("PF126", Effect.EVERY_DOC, severity=Severity.WARNING),
        ]
    )
    assert [group.code for group in groups] == ["PF126", "PF202", "PF203", "PF203", "PF301", "PF201"]


def test_many_causes_show_the_ten_that_matter_most_and_then_every_rule() -> None:
    findings = [one for number in range(12) for one in of(f"PF2{number:02}", Effect.SOME_DOCS, tasks=number + 1)]
    lines = list(finding_lines(finding_groups([*findings, *of("PF126", Effect.EVERY_DOC)])))
    end = lines.index("… and 3 more causes; -v lists them all; by rule:")
    assert [line for line in lines[:end] if not line.startswith(" ")] == [
        "a.yaml:3:1: error: PF126 about PF126",
        *(f"a.yaml:3:1: error: PF2{number:02} about PF2{number:02}" for number in range(11, 2, -1)),
    ]
    assert len(by_rule := lines[end + 1 : -1]) == 13
    assert by_rule[0] == "  12 PF211 pf211"
    assert lines[-1].startswith("79 errors; ")
    assert not any(line.startswith("…") for line in finding_lines(finding_groups(findings), is_verbose=True))


@pytest.mark.parametrize(
    ("code", "severity", "effect"),
    [
        ("PF126", Severity.ERROR, Effect.EVERY_DOC),
        ("PF201", Severity.ERROR, Effect.SOME_DOCS),
        ("PF801", Severity.ERROR, Effect.SHOTS),
        ("PF907", Severity.WARNING, Effect.SOME_DOCS),
        ("PF501", Severity.WARNING, Effect.EVERY_DOC),
        ("PF240", Severity.WARNING, Effect.APPEARANCE),
        ("PF126", Severity.INFO, Effect.APPEARANCE),
    ],
)
def test_effect_follows_from_family_and_severity_or_is_listed(code: str, severity: Severity, effect: Effect) -> None:
    assert effect_of(known_rules()[code], severity) is effect


def test_effect_survives_json() -> None:
    [found] = of("PF126", Effect.EVERY_DOC)
    assert value_of(Reported, data_of(found)) == found
    [group] = finding_groups([found])
    assert value_of(FindingGroup, group.to_json(Path())).effect is Effect.EVERY_DOC


def test_each_place_has_the_fix_that_is_true_of_it() -> None:
    other = replace(FINDING, task="b", file="b.yaml", position=Position(Path("b.yaml"), 5, 1), do="strip the column")
    [group] = finding_groups([FINDING, other, replace(other, task="c", position=Position(Path("c.yaml"), 1, 1))])
    assert [place["do"] for place in group.to_json(Path())["places"]] == ["remove it", *["strip the column"] * 2]
    shown = [line.strip() for line in finding_lines([group]) if line.strip().startswith("do")]
    assert shown == ["do: remove it", "do at b.yaml:5:1: strip the column"]


def test_other_fixes_are_shown_in_the_order_of_their_places() -> None:
    fixes = ("remove it", "first", "second", "first")
    places = [replace(FINDING, position=Position(Path("a.yaml"), line, 1), do=do) for line, do in enumerate(fixes, 3)]
    [group] = finding_groups(places)
    shown = ["  do: remove it", "  do at a.yaml:4:1: first", "  do at a.yaml:5:1: second"]
    assert [line for line in cause_lines(group, Path.cwd(), None) if "do" in line] == shown
    assert [line for line in cause_lines(group, Path.cwd(), 1) if "do" in line] == shown[:2]

"""The result of a run as SARIF: what the specification requires is there, and every result is where the mistake is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.outcome import CATEGORIES, Category, Outcome
from pytest_promptfmt.results.clusters import MEANINGS
from pytest_promptfmt.results.lint_formats import sarif_report
from pytest_promptfmt.results.run_result import RunResult

_MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {
                    "required": ["uri"],
                    "properties": {
                        "uri": {"type": "string", "pattern": r"^([A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-F]{2}|:)+$"}
                    },
                },
                "region": {
                    "required": ["startLine"],
                    "properties": {
                        "startLine": {"type": "integer", "minimum": 1},
                        "startColumn": {"type": "integer", "minimum": 1},
                    },
                },
            },
        }
    },
}
_RULE = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "shortDescription": _MESSAGE,
        "help": _MESSAGE,
    },
}
_RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "ruleIndex"],
    "properties": {
        "message": _MESSAGE,
        "level": {"enum": ["none", "note", "warning", "error"]},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "locations": {"type": "array", "items": _LOCATION, "maxItems": 1},
        "relatedLocations": {"type": "array", "items": _LOCATION, "minItems": 1},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
    "patternProperties": {"^ruleId$": {"type": "string"}},
}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {"rules": {"type": "array", "items": _RULE, "uniqueItems": True}},
                            }
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": _RESULT},
                },
            },
        },
    },
    "additionalProperties": False,
}
"""What SARIF 2.1.0 requires of the parts that are written (sections 3.13, 3.14, 3.19, 3.27, 3.28, 3.49)."""


def run_of(text: str) -> dict[str, Any]:
    """Return the one run of a report, which is as the specification requires."""
    data = json.loads(text)
    jsonschema.validate(data, SARIF)
    (run,) = data["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[each["ruleIndex"]]["id"] == each["ruleId"] for each in run["results"])
    assert isinstance(run, dict)
    return run


def finding(root: Path, file: str, line: int | None, task: str) -> Reported:
    return Reported(
        message="double space between the question and its answer",
        saw="Question  Answer",
        do="remove the trailing space",
        code="PF201",
        name="double-delimiter",
        severity=Severity.WARNING,
        keys=("doc_to_text",),
        position=Position(root / file, line, 3 if line else None),
        task=task,
        file=str(root / file),
        stable_keys=("0",),
    )


def test_a_finding_is_one_result_with_all_its_places_and_its_rule(tmp_path: Path) -> None:
    places = [("tasks/a b.yaml", 4, "one"), ("tasks/a b.yaml", 4, "two"), ("tasks/ä.yaml", None, "three")]
    outcomes = [
        Outcome(task=task, file="", findings=(finding(tmp_path, file, line, task),)) for file, line, task in places
    ]
    run = run_of(sarif_report(RunResult(rootdir=tmp_path, outcomes=tuple(outcomes))))
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["id"] == "PF201"
    assert rule["help"] == {"text": "promptfmt explain PF201"}
    (first,) = run["results"]
    assert first["level"] == "warning"
    assert first["message"]["text"].splitlines() == [
        "double space between the question and its answer",
        "saw: Question  Answer",
        "do: remove the trailing space",
        "in 3 tasks; also at tasks/ä.yaml",
    ]
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "tasks/a%20b.yaml"}, "region": {"startLine": 4, "startColumn": 3}}
    others = [each["physicalLocation"] for each in first["relatedLocations"]]
    assert others == [{"artifactLocation": {"uri": "tasks/%C3%A4.yaml"}}]

    def fingerprint(*places: tuple[str, int | None, str]) -> dict[str, str]:
        found = (
            Outcome(task=task, file="", findings=(finding(tmp_path, file, at, task),)) for file, at, task in places
        )
        text = sarif_report(RunResult(rootdir=tmp_path, outcomes=tuple(found)))
        return cast("dict[str, str]", run_of(text)["results"][0]["partialFingerprints"])

    assert fingerprint(("tasks/a b.yaml", 40, "one"), ("tasks/ä.yaml", None, "three")) == first["partialFingerprints"]
    assert fingerprint(*places, ("tasks/c.yaml", 4, "four")) != first["partialFingerprints"], "a further place is new"


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_distinct_problem_of_many_snapshots_is_one_result(tmp_path: Path, category: Category) -> None:
    outcomes = [
        Outcome(task=name, file=str(tmp_path / f"{name}.yaml"), category=category, key="k", title="\x1b[1m\udc80")
        for name in ("a", "b", "c")
    ]
    run = run_of(sarif_report(RunResult(rootdir=tmp_path, outcomes=tuple(outcomes))))
    (result,) = run["results"]
    assert result["level"] == ("note" if category == "header-only" else "error")
    title = MEANINGS[category] if category == "header-only" else "\\x1b[1m\\udc80"
    assert result["message"]["text"] == f"{category}, 3 tests of 3 tasks: {title}"
    uris = [each["physicalLocation"]["artifactLocation"]["uri"] for each in result["relatedLocations"]]
    assert uris == ["b.yaml", "c.yaml"]


def test_a_run_without_anything_to_report_has_no_results(tmp_path: Path) -> None:
    assert run_of(sarif_report(RunResult(rootdir=tmp_path)))["results"] == []

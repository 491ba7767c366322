"""`promptfmt explain`: one rule as a page or as JSON, and the list of all rules."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pytest_promptfmt.cli import app
from pytest_promptfmt.rules.rule_registry import known_rules

KEYS = {"code", "name", "severity", "family", "summary"}


def explained(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", ["PF201", "pf201", known_rules()["PF201"].name])
def test_a_rule_is_found_by_code_and_by_name(name: str) -> None:
    assert known_rules()["PF201"].name in explained(name).splitlines()[0]


def test_json_is_one_rule_or_the_list_of_all() -> None:
    one = json.loads(explained("PF201", "--json"))
    assert (one["code"], one["severity"]) == ("PF201", known_rules()["PF201"].severity.value)
    assert one.keys() >= KEYS
    every = json.loads(explained("--json"))
    assert [each["code"] for each in every] == [*known_rules()]
    assert one in every


def test_without_a_code_each_rule_has_a_line() -> None:
    lines = explained().splitlines()
    assert [line.split()[0] for line in lines] == [*known_rules()]
    assert all(rule.name in line for rule, line in zip(known_rules().values(), lines, strict=True))


def test_an_unknown_code_is_one_message() -> None:
    done = CliRunner().invoke(app, ["explain", "PF999"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "PF999" in done.stderr

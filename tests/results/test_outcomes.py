"""Outcomes and findings survive JSON, and findings of several profiles are one that names them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Reported, Severity, merged
from pytest_promptfmt.core.outcome import Accepted, BaselineEntry, Outcome, UsedTokenizer
from pytest_promptfmt.results.baseline import BaselineRun, BaselineUpdate, read_entries, write_baseline

FINDING = Reported(
    code="PF301",
    name="nothing-left-to-score",
    severity=Severity.ERROR,
    task="arc",
    file="/tasks/arc.yaml",
    position=Position(Path("/tasks/arc.yaml"), 7, 1),
    keys=("doc_to_choice", 1),
    doc=0,
    field="choices",
    span=(3, 9),
    message="nothing is left to score",
    saw="(|A",
    do="end the prompt earlier",
    profiles=("plain",),
    stable_keys=("1a",),
)
OTHER_PROFILE = replace(FINDING, profiles=("chat",), stable_keys=("2b",), span=(8, 14))
OF_TASK = replace(FINDING, profiles=(), stable_keys=("3c",))
FULL = Outcome(
    task="arc",
    file="/tasks/arc.yaml",
    profile="plain",
    category="finding",
    findings=(FINDING, OF_TASK, replace(OF_TASK, position=None, span=None, doc=None)),
    accepted=(Accepted(BaselineEntry(file="arc.yaml", task="arc", code="PF201", message="m", key="k"), "k"),),
    globs=("*.yaml",),
    used_globs=("*.yaml",),
    figures=(("task", "arc"), ("mass", "0.50")),
    linted=("", "plain"),
    rendered=True,
    tokenizer=UsedTokenizer(name="gpt2", loader="tokenizers 0.22", content="abc"),
    view="eJw=",
    new_text="x",
)


@pytest.mark.parametrize("outcome", [FULL, Outcome(task="arc", file="arc.yaml")])
def test_an_outcome_is_read_back_from_json_as_it_was(outcome: Outcome) -> None:
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_a_plain_pass_travels_as_its_name_and_file_alone() -> None:
    assert Outcome(task="arc", file="arc.yaml").to_json() == {"task": "arc", "file": "arc.yaml"}


def test_a_finding_says_its_place_and_who_sees_it() -> None:
    told = "arc.yaml:7:1 (doc_to_choice.1, doc 1, column 'choices', characters 3–9, profile plain)"
    assert FINDING.where.endswith(told)
    assert merged([FINDING, OTHER_PROFILE])[0].where.endswith("profiles plain, chat)")
    assert replace(FINDING, position=None, keys=(), doc=None, field=None, span=None).where == "profile plain"


def test_what_several_profiles_see_is_one_finding_as_the_first_sees_it() -> None:
    (one,) = merged([FINDING, OTHER_PROFILE])
    assert (one.profiles, one.stable_keys, one.span) == (("plain", "chat"), ("1a", "2b"), (3, 9))
    assert one.limited_to(["chat"]) == replace(OTHER_PROFILE, span=(3, 9))


def test_findings_of_one_profile_of_the_task_or_of_other_places_stay_apart() -> None:
    again = replace(FINDING, stable_keys=("1d",), doc=1)
    other_key = replace(OTHER_PROFILE, keys=("doc_to_text",))
    assert merged([FINDING, again, OF_TASK, OF_TASK, other_key]) == [FINDING, again, OF_TASK, OF_TASK, other_key]
    assert [each.profiles for each in merged([FINDING, again, OTHER_PROFILE])] == [("plain", "chat"), ("plain",)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "arc.yaml").touch()
    return tmp_path


def judged(root: Path, *findings: Reported, update: BaselineUpdate | None = None) -> Outcome:
    own = [replace(finding, file=str(root / "arc.yaml")) for finding in findings]
    item = Outcome(task="arc", file=str(root / "arc.yaml"))
    return BaselineRun(root / "baseline.jsonl", update, root).judge_findings(item, own)


def entry(profile: str, key: str, message: str = FINDING.message) -> BaselineEntry:
    return BaselineEntry(file="arc.yaml", task="arc", code="PF301", message=message, key=key, profile=profile)


def test_entries_of_single_profiles_accept_a_finding_that_names_them_all(root: Path) -> None:
    write_baseline([entry("plain", "1a"), entry("chat", "key of another text")], root / "baseline.jsonl")
    outcome = judged(root, *merged([FINDING, OTHER_PROFILE]))
    assert outcome.findings == ()
    assert [each.met for each in outcome.accepted] == ["1a", "key of another text"]


def test_a_finding_is_new_for_the_profiles_without_an_entry_alone(root: Path) -> None:
    write_baseline([entry("chat", "2b")], root / "baseline.jsonl")
    outcome = judged(root, *merged([FINDING, OTHER_PROFILE]), OF_TASK)
    assert [finding.profiles for finding in outcome.findings] == [("plain",), ()]


def test_a_baseline_lists_a_finding_for_each_profile_and_counts_it_once(root: Path) -> None:
    run = BaselineRun(root / "baseline.jsonl", "write", root)
    outcome = judged(root, *merged([FINDING, OTHER_PROFILE]), update="write")
    result = run.result([outcome], defined={}, codes_for=lambda _file: {"PF301": "profile"})
    assert result is not None
    assert (result.accepted, len(result.written or ())) == (1, 2)


def test_a_baseline_with_odd_line_separators_is_read_back(root: Path) -> None:
    entries = (entry("", "k", message="a\u2028b\x85c"),)
    write_baseline(entries, root / "baseline.jsonl")
    assert read_entries(root / "baseline.jsonl") == entries

"""Which rows the HTML report has, read from the page itself; how it looks is the browser's to test."""

import json
import re
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.json_values import data_of, value_of
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.prompt import Instance, Origin, Prompt, Request, Span
from pytest_promptfmt.profiles import load_tokenizer
from pytest_promptfmt.profiles.encoding import PairEncoder
from pytest_promptfmt.results.html import html_report
from pytest_promptfmt.results.item_views import diff_view, packed_view, prompts_view
from pytest_promptfmt.results.markdown import markdown_report
from pytest_promptfmt.results.run_result import RunResult, causes_in
from pytest_promptfmt.results.writers import json_report

FILE = "/repository/tasks/arc.yaml"
FINDING = Reported(
    code="PF201",
    name="double-delimiter",
    severity=Severity.ERROR,
    task="arc",
    file=FILE,
    message="two spaces",
    do="remove one",
    stable_keys=("1a",),
)
OF_CHAT = replace(FINDING, code="PF301", profiles=("chat",), severity=Severity.WARNING)


def unpacked(page: str, name: str) -> Any:
    found = re.search(f'<script type="text/plain" id="{name}">(.*?)</script>', page)
    assert found is not None
    return json.loads(zlib.decompress(b64decode(found[1]), wbits=31))


def rows(*outcomes: Outcome) -> list[tuple[str, str, str, list[str]]]:
    """Return task, profile, category and codes of each row."""
    page = html_report(RunResult(rootdir=Path("/repository"), outcomes=outcomes))
    return [(item[0], item[2], item[4], item[6]) for item in unpacked(page, "index")["items"]]


def passed(profile: str, view: str = "") -> Outcome:
    return Outcome(task="arc", file=FILE, profile=profile, view=view)


def test_findings_of_a_task_are_in_its_first_row_and_those_of_a_profile_in_that_of_the_profile() -> None:
    lint = Outcome(task="arc", file=FILE, category="finding", findings=(FINDING, OF_CHAT))
    assert rows(lint, passed("plain"), passed("chat")) == [
        ("arc", "plain", "finding", ["PF201"]),
        ("arc", "chat", "passed", ["PF301"]),
    ]


def test_what_has_no_prompts_has_a_row_of_its_own() -> None:
    broken = Outcome(task="arc", file=FILE, category="error", title="no such column")
    assert rows(broken, passed("plain")) == [("arc", "", "error", []), ("arc", "plain", "passed", [])]
    assert rows(Outcome(task="arc", file=FILE, category="finding", findings=(FINDING,))) == [
        ("arc", "", "finding", ["PF201"])
    ]


def test_items_of_one_task_and_profile_share_a_row_with_all_their_views() -> None:
    outcomes = passed("plain", packed_view({"docs": [1]})), passed("plain", packed_view({"verdicts": [2]}))
    page = html_report(RunResult(rootdir=Path("/repository"), outcomes=outcomes))
    assert unpacked(page, "chunk-0") == [{"title": "", "findings": [], "docs": [1], "verdicts": [2]}]


def test_a_row_of_a_comparison_marks_what_differs_and_has_none_for_a_side_without_the_line() -> None:
    view = diff_view(["@@ doc 1, prompt, line 1 @@", " same", "-a b", "+a c", "+new"])
    same, new = [["same", False]], [["new", False]]
    changed = [[["a ", False], ["b", True]], [["a ", False], ["c", True]]]
    assert view["comparison"] == [{"title": "doc 1, prompt, line 1", "rows": [[same, same], changed, [None, new]]}]


@pytest.mark.parametrize("context", ["Q: 1\nA:", "Q: 1\nA: "])
def test_tokens_of_a_prompt_are_those_of_the_whole_text_also_where_a_space_moves_to_the_answer(context: str) -> None:
    tokenizer = load_tokenizer("archetype:bytelevel-gpt2")
    request = Request(kind="loglikelihood", index=0, context=context, continuation="one", prompt=0)
    prompt = Prompt((Span(context, Origin("question")),))
    instance = Instance(index=0, doc={}, prompts=(prompt,), requests=(request,), target=0)
    [doc] = prompts_view([instance], PLAIN, tokenizer, PairEncoder(tokenizer))["docs"]
    assert [token for _, token in doc["prompts"][0]["tokens"]] == [*tokenizer.ids(context, add_special_tokens=True)]


def test_a_finding_about_a_template_is_in_the_row_of_its_conversation() -> None:
    passed = [Outcome(task="arc", file=FILE, profile=name) for name in ("question", "call", "parts")]
    of_call = replace(FINDING, conversation="call")
    item = Outcome(task="arc", file=FILE, category="finding", findings=(of_call, FINDING))
    found = {profile: codes for _, profile, _, codes in rows(*passed, item)}
    assert found == {"question": ["PF201"], "call": ["PF201"], "parts": []}
    assert value_of(Reported, data_of(of_call)) == of_call


def test_one_finding_of_many_tasks_is_one_cause_and_no_reason_of_a_skip_is_its_title() -> None:
    skipped = [
        Outcome(task=name, file=FILE, profile="plain", category="skipped", title="not adopted") for name in "abc"
    ]
    found = [
        Outcome(task=name, file=FILE, category="finding", findings=(replace(FINDING, task=name),)) for name in "abc"
    ]
    page = html_report(RunResult(rootdir=Path("/repository"), outcomes=(*skipped, *found)))
    index = unpacked(page, "index")
    [finding, _skip] = index["causes"]
    more = {"new": False, "because": ""}
    assert finding == {"category": "PF201", "title": "two spaces", "tasks": 3, "names": ["a", "b", "c"], **more}
    assert [(item[4], item[5]) for item in index["items"]] == [("finding", 0)] * 3
    assert [body["title"] for body in unpacked(page, "chunk-0")] == [""] * 3


def test_causes_that_an_earlier_run_did_not_have_are_new_and_those_it_had_are_gone(tmp_path: Path) -> None:
    found = [Outcome(task="a", file=FILE, category="finding", findings=(FINDING,))]
    changed = Outcome(task="a", file=FILE, profile="plain", category="changed", key="k", title="A → B")
    (tmp_path / "result.json").write_text(json_report(RunResult(rootdir=tmp_path, outcomes=(changed,))), "utf-8")
    earlier = causes_in(tmp_path / "result.json")
    result = RunResult(rootdir=tmp_path, outcomes=tuple(found), earlier=earlier)
    page = html_report(result)
    assert [(cause["category"], cause["new"]) for cause in unpacked(page, "index")["causes"]] == [("PF201", True)]
    assert "compared with the earlier run: 1 new problem, 1 gone" in page
    assert "gone: changed A → B" in page
    assert "`gone: changed A → B`" in markdown_report(result)
    (tmp_path / "result.json").write_text("[]", "utf-8")
    with pytest.raises(SettingsError, match="not the result of a run"):
        causes_in(tmp_path / "result.json")

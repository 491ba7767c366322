"""The functions for notebooks: errors they raise, and code that they run only when asked."""

from pathlib import Path

import pytest

from pytest_promptfmt import (
    PLAIN,
    CodeNotAllowedError,
    Profile,
    RenderError,
    SettingsError,
    check,
    compare,
    load_tasks,
    render,
    study_of,
)

TASK = """
task: sums
output_type: generate_until
test_split: test
doc_to_text: "Q: {{q}}"
doc_to_target: a
filter_list: [{name: own, filter: [{function: custom, filter_fn: !function code.last}]}]
metric_list: [{metric: !function code.same}]
process_results: !function code.results
metadata: {promptfmt: {docs: [{q: 1 + 1, a: "2"}]}}
"""
CODE = """
def last(resps, docs): return resps
def same(items): return 1.0
def results(doc, results): return {"same": 1.0}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text(CODE, "utf-8")
    (tmp_path / "sums.yaml").write_text(TASK, "utf-8")
    return tmp_path / "sums.yaml"


def test_code_of_scoring_is_bound_where_code_is_allowed_and_stays_a_reference_elsewhere(file: Path) -> None:
    [bound] = load_tasks(file, allow_code=True)
    assert callable(bound.process_results)
    assert bound.process_results({}, []) == {"same": 1.0}
    assert bound.metric_list is not None
    assert callable(bound.metric_list[0]["metric"])
    [plain] = load_tasks(file)
    assert not callable(plain.process_results)
    with pytest.raises(CodeNotAllowedError):
        study_of(plain).bound_for_scoring  # noqa: B018
    assert study_of(plain, allow_code=True).bound_for_scoring.process_results is not None


def test_rules_of_conversations_and_profiles_that_cannot_be_used_are_our_errors() -> None:
    with pytest.raises(SettingsError, match="no chat template"):
        render([{"role": "user", "content": "Hi"}], PLAIN)
    strict = Profile(name="strict", chat_template="{{ raise_exception('no system') }}")
    with pytest.raises(RenderError, match="refuses the conversation: TemplateError: no system"):
        render([{"role": "user", "content": "Hi"}], strict)
    with pytest.raises(RenderError, match="is empty"):
        render([], strict)


def test_a_continued_message_ends_the_text_and_infos_need_to_be_asked_for(file: Path) -> None:
    profile = Profile(name="p", chat_template="{% for m in messages %}<{{ m.content }}>{% endfor %}")
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]
    assert render(chat, profile, continue_final_message=True) == "<Hi><So"
    [task] = load_tasks(file)
    assert {each.severity for each in check(task)} <= {"error", "warning"}
    assert {each.code for each in check(task, select=["PF1"])} <= {each.code for each in check(task, select=["PF"])}
    assert compare(task, task) == ()

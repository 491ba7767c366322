"""A study makes each part once, keeps what stops a part, and shows rules nothing where a task cannot be rendered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from linting import study_of

from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    DocsError,
    PromptfmtError,
    RenderError,
    ScoringError,
    TokenizerError,
)
from pytest_promptfmt.core.profile import PLAIN, Profile, builtin_profile
from pytest_promptfmt.core.task import OUTPUT_TYPES, FewShot, Task
from pytest_promptfmt.profiles.profile_loading import LoadedProfile, load_profile
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Studies, Study, seen_by
from pytest_promptfmt.systems.task_files import load_tasks

COUNTING = """
from pathlib import Path

def text(doc):
    with open(Path(__file__).with_name("calls"), "a") as file:
        file.write("x")
    return f"Q: {doc['question']}"
"""
DOCS = [{"question": f"What is {number}?", "answer": "yes"} for number in range(3)]


def error_of(call: Callable[[], object]) -> PromptfmtError:
    with pytest.raises(PromptfmtError) as raised:
        call()
    return raised.value


def task(**fields: Any) -> Task:
    docs = fields.pop("docs", DOCS)
    given = {"doc_to_text": "{{question}}", "doc_to_target": "answer", **fields}
    return Task(name="t", metadata={"promptfmt": {"docs": docs}}, **given)


def task_of_code(folder: Path) -> Task:
    (folder / "code.py").write_text(COUNTING, "utf-8")
    (folder / "t.yaml").write_text(
        "task: t\noutput_type: generate_until\ndoc_to_text: !function code.text\ndoc_to_target: answer\n"
        "metadata: {promptfmt: {docs: [{question: Why, answer: so}]}}\n",
        "utf-8",
    )
    (found,) = load_tasks(folder / "t.yaml")
    return found


# -- each part once --------------------------------------------------------------------------------------------------


def test_functions_run_once_for_all_who_read_the_prompts(tmp_path: Path) -> None:
    study = study_of(task_of_code(tmp_path), tmp_path)
    assert study.render() is study.render()
    calls = (tmp_path / "calls").read_text("utf-8")
    assert [one.prompts[0].text for one in study.instances] == [one.prompts[0].text for one in study.render()]
    assert study.failure is None
    assert study.material is study.material
    assert study.scoring_of_prompts.questions
    assert study.prepare() is None
    again = (tmp_path / "calls").read_text("utf-8")
    assert len(again) - len(calls) == len(study.instances)  # scoring reads the fields of each doc itself


def test_a_profile_is_loaded_once_and_its_view_made_once() -> None:
    loaded: list[str] = []

    def load(profile: Profile) -> LoadedProfile:
        loaded.append(profile.name)
        return load_profile(profile)

    profile = builtin_profile("chat-chatml")
    study = Study(task(), Settings(rootdir=Path(), profiles=(profile,)), load)
    view = seen_by(study, profile, "named")
    assert seen_by(study, profile) is view
    assert view.instances is view.render()
    assert view.tokenizer is study.load(profile).tokenizer
    assert view.prepare() == (None, view.facts)
    assert loaded == ["chat-chatml"]


def test_a_made_value_and_an_error_are_both_kept_under_their_key() -> None:
    study, made = study_of(task()), list[str]()

    def make() -> str:
        made.append("value")
        return "value"

    def fail() -> str:
        made.append("error")
        raise DocsError("no")

    assert study.once("key", make) is study.once("key", make)
    assert error_of(lambda: study.once("other key", fail)) is error_of(lambda: study.once("other key", fail))
    assert made == ["value", "error"]


def test_another_error_is_not_kept() -> None:
    study = study_of(task())
    with pytest.raises(ZeroDivisionError):
        study.once("key", lambda: 1 // 0)
    assert study.once("key", lambda: 1) == 1


# -- what stops a part -----------------------------------------------------------------------------------------------

BROKEN: list[tuple[Callable[[], Task], type[PromptfmtError]]] = [
    (lambda: task(docs="missing.jsonl"), DocsError),
    (lambda: task(doc_to_text="{{question"), RenderError),
    (lambda: task(doc_to_text="qestion"), RenderError),
]


@pytest.mark.parametrize(("make", "error"), BROKEN)
def test_rules_see_nothing_of_a_task_that_cannot_be_rendered(
    make: Callable[[], Task], error: type[PromptfmtError]
) -> None:
    study = study_of(make())
    assert isinstance(study.prepare(), error)
    assert study.failure is study.prepare()
    assert (study.instances, study.docs, study.real_docs, study.with_shots) == ((), None, (), ())
    assert study.shots_failure is None
    assert seen_by(study, PLAIN).failure is None  # it is no fault of the profile
    with pytest.raises(error):
        study.render()


def test_code_that_may_not_run_stops_rendering_and_nothing_else(tmp_path: Path) -> None:
    study = study_of(task_of_code(tmp_path), tmp_path, no_code=True)
    assert isinstance(study.failure, CodeNotAllowedError)
    assert study.asks_by_code
    assert study.task.generates
    assert not (tmp_path / "calls").exists()


def test_what_stops_all_profiles_is_raised_before_what_stops_one() -> None:
    profile = Profile(name="mine", tokenizer="nowhere/tokenizer.json", tokenizer_name="mine")
    with pytest.raises(DocsError):
        seen_by(study_of(task(docs="missing.jsonl")), profile).render()
    view = seen_by(study_of(task()), profile)
    assert isinstance(view.failure, TokenizerError)
    assert view.instances == ()
    assert view.tokenizer is None


# -- few-shot examples -----------------------------------------------------------------------------------------------


def test_a_task_without_shots_is_also_rendered_with_two() -> None:
    study = study_of(task(fewshot=FewShot(samples=DOCS)))
    assert study.shots == 0
    (shown,) = study.with_shots
    assert shown.prompts[0].text.count("What is") == 3
    assert study.demonstrated == study.with_shots
    assert study.shots_failure is None


def test_synthetic_shots_show_layout_and_demonstrate_nothing() -> None:
    study = study_of(Task(name="t", doc_to_text="{{question}}", doc_to_target="answer"))
    assert study.with_shots
    assert study.demonstrated == ()
    assert not study.has_real_docs


def test_what_stops_shots_only_is_kept_apart() -> None:
    study = study_of(task(fewshot=FewShot(samples=DOCS, doc_to_text="{{questoin}}")))
    assert study.failure is None
    assert isinstance(study.shots_failure, RenderError)
    assert study.with_shots == ()


@pytest.mark.parametrize("output_type", ["loglikelihood_rolling", "none"])
def test_nothing_without_a_question_is_tried_with_shots(output_type: Any) -> None:
    study = study_of(task(output_type="loglikelihood_rolling", fewshot=FewShot(samples=DOCS)))
    assert study.instances
    assert study.with_shots == ()
    assert not Task(name="t", output_type=output_type).has_question


# -- scoring ---------------------------------------------------------------------------------------------------------


def completions(*docs: int) -> dict[str, Any]:
    return {
        "docs": [{"question": "Q", "answer": str(number)} for number in range(9)],
        "completions": [{"id": f"c{doc}", "completion": "x", "correct": False, "doc": doc} for doc in docs],
    }


def test_scoring_has_the_docs_that_expected_completions_answer() -> None:
    made = Task(name="t", doc_to_text="question", doc_to_target="answer", metadata={"promptfmt": completions(0, 7)})
    study = study_of(made)
    assert len(study.instances) == 3
    assert len(study.scoring.instances) == 8


def test_a_completion_for_a_doc_that_is_not_there_is_an_error() -> None:
    made = Task(name="t", doc_to_text="question", doc_to_target="answer", metadata={"promptfmt": completions(0, 9)})
    with pytest.raises(ScoringError, match="'c9' answers doc 9, but the last doc has the index 8"):
        _ = study_of(made).scoring


# -- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_type", [*OUTPUT_TYPES, "none"])
def test_an_output_type_is_known_by_its_facts(output_type: Any) -> None:
    made = Task(name="t", output_type=output_type)
    facts = (made.generates, made.has_choices, made.has_question, made.brings_delimiter)
    assert (
        facts
        == {
            "generate_until": (True, False, True, False),
            "multiple_choice": (False, True, True, False),
            "loglikelihood": (False, False, True, True),
            "loglikelihood_rolling": (False, False, False, False),
            "none": (False, False, False, False),
        }[output_type]
    )
    assert study_of(made).generates is made.generates
    assert study_of(made).has_choices is made.has_choices


@pytest.mark.parametrize(
    "text",
    [
        "Think step by step.",
        "Denke Schritt für Schritt.",
        "Réfléchis étape par étape.",
        "一步一步",
        "шаг за шагом",
    ],
)
def test_a_prompt_asks_for_reasoning_in_several_languages(text: str) -> None:
    asked = task(doc_to_text=f"{text} {{{{question}}}}")
    assert study_of(asked).asks_for_reasoning
    assert not study_of(task()).asks_for_reasoning
    assert not study_of(task(doc_to_text=text, output_type="loglikelihood")).asks_for_reasoning


def test_text_that_code_makes_of_synthetic_docs_is_a_guess(tmp_path: Path) -> None:
    made = task_of_code(tmp_path)
    real = study_of(made, tmp_path)
    assert real.asks_by_code
    assert not real.has_guessed_text
    synthetic = Task(name="t", doc_to_text=made.doc_to_text, doc_to_target="answer")
    assert study_of(synthetic, tmp_path).has_guessed_text


# -- studies of a run ------------------------------------------------------------------------------------------------


def test_a_run_holds_the_study_of_its_most_recent_task() -> None:
    settings = Settings(rootdir=Path(), profiles=(PLAIN,))
    studies, first, second = Studies(lambda _task: settings), task(), task(doc_to_text="{{answer}}")
    study = studies.of(first)
    assert studies.of(first) is study
    assert studies.of(second).given is second
    assert studies.of(first) is not study


def test_a_run_loads_a_profile_once_for_all_tasks_and_so_its_error() -> None:
    settings = Settings(rootdir=Path(), profiles=(PLAIN,))
    studies = Studies(lambda _task: settings)
    good, bad = builtin_profile("chat-llama2"), Profile(name="mine", tokenizer="nowhere/x.json", tokenizer_name="mine")
    first, second = (Study(each, settings, studies.of(each).load) for each in (task(), task()))
    assert first.load(good) is second.load(good)
    assert error_of(lambda: first.load(bad)) is error_of(lambda: second.load(bad))

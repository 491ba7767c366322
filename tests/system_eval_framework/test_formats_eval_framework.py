"""The task styles of eval-framework as formats: prompts and candidates as its documentation shows them."""

from typing import Any

import pytest

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.profile import builtin_profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.formats.format_registry import published_format, published_names

DOC = {"question": "Which falls?", "choices": ["stone", "smoke"], "answer": 0}
SHOT = {"question": "Which rises?", "choices": ["iron", "smoke", "lead"], "answer": 1}


def rendered(name: str, profile: str = "plain", **keys: Any) -> Instance:
    config = {
        "task": "quiz",
        "dataset_path": "nowhere/docs",
        "test_split": "test",
        "fewshot_split": "train",
        "num_fewshot": 1,
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        **keys,
    }
    (task,) = load_tasks(config)
    docs = TaskDocs.in_memory([DOC], [SHOT])
    return next(iter(task.with_format(name).render(docs, builtin_profile(profile))))


def scored(instance: Instance) -> list[tuple[str | None, bool]]:
    return [(request.continuation, request.gold) for request in instance.requests]


MC = (
    "Question: Which rises?\nA. iron\nB. smoke\nC. lead\nAnswer: B\n\n"
    "Question: Which falls?\nA. stone\nB. smoke\nAnswer:"
)
CLOZE = "Question: Which rises?\nAnswer: smoke\n\nQuestion: Which falls?\nAnswer:"


@pytest.mark.parametrize(
    ("name", "prompt", "candidates"),
    [
        ("ef_mc", MC, [(" A", True), (" B", False)]),
        ("ef_mc_olmes", MC.replace("\nA. ", "\n A. ").replace("\nB. ", "\n B. ").replace("\nC. ", "\n C. "), None),
        ("ef_cloze", CLOZE, [(" stone", True), (" smoke", False)]),
        ("ef_bpb", CLOZE, [(" stone", True)]),
    ],
)
def test_prompts_and_candidates_are_those_of_the_style(
    name: str, prompt: str, candidates: list[tuple[str, bool]] | None
) -> None:
    instance = rendered(name)
    assert instance.prompts[0].text == prompt
    assert scored(instance) == (candidates or [(" A", True), (" B", False)])


@pytest.mark.parametrize("name", ["ef_mc", "ef_cloze"])
def test_the_formatter_of_eval_framework_shows_the_same_text(name: str) -> None:
    assert rendered(name, "formatter-concat").prompts[0].text == rendered(name).prompts[0].text


def test_a_generated_answer_is_the_text_of_a_lettered_option() -> None:
    instance = rendered("ef_mc_completion")
    assert instance.prompts[0].text == MC.replace("Answer: B", "Answer: smoke")
    assert (instance.requests[0].kind, instance.target) == ("generate_until", "stone")


@pytest.mark.parametrize(("name", "own"), [("ef_mc_idk", [" A", " B"]), ("ef_cloze_idk", [" stone", " smoke"])])
def test_the_way_out_is_scored_last_and_quoted_as_scored(name: str, own: list[str]) -> None:
    instance = rendered(name)
    candidates = [text or "" for text, _ in scored(instance)]
    assert candidates == [*own, " I don't know."]
    assert f'"{candidates[-1].strip()}"' in instance.prompts[0].text


def test_choices_written_in_the_task_itself_are_scored_the_same() -> None:
    keys: Any = {"doc_to_choice": ["it's so", 'not "so"'], "doc_to_target": "answer"}
    assert scored(rendered("ef_bpb", **keys)) == [(" it's so", True)]
    assert [text for text, _ in scored(rendered("ef_cloze_idk", **keys))] == [" it's so", ' not "so"', " I don't know."]


@pytest.mark.parametrize("field", ["answer_as", "scored"])
def test_a_word_that_a_field_does_not_take_is_reported(field: str) -> None:
    with pytest.raises(FormatError, match=f": unknown {field} 'goldd'"):
        rendered("mine", formats={"mine": {"type": "mcqa", field: "goldd"}})


def test_every_style_has_a_source() -> None:
    styles = [published_format(name) for name in published_names()["task styles of eval-framework"]]
    assert all(style.citation and style.summary for style in styles)

"""Every prompt string of the survey of MMLU prompts (seed 002), rendered through the real renderer."""

from __future__ import annotations

import dataclasses

import pytest
from format_pieces import differences, placeholders, prompt_pieces

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import apply_format, known_formats
from pytest_promptfmt.formats.format_registry import published_format, published_names
from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs

QUESTION = "Which is a cat?"
CHOICES = ["lion", "dog", "bird"]
LINES = "A. lion\nB. dog\nC. bird"
ONE_LINE = "A. lion B. dog C. bird"
TOPIC = "biology"
DOC = {"question": QUESTION, "choices": CHOICES, "answer": 0, "topic": TOPIC}
INTRO = "The following are multiple choice questions (with answers)"

# name: the string of the survey, with its own placeholders
PROMPTS = {
    "mmlu": INTRO + " about  {topic}.\n\n{question}\n{choices}\nAnswer:",
    "mmlu_single_space": INTRO + " about {topic}.\n\n{question}\n{choices}\nAnswer:",
    "mmlu_without_topic": INTRO + ".\n\n{question}\n\n{choices}\nAnswer:",
    "mmlu_without_topic_fixed": INTRO + ".\n\n{question}\n{choices}\nAnswer:",
    "helm": INTRO + " about {topic}.\n\nQuestion: {question}\n{choices}\nAnswer:",
    "helm_without_topic": INTRO + ".\n\nQuestion: {question}\n\n{choices}\nAnswer:",
    "helm_without_topic_fixed": INTRO + ".\n\nQuestion: {question}\n{choices}\nAnswer:",
    "lm_eval_2023": "Question: {question}\n\nChoices: {choices}\nAnswer:",
    "mmlu_pro_cot": INTRO + " about {topic}. Think step by step and then output the answer in the format of"
    ' "The answer is (X)" at the end.\n\n{question}\n{choices}\nAnswer:',
    "structured": "Topic: {topic}\nQuestion: [question] Choices: [choices] Answer: [answer]\n"
    "Question: {question} Choices: {choices} Answer:",
    "structured_without_topic": "Question: [question] Choices: [choices] Answer: [answer]\n"
    "Question: {question} Choices: {choices} Answer:",
}
MMLU_PRO_INSTRUCTION = (
    INTRO + ' about biology. Think step by step and then finish your answer with "the answer is (X)"'
    " where X is the correct letter choice.\n"
)
COT_INSTRUCTION = (
    INTRO + ' about biology. Think step by step and then output the answer in the format of "The answer is (X)"'
    " at the end.\n\n"
)
LITERATURE = published_names()["from the literature"]
TASK = Task(name="t", doc_to_text="question", doc_to_target="answer", doc_to_choice="choices")


def rendered(name: str, shots: int = 0, **doc: object) -> str:
    docs = TaskDocs.in_memory([{**DOC, **doc}], [{**DOC, "number": number} for number in range(3)])
    return next(iter(apply_format(TASK, name).render(docs, num_fewshot=shots))).prompts[0].text


@pytest.mark.parametrize("name", PROMPTS)
def test_format_renders_the_string_of_the_survey(name: str) -> None:
    choices = ONE_LINE if name.startswith("structured") else LINES
    expected = PROMPTS[name].format(topic=TOPIC, question=QUESTION, choices=choices)
    assert rendered(name) == expected


def test_instruction_of_mmlu_pro_stands_before_the_question() -> None:
    assert rendered("mmlu_pro") == f"{MMLU_PRO_INSTRUCTION}{QUESTION}\n{LINES}\nAnswer:"


def test_instruction_with_topic_and_reasoning_is_the_header_of_mmlu_pro_cot() -> None:
    assert rendered("mmlu_pro_cot").startswith(COT_INSTRUCTION + QUESTION)


def test_every_format_is_covered_here() -> None:
    assert set(LITERATURE) == {*PROMPTS, "mmlu_pro"}


@pytest.mark.parametrize("name", LITERATURE)
def test_header_stands_once_before_all_demonstrations(name: str) -> None:
    layout = known_formats()[name]
    header = layout.description or "Question: "
    text = rendered(name, shots=2)
    assert text.count(QUESTION) == 3
    if layout.description is not None:
        assert text.count("(with answers)") + text.count("[question]") == 1
    assert text.startswith(header[:7])
    assert text.count("Answer: A\n\n") == 2


@pytest.mark.parametrize(
    ("with_topic", "without"),
    [
        ("mmlu_single_space", "mmlu_without_topic_fixed"),
        ("helm", "helm_without_topic_fixed"),
        ("structured", "structured_without_topic"),
    ],
)
def test_fixed_pair_differs_in_the_topic_alone(with_topic: str, without: str) -> None:
    formats = known_formats()
    first, second = formats[with_topic], formats[without]
    asked = placeholders(first)
    assert differences(first, second, asked) == ("description",)
    header, bare = (
        next((piece.text for piece in prompt_pieces(layout, asked) if piece.kind == "description"), "")
        for layout in (first, second)
    )
    assert header.replace(" about «topic»", "").replace("Topic: «topic»\n", "") == bare


@pytest.mark.parametrize(
    ("with_topic", "without"), [("mmlu_single_space", "mmlu_without_topic"), ("helm", "helm_without_topic")]
)
def test_pair_as_published_differs_in_a_second_place(with_topic: str, without: str) -> None:
    formats = known_formats()
    found = differences(formats[with_topic], formats[without], placeholders(formats[with_topic]))
    assert found == ("description", "choices_prefix")


def test_double_space_is_all_that_sets_the_original_apart() -> None:
    assert rendered("mmlu").replace("about  ", "about ") == rendered("mmlu_single_space")


def test_topic_may_be_another_column() -> None:
    task = Task(
        name="t",
        doc_to_text="question",
        doc_to_target="answer",
        doc_to_choice="choices",
        config={"formats": {"type": "helm", "topic": "{{ subject|replace('_', ' ') }}"}},
    )
    docs = TaskDocs.in_memory([{**DOC, "subject": "high_school_biology"}])
    text = next(iter(task.with_format("helm").render(docs, num_fewshot=0))).prompts[0].text
    assert text.startswith(f"{INTRO} about high school biology.\n\n")


def test_synthetic_docs_have_the_column_of_the_topic() -> None:
    config = {"formats": {"type": "helm", "topic": "subject"}}
    made = dataclasses.replace(TASK, config=config).with_format("helm")
    docs = synthetic_docs(made, count=1)
    text = next(iter(made.render(docs, num_fewshot=0))).prompts[0].text
    assert text.startswith(f"{INTRO} about «topic 1».\n\nQuestion: «question 1»")


def test_topic_that_looks_like_jinja_stays_text() -> None:
    assert rendered("helm", topic="{{ question }}").startswith(f"{INTRO} about {{{{ question }}}}.\n\n")


@pytest.mark.parametrize("name", LITERATURE)
def test_every_format_says_what_it_is_and_where_it_is_from(name: str) -> None:
    layout = published_format(name)
    assert layout.summary
    assert "http" in layout.citation or "arXiv" in layout.citation
    assert layout.notes or layout.name == "helm"


def test_few_shot_answers_come_with_the_space_that_is_scored() -> None:
    instance = next(
        iter(
            apply_format(TASK, "mmlu").render(
                TaskDocs.in_memory([DOC], [{**DOC, "number": number} for number in range(2)]), num_fewshot=1
            )
        )
    )
    assert "Answer: A\n\n" in instance.prompts[0].text
    assert [request.continuation for request in instance.requests] == [" A", " B", " C"]

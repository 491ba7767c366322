"""Converting task files: templates into each other, hand-written layouts into formats, with proof."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import laid_out
from pytest_promptfmt.formats.conversion import convert_layout, convert_template_key
from pytest_promptfmt.systems.task_files import load_tasks

DOCS = TaskDocs.in_memory(
    [
        {"question": f"Question {number}?", "choices": ["w", "x", "y", "z"], "answer": number % 4, "passage": "P"}
        for number in range(5)
    ]
)


def read(**keys: Any) -> Task:
    return load_tasks({"task": "t", "test_split": "test", "doc_to_target": "answer", **keys})[0]


@pytest.mark.parametrize(
    ("template", "target", "expected"),
    [
        ("mcq", "mcq", "mcq"),
        ("cloze", "cloze", "cloze"),
        ("mcq", "cloze", {"template_type": "cloze", "choice_delimiter": "\n"}),
        ("cloze", "mcq", {"template_type": "mcq", "choice_delimiter": " "}),
        (
            {"template_type": "mcq", "choice_labels": ["1", "2"], "prefix": "P"},
            "cloze",
            {"template_type": "cloze", "prefix": "P", "choice_delimiter": "\n", "choice_labels": ["1", "2"]},
        ),
    ],
)
def test_template_key_is_converted_with_the_options_that_matter(template: Any, target: str, expected: Any) -> None:
    assert dict(convert_template_key(read(template=template), target).written) == {"template": expected}


def test_task_without_template_cannot_be_converted_as_one() -> None:
    with pytest.raises(FormatError, match="no template to convert"):
        convert_template_key(read(doc_to_text="question"), "cloze")


MMLU = "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"


@pytest.mark.parametrize(
    ("text", "choices", "name", "expected"),
    [
        (
            MMLU,
            ["A", "B", "C", "D"],
            "mcqa",
            {
                "doc_to_text": "question",
                "doc_to_choice": "choices",
                "formats": {"type": "mcqa", "question_prefix": None},
            },
        ),
        (
            f"Question: {MMLU}",
            ["A", "B", "C", "D"],
            "mcqa",
            {"doc_to_text": "question", "doc_to_choice": "choices", "formats": "mcqa"},
        ),
        (
            "Q: {{question.strip()}}\n\n(1) {{choices[0]}} (2) {{choices[2]}}",
            ["1", "2"],
            "mcqa",
            {
                "doc_to_text": "{{question.strip()}}",
                "doc_to_choice": "{{ [choices[0], choices[2]] }}",
                "formats": {
                    "type": "mcqa",
                    "question_prefix": "Q: ",
                    "choice_labels": "numbers",
                    "section_separator": "\n\n",
                    "label_prefix": "(",
                    "label_suffix": ") ",
                    "choice_delimiter": " ",
                    "answer_prompt": None,
                },
            },
        ),
        (
            "Question: {{question}}\nAnswer:",
            "choices",
            "cloze",
            {"doc_to_text": "question", "formats": "cloze"},
        ),
        (
            "{{passage}}\nQuestion: {{question}}?\nAnswer:",
            "choices",
            "cloze",
            None,
        ),
    ],
)
def test_layout_becomes_a_format_when_the_prompts_are_the_same(
    text: str, choices: Any, name: str, expected: Any
) -> None:
    if isinstance(choices, list) and len(choices) == 2:
        docs = TaskDocs.in_memory([{**doc, "answer": doc["answer"] % 2} for doc in DOCS.evaluated])
    else:
        docs = DOCS
    task = read(doc_to_text=text, doc_to_choice=choices, output_type="multiple_choice")
    if expected is None:
        written = dict(convert_layout(task, name, docs).written)
        assert written["doc_to_text"] == "{{passage}}\nQuestion: {{question}}"
        assert written["formats"]["answer_prompt"] == "?\nAnswer:"
        return
    conversion = convert_layout(task, name, docs)
    assert dict(conversion.written) == expected
    config = {key: value for key, value in task.config.items() if key not in conversion.removed}
    (made,) = laid_out(load_tasks({**config, **conversion.written})[0])
    for before, after in zip(task.render(docs, num_fewshot=2), made.render(docs, num_fewshot=2), strict=True):
        assert before.prompts[0].text == after.prompts[0].text
        assert [request.arguments for request in before.requests] == [request.arguments for request in after.requests]


@pytest.mark.parametrize(
    ("text", "choices", "says"),
    [
        ("question", "choices", "has more than text and"),
        ("{% if question %}{{ question }}{% endif %}", "choices", "has more than text and"),
        ("{{question}}\nAnswer:", ["A", "B"], "doc_to_text has no list of choices with the labels A, B"),
        ("{{question}}\nA. {{choices[0]}}\nB) {{choices[1]}}\nAnswer:", ["A", "B"], "would change, first in doc"),
        (
            "{{question}}\nA. {{choices[0]}}\n\nB. {{choices[1]}}\nC. {{choices[2]}}",
            ["A", "B", "C"],
            "would change, first in doc",
        ),
        (
            "{{question}}\n{{choices[0]}}\nA. {{choices[0]}}\nB. {{choices[1]}} {{passage}}",
            ["A", "B"],
            "no list of choices",
        ),
    ],
)
def test_layout_that_would_change_is_refused(text: str, choices: Any, says: str) -> None:
    docs = TaskDocs.in_memory([{**doc, "answer": 0} for doc in DOCS.evaluated])
    task = read(doc_to_text=text, doc_to_choice=choices, output_type="multiple_choice")
    with pytest.raises(FormatError, match=says):
        convert_layout(task, "mcqa", docs)


def test_refusal_shows_what_would_change() -> None:
    docs = TaskDocs.in_memory([{**doc, "answer": 0} for doc in DOCS.evaluated])
    text = "{{question}}\nA. {{choices[0]}}\nB) {{choices[1]}}\nAnswer:"
    task = read(doc_to_text=text, doc_to_choice=["A", "B"], output_type="multiple_choice")
    with pytest.raises(FormatError) as caught:
        convert_layout(task, "mcqa", docs)
    assert "-B) x\n+B. x\n" in caught.value.message

"""Formats on tasks that were not written for them: what is read in a finished layout, and what is refused."""

from __future__ import annotations

import pytest

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import apply_format
from pytest_promptfmt.formats.fields import read_mappings
from pytest_promptfmt.tasks.synthetic.synthetic_docs import synthetic_docs

LETTERS = ["A", "B", "C"]


def task(text: object, choices: object = "choices", **metadata: object) -> Task:
    return Task(
        name="t",
        doc_to_text=text,
        doc_to_choice=choices,
        doc_to_target="answer",
        metadata={"promptfmt": metadata} if metadata else {},
    )


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("question", "question"),
        ("{{ question }}", "{{ question }}"),
        ("Question: {{question}}\nAnswer:", "{{question}}"),
        ("Q: {{question}}\nA:", "{{question}}"),
        ("Question: {{question}}?\nAnswer:", "{{question}}?"),
        ("{{passage}}\nQuestion: {{question}}\nAnswer:", "{{passage}}\nQuestion: {{question}}"),
        ("Question: {{question}}\nThe correct answer is", "{{question}}"),
        ("{{text}} is a source of vitamin A", "{{text}} is a source of vitamin A"),
    ],
)
def test_question_is_read_between_its_cues(text: str, question: str) -> None:
    assert read_mappings(task(text), "mcqa").doc_to_text == question


@pytest.mark.parametrize(
    "text",
    [
        "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:",
        "Question: {{question.strip()}}\n(A) {{choices[0]}} (B) {{choices[1]}} (C) {{choices[2]}}\nAnswer:",
        "Q: {{question.strip()}}\nA: {{choices[0]}}\nB: {{choices[1]}}\nC: {{choices[2]}}\n",
    ],
)
def test_choices_are_read_behind_their_labels(text: str) -> None:
    found = read_mappings(task(text, LETTERS), "cloze")
    assert found.doc_to_text == "{{question.strip()}}"
    assert found.doc_to_choice == "{{ [choices[0], choices[1], choices[2]] }}"
    assert len(found.notes) == 2
    doc = {"question": "Q ", "choices": ["x", "y", "z"], "answer": 1}
    made = apply_format(task(text, LETTERS), "mcqa")
    instance = next(iter(made.render([doc])))
    assert instance.prompts[0].text == "Question: Q\nA. x\nB. y\nC. z\nAnswer:"
    assert made.notes == found.notes


@pytest.mark.parametrize(
    ("text", "choices", "says"),
    [
        ("{% for c in choices %}{{ c }}{% endfor %}", "choices", "doc_to_text has Jinja statements"),
        ("Question: {{question}}\nAnswer:", LETTERS, "doc_to_text has no list of choices with the labels "),
        (
            "{{question}}\nA. {{a}}\nC. {{c}}\nB. {{b}}\nAnswer:",
            LETTERS,
            "doc_to_text has no list of choices with the labels ",
        ),
        (
            "{{question}}\nA. {{a}}\nB. {{b}}\nC. {{c}}\n{{more}}",
            LETTERS,
            "doc_to_text has no list of choices with the labels ",
        ),
        ("question", LETTERS, "cannot find the choices"),
        ("{{ question }}", ["1", "2"], "cannot find the choices"),
    ],
)
def test_layout_that_cannot_be_read_is_refused_with_the_way_out(text: str, choices: object, says: str) -> None:
    with pytest.raises(FormatError, match=says) as caught:
        apply_format(task(text, choices), "mcqa")
    assert "metadata: {promptfmt: {fields:" in (caught.value.hint or "")


def test_fields_told_in_metadata_need_no_reading() -> None:
    fields = {"question": "q", "choices": "{{ [a, b] }}"}
    made = apply_format(task("{% if q %}{{ q }}{% endif %}", LETTERS, fields=fields), "mcqa")
    instance = next(iter(made.render([{"q": "Q", "a": "x", "b": "y", "answer": 1}])))
    assert (instance.prompts[0].text, instance.target) == ("Question: Q\nA. x\nB. y\nAnswer:", 1)
    (doc,) = synthetic_docs(made, count=1)
    assert {"q", "a", "b", "answer"} <= doc.keys()


def test_unknown_field_in_metadata_comes_with_the_closest_name() -> None:
    with pytest.raises(FormatError, match="unknown key 'questoin' in fields") as caught:
        apply_format(task("question", fields={"questoin": "q"}), "mcqa")
    assert caught.value.hint == "did you mean 'question'?"


def test_task_written_for_the_format_is_taken_as_it_is() -> None:
    made = apply_format(
        Task(
            name="t",
            doc_to_text="Question: {{question}}",
            doc_to_target="answer",
            doc_to_choice="choices",
            config={"formats": {"type": "mcqa", "question_prefix": None}},
        ),
        "mcqa",
    )
    doc = {"question": "Q", "choices": ["x"], "answer": 0}
    assert next(iter(made.render([doc]))).prompts[0].text == "Question: Q\nA. x\nAnswer:"
    assert made.notes == ()

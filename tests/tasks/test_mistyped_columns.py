"""A mistyped column is refused before it becomes the same prompt for every doc; text that is meant is let through."""

import pytest

from pytest_promptfmt import FewShot, RenderError, Task, TaskDocs
from pytest_promptfmt.tasks.rendering.field_mappings import refuse_mistyped_columns

DOCS = TaskDocs.in_memory([{"question": "Is snow cold?", "Answer Key": "yes", "choices": ["yes", "no"]}])


def test_a_text_that_is_nearly_a_column_is_refused_with_the_column() -> None:
    with pytest.raises(RenderError, match=r"doc_to_text of 'snow' is 'qestion'") as caught:
        refuse_mistyped_columns(Task(name="snow", doc_to_text="qestion"), DOCS)
    assert caught.value.hint == "did you mean 'question'?"


@pytest.mark.parametrize(
    "task",
    [
        Task(name="snow", doc_to_text="Question"),
        Task(name="snow", doc_to_text="{{question}}", doc_to_target="answer key"),
        Task(name="snow", doc_to_text="question", doc_to_choice="choice"),
        Task(name="snow", doc_to_text="question", fewshot=FewShot(doc_to_text="qestion")),
    ],
    ids=["letter case", "target", "choices", "demonstrations"],
)
def test_every_field_is_looked_at(task: Task) -> None:
    with pytest.raises(RenderError):
        refuse_mistyped_columns(task, DOCS)


@pytest.mark.parametrize(
    "spec", ["question", "Answer Key", "", "{{question}}", "True or False?", "{{'qestion'}}", 3, None]
)
def test_columns_templates_and_plain_text_are_let_through(spec: object) -> None:
    refuse_mistyped_columns(Task(name="snow", doc_to_text=spec, doc_to_target=spec), DOCS)

"""Requests made in two ways: what only one side refuses is a difference, what neither side can know is not."""

from __future__ import annotations

import pytest
from linting import study_of

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FunctionError, OwnPromptsError, PromptfmtError, RenderError, SyntheticDocsError
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.release import LATEST
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study.request_comparison import Side, _by, _compared


@pytest.mark.parametrize("error", [RenderError, OwnPromptsError, FunctionError, SyntheticDocsError])
def test_a_side_that_refuses_differs_unless_its_requests_are_unknown(error: type[PromptfmtError]) -> None:
    def refuses(_task: Task, _docs: TaskDocs, _shots: int) -> object:
        raise error("no requests")

    docs = {"promptfmt": {"docs": [{"question": "Which metal?", "answer": "iron"}]}}
    study = study_of(Task(name="metals", doc_to_text="{{question}}", doc_to_target="answer", metadata=docs))
    side: Side = refuses  # type: ignore[assignment]
    found = _compared(study, [PLAIN], "", (_by(LATEST), side), lambda *_: "", draws_own=False)
    is_unknown = issubclass(error, FunctionError | SyntheticDocsError)
    assert (found.unknown, found.is_different) == ("no requests" if is_unknown else "", not is_unknown)

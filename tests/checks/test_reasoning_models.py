"""Tasks put to a model whose generation prompt opens its reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from linting import linted, study_of

from pytest_promptfmt.checks.registry import known_checks
from pytest_promptfmt.checks.selection import Selection
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.systems.lm_eval.task_config import task_from_config

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {{ '<think>\n' if enable_thinking is not defined }}{% endif %}"
)
GENERATES = {"output_type": "generate_until", "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 8192}}


def messages(config: dict[str, Any], **profile: Any) -> list[str]:
    docs = [{"question": "Which metal rusts?", "choices": ["iron", "gold"], "answer": 0}]
    task = {"task": "metals", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "answer"}
    written = task_from_config(
        task | config | {"metadata": {"promptfmt": {"docs": docs}}}, path=Path("metals.yaml"), locate=locate_nowhere
    )
    seen = Profile(name="mine", chat_template=TEMPLATE, **profile)
    found = linted(study_of(written), Selection(checks=known_checks(), select=("PF462",)), seen)
    return [finding.message.partition(" that the chat")[0] for finding in found.findings]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GENERATES, []),
        ({"output_type": "multiple_choice"}, ["choices are scored inside the reasoning"]),
        (
            GENERATES | {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 8192}},
            ["a stop sequence ends the reasoning"],
        ),
        (
            {"output_type": "generate_until"},
            ["a stop sequence ends the reasoning", "the budget of tokens is too small for the reasoning"],
        ),
        (GENERATES | {"gen_prefix": "The answer is"}, []),
    ],
)
def test_stops_budgets_and_scores_are_compared_with_the_reasoning_that_comes_first(
    config: dict[str, Any], expected: list[str]
) -> None:
    assert messages(config) == expected
    assert messages(config, template_args={"enable_thinking": False}) == []

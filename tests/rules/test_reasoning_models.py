"""Tasks put to a model whose generation prompt opens its reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from linting import linted, study_of

from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.tasks.task_config import task_from_config

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {{ '<think>\n' if enable_thinking is not defined }}{% endif %}"
)
GENERATES = {"output_type": "generate_until", "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 8192}}


def messages(config: dict[str, Any], code: str = "PF462", **profile: Any) -> list[str]:
    docs = [{"question": "Which metal rusts?", "choices": ["iron", "gold"], "answer": 0}]
    task = {"task": "metals", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "answer"}
    written = task_from_config(
        task | config | {"metadata": {"promptfmt": {"docs": docs}}}, path=Path("metals.yaml"), locate=locate_nowhere
    )
    seen = Profile(**{"name": "mine", "chat_template": TEMPLATE, **profile})
    found = linted(study_of(written), Selection(rules=known_rules(), select=(code,)), seen)
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
            ["a stop sequence ends the reasoning", "the token budget is too small for the reasoning"],
        ),
        (GENERATES | {"gen_prefix": "The answer is"}, ["gen_prefix replaces the reasoning block"]),
        (
            {"output_type": "multiple_choice", "gen_prefix": "The answer is"},
            ["gen_prefix replaces the reasoning block"],
        ),
    ],
)
def test_stops_budgets_and_scores_are_compared_with_the_reasoning_that_comes_first(
    config: dict[str, Any], expected: list[str]
) -> None:
    assert messages(config) == expected
    assert messages(config, template_args={"enable_thinking": False}) == []


REASONED = "{{ 'OPEN' + m.reasoning_content + 'CLOSE' if m.reasoning_content }}{{ m.content }}"
MARKED = TEMPLATE.replace("{{ m.content }}", REASONED)
READS = {
    "doc_to_text": "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}",
    "doc_to_target": "{{'AB'[answer]}}",
    "doc_to_choice": None,
}


@pytest.mark.parametrize(
    ("opened", "closed", "pattern", "expected"),
    [
        ("<think>", "</think>", "answer is ([AB])", 0),
        ("[THINK]", "[/THINK]", "answer is ([AB])", 1),
        ("<seed:think>", "</seed:think>", "answer is ([AB])", 1),
        ("[THINK]", "[/THINK]", r"(?s)answer is ([AB])\.\s*\Z", 0),
        ("Reasoning: ", "\nAnswer: ", "answer is ([AB])", 0),
    ],
)
def test_filters_are_tried_with_the_marks_of_the_profiles_own_template(
    opened: str, closed: str, pattern: str, expected: int
) -> None:
    template = MARKED.replace("OPEN", opened).replace("CLOSE", closed.replace("\n", r"\n"))
    filters = [{"name": "one", "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]}]
    config = GENERATES | READS | {"filter_list": filters}
    assert len(messages(config, code="PF464", chat_template=template)) == expected

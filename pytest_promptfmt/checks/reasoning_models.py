"""Rules about tasks that are put to a model whose answers begin with reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study import ProfileView

_OPENED: Final = re.compile(r"<(?:\w+:)?(?:think|thinking|reasoning|thought)>\s*\Z", re.I)
_BREAKS: Final = re.compile(r"\s+|[.,:;]\s*")
"""Stops that every reasoning holds."""
_BUDGETS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_LEAST_BUDGET: Final = 1024


@check("PF462", "task-ends-reasoning", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def task_ends_reasoning(view: ProfileView) -> Iterator[Finding]:
    r"""Report a task that stops, cuts or skips the reasoning with which a model begins, as its chat template shows.

    Why: the generation prompt ends with `<think>`, so all that the model writes first is reasoning. A stop at a line
    break ends it, a small budget is used up by it, and likelihoods of choices are those of reasoning. The last two are
    warnings.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}{% if add_generation_prompt %}assistant: <think>
        {% endif %}
        # file: example.yaml
        output_type: generate_until
        generation_kwargs: {until: ["\n\n"], max_gen_toks: 4096}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}{% if add_generation_prompt %}assistant: <think>
        {% endif %}
        # file: example.yaml
        output_type: generate_until
        generation_kwargs: {until: ["Question:"], max_gen_toks: 4096}

    Fix: turn reasoning off in `template_args` (`enable_thinking: false`), or give the task other stops and a budget of
    thousands of tokens.

    Real: lm-evaluation-harness PR #3700 (17 tasks that stop at a blank line), PR #3675, #3403; lighteval #869.
    """
    facts, study = view.facts, view.study
    if facts is None or not _OPENED.search(facts.generation_prompt or ""):
        return
    is_open = any(_OPENED.search(prompt.text) for _, prompt in view.prompts[:1])
    if not study.generates:
        if is_open:
            yield Finding(
                message="choices are scored inside the reasoning that the chat template opens",
                saw=(facts.generation_prompt or "").strip(),
                keys=("output_type",),
                severity=Severity.WARNING,
            )
        return
    if not is_open:
        return  # a gen_prefix begins the answer after the reasoning
    by_default = study.stops is None
    stops = [study.task.fewshot_delimiter] if by_default else study.stop_texts
    for number, stop in enumerate(stops):
        if stop and _BREAKS.fullmatch(stop):
            yield Finding(
                message="a stop sequence ends the reasoning that the chat template opens",
                saw=repr(stop),
                keys=("generation_kwargs",) if by_default else ("generation_kwargs", "until", number),
            )
            break
    kwargs = study.task.generation_kwargs or {}
    budget = next((kwargs[key] for key in _BUDGETS if key in kwargs), 256)
    if isinstance(budget, int) and not isinstance(budget, bool) and 0 < budget < _LEAST_BUDGET:
        yield Finding(
            message="the budget of tokens is too small for the reasoning that the chat template opens",
            saw=f"{budget} tokens",
            keys=("generation_kwargs",),
            severity=Severity.WARNING,
        )

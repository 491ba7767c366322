"""Rules about what remains of a completion when it is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import known_filter


@rule("PF501", "exact-match-keeps-space", severity=Severity.WARNING, family=Family.EXTRACTION)
def exact_match_keeps_space(study: Study) -> Iterator[Finding]:
    r"""Report `exact_match` on completions whose leading space is not removed.

    Why: after `Answer:` models continue with ` Paris`, as few-shot examples show with their delimiter. `exact_match`
    compares ` Paris` with `Paris` and scores 0. Back ends that strip completions hide this, others do not.

    Example:
        output_type: generate_until
        metric_list: [{metric: exact_match}]

    Silent with:
        filter_list: [{name: strip, filter: [{function: remove_whitespace}, {function: take_first}]}]

    Fix: add a filter `remove_whitespace` or `regex` (which strips) before `take_first`.

    Real: lm-evaluation-harness #1206 (fld), #2503 (mmlu_generative).
    """
    task = study.task
    if (
        not study.generates
        or task.process_results is not None
        or "exact_match" not in (study.metrics or ("exact_match",))
    ):
        return
    for pipeline in task.filter_list or ():
        steps = pipeline.get("filter") if isinstance(pipeline, Mapping) else None
        if not all(known_filter(step.get("function")).keeps_text for step in steps or () if isinstance(step, Mapping)):
            return
    for entry in task.metric_list or ():
        if entry.get("regexes_to_ignore") or entry.get("ignore_punctuation_and_whitespace"):
            return
    prompt = study.instances[0].prompts[0] if study.instances and study.instances[0].prompts else None
    if prompt is None or not task.target_delimiter.startswith(" ") or task.gen_prefix or study.has_guessed_text:
        return
    text = prompt.text
    last = prompt.span_at(len(text))
    if last is None or text[-1:] in ("", "\n") or (last.origin.field is not None and not study.has_real_docs):
        return  # a synthetic column does not show how the prompt ends
    yield finding(
        "exact_match compares completions with their leading space",
        f"{text[-20:]}{task.target_delimiter}…",
        "filter_list" if task.filter_list else "metric_list",
    )

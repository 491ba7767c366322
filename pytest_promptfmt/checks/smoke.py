"""The rule about tasks that load and render, and fail when their answers are scored."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_promptfmt.checks.config import missing_function
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import TaskView
from pytest_promptfmt.core.finding import Family, Finding, Severity


@check("PF109", "scoring-fails", severity=Severity.ERROR, family=Family.CONFIG)
def scoring_fails(view: TaskView) -> Iterator[Finding]:
    r"""Report a task whose own gold answers cannot be filtered and scored without an exception.

    Why: filters, metrics and `process_results` run after the model has answered everything, often hours after the
    start. What fails there has cost a whole evaluation. Each gold answer is therefore filtered and scored once. On
    made-up docs only what does not depend on them is tried; metrics of Hugging Face evaluate are not loaded.

    Example:
        output_type: generate_until
        metric_list: [{metric: exact_match, weight_by_size: true}]
        filter_list: [{name: x, filter: [{function: remove_whitespace}, {function: take_first}]}]

    Silent example:
        output_type: generate_until
        metric_list: [{metric: exact_match, ignore_case: true}]
        filter_list: [{name: x, filter: [{function: remove_whitespace}, {function: take_first}]}]

    Fix: as the exception says; a package that is missing here is only an info.

    Real: lm-evaluation-harness #3353 (aime: process_results), and metrics with a key that their function does not take.

    """
    failure = view.scoring_failure
    if failure is None or any(missing_function(view)):  # PF104 tells a function that is not there
        return
    what = f"scoring fails when {failure.what}"
    yield Finding(
        message="scoring was not tried: its Python module does not import here" if failure.lacks_package else what,
        saw=failure.error,
        do=failure.hint or "mend the filter, metric or function",
        keys=failure.keys,
        position=failure.position,
        doc=failure.doc,
        severity=Severity.INFO if failure.lacks_package else None,
    )

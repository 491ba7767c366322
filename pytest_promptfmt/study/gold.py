"""The kind of gold answer that a task has: settled before any rule judges it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.study.configuration import Configuration, read_template
from pytest_promptfmt.study.study import Study

GoldKind = Literal["choice", "text", "texts", "tests", "nothing"]
"""One of the choices, a text or number, a list of accepted texts, code that tests what was generated, or nothing."""

_TESTS: Final = re.compile(r"^\s*(?:assert\b|def check\b|check\(|class \w*Test|import unittest)", re.MULTILINE)
_NOT_COMPARED: Final = ("likelihood", "perplexity", "byte", "bits", "brier", "bypass")


def gold_kind(study: Study) -> GoldKind:
    """Return the kind of a task's gold answer.

    It is `nothing` where Python code scores a task whose target is the same for every doc: the code has its own
    measure, as a rate or the constraints of a prompt, and the target is only there because lm-eval requires one.
    """
    return study.once("gold kind", lambda: _kind(study))


def _kind(study: Study) -> GoldKind:
    written = study.written
    if written.process_results is not None and has_constant_target(study):
        return "nothing"
    if study.has_choices:
        return "choice"
    targets = [instance.target for instance in study.instances]
    if study.has_own_scorer and any(map(is_test, targets)):
        return "tests"
    return "texts" if targets and isinstance(targets[0], list) else "text"


def is_test(target: object) -> bool:
    """Return whether a target is Python code that tests what was generated."""
    return isinstance(target, str) and _TESTS.search(target) is not None


def has_constant_target(study: Configuration) -> bool:
    """Return whether the target is the same for every doc, whatever is in it."""
    target = study.written.doc_to_target
    if isinstance(target, FunctionRef) or callable(target):
        return False
    if not isinstance(target, str):
        return True
    template = read_template(target)
    is_column = not template.has_markup and bool(re.fullmatch(r"\w+(?: \w+)?", target.strip()))
    return not template.names and not is_column


def targets_as_texts(instances: Sequence[Instance]) -> list[str]:
    """Return the targets of docs, which are texts or numbers; none where one of them is neither."""
    targets = [instance.target for instance in instances]
    are_texts = all(isinstance(target, str | int) and not isinstance(target, bool) for target in targets)
    return [str(target) for target in targets] if are_texts else []


def gold_column(study: Configuration) -> str:
    """Return what a target prints if it is a column alone, any other text where it calculates."""
    return str(study.written.doc_to_target).strip("{} -")


def accepted_texts(target: Any) -> tuple[str, ...]:
    """Return the texts of a gold answer: each of a list, one of a text; none of what is neither."""
    values = target if isinstance(target, list | tuple) else [target]
    return tuple(value for value in values if isinstance(value, str))


def compares_likelihoods(study: Study) -> bool:
    """Return whether the choice with the highest likelihood wins, as for `acc`; not only exact matches of each."""
    metrics = study.metrics or ("acc",)
    return any(metric != "exact_match" and not metric.startswith(_NOT_COMPARED) for metric in metrics)

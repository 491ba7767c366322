"""Rules about how HELM files are written: what the reader had to understand that HELM itself would not take."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import TaskView
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.systems.helm.helm_spec import Kind
from pytest_promptfmt.systems.helm.helm_tasks import helm_source


def _told(view: TaskView, *kinds: Kind) -> Iterator[Finding]:
    source = helm_source(view.task)
    for each in source.deviations if source is not None else ():
        if each.kind in kinds:
            yield Finding(message=each.message, saw=each.saw, do=each.do, keys=each.keys)


@check("PF151", "helm-unknown-key", severity=Severity.WARNING, family=Family.HELM)
def helm_unknown_key(view: TaskView) -> Iterator[Finding]:
    r"""Report a key of a HELM adapter file that HELM does not have, and what it was read as.

    Why: HELM 0.5.16 refuses an adapter with a key it does not know, and a default takes the place of a field that is
    misspelt. Decoding parameters stand beside the other fields there, not in a mapping of their own.

    Example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "instance_prefixw": "\n\n"}}

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "instance_prefix": "\n\n"}}

    Fix: write HELM's name.

    Real: a format for data providers that was made after HELM's (instance_prefixw, ouput_format).

    """
    yield from _told(view, "alias", "unknown", "lifted")


@check("PF152", "helm-not-json", severity=Severity.WARNING, family=Family.HELM)
def helm_not_json(view: TaskView) -> Iterator[Finding]:
    """Report a HELM adapter file with comments, trailing commas or other things that only JSON5 allows, or a key twice.

    Why: HELM and most other programs read plain JSON alone, and stop at the first comment. Of a key that stands twice
    the last one counts, and nobody says so.

    Example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_tokens": 5,}} // short answers

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_tokens": 5}}

    Fix: remove them.

    Real: a format for data providers whose specification is written with comments.

    """
    yield from _told(view, "not-strict", "duplicate")


@check("PF153", "helm-method-inferred", severity=Severity.WARNING, family=Family.HELM)
def helm_method_inferred(view: TaskView) -> Iterator[Finding]:
    """Report an adapter without method: which one is meant was read from the instances.

    Why: HELM has no default and refuses it. One more reference in one instance would change what is read into it.

    Example:
        # file: example.json
        {"adapter_spec": {"max_tokens": 5}}

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_tokens": 5}}

    Fix: write the method.

    Real: HELM's AdapterFactory: "Invalid adaptation method".

    """
    yield from _told(view, "inferred")


@check("PF154", "helm-splits", severity=Severity.WARNING, family=Family.HELM)
def helm_splits(view: TaskView) -> Iterator[Finding]:
    """Report instances from which HELM would take no demonstrations, or too few of them.

    Why: HELM shows instances of the split train and evaluates those of valid and test; it reads the split from the
    instance. Here demonstrations are drawn from all instances then, and are not evaluated.

    Example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_train_instances": 1}, "request_states": [
          {"instance": {"input": {"text": "Which metal is liquid?"},
                        "references": [{"output": {"text": "mercury"}, "tags": ["correct"]}], "split": "test"}}]}

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_train_instances": 1}, "request_states": [
          {"instance": {"input": {"text": "Which metal rusts?"},
                        "references": [{"output": {"text": "iron"}, "tags": ["correct"]}], "split": "train"}},
          {"instance": {"input": {"text": "Which metal is liquid?"},
                        "references": [{"output": {"text": "mercury"}, "tags": ["correct"]}], "split": "test"}}]}

    Fix: mark the demonstrations, or lower max_train_instances.

    Real: HELM warns "only 0 training instances, wanted 5" and goes on without.

    """
    yield from _told(view, "split", "few-rows")


@check("PF155", "helm-nested-result", severity=Severity.WARNING, family=Family.HELM)
def helm_nested_result(view: TaskView) -> Iterator[Finding]:
    """Report results that stand inside `request`, where HELM does not look for them.

    Why: HELM reads `result` beside `request`. A file with both reads differently in each program.

    Example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_train_instances": 0}, "request_states": [
          {"instance": {"input": {"text": "Which metal is liquid?"}, "split": "test",
                        "references": [{"output": {"text": "mercury"}, "tags": ["correct"]}]},
           "request": {"result": {"success": true, "completions": [{"text": " mercury", "logprob": -0.1}]}}}]}

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_train_instances": 0}, "request_states": [
          {"instance": {"input": {"text": "Which metal is liquid?"}, "split": "test",
                        "references": [{"output": {"text": "mercury"}, "tags": ["correct"]}]},
           "result": {"success": true, "completions": [{"text": " mercury", "logprob": -0.1}]}}]}

    Fix: move it beside `request`.

    Real: a format for data providers that was made after HELM's.

    """
    yield from _told(view, "nested-result")

"""Rules about how HELM files are written: what the reader had to understand that HELM itself would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.helm import SYSTEM

if TYPE_CHECKING:
    from pytest_promptfmt.systems.helm.adapter_files import AdapterFile
    from pytest_promptfmt.systems.helm.adapter_tasks import HelmAssembly

_STATES: Final = "request_states"
_TOP: Final = frozenset(
    {"adapter_spec", _STATES, "annotator_specs", "promptfmt", "output_mapping", "answer_mapping"}
    | {"name", "scenario_spec", "metric_specs", "data_augmenter_spec", "groups", "annotators"}
)
_SHOTS: Final = ("adapter_spec", "max_train_instances")


def file_of(study: Study) -> AdapterFile | None:
    """Return the file of a HELM task; None for other tasks and for formats of HELM tasks."""
    if study.task.system != SYSTEM.name or study.task.assembly is None:
        return None
    return cast("HelmAssembly", study.task.assembly).file


@check("PF151", "helm-unknown-key", severity=Severity.WARNING, family=Family.HELM)
def helm_unknown_key(study: Study) -> Iterator[Finding]:
    r"""Report a key of a HELM adapter file that HELM does not have, and what it was read as.

    Why: HELM 0.5.16 refuses an adapter with a key it does not know, and a default takes the place of a field that is
    misspelt. It has decoding parameters beside the other fields, not in a separate mapping.

    Example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "instance_prefixw": "\n\n"}}

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "instance_prefix": "\n\n"}}

    Fix: write HELM's name.

    Real: a format for data providers that was made after HELM's (instance_prefixw, ouput_format).
    """
    file = file_of(study)
    if file is None:
        return
    yield from file.read.deviations
    for key in file.top:
        if key not in _TOP:
            yield Finding(
                message=f"the file has the key {key!r}, which HELM does not have",
                do=did_you_mean(key, _TOP) or "remove it; settings of this plugin belong under promptfmt",
                keys=(key,),
            )
    if "answer_mapping" in file.top or file.first.has_answer_mapping:
        yield Finding(
            message="answer_mapping is HELM's output_mapping under another name",
            saw="read as output_mapping",
            do="did you mean 'output_mapping'?",
        )


@check("PF152", "helm-not-json", severity=Severity.WARNING, family=Family.HELM)
def helm_not_json(study: Study) -> Iterator[Finding]:
    """Report a HELM adapter file with comments, trailing commas or other things that only JSON5 allows, or a key twice.

    Why: HELM and most other programs read plain JSON alone, and stop at the first comment. Of a key that appears twice
    the last one counts, silently.

    Example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_tokens": 5,}} // short answers

    Silent example:
        # file: example.json
        {"adapter_spec": {"method": "generation", "max_tokens": 5}}

    Fix: remove them.

    Real: a format for data providers whose specification is written with comments.
    """
    file = file_of(study)
    if file is None or file.whole is None:
        return
    if not file.whole.is_strict:
        message = "the file is not plain JSON, and HELM reads nothing else"
        yield Finding(message=message, do="remove comments and trailing commas")
    for name in file.whole.repeated_keys("adapter_spec"):
        yield Finding(
            message=f"adapter_spec has the key {name!r} more than once, and the last one counts",
            do="remove the others",
            keys=("adapter_spec", name),
        )


@check("PF153", "helm-method-inferred", severity=Severity.WARNING, family=Family.HELM)
def helm_method_inferred(study: Study) -> Iterator[Finding]:
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
    file = file_of(study)
    if file is not None and file.read.method_is_inferred:
        yield Finding(
            message="the adapter has no method, and HELM refuses an empty one",
            saw=f"read as {file.spec.method}",
            do=f'write "method": "{file.spec.method}"',
            keys=("adapter_spec",),
        )


@check("PF154", "helm-splits", severity=Severity.WARNING, family=Family.HELM)
def helm_splits(study: Study) -> Iterator[Finding]:
    """Report instances from which HELM would take no shots, or too few of them.

    Why: HELM shows instances of the split train and evaluates those of valid and test; it reads the split from the
    instance. Here shots are then drawn from all instances, and are not evaluated.

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

    Fix: mark the shots, or lower max_train_instances.

    Real: HELM warns "only 0 training instances, wanted 5" and continues without.
    """
    file = file_of(study)
    if file is None or not file.has_states:
        return
    if any(row.has_split_below for row in file.first.rows):
        yield Finding(
            message="the split is under the references, and HELM reads it from the instance",
            do='write "split" beside "references"',
            keys=(_STATES,),
        )
    wanted, count = file.spec.max_train_instances, len(file.first.rows)
    if not wanted or file.spec.method in ("chat", "language_modeling"):
        return
    if not file.draws_from_all:
        if not file.has_train and not file.first.has_prompts:
            yield Finding(
                message="no instance is of the split train, so no shots are shown",
                saw=f"max_train_instances {wanted}",
                do='write "split": "train" at the shots, or set max_train_instances to 0',
                keys=_SHOTS,
            )
    elif count < wanted + 1:
        yield Finding(
            message="too few instances to show the shots that the adapter asks for",
            saw=f"{count} instances, and {wanted} shots wanted besides at least one question",
            do="add instances, or lower max_train_instances",
            keys=_SHOTS,
        )
    else:
        yield Finding(
            message="no instance is marked as a shot, and HELM shows only those of the split train",
            saw=f"{wanted} of the instances are drawn as shots, and not evaluated",
            do='write "split": "train" at the shots and "split": "test" at the others',
            keys=(_STATES,),
        )


@check("PF155", "helm-nested-result", severity=Severity.WARNING, family=Family.HELM)
def helm_nested_result(study: Study) -> Iterator[Finding]:
    """Report results that are inside `request`, where HELM does not look for them.

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

    Fix: move `result` out of `request`.

    Real: a format for data providers that was made after HELM's.
    """
    file = file_of(study)
    if file is not None and file.first.has_nested_results:
        yield Finding(
            message="results are inside `request`, and HELM reads them beside it",
            keys=(_STATES,),
        )

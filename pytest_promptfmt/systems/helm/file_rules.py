"""Rules about HELM files that this plugin reads but HELM itself would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Final, cast

from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.helm import SYSTEM

if TYPE_CHECKING:
    from pytest_promptfmt.systems.helm.adapter_files import AdapterFile
    from pytest_promptfmt.systems.helm.adapter_tasks import HelmAssembly

HelmRule = Callable[["AdapterFile"], Iterable[Finding]]

_STATES: Final = "request_states"
_TOP: Final = frozenset(
    {"adapter_spec", _STATES, "annotator_specs", "promptfmt", "output_mapping", "answer_mapping"}
    | {"name", "scenario_spec", "metric_specs", "data_augmenter_spec", "groups", "annotators"}
)
_SHOTS: Final = ("adapter_spec", "max_train_instances")


def file_of(study: Study) -> AdapterFile | None:
    """Return the file of a HELM task; None for other tasks and for formats of HELM tasks."""
    if study.task.system != SYSTEM.name or study.task.assembly.renders_fields:
        return None
    return cast("HelmAssembly", study.task.assembly).file


def helm_rule(code: str, name: str, *, severity: Severity) -> Callable[[HelmRule], HelmRule]:
    """Register a rule about the files of HELM tasks."""

    def register(function: HelmRule) -> HelmRule:
        @rule(code, name, severity=severity, family=Family.HELM)
        @wraps(function)
        def of_study(study: Study) -> Iterable[Finding]:
            file = file_of(study)
            return () if file is None else function(file)

        return function

    return register


@helm_rule("PF151", "helm-unknown-key", severity=Severity.WARNING)
def helm_unknown_key(file: AdapterFile) -> Iterator[Finding]:
    r"""Report an unknown key of a HELM adapter file, and how it was read.

    Why: HELM 0.5.16 refuses an adapter with an unknown key, and a misspelled field gets its default.
    Decoding parameters belong next to the other fields, not in a separate mapping.

    Fix: use HELM's name of the key.

    Real: a format for data providers derived from HELM's (instance_prefixw, ouput_format).
    """
    yield from file.read.deviations
    for key in file.top:
        if key not in _TOP:
            yield finding(
                f"unknown key {key!r}",
                at=(key,),
                do=did_you_mean(key, _TOP) or "remove the key, or move settings of this plugin under the key promptfmt",
            )
    if "answer_mapping" in file.top or file.first.has_answer_mapping:
        yield finding(
            "HELM's name of answer_mapping is output_mapping",
            "read as output_mapping",
            do="rename the key to output_mapping",
        )


@helm_rule("PF152", "helm-not-json", severity=Severity.WARNING)
def helm_not_json(file: AdapterFile) -> Iterator[Finding]:
    """Report a HELM adapter file with comments, trailing commas or other JSON5 syntax, or with a repeated key.

    Why: HELM and most other programs read only plain JSON and fail at the first comment. If a key is repeated, they
    silently use its last value.

    Fix: remove comments, trailing commas and repeated keys.

    Real: a format for data providers whose specification is written with comments.
    """
    if file.whole is None:
        return
    if not file.whole.is_strict:
        message = "the file is not plain JSON, so HELM cannot read it"
        yield finding(message, do="remove comments and trailing commas")
    for name in file.whole.repeated_keys("adapter_spec"):
        yield finding(
            f"the key {name!r} is repeated, and only the last value counts",
            at=("adapter_spec", name),
            do="remove the others",
        )


@helm_rule("PF153", "helm-method-inferred", severity=Severity.WARNING)
def helm_method_inferred(file: AdapterFile) -> Iterator[Finding]:
    """Report an adapter without a method, which is inferred from the instances.

    Why: HELM has no default method and refuses such an adapter. One more reference in one instance can change the
    inferred method.

    Fix: set `method`.

    Real: HELM's AdapterFactory: "Invalid adaptation method".
    """
    if file.read.method_is_inferred:
        yield finding(
            "the adapter has no method, so HELM refuses it",
            f"read as {file.spec.method}",
            "adapter_spec",
            do=f'write "method": "{file.spec.method}"',
        )


@helm_rule("PF154", "helm-splits", severity=Severity.WARNING)
def helm_splits(file: AdapterFile) -> Iterator[Finding]:
    """Report instances from which HELM would draw no shots, or too few.

    Why: HELM draws shots from the instances of the split `train`, and evaluates those of `valid` and `test`. If there
    are no such instances, this plugin draws shots from all, and does not evaluate the drawn ones.

    Fix: set `"split": "train"` for the shots, or lower max_train_instances.

    Real: HELM warns "only 0 training instances, wanted 5" and continues without.
    """
    if not file.has_states:
        return
    if any(row.has_split_below for row in file.first.rows):
        yield finding(
            "the split is under the references, not in the instance",
            at=(_STATES,),
            do='move "split" next to "references"',
        )
    wanted, count = file.spec.max_train_instances, len(file.first.rows)
    if not wanted or file.spec.method in ("chat", "language_modeling"):
        return
    if not file.draws_from_all:
        if not file.has_train and not file.first.has_prompts:
            yield finding(
                "no instance is in the split train, so there are no shots",
                f"max_train_instances {wanted}",
                _SHOTS,
                do='set "split": "train" for the shots, or max_train_instances to 0',
            )
    elif count < wanted + 1:
        yield finding(
            "too few instances for max_train_instances",
            f"{count} instances for {wanted} shots and at least one question",
            _SHOTS,
            do="add instances, or lower max_train_instances",
        )
    else:
        yield finding(
            "HELM draws shots from the split train, but no instance is in it",
            f"{wanted} of the instances are drawn as shots and not evaluated",
            (_STATES,),
            do='set "split": "train" for the shots and "split": "test" for the others',
        )


@helm_rule("PF155", "helm-nested-result", severity=Severity.WARNING)
def helm_nested_result(file: AdapterFile) -> Iterator[Finding]:
    """Report results inside `request`, where HELM does not look for them.

    Why: HELM reads `result` next to `request`. Programs differ in how they read a file with both.

    Fix: move `result` out of `request`.

    Real: a format for data providers derived from HELM's.
    """
    if file.first.has_nested_results:
        yield finding("results are inside `request`, but HELM reads them next to it", at=(_STATES,))

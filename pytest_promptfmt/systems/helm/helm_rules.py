"""Rules about HELM files: what HELM itself would refuse, and labels, prefixes, stop sequences and windows."""

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

_HelmRule = Callable[["AdapterFile"], Iterable[Finding]]

_SPEC: Final = "adapter_spec"
_STATES: Final = "request_states"
_SHOWN: Final = 60
_TOP: Final = frozenset(
    {"adapter_spec", _STATES, "annotator_specs", "promptfmt", "output_mapping", "answer_mapping"}
    | {"name", "scenario_spec", "metric_specs", "data_augmenter_spec", "groups", "annotators"}
)
_SHOTS: Final = ("adapter_spec", "max_train_instances")


def _file_of(study: Study) -> AdapterFile | None:
    """Return the file of a HELM task; None for other tasks and for formats of HELM tasks."""
    if study.task.system != SYSTEM.name or study.task.assembly.renders_fields:
        return None
    return cast("HelmAssembly", study.task.assembly).file


def _helm_rule(code: str, name: str, *, severity: Severity) -> Callable[[_HelmRule], _HelmRule]:
    """Register a rule about the files of HELM tasks."""

    def register(function: _HelmRule) -> _HelmRule:
        @rule(code, name, severity=severity, family=Family.HELM)
        @wraps(function)
        def of_study(study: Study) -> Iterable[Finding]:
            file = _file_of(study)
            return () if file is None else function(file)

        return function

    return register


@_helm_rule("PF151", "helm-unknown-key", severity=Severity.WARNING)
def helm_unknown_key(file: AdapterFile) -> Iterator[Finding]:
    r"""Report an unknown key of a HELM adapter file, and the known key that this plugin used instead.

    Why: HELM 0.5.16 refuses an adapter with an unknown key. Programs that ignore unknown keys use the default of the
    misspelled field. Decoding parameters, such as the temperature, belong directly in `adapter_spec`, not in a mapping
    inside it.

    Fix: use HELM's name for the key.

    Real: a format for data providers that was derived from HELM's (`instance_prefixw`, `ouput_format`).
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
            "HELM calls the key answer_mapping output_mapping",
            "this plugin treats it as output_mapping",
            do="rename the key to output_mapping",
        )


@_helm_rule("PF152", "helm-not-json", severity=Severity.WARNING)
def helm_not_json(file: AdapterFile) -> Iterator[Finding]:
    """Report a HELM adapter file with comments, trailing commas or other JSON5 syntax, or with a repeated key.

    Why: HELM and most other programs read only plain JSON. They fail at the first comment. If a key is repeated, they
    silently use its last value.

    Fix: remove comments, trailing commas and repeated keys.

    Real: a format for data providers whose specification has JSON with comments.
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
            do=f"remove all but one {name!r}",
        )


@_helm_rule("PF153", "helm-method-inferred", severity=Severity.WARNING)
def helm_method_inferred(file: AdapterFile) -> Iterator[Finding]:
    """Report an adapter without a method, so that this plugin has to infer one from the instances.

    Why: HELM has no default method, so it refuses such an adapter. One more reference in a single instance can change
    the inferred method.

    Fix: set `method`.

    Real: HELM's AdapterFactory: "Invalid adaptation method".
    """
    if file.read.method_is_inferred:
        yield finding(
            "adapter_spec has no method, so HELM refuses the file",
            f"this plugin assumes {file.spec.method}",
            "adapter_spec",
            do=f'write "method": "{file.spec.method}"',
        )


@_helm_rule("PF154", "helm-splits", severity=Severity.WARNING)
def helm_splits(file: AdapterFile) -> Iterator[Finding]:
    """Report instances from which HELM would draw no shots, or too few.

    Why: HELM draws shots from the instances of the split `train`, and evaluates the instances of `valid` and `test`. If
    all instances are in the same split, or in none, this plugin takes the shots from these instances, and evaluates the
    rest.

    Fix: set `"split": "train"` for the shots, or lower max_train_instances.

    Real: HELM warns "only 0 training instances, wanted 5" and continues without shots.
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
                "no instance is in the split 'train', so there are no shots",
                f"max_train_instances {wanted}",
                _SHOTS,
                do='set "split": "train" for the shots, or max_train_instances to 0',
            )
    elif count < wanted + 1:
        yield finding(
            "too few instances for max_train_instances",
            f"{wanted} for shots and 1 for a question are needed, but the file has {count}",
            _SHOTS,
            do="add instances, or lower max_train_instances",
        )
    else:
        yield finding(
            "HELM draws shots from the split 'train', but no instance is in this split",
            f"this plugin uses {wanted} of the instances as shots, and does not evaluate them",
            (_STATES,),
            do='set "split": "train" for the shots and "split": "test" for the others',
        )


@_helm_rule("PF155", "helm-nested-result", severity=Severity.WARNING)
def helm_nested_result(file: AdapterFile) -> Iterator[Finding]:
    """Report results inside `request`, where HELM ignores them.

    Why: HELM expects `result` next to `request`, not inside it. If a file has `result` in both places, programs differ
    in which one they use.

    Fix: move the key `result` out of the key `request`.

    Real: a format for data providers derived from HELM's.
    """
    if file.first.has_nested_results:
        yield finding("results are inside `request`, where HELM ignores them", at=(_STATES,))


@_helm_rule("PF156", "helm-labels-run-out", severity=Severity.ERROR)
def helm_labels_run_out(file: AdapterFile) -> Iterator[Finding]:
    """Report options whose labels are punctuation, because HELM continued the labels after `Z`, `z` or `9`.

    Why: HELM's next label is the character with the next code point. The label after `Z. ` is `[. `, and the label
    after `9) ` is `:) `. A model that chooses such an option
    has to answer with this punctuation mark.

    Fix: set `reference_prefix_characters` to a list with a label for each reference.

    Real: HELM 0.5.16 with eleven references and the prefix `1) `, or twenty-eight references and `A. `.
    """
    if not file.spec.is_joint or file.spec.reference_prefix_characters:
        return
    most = max((len(row.references) for row in file.first.rows), default=0)
    try:
        labels = [file.spec.label(index) for index in range(most)]
    except ValueError:
        return  # rendering reports the error
    odd = [label for label in labels if not label.isalnum() or _kind_of(label) != _kind_of(labels[0])]
    if odd:
        yield finding(
            "an instance has too many references, so some labels are punctuation",
            f"the labels of {most} references are {labels[0]!r} to {labels[-1]!r}"[:_SHOWN],
            (_SPEC, "reference_prefix"),
        )


def _kind_of(label: str) -> tuple[bool, bool]:
    return label.isdigit(), label.isupper()


@_helm_rule("PF157", "helm-prefix-replaced", severity=Severity.ERROR)
def helm_prefix_replaced(file: AdapterFile) -> Iterator[Finding]:
    """Report a reference prefix such as `Answer A: `, in which the letter of the label is also in a word.

    Why: The first letter or digit of the prefix is the label of the first reference. For the other references, HELM
    replaces this character everywhere: `Answer A: ` becomes `Bnswer B: `.

    Fix: shorten the prefix to the label and punctuation, such as "A. ".

    Real: HELM #2809, about reference prefixes.
    """
    if not file.spec.is_joint:
        return
    prefix = file.spec.reference_prefix
    first = next((character for character in prefix if character.isalnum()), "")
    if first and prefix.count(first) > 1:
        try:
            second = file.spec.reference_text(1)
        except ValueError:
            return
        yield finding(
            "HELM changes a letter of reference_prefix everywhere, not only in the label",
            f"{prefix!r} becomes {second!r} for the second reference",
            (_SPEC, "reference_prefix"),
        )


@_helm_rule("PF158", "helm-stop-dropped", severity=Severity.WARNING)
def helm_stop_dropped(file: AdapterFile) -> Iterator[Finding]:
    r"""Report stop sequences, if the method of the adapter never sends any.

    Why: In multiple choice, HELM always sends an empty list of stop sequences to the model. Only `max_tokens` ends the
    completion. If `max_tokens` is above 1, the model writes more than the label, so the completion matches no option.

    Fix: set `max_tokens` to 1, or set an `output_mapping_pattern` that finds the label.

    Real: HELM 0.5.16, MultipleChoiceJointAdapter.
    """
    spec = file.spec
    if spec.stop_sequences and (spec.is_joint or spec.is_separate):
        yield finding(
            f"HELM ignores stop sequences if the method is {spec.method}",
            repr(list(spec.stop_sequences)),
            (_SPEC, "stop_sequences"),
            do="" if spec.is_joint else "remove the stop sequences",
        )


@_helm_rule("PF159", "helm-gold-normalised-away", severity=Severity.WARNING)
def helm_gold_normalised_away(file: AdapterFile) -> Iterator[Finding]:
    """Report a correct answer that HELM's quasi metrics reduce to an empty text, and options that they make equal.

    Why: metrics such as `quasi_exact_match` remove articles and ASCII punctuation before they compare. The answer `A`
    becomes an empty text, so `quasi_prefix_exact_match` is 1 for every completion. The answers `-5` and `5` become
    equal.

    Fix: use answers that are more than an article or punctuation, or score only with `exact_match`.

    Real: HELM 0.5.16: quasi_prefix_exact_match of `A` and `Berlin` is 1.
    """
    if not any("quasi" in name or name.startswith("f1") for name in file.metrics):
        return
    if file.spec.is_separate or file.spec.method in ("language_modeling", "ranking_binary"):
        return
    from pytest_promptfmt.systems.helm.helm_metrics import normalised  # only where there is such a file

    for row in file.first.rows:
        texts, correct = row.references, row.correct
        for index in correct:
            if not normalised(texts[index]):
                yield finding(
                    "HELM's quasi metrics remove all characters of a correct answer",
                    repr(texts[index])[:_SHOWN],
                    ("request_states", row.number, "instance", "references", index),
                )
        others = {normalised(text): text for index, text in enumerate(texts) if index not in correct}
        for index in correct:
            same = others.get(normalised(texts[index]))
            if normalised(texts[index]) and same is not None and same != texts[index]:
                yield finding(
                    "HELM's quasi metrics do not distinguish a correct from a wrong reference",
                    f"{texts[index]!r} and {same!r}"[:_SHOWN],
                    ("request_states", row.number, "instance", "references", index),
                    do="use references that differ in more than case, articles and punctuation",
                )


@rule("PF160", "helm-question-cut", severity=Severity.ERROR, family=Family.HELM)
def helm_question_cut(study: Study) -> Iterator[Finding]:
    """Report a prompt that loses the end of its question because it is longer than the model's window.

    Why: HELM drops shots until the prompt fits. When no shots are left, it cuts off the end of the text. The model then
    gets half a question and no answer cue.

    Fix: shorten the instance, lower max_tokens, or use a model with a larger window.

    Real: HELM 0.5.16, in-context learning adapter.
    """
    if _file_of(study) is None:
        return
    from pytest_promptfmt.systems.helm.adapters import CUT  # only where there is such a file

    for instance in study.instances:
        for prompt in instance.prompts:
            if prompt.spans and prompt.spans[-1].origin.key == CUT:
                yield finding(
                    "the prompt is longer than the model's window, so the end of the question is lost",
                    f"…{prompt.text[-_SHOWN:]}",
                    ("metadata", "promptfmt", "window"),
                    instance,
                )


@_helm_rule("PF161", "helm-scored-tail", severity=Severity.WARNING)
def helm_scored_tail(file: AdapterFile) -> Iterator[Finding]:
    r"""Report prefixes and suffixes that make HELM score other tokens than those of the reference.

    Why: HELM's methods `multiple_choice_separate_…` count the tokens of the reference with a space before it. They then
    score this number of tokens at the end of the prompt. These are the right tokens only if `output_prefix` ends with a
    space, and no text follows the answer.

    Fix: end `output_prefix` with a space, and make `output_suffix` and `global_suffix` empty.

    Real: HELM 0.5.16 with its default prefix `Output: ` and its default suffix `\n`: off by one token.
    """
    if not file.spec.is_separate:
        return
    spec = file.spec
    for key, is_odd, do in (
        ("output_prefix", not spec.output_prefix.endswith(" "), "end output_prefix with a space"),
        ("output_suffix", bool(spec.output_suffix), 'write "output_suffix": ""'),
        ("global_suffix", bool(spec.global_suffix), "remove it"),
    ):
        if is_odd:
            yield finding(
                f"this {key} makes HELM score the wrong tokens",
                repr(getattr(spec, key)),
                (_SPEC, key),
                do=do,
            )


@_helm_rule("PF162", "helm-labels-never-map", severity=Severity.ERROR)
def helm_labels_never_map(file: AdapterFile) -> Iterator[Finding]:
    """Report instances with several correct labels, for which HELM counts no answer as correct.

    Why: with `multi_label`, shots have answers such as `A, C`. HELM recognizes only single labels in the model's
    answer. So a model that answers like the shots scores 0.

    Fix: set `method` to `generation`, or tag only one reference as correct.

    Real: HELM 0.5.16, MultipleChoiceJointAdapter and compute_reference_metrics.
    """
    if not file.spec.is_joint or not file.spec.multi_label:
        return
    for row in file.first.rows:
        if len(row.correct) > 1:
            yield finding(
                "several labels are correct, but HELM gives 0 to any answer with several labels",
                str(row.labels(file.spec).get("label", "")),
                (_SPEC, "multi_label"),
            )
            return


@_helm_rule("PF163", "helm-prefix-unused", severity=Severity.WARNING)
def helm_prefix_unused(file: AdapterFile) -> Iterator[Finding]:
    """Report a reference prefix that has no effect, because the method lists no references in the prompt.

    Why: readers think that the file is multiple choice. A joint method would use the prefix. But it would also print
    the only reference, and this is the answer.

    Fix: remove `reference_prefix`.

    Real: a format for data providers, whose example has a `reference_prefix` but is not multiple choice.
    """
    if file.spec.is_joint or file.spec.method == "ranking_binary":
        return
    written = file.top.get(_SPEC)
    if isinstance(written, dict) and "reference_prefix" in written:
        yield finding(
            f"reference_prefix has no effect if the method is {file.spec.method}",
            repr(written["reference_prefix"]),
            (_SPEC, "reference_prefix"),
        )

"""Rules about gold answers that filters cannot read, though they read simpler ones written in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from pytest_promptfmt.answers.completions import Chain, is_nothing
from pytest_promptfmt.answers.trials import AnswerTrial, trials_of
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_FORMS: Final = (
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "The answer is {}.",
    "The final answer is {}.",
    "So the answer is {}.",
    "Answer: {}",
    "Final answer: {}",
    "ANSWER: {}",
    "#### {}",
    "<answer>{}</answer>",
    "```python\n{}\n```",
    "```\n{}\n```",
    "[[{}]]",
)
_SIMPLE: Final = ("7", "iron", "B", "x")
_LONG: Final = 2000


@rule("PF512", "gold-cut-by-filter", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def gold_cut(study: Study) -> Iterator[Finding]:
    r"""Report a filter that reads short answers in some form and only a part of the docs' own answers in the same form.

    Why: `\\boxed\{(.+?)\}` ends at the first brace of `\frac{1}{6}`, `answer is (\w+)` reads one word of two, and `.`
    matches no newline, so that code of several lines is not found. A right answer scores 0.

    Example:
        output_type: generate_until
        doc_to_target: "{{answer}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: 'answer is (\w+)'}, {function: take_first}]}]
        metadata: {promptfmt: {docs: [{question: Where is the tower?, answer: New York}]}}

    Silent with:
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: 'answer is (.+)\.'}, {function: take_first}]}]

    Fix: match as much as an answer may have: nested braces, several words, several lines (`[\s\S]*?`).

    Real: boxed answers with fractions in the extraction of several harnesses; code blocks read without DOTALL.
    """
    if not study.generates or not looks_for_answers(study.task) or not study.has_real_docs or study.has_own_scorer:
        return
    if scoring_failure(study) is not None:
        return
    trials = trials_of(study)
    if trials.chain is None:
        return
    found = []
    for number, pipeline in enumerate(trials.chain.pipelines):
        if not pipeline.patterns:
            continue
        cut = next(filter(None, (_cut(trials.chain, pipeline, trial) for trial in trials.answers)), None)
        if cut is None:
            return  # one of the pipelines reads all of them
        found.append((number, *cut))
    for number, text, read, doc in found[:1]:
        yield finding(
            "a filter reads only a part of the gold answer, or nothing of it",
            f"{text!r} is read as {read!r}",
            ("filter_list", number),
            doc,
        )


def _cut(chain: Chain, pipeline: FilterPipeline, trial: AnswerTrial) -> tuple[str, str, int] | None:
    """Return a sentence with the gold answer that is not read, where the same with a simple answer is."""
    gold, doc = trial.gold, trial.instance.doc
    if trial.best is None or trial.nonsense is None or trial.best <= trial.nonsense or not 0 < len(gold) < _LONG:
        return None
    if re.fullmatch(r"\w+|-?[\d.,]+", gold) or any(gold in form for form in _FORMS):
        return None
    alone = chain.read(pipeline, gold, doc, "the gold answer itself")
    if alone.problem is not None or not is_nothing(alone.extracted, pipeline):
        return None  # a worked solution, which has the cue itself
    wrong = None
    for form in _FORMS:
        simple = next((one for one in _SIMPLE if _reads(chain, pipeline, form.format(one), doc) == one), None)
        if simple is None:
            continue
        text = form.format(gold)
        stages = chain.read(pipeline, text, doc, "the gold answer")
        if stages.problem is not None or stages.stopped != text:
            continue
        try:
            right = chain.is_right(trial.question, doc, stages.extracted)
        except PromptfmtError:
            raise
        except Exception:
            continue
        if right:
            return None
        wrong = wrong or (text, str(stages.extracted), trial.instance.index)
    return wrong


def _reads(chain: Chain, pipeline: FilterPipeline, text: str, doc: Doc) -> str:
    stages = chain.read(pipeline, text, doc, "a simple answer")
    return "" if stages.problem is not None else str(stages.extracted).strip()


@rule("PF746", "gold-with-marks", severity=Severity.WARNING, family=Family.ANSWERS)
def gold_with_marks(study: Study) -> Iterator[Finding]:
    r"""Report gold answers of a few words that all end with a full stop or are set in bold, and are compared as text.

    Why: `exact_match` compares `Lisbon` with `Lisbon.` and scores 0. Few-shot examples would show the mark; a task
    without them does not. Answers that are sentences are left alone.

    Example:
        output_type: generate_until
        doc_to_target: "{{choices[answer]}}."
        num_fewshot: 0

    Silent with:
        doc_to_target: "{{choices[answer]}}"

    Fix: remove the mark from the target, or ignore punctuation in the metric.

    Real: targets written as the end of a sentence in templates for training.
    """
    if not study.generates or study.has_own_scorer or study.shots > 0 or looks_for_answers(study.task):
        return
    entries = study.task.metric_list or ({"metric": "exact_match"},)
    if any(one.get("metric") != "exact_match" for one in entries) or any(map(_ignores_marks, entries)):
        return
    golds = [str(instance.target).strip() for instance in study.real_instances]
    if len(golds) > 1 and all(_MARKED.fullmatch(gold) for gold in golds):
        yield finding("gold answers have a mark that is compared as well", ", ".join(golds[:3]), "doc_to_target")


_MARKED: Final = re.compile(r"(?:[^\W_]+ ?){1,3}\.|(\*\*|__)[^*_]+\1\.?")
"""A word or a few with a full stop, or anything in bold."""


def _ignores_marks(entry: Mapping[str, object]) -> bool:
    return bool(entry.get("ignore_punctuation") or entry.get("regexes_to_ignore"))


@rule("PF721", "float-as-gold", severity=Severity.WARNING, family=Family.ANSWERS)
def float_as_gold(study: Study) -> Iterator[Finding]:
    """Report whole numbers that are written with `.0` as gold answers, and compared as text.

    Why: a column of integers becomes one of floats when a value is missing. `exact_match` compares `4` with `4.0`, and
    no model writes the latter.

    Example:
        output_type: generate_until
        doc_to_target: "{{answer}}"
        metadata: {promptfmt: {docs: [{question: What is 2 + 2?, answer: 4.0}, {question: 3 + 3?, answer: 6.0}]}}

    Silent with:
        doc_to_target: "{{answer | int}}"

    Fix: convert the column: `{{answer | int}}`.

    Real: tables read with pandas.
    """
    if not study.generates or study.has_own_scorer or set(study.metrics or ("exact_match",)) != {"exact_match"}:
        return
    golds = [str(instance.target) for instance in study.real_instances]
    if golds and all(re.fullmatch(r"-?\d+\.0", gold) for gold in golds):
        yield finding("whole numbers are gold answers with .0", ", ".join(golds[:3]), "doc_to_target")

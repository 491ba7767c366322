"""Rules about what answers score, without a model: metrics, the task's own code, near misses, and small changes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_promptfmt.answers.metric_scores import NONSENSE, normalised
from pytest_promptfmt.answers.trials import AnswerTrial, ScoringTrial, Trials, trials_of
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import LimitExceededError, did_you_mean, is_misspelt
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import scored_answers, tried
from pytest_promptfmt.rules.options import template_names
from pytest_promptfmt.rules.page import error_query, query, task
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import compares_whole, finding, shots_of, warning, words
from pytest_promptfmt.rules.smoke import scoring_fix
from pytest_promptfmt.study.gold import accepted_texts, gold_kind, has_constant_target
from pytest_promptfmt.tasks import METRICS, harness_around, score_doc

_LOWER: Final = words("lower_is_better") | {name for name, metric in METRICS.items() if not metric.higher_is_better}
_HIGHER: Final = words("higher_is_better") | {name for name, metric in METRICS.items() if metric.higher_is_better}
_AVERAGES: Final = ("mean", "median", "nanmean")
_OF_PAIRS: Final = ("f1", "matthews_corrcoef", "bleu", "chrf", "chrf++", "ter", "brier_score")
"""Aggregations of the pairs of gold and answer that a metric gives for each doc."""

_REFERENCE_FIRST: Final = ("bleu", "chrf", "chrf++", "ter")
_CLASSES_OF_F1: Final = 2
_PAIRS_AVERAGED: Final = "the values of a metric are pairs, which cannot be averaged"
_ACCURACY: Final = re.compile(r"acc|match|correct|f1|score|\bem\b|pass", re.IGNORECASE)
_SHARE: Final = re.compile(r"(?:\w+_)?(?:acc(?:uracy)?|exact_match|em|f1|precision|recall)", re.IGNORECASE)
_MOST_COUNTED: Final = 50
"""A score above it may be a percentage."""

_LINES: Final = 9
"""Lines of an answer that is long."""

_SECONDS: Final = 2.0
LONG: Final = 80


_LETTERS: Final = re.compile(r"[^\W\d_]+")
_METRICS: Final = ("metric_list",)
_LACKS: Final = ("ImportError", "ModuleNotFoundError", "FileNotFoundError", "ConnectionError", "OSError", "LookupError")
"""Exceptions for a package, file or network that is missing here."""


@rule("PF601", "empty-gold", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def empty_gold(study: Study) -> Iterator[Finding]:
    """Report a gold answer without any visible character.

    Why: if the gold answer is empty, an empty completion counts as right. Splits without labels often have such gold
    answers.

    Fix: set `doc_to_target` to the column with the answer, or evaluate a split that has labels.

    Real: test splits without labels, such as those of GLUE.
    """
    is_judged_by_code = study.has_own_scorer and not str(study.written.doc_to_target).strip()
    for trial in trials_of(study).answers if not is_judged_by_code and not compares_whole(study) else ():
        if not trial.gold.strip():
            yield finding("the gold answer is empty", repr(trial.gold), "doc_to_target", trial.instance)


@error_query("PF601", "the gold answer is empty", task, at="doc_to_target", scores=True)
def _compared_with_nothing(study: Study) -> Iterator[Finding]:
    golds = [(one, texts[0]) for one in study.real_instances if (texts := accepted_texts(one.target))]
    empty = next((one for one, gold in golds if not gold.strip()), None)
    if empty is not None and compares_whole(study) and not has_constant_target(study):
        is_code = isinstance(study.written.doc_to_target, FunctionRef)
        some = Severity.WARNING if is_code else Severity.INFO  # in data, there may be nothing to find
        yield finding("", "''", doc=empty, severity=some if any(gold.strip() for _, gold in golds) else None)


@error_query("PF601", "exact_match ignores all characters of an answer", task, scores=True)
def _normalises_to_nothing(study: Study) -> Iterator[Finding]:
    for trial, texts in compared_by_exact_match(study):
        for target, text in texts.items():
            if not text and (target == trial.gold or len(texts) > 1):
                yield finding("", repr(target), _METRICS, trial.instance)


@query("PF705", "exact_match ignores characters that change the value of a number", task, scores=True)
def _another_number(study: Study) -> Iterator[Finding]:
    for trial, texts in compared_by_exact_match(study) if study.has_real_docs else ():
        left = texts.get(trial.gold)
        number, other = written_number(trial.gold), written_number(left or "")
        if number is not None and other is not None and number != other:
            yield finding("", f"{trial.gold!r} becomes {left!r} before it is compared", _METRICS, trial.instance)


@query("PF705", "exact_match ignores letters inside words", task, scores=True)
def _letters_ignored(study: Study) -> Iterator[Finding]:
    """Report a pattern such as `an|a|the` that makes exact_match ignore letters inside words."""
    for trial, texts in compared_by_exact_match(study) if study.has_real_docs else ():
        gold, left = trial.gold.casefold(), texts.get(trial.gold, "").casefold()
        for word in sorted(_LETTERS.findall(gold), key=len, reverse=True):
            left = left.replace(word, "", 1)
        if any(rest not in gold for rest in _LETTERS.findall(left)):
            saw = f"{trial.gold!r} becomes {texts[trial.gold]!r} before it is compared"
            yield finding("", saw, _METRICS, trial.instance)


def written_number(text: str) -> float | None:
    """Return the number that a text is; None for any other text."""
    bare = re.sub(r",(?=\d{1,2}$)", ".", text.strip()).replace(",", "")  # which may be a decimal comma
    return float(bare) if re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)", bare) else None


def compared_by_exact_match(study: Study) -> Iterator[tuple[AnswerTrial, Mapping[str, str]]]:
    """Yield what exact_match compares of the possible answers to each doc; nothing where it does not judge."""
    for trial in scored_answers(study):
        metric = next((metric for metric in trial.chain.metrics if metric.name == "exact_match"), None)
        if metric is not None and study.written.process_results is None and trial.gold.strip():
            targets = trial.answers.targets if trial.answers.kind == "choice" else (trial.gold,)
            yield trial, {str(target): normalised(str(target), metric.arguments) for target in targets}


@rule("PF604", "scorer-crashes", severity=Severity.ERROR, family=Family.SCORING, scores=True)
def scorer_crashes(study: Study) -> Iterator[Finding]:
    """Report scoring code that raises an exception for an answer which a model may give.

    Why: such an exception ends the evaluation, often hours after its start. PF109 tries scoring with the gold answers.
    This rule tries an empty completion, nonsense, and choices with several synthetic log-likelihoods. Python code may
    need columns that synthetic docs do not have. So exceptions of such code are reported only with docs of your own.

    Fix: change the code so that it accepts any answer.

    Real: lm-evaluation-harness #3353 (aime: process_results), #1499 (m_truthfulqa: mc2_targets).
    """
    is_tried = study.renders_fields and (study.has_real_docs or not study.has_own_scorer)
    if not is_tried or (trials := tried(study)) is None:
        return
    answers: tuple[ScoringTrial, ...] = (*trials.answers, *trials.choices)
    for trial in answers:
        reads_marks = trials.scoring.is_synthetic and "«" in trial.error
        if trial.error and not reads_marks and not trial.error.startswith(_LACKS):
            do = scoring_fix(trials.scoring, trial.question) or ""
            yield finding("scoring raises an exception", trial.error, scored_by(trials), trial.instance, do=do)


def judged_by_code(study: Study) -> Sequence[Trials]:
    """Return what code of the task makes of the user's docs; nothing where other rules report that it fails."""
    is_own = study.has_own_scorer and study.has_real_docs and study.renders_fields
    trials = tried(study) if is_own else None
    return () if trials is None else (trials,)


def scored_by(trials: Trials) -> tuple[str]:
    """Return the key of what scores a task."""
    return ("process_results",) if trials.scoring.task.process_results is not None else _METRICS


def gold_forms(study: Study, trial: AnswerTrial) -> tuple[Any, ...]:
    """Return the gold answer as it is, in the forms that the prompt requests, and what filters give to own code.

    lm-eval reads a target that is written like a list as a list of answers, although it may be one answer in JSON.
    """
    chain, target = trial.chain, trial.question.target
    whole = (json.dumps(target, ensure_ascii=False, default=str),) if isinstance(target, list | dict) else ()
    forms = (trial.gold, *whole, *(form.written(trial.label) for form in study.contract.wrapped))
    pipelines = chain.pipelines if study.has_own_scorer else ()
    read = (chain.read(one, form, trial.instance.doc, "a gold answer") for one in pipelines for form in forms)
    return (*forms, *(one.extracted for one in read if one.problem is None))


@rule("PF614", "wrong-direction", severity=Severity.WARNING, family=Family.SCORING, scores=True)
def wrong_direction(study: Study) -> Iterator[Finding]:
    """Report `higher_is_better` with the wrong value for a well-known metric.

    Why: the arrow in the results table then points in the wrong direction. Tools that compare runs choose the worse
    model.

    Fix: change `higher_is_better`, or leave it out for lm-eval's own metrics.

    Real: entries for `perplexity` and `ter` that were copied from entries for accuracy.
    """
    for index, entry in enumerate(study.task.metric_list or ()):
        name, is_higher = entry.get("metric"), entry.get("higher_is_better")
        if is_higher is False and study.has_choices and has_constant_target(study):
            continue  # a rate, such as of one kind of behavior, which need not be good
        if isinstance(name, str) and isinstance(is_higher, bool) and name in (_LOWER if is_higher else _HIGHER):
            saw = f"{name}: {str(is_higher).lower()}"
            yield finding("higher_is_better contradicts the metric", saw, ("metric_list", index, "higher_is_better"))


@rule("PF615", "metric-never-given", severity=Severity.ERROR, family=Family.SCORING, scores=True)
def metric_never_given(study: Study) -> Iterator[Finding]:
    """Report a metric of `metric_list` that scoring never returns.

    Why: lm-eval reports the metrics that `process_results` returns. If an entry of `metric_list` has another name, this
    metric is silently missing in the results. The metric `acc` needs log-likelihoods. For generated text, its value is
    a pair, and averaging pairs fails at the end of the run.

    Fix: in `metric_list`, use the names that `process_results` returns.

    Real: metrics that were renamed in the code, but not in the YAML file.
    """
    given: set[str] = set()
    for trials in judged_by_code(study) if study.task.process_results is not None else ():
        given.update(*(_values(trials, trial, trial.gold) or () for trial in trials.answers))
        given.update(*(choice.gold_best for choice in trials.choices))
    for index, entry in enumerate(study.task.metric_list or ()):
        name = entry.get("metric")
        if given and isinstance(name, str) and name not in given:
            saw = f"metric: {name}, but process_results returns {', '.join(sorted(given))}"
            yield finding("process_results never returns this metric", saw, ("metric_list", index))


@also("PF615", scores=True)
def unfit_aggregation(study: Study) -> Iterator[Finding]:
    """Report an aggregation that does not fit the values of its metric, for example pairs that are averaged."""
    for index, entry in enumerate(study.task.metric_list or ()):
        strange = [str(key) for key in entry if key not in words("metric_keys")]
        near = next((key for key in strange if is_misspelt(key, words("metric_keys"))), None)
        if near is not None:
            do = did_you_mean(near, words("metric_keys")) or ""
            yield finding("a key of a metric looks misspelt", near, ("metric_list", index, near), do=do)
        what, fix = _unfit_aggregation(study, entry)
        if what:
            yield finding(what, str(entry["metric"]), ("metric_list", index), do=fix)


def _unfit_aggregation(study: Study, entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return how an aggregation does not fit what lm-eval's own metric gives for a doc, "" if it does, and the fix."""
    around = harness_around(study.task.path.parent) if study.task.path is not None else None
    if around is not None and entry.get("metric") in around.singled_out_metrics and not study.has_choices:
        return "", ""  # a fork computes it in another way
    known = METRICS.get(str(entry.get("metric")))
    aggregation = entry.get("aggregation", known.aggregation if known is not None else None)
    if known is None or entry.get("hf_evaluate") or study.task.process_results is not None:
        return "", ""
    given = data_table("rules")["metrics_given"].get(study.task.output_type, "").split()
    if given and entry["metric"] not in given:
        do = f"use a metric of this output type: {', '.join(given)}"
        return f"the output type {study.task.output_type} never gives this metric", do
    if not isinstance(aggregation, str):
        return "", ""
    if study.generates and known.function is METRICS["acc"].function and aggregation in ("mean", "median"):
        message = "a metric for log-likelihoods is used, but the task generates text"
        do = "use exact_match, or output_type: multiple_choice"
        return (message, do) if known.aggregation in _AVERAGES else (_PAIRS_AVERAGED, "")
    if study.has_choices and aggregation == "f1" and len(study.written.doc_to_choice or ()) > _CLASSES_OF_F1:
        do = "use a function that averages f1 over the classes, such as `aggregation: !function utils.macro_f1`"
        return ("f1 fails for more than two classes", do) if isinstance(study.written.doc_to_choice, list) else ("", "")
    if study.generates or study.has_choices:
        gives_pairs, takes_pairs = (one in _OF_PAIRS for one in (known.aggregation, aggregation))
        if gives_pairs and aggregation in _AVERAGES:
            return _PAIRS_AVERAGED, ""
        if known.aggregation == "mean" and (takes_pairs or aggregation.endswith("perplexity")):
            return "the aggregation belongs to another metric, and fails on the scores of this one", ""
    return "", ""


def _values(trials: Trials, trial: AnswerTrial, answer: Any) -> Mapping[str, Any] | None:
    """Return what each metric gives for one answer, as the filters leave it; None for an exception."""
    scoring = trials.scoring
    try:
        with time_limit(_SECONDS, "scoring one doc", scoring.task.position("metric_list")):
            doc = copy.deepcopy(dict(trial.instance.doc))
            return score_doc(scoring.task, scoring.metrics, doc, trial.question, [answer])
    except LimitExceededError:
        raise
    except Exception:
        return None


@also("PF605", severity=Severity.ERROR, scores=True)
def worse_scores_more(study: Study) -> Iterator[Finding]:
    """Report a metric of your own that gives the gold answer no better score than nonsense."""
    trials = next(iter(judged_by_code(study)), None)
    if trials is None or gold_kind(study) in ("tests", "nothing") or is_rate(study, trials):
        return
    is_better = {metric.name: metric.higher_is_better for metric in trials.scoring.metrics}
    signs = {name: 1 if better else -1 for name, better in is_better.items() if isinstance(better, bool)}
    differences: dict[str, list[float]] = {}
    reached: dict[str, list[float]] = {}
    asked = [trial for trial in trials.answers if trial.gold.strip()]
    for trial in asked:
        given = [_values(trials, trial, form) for form in gold_forms(study, trial)]
        _compare(differences, signs, given, _values(trials, trial, NONSENSE))
        _compare(reached, signs, given, dict.fromkeys(signs, 0))
    for choice in trials.choices:
        _compare(differences, signs, [choice.gold_best], choice.other_best)
    for name, signed in differences.items():
        if study.task.process_results is None and name in METRICS:
            continue
        # of several, each may judge other docs; without few-shot examples, a target may only be there to be shown
        is_lost = all(each <= 0 for each in signed) and (any(each < 0 for each in signed) or len(differences) == 1)
        if is_lost and (_shows_gold_alone(study, asked) or not _has_other_gold(study, trials, name)):
            saw = (
                f"{name} of the gold answer is {'worse than' if any(signed) else 'the same as'} that of a wrong answer"
            )
            yield finding("the gold answer does not score better than a wrong one", saw, scored_by(trials))
    for name, signed in differences.items():
        rows = [*zip(asked, signed, reached.get(name, ()), strict=False)]
        lost = [trial for trial, each, own in rows if each <= 0 and own < max(reached[name])]
        if len(differences) == 1 and len(asked) == len(rows) and lost and max(signed) > 0:
            message = "for some docs, the gold answer does not score better than a wrong one"
            won = asked[signed.index(max(signed))].gold
            saw = (
                f"the gold answer {won[:LONG]!r} of another doc beats a wrong one, but {lost[0].gold[:LONG]!r} does not"
            )
            yield warning(message, saw, scored_by(trials), lost[0].instance)


def _shows_gold_alone(study: Study, trials: Sequence[AnswerTrial]) -> bool:
    """Return whether a few-shot example answers as shortly as the gold answers are."""
    longest = max((len(trial.gold.split()) for trial in trials), default=0)
    shots = [shot for instance in study.with_shots[:1] if study.shots for shot in shots_of(instance)]
    return any(len((shot.answer or "").split()) <= longest for shot in shots)


def _has_other_gold(study: Study, trials: Trials, metric: str) -> bool:
    """Return whether a column that the target does not name scores 1 in every doc, and nonsense 0.

    Alone, or before the gold answer, which may be the body of a function whose head is in the column.
    """
    target = str(study.written.doc_to_target)
    named = () if " if " in target else template_names(target)  # then a branch may be for few-shot examples
    columns = {*study.docs.columns}.difference(named) if study.docs is not None else set()

    def score(trial: AnswerTrial, text: str) -> object:
        return (_values(trials, trial, text) or {}).get(metric)

    def is_gold(trial: AnswerTrial, column: str) -> bool:
        text = str(trial.instance.doc.get(column))
        return 1 in (score(trial, text), score(trial, text + trial.gold)) and score(trial, NONSENSE) == 0

    return bool(trials.answers) and any(all(is_gold(one, column) for one in trials.answers) for column in columns)


def is_rate(study: Study, trials: Trials) -> bool:
    """Return whether code that claims no accuracy measures answers alike without the columns of the gold answer."""
    columns = template_names(study.written.doc_to_target) & {*study.docs.columns} if study.docs is not None else set()
    if not columns or study.task.process_results is None or any(map(_ACCURACY.search, study.metrics)):
        return False
    measured = []
    for trial in trials.answers:
        doc = {name: value for name, value in trial.instance.doc.items() if name not in columns}
        without = replace(trial, instance=replace(trial.instance, doc=doc))
        for text in (trial.gold, NONSENSE, "", f"{NONSENSE}\n" * _LINES):
            measured.append(_values(trials, trial, text))
            if measured[-1] is None or measured[-1] != _values(trials, without, text):
                return False
    return any(one != measured[0] for one in measured)


def _compare(
    found: dict[str, list[float]],
    signs: Mapping[str, int],
    golds: Sequence[Mapping[str, Any] | None],
    other: Mapping[str, Any] | None,
) -> None:
    """Add how much better than `other` the best form of the gold answer is, by metric."""
    for name, sign in signs.items():
        wrong = _number((other or {}).get(name))
        values = [_number((gold or {}).get(name)) for gold in golds]
        right = [sign * value for value in values if value is not None]
        if right and wrong is not None:
            found.setdefault(name, []).append(max(right) - sign * wrong)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@error_query(
    "PF615",
    "process_results returns the answer first, but the aggregation expects the gold answer first",
    judged_by_code,
    scores=True,
)
def _pair_reversed(trials: Trials) -> Iterator[Finding]:
    """Report scoring code that returns the answer before the gold answer, although the order matters."""
    for trial in trials.answers[:1]:
        values = _values(trials, trial, NONSENSE) or {}
        for index, entry in enumerate(trials.scoring.task.metric_list or ()):
            pair: Any = values.get(str(entry.get("metric")))
            is_pair = entry.get("aggregation") in _REFERENCE_FIRST and isinstance(pair, tuple) and len(pair) == 2
            if is_pair and NONSENSE in str(pair[0]) and NONSENSE not in str(pair[1]):
                yield finding("", f"{entry['metric']}: {pair!r}"[:80], ("metric_list", index))


@query(
    "PF615",
    "a metric whose maximum should be 1, such as acc, exceeds 1 for the gold answer",
    judged_by_code,
    at="process_results",
    scores=True,
)
def _share_above_one(trials: Trials) -> Iterator[Finding]:
    """Report code that returns the number of right parts, or of points, as the accuracy of a doc."""
    for trial in trials.answers:
        for name, value in (_values(trials, trial, trial.gold) or {}).items():
            number = _number(value) or 0
            if _SHARE.fullmatch(name) and 1 < number <= _MOST_COUNTED:
                saw = f"{name} is {number:g} for the gold answer {trial.gold[:LONG]!r}"
                yield finding("", saw, doc=trial.instance)

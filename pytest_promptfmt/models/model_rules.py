"""Rules about what a model answers: whether the chain from prompt to score holds for it.

They run where a model is asked. Rules about ids, BOS and scoring hold for every model; those about shares are left out
for the bundled model on formats that it was not trained on, unless the task sets thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.models.model import Likelihood
from pytest_promptfmt.models.recording import digest_of
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding

if TYPE_CHECKING:
    from pytest_promptfmt.models.model_answers import ModelAnswers

RIVAL_FACTOR: Final = 10.0
"""The other spelling must be so many times likelier before the task's own is called wrong."""


@rule("PF651", "model-saw-other-ids", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_saw_other_ids(judged: ModelAnswers) -> Iterator[Finding]:
    r"""Report a model that received token ids which differ from those of the prompt or the snapshot.

    Why: if a prompt is longer than the model's limit, its beginning is cut off. If the model's tokenizer is a different
    one, the text is split differently. In both cases, the scores are those of another prompt.

    Fix: shorten the prompt, or give the profile the tokenizer of the model.

    Real: lm-eval 0.4.13, which cuts off the beginning of long prompts and logs a warning.
    """
    for reply in judged.replies:
        ask = reply.asked.ask
        meant = (*ask.context_ids, *ask.continuation_ids)
        if meant and reply.sent is not None and reply.sent != digest_of(meant):
            yield finding(
                "the model received other token ids than the prompt has",
                f"the digest of the {len(meant)} ids of the prompt is different",
                "doc_to_text",
                reply.asked.doc,
                do="shorten the prompt to the model's maximum length, or record again with the model's tokenizer",
            )
        if judged.shown is not None and not reply.asked.is_rival and digest_of(ask.context_ids) not in judged.shown:
            yield finding(
                "the model received other token ids than the snapshot has",
                f"digest {digest_of(ask.context_ids)}",
                "doc_to_text",
                reply.asked.doc,
                do="accept the new snapshot, or use the tokenizer of the old snapshot",
            )
        measured = len(reply.answer.logprobs) if isinstance(reply.answer, Likelihood) else 0
        if isinstance(reply.answer, Likelihood) and ask.continuation_ids and measured != len(ask.continuation_ids):
            yield finding(
                "the model scored other tokens than those of the continuation",
                f"{ask.continuation!r} has {len(ask.continuation_ids)} tokens,"
                f" but the model returned {measured} log-probabilities",
                doc=reply.asked.doc,
                do="fix the backend of the model: it must score exactly the ids of the continuation",
            )


@rule("PF652", "model-saw-bos-twice", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_saw_bos_twice(judged: ModelAnswers) -> Iterator[Finding]:
    """Report a prompt that reaches the model with two BOS tokens.

    Why: no model was trained on two BOS tokens. The text has one, and the tokenizer adds another.

    Fix: leave BOS out of the text.

    Real: llama-cpp-python #1501; open-r1 PR #462; reward-bench #164.
    """
    tokenizer = judged.tokenizer
    bos = tokenizer.id_of_named("bos_token") if tokenizer is not None else None
    for reply in judged.replies:
        if tokenizer is not None and bos is not None and reply.asked.ask.context_ids[:2] == (bos, bos):
            yield finding(
                "the prompt begins with two BOS tokens",
                f"{tokenizer.special_tokens.get('bos_token')!r} is in the text, and the tokenizer adds another one",
                "doc_to_text",
                reply.asked.doc,
            )


@rule("PF653", "model-answer-not-scored", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_answer_not_scored(judged: ModelAnswers) -> Iterator[Finding]:
    """Report a filter or metric that raises an exception for an answer of the model.

    Why: an evaluation ends at the first such answer, after hours of generation.

    Fix: return a score of 0 for an answer that cannot be read.

    Real: lm-evaluation-harness #3353 (aime: process_results).
    """
    for failure in (failure for question in judged.questions for failure in question.failures):
        yield finding(
            f"a {failure.part} raises an exception for an answer of the model",
            failure.reason,
            ("filter_list",) if failure.part == "filter" else ("metric_list",),
            failure.doc,
        )


# -- shares ------------------------------------------------------------------------------------------------------------


@rule("PF654", "model-spells-otherwise", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_spells_otherwise(judged: ModelAnswers) -> Iterator[Finding]:
    r"""Report candidates that the model writes with a space before them, but that are scored without, or the reverse.

    Why: this plugin asks the model for the probability of each candidate, once with and once without a space before it.
    The finding is reported if the spelling that the task does not use is more than ten times as likely. For example,
    the task scores `"A"`, but the model writes `" A"`. Accuracy is then close to chance.

    Fix: check the space before the candidates (`target_delimiter`, `doc_to_choice`) and the end of the prompt.

    Real: lm-evaluation-harness #1297, #3336; lighteval PR #354.
    """
    if judged.thresholds is None or not _prefers_rivals(judged):
        return
    own, rival = (
        next(one.asked.ask for one in judged.replies if one.asked.is_rival == is_rival) for is_rival in (False, True)
    )
    yield finding(
        "the model prefers another spelling of the candidates",
        f"{rival.context[-8:]}|{rival.continuation} has the probability {judged.rival_mass:.2g}, but "
        f"{own.context[-8:]}|{own.continuation}, as in the task, has only {judged.mass:.2g}",
        "target_delimiter",
    )


def _prefers_rivals(judged: ModelAnswers) -> bool:
    mass, rival = judged.mass, judged.rival_mass
    return mass is not None and rival is not None and rival > mass * RIVAL_FACTOR


@rule("PF655", "little-mass-on-labels", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def little_mass_on_labels(judged: ModelAnswers) -> Iterator[Finding]:
    r"""Report labels whose total probability is below the threshold `mass`.

    Why: if the model is unlikely to write any of the labels, it is almost chance which label is the most likely one.

    Fix: show the labels in the prompt, and end the prompt at the place where the label should follow.

    Real: lm-evaluation-harness PR #531, #546: 76 % or 58 % on hellaswag, depending on how the prompt ends.
    """
    limits = judged.thresholds
    if limits is None or judged.mass is None or _prefers_rivals(judged):
        return
    if judged.has_labels and judged.mass < limits.mass:
        yield finding(
            "the model gives the candidates little probability",
            f"mean total probability {judged.mass:.2g}, threshold {limits.mass:g}",
            "doc_to_text",
        )


@rule("PF656", "model-seldom-stops", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_seldom_stops(judged: ModelAnswers) -> Iterator[Finding]:
    r"""Report a task in which too few answers of the model end within the token budget (threshold `stops`).

    Why: if the model never writes a stop sequence, each doc costs the whole token budget. Filters then search for the
    answer in a text that continues after the answer.

    Fix: stop at the text that comes after an answer in the prompt, such as a blank line.

    Real: lm-evaluation-harness #2983 (LongBench), where the stop sequence was a literal `\n`.
    """
    if judged.thresholds is not None:
        what = "end before the maximum length"
        yield from _too_few(judged, judged.stops, judged.thresholds.stops, what, ("generation_kwargs", "until"))


@rule("PF657", "model-seldom-extracted", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_seldom_extracted(judged: ModelAnswers) -> Iterator[Finding]:
    """Report a task whose filters find an answer in too few completions (threshold `extraction`).

    Why: an answer that is not found counts as wrong. If the task has options, the filters must find a label of an
    option. If the gold answers are numbers, the filters must find a number. Otherwise the filters may find any text.

    Fix: let the filters find the answer in the form that the prompt requires.

    Real: lm-evaluation-harness #1206 (fld), #2503 (mmlu_generative).
    """
    if judged.thresholds is not None:
        what = "contain an answer that the filters find"
        yield from _too_few(judged, judged.extraction, judged.thresholds.extraction, what, ("filter_list",))


def _too_few(
    judged: ModelAnswers, share: float | None, wanted: float, what: str, keys: tuple[str, ...]
) -> Iterator[Finding]:
    if share is not None and share < wanted:
        saw = f"{share:.0%} of {len(judged.questions)}, threshold {wanted:.0%}; the first answer is {judged.first_text}"
        yield finding(f"too few answers of the model {what}", saw, keys)


@rule("PF658", "model-score-low", severity=Severity.ERROR, family=Family.MODELS, scope="model")
def model_score_low(judged: ModelAnswers) -> Iterator[Finding]:
    """Report a mean score below the threshold `score`.

    Why: if a change of the prompt costs points with one model, it probably costs points with other models, too.

    Fix: compare the prompt with the last one that reached the threshold, or lower the threshold.

    Real: lm-evaluation-harness #546, where one space cost 18 points.
    """
    limits = judged.thresholds
    if limits is not None and judged.score is not None and judged.score < limits.score:
        yield finding(
            "the score is below the threshold",
            f"{judged.score:.2f}, threshold {limits.score:g}",
            ("metadata", "promptfmt", "model", "score"),
        )

"""Rules about the place, length and format of the answer that a prompt requests, and about contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.completion_reader import scored_answers
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, first_text, scores_exact_match
from pytest_promptfmt.study.gold import gold_kind
from pytest_promptfmt.study.scoring import token_budget
from pytest_promptfmt.study.study import constant_spans
from pytest_promptfmt.tasks import looks_for_answers

_TEXT: Final = re.compile(
    r"[^.!?\n]*\b(?:(?:full|complete|whole) (?:answer )?text|text of the (?:\w+ )?(?:option|choice|answer))\b[^.!?\n]*",
    re.IGNORECASE,
)
_ASKED_TWICE: Final = 2
_NUMBERS: Final = ("3", "81")


@also("PF525", severity=Severity.WARNING, scores=True)
def asked_place_not_read(study: Study) -> Iterator[Finding]:
    """Report filters that take an answer from another place than the one that the prompt requests.

    Fix: take the last match (`group_select: -1`) where the answer is requested at the end, the first one otherwise.
    """
    place = study.contract.place
    if place is None or not study.generates or study.has_guessed_text or gold_kind(study) in ("tests", "nothing"):
        return
    if not looks_for_answers(study.task) and not study.has_own_scorer:
        return
    chain, trials = scored_answers(study) or (None, ())
    for trial in trials[:1]:
        other = _other(trial)
        if chain is None or other is None or trial.error:
            return
        gold = trial.answers.labels[trial.answers.gold]
        for form in study.contract.wrapped or study.contract.of("letter"):
            if place == "last" and first_text(trial.instance).count(form.said) < _ASKED_TWICE:
                continue  # the form comes once, unless a draft is requested as well
            alone, wrong = form.written(gold), form.written(other)
            longer = f"{alone}\nI looked at {other} as well." if place == "first" else f"{wrong}\nNo, not so.\n{alone}"
            if _is_right(chain, trial, alone) and not _is_right(chain, trial, longer):
                saw = f"asked for {place}, in {longer!r} {gold!r} is not read"
                at = "filter_list" if study.task.filter_list else "process_results"
                yield finding("the answer is read from another place than is requested", saw, at, trial.instance)
                return


def _other(trial: AnswerTrial) -> str | None:
    """Return an answer that is wrong: another option, or a number."""
    answers = trial.answers
    if answers.kind == "choice":
        return next((one for at, one in enumerate(answers.labels) if at != answers.gold), None)
    return next((one for one in _NUMBERS if one != trial.gold), None) if answers.kind == "number" else None


def _is_right(chain: Chain, trial: AnswerTrial, text: str) -> bool:
    """Return whether one of the pipelines makes a right answer of a completion."""
    doc = trial.instance.doc
    for pipeline in chain.pipelines:
        stages = chain.read(pipeline, text, doc, "an answer at the place that the prompt requests")
        try:
            if stages.problem is None and chain.is_right(trial.question, doc, stages.extracted):
                return True
        except PromptfmtError:
            raise
        except Exception:
            continue
    return False


@also("PF525", severity=Severity.WARNING)
def no_room_for_length(study: Study) -> Iterator[Finding]:
    """Report a token budget with fewer tokens than the prompt requests words.

    Fix: raise `max_gen_toks` above the number of words, which need one to two tokens each.
    """
    budget, words = token_budget(study.task), study.contract.least_words
    if study.generates and budget is not None and words is not None and budget < words:
        saw = f"{study.contract.length}, {budget} tokens"
        yield finding("the token budget has no room for the length that is requested", saw, "generation_kwargs")


@also("PF714")
def gold_longer_than_asked(study: Study) -> Iterator[Finding]:
    """Report gold answers that all have more words than the prompt allows.

    Fix: raise the limit, or shorten the gold answers.
    """
    most = study.contract.most_words
    if most is None or not study.generates or study.has_own_scorer or gold_kind(study) != "text":
        return
    golds = [str(instance.target) for instance in study.real_instances]
    if golds and all(len(gold.split()) > most for gold in golds):
        saw = f"{study.contract.length}; gold is {golds[0][:50]!r}"
        yield finding("the gold answers have more words than the prompt allows", saw, "doc_to_target")


@also("PF714")
def gold_in_other_format(study: Study) -> Iterator[Finding]:
    """Report gold answers none of which has the format that the prompt requests: of a date, a number, a list.

    Fix: convert the gold answers, or ask for their format.
    """
    if not study.generates or study.has_own_scorer or looks_for_answers(study.task) or gold_kind(study) != "text":
        return
    golds = [str(instance.target).strip() for instance in study.real_instances]
    asked = join(constant_spans(study.instances[0])) if golds and scores_exact_match(study) else ""
    table: list[list[str]] = data_table("contract")["formats"]
    for wording, written in table if asked else ():
        found = re.search(wording, asked, re.IGNORECASE)
        if found is not None and not any(re.fullmatch(written, gold, re.DOTALL) for gold in golds):
            saw = f"{found[0]}; gold is {golds[0][:40]!r}"
            yield finding("the gold answers do not have the format that the prompt requests", saw, "doc_to_target")
            return


@also("PF714")
def letter_and_text(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for the letter of an option in one sentence, and for its text in another.

    Fix: ask for what is scored.
    """
    letters = [form for form in study.contract.of("letter") if form.is_certain]
    for instance in study.instances[:1] if letters and study.generates and not study.has_guessed_text else ():
        text = _TEXT.search(join(constant_spans(instance)))
        if text is not None and letters[0].said not in text[0] and text[0].strip() not in letters[0].said:
            saw = f"{letters[0].said[:60]} and {text[0].strip()[:60]}"
            yield finding("the prompt requests a letter and for the text of an option", saw, "doc_to_text", instance)

"""Rules about the place, length and format of the answer that a prompt requests, and about contradictions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.rules import Finding, Study
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.options import template_names
from pytest_promptfmt.rules.page import Page, comparing, generating, given_shots, query
from pytest_promptfmt.rules.rule_views import (
    finding,
    first_text,
    has_word,
    mapped,
    pattern,
    question_layout,
    words,
)
from pytest_promptfmt.study.gold import gold_kind, targets_as_texts
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.study.scoring import token_budget
from pytest_promptfmt.tasks import FILTERS, looks_for_answers

_TEXT: Final = pattern("asked_places", "text")
_PIECE: Final = re.compile(r"\{\{-? *(\w+) *\[ *[\d+:-][\d +:-]*\]")
"""A column of which an index or a slice is printed."""

_HOW_DRAWN: Final = {"temperature", "top_p", "top_k", "min_p", "seed"}
_ASKED_TWICE: Final = 2
_IN_A_WORD: Final = re.compile(r"\w\w")
_LABELLED: Final = re.compile(r"[(\[]?\w[)\].:]")
"""The beginning of a text whose first letter is its label."""

_NUMBERS: Final = ("3", "81")


def _judged(study: Study) -> Sequence[Study]:
    """Return a task that generates an answer, which is compared with a text, after a prompt whose text is known."""
    is_judged = study.generates and not study.has_guessed_text and gold_kind(study) not in ("tests", "nothing")
    return (study,) if is_judged else ()


@query("PF525", "the filters do not search for the answer where the prompt requests it", _judged, scores=True)
def _asked_place_not_read(study: Study) -> Iterator[Finding]:
    place = study.contract.place
    if place is None or not (looks_for_answers(study.task) or study.has_own_scorer):
        return
    for trial in scored_answers(study)[:1]:
        other, gold = _other(trial), trial.label
        if other is None or trial.error:
            return
        for form in study.contract.wrapped or study.contract.of("letter") or study.contract.of("number"):
            alone = form.written(gold)
            is_drafted = form.form == "number" or first_text(trial.instance).count(form.said) >= _ASKED_TWICE
            thought = "I took a look: one of them fits." if study.own_text.isascii() else "One of them fits."
            draft = f"{form.written(other)}\nNo, not so." if is_drafted else thought
            longer = f"{alone}\nI looked at {other} as well." if place == "first" else f"{draft}\n{alone}"
            is_boxed = any("boxed" in one.before for one in study.contract.wrapped)
            begun = ["First, $\\boxed{x + 1}$ follows."] if study.has_own_scorer and not is_boxed else []
            if trial.answers.kind == "choice":
                begun += [f"The reply has to end with {form.said}.", f"It is not {other}."]
            for sentence in begun if place == "last" else ():
                longer = f"{sentence}\n{alone}" if trial.counts(longer) else longer
            if trial.counts(alone) and not trial.counts(longer):
                where = "at the beginning" if place == "first" else "at the end"
                saw = f"the prompt requests the answer {where}, but no filter extracts {gold!r} from {longer!r}"
                yield finding("", saw, "filter_list" if study.task.filter_list else "process_results", trial.instance)


def _other(trial: AnswerTrial) -> str | None:
    """Return an answer that is wrong: another option, or a number."""
    answers, listed = trial.answers, question_layout(trial.instance).listed_labels
    if answers.kind == "text" and trial.gold in listed:
        return next(one for one in listed if one != trial.gold)
    if answers.kind == "choice":
        return next((one for at, one in enumerate(answers.labels) if at != answers.gold), None)
    return next((one for one in _NUMBERS if one != trial.gold), None) if answers.kind == "number" else None


@query("PF525", "the prompt requests a longer answer than the token budget allows", generating, at="generation_kwargs")
def _no_room_for_length(study: Study) -> Iterator[str]:
    budget, words = token_budget(study.task), study.contract.least_words
    if budget is not None and words is not None and budget < words:
        yield f"{study.contract.length!r}, but the budget is {budget} tokens"


def _compared_golds(study: Study) -> Sequence[tuple[Study, list[str]]]:
    """Return a task that compares whole completions with texts, and the texts of its own docs."""
    golds = [text.strip() for text in targets_as_texts(study.real_instances)]
    is_compared = bool(comparing(study) and golds) and not mapped(study) and not study.has_guessed_text
    return ((study, golds),) if is_compared else ()


@query("PF714", "the gold answers do not have the format that the prompt requests", _compared_golds, at="doc_to_target")
def _gold_in_other_format(compared: tuple[Study, list[str]]) -> Iterator[str]:
    study, golds = compared
    for wording, written, *concerned in data_table("contract")["formats"]:
        found = re.search(wording, study.own_text, re.IGNORECASE)
        golds = [gold for gold in golds if not concerned or re.search(concerned[0], gold)]
        if found is not None and golds and not any(re.fullmatch(written, gold, re.DOTALL) for gold in golds):
            yield f"{found[0]!r} is requested, but gold is {golds[0][:40]!r}"


@query("PF714", "the gold answer has a key that the prompt does not name", _judged, at="doc_to_target", scores=True)
def _key_not_requested(study: Study) -> Iterator[Finding]:
    is_asked = study.has_real_docs and re.search(r"\bjson\b", study.own_text, re.IGNORECASE) is not None
    for trial in scored_answers(study)[:1] if is_asked else ():
        with suppress(ValueError):
            gold = json.loads(trial.gold)
            shown = first_text(trial.instance)
            unknown = [key for key in gold if not has_word(shown, key)] if isinstance(gold, dict) else []
            known = json.dumps({key: value for key, value in gold.items() if key not in unknown} if unknown else gold)
            is_lost = trial.counts(trial.gold) and not trial.counts(known)
            if 0 < len(unknown) < len(gold) and is_lost:
                yield finding("", f"{unknown[0]!r} in {trial.gold[:60]}", doc=trial.instance)


@query("PF714", "the prompt requests both a letter and the text of an option")
def _letter_and_text(page: Page) -> Iterator[str]:
    letters = [form for form in page.study.contract.of("letter") if form.is_certain]
    text = _TEXT.search(page.study.own_text) if letters and page.study.generates else None
    if text is not None and letters[0].said not in text[0] and text[0].strip() not in letters[0].said:
        yield f"{letters[0].said[:60]!r} and {text[0].strip()[:60]!r}"


@query("PF509", "", generating, at="filter_list")
def _vote_and_repeats(study: Study) -> Iterator[Finding]:
    """Report a majority vote over a single completion, or repeats that are all equal or not used."""
    pipelines = [[step.get("function") for step in one.get("filter") or ()] for one in study.task.filter_list or ()]
    named = [name for pipeline in pipelines for name in pipeline]
    repeats, kwargs = study.task.repeats or 1, study.task.generation_kwargs or {}
    is_greedy = kwargs.get("do_sample") is False or kwargs.get("temperature") == 0
    if repeats == 1 and "majority_vote" in named:
        yield finding(
            "a majority vote has only one completion to count", f"the filter is majority_vote, but repeats is {repeats}"
        )
    elif reader := next(filter(None, map(_read_after_vote, pipelines)), None):
        do, saw = "put the vote after the filter that reads the answer", f"majority_vote is before {reader}"
        yield finding("the majority vote compares whole completions, not answers", saw, do=do)
    elif repeats == 1 and kwargs.get("do_sample") is True and not kwargs.keys() & _HOW_DRAWN:
        do = "set a temperature, or do_sample: false"
        yield finding("an answer is sampled, but no temperature is set", "do_sample: true", "generation_kwargs", do=do)
    elif repeats > 1 and (is_greedy or not kwargs.keys() & {"do_sample", "temperature"}):
        do = "set do_sample: true and a temperature in generation_kwargs, or remove repeats"
        saw = f"repeats is {repeats}"
        yield finding("all repeats are equal, because the model does not sample", saw, "repeats", do=do)
    elif repeats > 1 and words("reading_filters") >= {*named} and "take_first" in named and not study.has_own_scorer:
        do = "remove repeats, or use a filter that takes all completions, such as majority_vote"
        yield finding("only the first of several completions is scored", f"repeats is {repeats}", "repeats", do=do)


def _read_after_vote(filters: Sequence[str]) -> str | None:
    """Return the filter that reads the answer, where that comes after a majority vote."""
    later = filters[filters.index("majority_vote") :] if "majority_vote" in filters else ()
    return next((name for name in later if name in FILTERS and name != "custom" and FILTERS[name].picks), None)


@query("PF714", "the gold answer begins in the middle of a word of its column", _compared_golds, at="doc_to_target")
def _gold_cut_in_a_word(compared: tuple[Study, list[str]]) -> Iterator[str]:
    """Report an index or slice that takes the target from the wrong place of a column in one of the docs."""
    study, golds = compared
    piece = _PIECE.search(str(study.written.doc_to_target))
    if piece is None or piece[1] in template_names(study.written.doc_to_text):
        return  # a task about letters and words prints the whole column
    shown = {*re.findall(r"\w+", study.own_text), *layout_of(first_text(study.real_instances[0])).listed_inline}
    for instance, gold in zip(study.real_instances, golds, strict=True):
        text = instance.doc.get(piece[1]) if gold and gold not in shown else None
        cut = rf"(?<=\w)(?=\w){re.escape(gold)}" + ("" if ":" in piece[0] else rf"|{re.escape(gold)}(?=\w)")
        places = re.findall(rf"(?a:{cut})", text) if isinstance(text, str) else ()
        if isinstance(text, str) and places and len(places) == text.count(gold):
            yield f"{gold[:30]!r} is cut out of {text[:40]!r}"


@query(
    "PF714",
    "the answer of a few-shot example begins in the middle of a word",
    given_shots,
    at="doc_to_target",
)
def _shot_cut_in_a_word(page: Page) -> Iterator[str]:
    docs = page.study.docs.fewshot if page.study.docs is not None else ()
    texts = [text.strip() for doc in docs for text in doc.values() if isinstance(text, str)]
    said = [shot.answer.strip() for shot in page.shots if shot.answer]
    piece = _PIECE.search(str(page.study.written.doc_to_target))
    whole = [str(doc.get(piece[1]) or "") for doc in docs] if piece is not None and ":" not in piece[0] else []
    are_texts = all(" " in text and not _LABELLED.match(text) for text in whole)
    if whole and said and are_texts and all(len(one) == 1 and one.isalpha() for one in said):
        yield f"{said[0]!r} is cut out of {whole[0][:40]!r}"
    for answer in (one for one in said if len(one.split()) > _ASKED_TWICE):
        longer = (text for text in texts if text.endswith(answer) and text != answer)
        cut = next((text for text in longer if _IN_A_WORD.match(text, len(text) - len(answer) - 1)), None)
        if cut is not None:
            yield f"{answer[:30]!r} is cut out of {cut[:40]!r}"

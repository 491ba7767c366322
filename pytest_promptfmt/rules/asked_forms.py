"""Rules about the answer that a prompt requests: it has to score, in the form and with the labels of the prompt."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from pytest_promptfmt.answers.completions import Stages
from pytest_promptfmt.answers.metric_scores import with_gold
from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    choices_of,
    comparing_key,
    finding,
    first_text,
    has_english,
    has_word,
    instruction_key,
    pattern,
    question_layout,
)
from pytest_promptfmt.study.contract import without_begun
from pytest_promptfmt.study.gold import gold_kind, targets_as_texts
from pytest_promptfmt.study.layout import follow_each_other, layout_of
from pytest_promptfmt.study.requested_labels import (
    LISTED,
    AskedForm,
    is_conditional,
    is_instruction,
    joined_by_or,
    lists,
)
from pytest_promptfmt.study.scoring import token_budget
from pytest_promptfmt.tasks import known_filter, looks_for_answers

_LONGEST: Final = 60
"""Characters of a gold answer that a sentence may end with."""

_IMAGINED: Final = ("42", "B", "b", "Yes", "iron")
"""Answers that a filter may look for, where synthetic docs do not show what an answer is."""

_MARKED: Final = re.compile(r"boxed|####|answer is|</?\w+>|answer:", re.IGNORECASE)
"""A gold answer that has a form of its own."""

_ONE_WORD: Final = re.compile(r"\b(?:in|with|only|just) (?:exactly )?(?:one|a single|1) word\b", re.IGNORECASE)
_LIMITS: Final = re.compile(
    rf"(?<![\w.,])(\d{{1,3}}) ?(?:{data_table('contract')['to']}) ?(\d{{1,3}})(?![\w.,]\d|\w)", re.IGNORECASE
)
_CASE: Final = pattern("asked_forms", "case")
_LABELLED: Final = re.compile(r"^[(\[]?[A-Z][)\].:]\s+(?=\S)")
"""The label of an option before its text."""

_LEAST: Final = 2
_FEW_WORDS: Final = 3
_NUMBER: Final = re.compile(r"[-+$€£]?[\d.,/]+ ?%?|[IVXLC]+")
_WORDS: Final = re.compile(r"[^\w\n]?\w+|[^\w\s]+")
"""A word, with one mark before it, is at least one token, and so are other marks."""

_MARKS: Final = " .,!()[]\"'"
_SHARED: Final = 3
"""Letters that a word has in common with the same word of a related language."""

_FEWEST_WORDS: Final = 6
"""Different words of a text that show its language."""

_ENGLISH_PAIRS: Final = 4
"""Pairs of English answers, which are the first ones of the table."""

_NO_LABELS: Final = frozenset({"json", "yaml", "xml", "markdown", "text", "english", "word", "number", "letter"})
_LABELS_OF_OPTIONS: Final = re.compile(r"^[(\[]?[A-J][)\].:]", re.MULTILINE)


@rule("PF525", "asked-form-scores-nothing", severity=Severity.ERROR, family=Family.EXTRACTION, scores=True)
def asked_form_scores_nothing(study: Study) -> Iterator[Finding]:
    r"""Report a right answer that scores 0 although it has the form that the prompt requests.

    Why: for example, the prompt requests `The answer is Lisbon`, but a model that writes exactly this scores 0. The
    filter may search for other words, a stop sequence may end the completion too early, or the token budget may be too
    small. Therefore the rule writes each gold answer in the requested form. It then applies the stop sequences, filters
    and metrics to this text. The rule knows these forms: quoted sentences with a place for the answer, `#### X`,
    `\boxed{}`, tags, and JSON. If the place for the answer is only `X` or dots, the finding is a warning.

    Fix: add a filter that extracts the answer from the requested form, or request only the answer.

    Real: facebookresearch/multiloko #10, lm-evaluation-harness #3438.
    """
    if not study.generates or study.has_guessed_text or gold_kind(study) in ("tests", "nothing"):
        return
    forms = study.contract.wrapped
    is_tried = bool(forms) and (study.has_real_docs or not study.has_own_scorer)
    trials = scored_answers(study) if is_tried else ()
    yield from islice(filter(None, (_lost(study, trial, forms) for trial in trials)), 1)


def _lost(study: Study, trial: AnswerTrial, forms: Sequence[AskedForm]) -> Finding | None:
    """Return the first form in which the answer of a doc is lost; None where one of them scores."""
    gold = trial.label
    if trial.error or not gold.strip() or len(gold) > _LONGEST or "\n" in gold or _MARKED.search(gold):
        return None
    is_open = trial.answers.kind == "text" and study.docs is not None and study.docs.kind == "synthetic"
    answers = (gold, *_IMAGINED) if is_open else (gold,)
    lost = None
    for asked in forms:
        for form, answer in _written_ways(asked, answers, is_open=is_open):
            text = without_begun([form.written(answer)], str(study.task.gen_prefix or ""))[0]
            found = _stage(study, trial, form, text, answer)
            if found is None:
                return None
            lost = lost or found
    return lost


def _written_ways(form: AskedForm, answers: Sequence[str], *, is_open: bool) -> Iterator[tuple[AskedForm, str]]:
    """Yield a form with the answers in it; where docs do not show the answer, its brackets may be part of it."""
    yield from ((form, answer) for answer in answers)
    brackets = form.before[-1:] + form.after[:1]
    if is_open and brackets in ("()", "[]"):
        outside = replace(form, before=form.before[:-1], after=form.after[1:])
        yield from ((outside, f"{brackets[0]}{answer}{brackets[1]}") for answer in answers)


def _stage(study: Study, trial: AnswerTrial, form: AskedForm, text: str, answer: str) -> Finding | None:
    """Return where an answer is lost; None where it scores, or cannot be tried."""
    said, severity = form.said.strip(), None if form.is_certain else Severity.WARNING
    lost = partial(finding, doc=trial.instance, severity=severity)
    budget = token_budget(study.task)
    if budget is not None and len(_WORDS.findall(text)) > budget:
        message = "the token budget is too small for the requested form of the answer"
        return lost(message, f"{text.strip()!r}, but the budget is {budget} tokens", ("generation_kwargs",))
    question = trial.question if answer == trial.label else with_gold(trial.question, answer, 0)
    wrong: list[Stages] = []
    for pipeline in trial.chain.pipelines:
        stages = trial.chain.read(pipeline, text, trial.instance.doc, "an answer in the requested form")
        if trial.chain.judges(stages, question, trial.instance.doc) is not False:
            return None
        wrong.append(stages)
    first = wrong[0]
    if first.stopped != first.answer:
        stop = next((stop for stop in study.stop_texts if stop in first.answer), "")
        message = "the requested form of the answer contains a stop sequence"
        at = study.stop_texts.index(stop) if stop in study.stop_texts else 0
        return lost(message, f"{stop!r} in {text.strip()!r}", ("generation_kwargs", "until", at))
    if not looks_for_answers(study.task) and not study.has_own_scorer:
        message = "the prompt requests a sentence, but the whole completion is compared with the gold answer"
        return lost(
            message, f"the completion is {text.strip()!r}, but the gold answer is {answer!r}", (comparing_key(study),)
        )
    message = "a right answer in the requested form counts as wrong"
    saw = f"{said!r} is requested, but the filter extracts {str(first.extracted)[:40]!r} from {text.strip()!r}"
    return lost(message, saw, ("filter_list",) if study.task.filter_list else ("metric_list",))


@also("PF525", severity=Severity.INFO)
def no_form_read(study: Study) -> Iterator[Finding]:
    """Report filters that need an answer in a certain form, if the prompt requests no form."""
    is_shown = bool(study.shots or study.task.gen_prefix or study.contract.forms)
    if is_shown or not study.generates or not study.instances or study.has_guessed_text:
        return
    if looks_for_answers(study.task):
        yield finding("the prompt does not state the form of the answer", at="doc_to_text")


@rule("PF714", "asked-form-not-scored", severity=Severity.WARNING, family=Family.ANSWERS)
def asked_form(study: Study) -> Iterator[Finding]:
    """Report a prompt that requests a letter, number or label, although something else is scored.

    Why: if a model follows the prompt, its answer is never right. Often, someone rewrote the prompt, but forgot to
    change the choices. Or the prompt requests the letter of an option, but the text of the option is scored. A
    difference in letter case is reported only if labels are compared as text.

    Fix: in the prompt, request the answers that are scored.

    Real: vbdi/Ego3D-Bench #3 (the prompt requests yes or no, but A and B are scored), UKGovernmentBEIS/inspect_ai #310
    (letters and texts).
    """
    if study.has_own_scorer or study.has_guessed_text or not study.instances or _may_translate(study):
        return
    scored = _scored_texts(study)
    yield from _letters_for_numbers(study, scored)
    if study.generates:
        yield from islice(_letter_or_number(study, scored), 1)
    elif any(form.is_certain for form in study.contract.of("letter")):
        yield from _texts_for_letters(study, scored)
    elif all(one.isdecimal() for one in scored):
        yield from _outside_range(study, scored, len(scored))


@also("PF714")
def asked_labels(study: Study) -> Iterator[Finding]:
    """Report a prompt that names other labels than the scored ones: one more, one less, or those of another task."""
    if study.has_guessed_text or not study.instances or (study.has_own_scorer and study.generates):
        return
    scored = list(dict.fromkeys(one.strip(_MARKS) for one in _scored_texts(study)))
    if not scored or any(not one or len(one.split()) > _FEW_WORDS for one in scored):
        return
    is_compared = not _may_translate(study) and not study.has_own_scorer
    ways = (_one_more_or_less, _of_another_task, _in_english) if is_compared else (_one_more_or_less,)
    yield from islice((found for way in ways for found in way(study, scored)), 1)


def _folded(labels: Collection[str]) -> list[str]:
    return [label.casefold() for label in labels]


def _one_more_or_less(study: Study, scored: Sequence[str]) -> Iterator[Finding]:
    """Yield a set of labels that has some of the scored ones, and leaves others out, or has one more."""
    text, folded, is_read = study.own_text, _folded(scored), study.generates and _may_translate(study)
    hidden = [one for one in folded if not has_word(text, one)]
    if len(folded) < LISTED or len(hidden) == len(folded) or (study.generates and is_conditional(text)):
        return
    for form in (*study.contract.of("labels"), *lists(text, folded)):
        labels = _folded(form.labels)
        common, saw = (
            {*folded}.intersection(labels),
            f"the prompt names {form.said!r}, but {', '.join(scored)} are scored",
        )
        # the word before the first comma may belong to the sentence, and some docs need not have every answer
        own = labels if form.is_certain else labels[len(labels) > LISTED :]
        strange = [] if study.generates else [one for one in own if one not in folded]
        is_part = common.issuperset(labels) and form.is_certain and len(folded) == len(hidden) + len(labels)
        if not is_read:
            is_part = form.is_closed or (common.issuperset(labels) and len(common) == len(folded) - 1 > LISTED)
        if common and hidden and is_part and (study.has_real_docs or not study.generates):
            message = "the prompt names some of the scored answers, but not others"
            yield finding(message, saw, instruction_key(study))
        elif len(common) == len(folded) and strange and form.is_closed and _are_labels(text, form, strange):
            message = "the instruction names a label that is not scored"
            yield finding(message, f"{strange[0]}; {saw}", instruction_key(study))


def _are_labels(text: str, form: AskedForm, strange: Sequence[str]) -> bool:
    """Return whether one label is strange, or more of a series of letters or numbers that the answer may be."""
    before = text[: text.find(form.said) + len(form.said)]
    is_asked = re.search("[\"'“«]", form.said) is not None or is_instruction(before)
    return len(strange) == 1 or (is_asked and follow_each_other(_folded(form.labels)))


def _of_another_task(study: Study, scored: Sequence[str]) -> Iterator[Finding]:
    """Yield a set of labels that the prompt names of which none is scored, or all in another letter case."""
    folded, text = _folded(scored), study.own_text
    is_pair = any({*_folded(pair)} == {*folded} for pair in data_table("contract")["pairs"])
    is_fixed = isinstance(study.written.doc_to_choice, list) and len(folded) > 1
    named = [*study.contract.of("labels"), *(joined_by_or(text) if is_pair else ())]
    named += [one for one in lists(text) if is_fixed and one.is_closed and _are_alike(_folded(one.labels), folded)]
    sets = [one for one in named if _NO_LABELS.isdisjoint(_folded(one.labels))]
    fits = [one for one in sets if any(label.startswith(tuple(folded)) for label in _folded(one.labels))]
    holds = all if all(map(str.isdigit, scored)) else any  # a number may number something else
    is_named = holds(has_word(_LABELS_OF_OPTIONS.sub("", text), one) for one in scored)
    numbers = [one for one in sets if all(label.isdigit() for label in one.labels)]
    for form in fits or (numbers if is_named else sets)[:1]:
        saw = f"{', '.join(map(repr, form.labels))} are requested, but {', '.join(map(repr, scored[:4]))} are scored"
        asked = {*_folded(form.labels)}
        hidden = [one for one in {*folded} - asked if not has_word(text, one)]
        minds = _minds_case(study) if study.generates else max(map(len, form.labels)) == 1
        if not fits or (hidden and asked - {*folded} and len(asked) == len(folded)):
            yield finding("the prompt requests answers that are not scored", saw, "doc_to_text", 0)
        elif minds and {*scored}.isdisjoint(form.labels):
            yield finding("requested and scored answers differ in letter case", saw, "doc_to_target", 0)


def _are_alike(asked: Sequence[str], scored: Sequence[str]) -> bool:
    """Return whether each word begins like one of the other language, and is no part of it."""
    begun = [sorted(one[:_SHARED] for one in labels) for labels in (asked, scored)]
    is_part = any(has_word(one, label) for label in asked for one in scored)
    return min(map(len, scored)) > 1 and begun[0] == begun[1] and not is_part


def _in_english(study: Study, scored: Sequence[str]) -> Iterator[Finding]:
    """Yield a pair of answers such as yes and no, where the prompt has no word of English and names neither."""
    table = data_table("contract")
    bare, words = {*_folded(scored)}, re.findall(r"[^\W\d_]+", study.own_text.casefold())
    is_english = len(set(words)) < _FEWEST_WORDS or has_english(study.own_text)
    if not is_english and bare.isdisjoint(words) and any(bare == {*pair} for pair in table["pairs"][:_ENGLISH_PAIRS]):
        saw = f"{', '.join(scored)} are scored; {study.own_text[:40]!r}"
        yield finding("the answers are English words, but the prompt is in another language", saw, "doc_to_target", 0)


def _minds_case(study: Study) -> bool:
    """Return whether only equal texts count, in the same letter case."""
    entries = study.task.metric_list or ({"metric": "exact_match"},)
    return all(entry.get("metric") == "exact_match" and not entry.get("ignore_case") for entry in entries)


def _may_translate(study: Study) -> bool:
    """Return whether a filter may turn one form of an answer into another."""
    pipelines = study.task.filter_list or ()
    steps = [step for one in pipelines if isinstance(one, Mapping) for step in one.get("filter") or ()]
    named = (step.get("function") if isinstance(step, Mapping) else None for step in steps)
    return any(name != "remove_whitespace" and not known_filter(name).keeps_text for name in named)


def _scored_texts(study: Study) -> list[str]:
    """Return the answers that are scored: the fixed choices, or the gold answers of several docs; no synthetic ones."""
    choices = study.written.doc_to_choice
    if isinstance(choices, list):
        texts = [one for one in choices if isinstance(one, str)]
    elif choices is not None and not study.generates:
        texts = [one for instance in study.real_instances[:1] for one in choices_of(study, instance)]
    else:
        texts = targets_as_texts(study.instances)
    return [] if any("«" in one for one in texts) else list(dict.fromkeys(one.strip() for one in texts))


def _texts_for_letters(study: Study, scored: Sequence[str]) -> Iterator[Finding]:
    """Yield the texts of listed options that are scored where a letter is requested."""
    page = layout_of(first_text(study.instances[0]))
    texts = {option.text.strip() for option in (*page.listed, *page.listed_in_other_scripts)}
    if scored and texts.issuperset(scored):
        message = "the prompt requests a letter, but the gold answer is the text of an option"
        yield finding(message, f"{', '.join(scored[:3])} are scored", "doc_to_choice", 0)


def _letters_for_numbers(study: Study, scored: Sequence[str]) -> Iterator[Finding]:
    """Yield letters that are listed and scored where the number of an option is requested, or the reverse."""
    listed = question_layout(study.instances[0]).listed_labels
    if len(listed) < _LEAST or not scored or not set(scored) <= set(listed):
        return
    is_letters = listed[0].isalpha()
    asked, other = study.contract.of("number"), study.contract.of("letter")
    asked, other = (asked, other) if is_letters else (other, asked)
    if any(form.is_certain for form in asked) and not other:
        message = (
            f"the prompt requests a {asked[0].form}, but the options have {'letters' if is_letters else 'numbers'}"
        )
        yield finding(
            message, f"{asked[0].said[:60]!r} is requested, but {', '.join(listed)} are listed", "doc_to_text", 0
        )


def _letter_or_number(study: Study, scored: Sequence[str]) -> Iterator[Finding]:
    """Yield the text of an option as gold where its letter is requested, and words where a number is."""
    for instance in study.instances[:1] if study.contract.of("letter") else ():
        gold = _LABELLED.sub("", instance.target.strip() if isinstance(instance.target, str) else "")
        option = rf"(?<!\w)[(\[]?([A-Z])[)\].:、：]+\s*{re.escape(gold)}(?!\w)"
        label = re.search(option, first_text(instance)) if len(gold) > 1 else None
        if label is not None:
            message = "the prompt requests a letter, but the gold answer is the text of an option"
            yield finding(message, f"{gold!r} is the text of option {label[1]}", "doc_to_target", instance)
    if not scored:
        return
    case, one_word = (one.search(study.own_text) for one in (_CASE, _ONE_WORD))
    is_other = case is not None and all(gold != (gold.lower() if case[1] else gold.upper()) for gold in scored)
    if case is not None and is_other and _minds_case(study):
        saw = f"{case[0]!r} is requested, but gold is {scored[0][:40]!r}"
        yield finding("requested and scored answers differ in letter case", saw, "doc_to_target")
    numbers = study.contract.of("number") if study.has_real_docs else ()
    if one_word is not None and study.has_real_docs and all(len(gold.split()) > 1 for gold in scored):
        saw = f"{one_word[0]!r} is requested, but gold is {scored[0][:40]!r}"
        yield finding("the prompt requests one word, but the gold answers have several", saw, "doc_to_target")
    yield from _outside_range(study, scored) if numbers else ()
    for form in numbers:
        if form.is_certain and not any(_NUMBER.fullmatch(gold) for gold in scored):
            saw = f"{form.said[-50:]!r} is requested, but gold is {scored[0][:40]!r}"
            yield finding("the prompt requests a number, but no gold answer is just a number", saw, "doc_to_target")


def _outside_range(study: Study, scored: Sequence[str], count: int | None = None) -> Iterator[Finding]:
    """Yield a number that is scored, outside of the range that the prompt requests, of so many numbers."""
    limits = _LIMITS.search(study.own_text)
    least, most = map(int, limits.groups()) if limits is not None else (0, 0)
    outside = [gold for gold in scored if gold.lstrip("-").isdecimal() and not least <= int(gold) <= most]
    if limits is not None and outside and count in (None, most - least + 1):
        saw = f"{limits[0]!r} is requested, but {outside[0][:40]!r} is scored"
        at = "doc_to_target" if study.generates else "doc_to_choice"
        yield finding("a gold answer is outside the range that the prompt requests", saw, at)

"""Rules about the place, length and format of the answer that a prompt requests, and about contradictions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.patterns import calls_reached
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, first_text, pattern, scores_exact_match
from pytest_promptfmt.study.contract import REASONING_TAG
from pytest_promptfmt.study.gold import gold_kind
from pytest_promptfmt.study.scoring import token_budget
from pytest_promptfmt.tasks import looks_for_answers

_TEXT: Final = pattern("asked_places", "text")
_CLOSED: Final = re.compile(r"</(\w+)>")
_EACH: Final = re.compile(r"\b(?:each|every|both|separate(?:ly)?|respectively)\b", re.IGNORECASE)
_FORMAT: Final = pattern("asked_places", "format")
_PARSERS: Final = {
    "JSON": ("json.loads", "json.load", "json5.loads", "orjson.loads"),
    "YAML": ("yaml.safe_load", "yaml.load"),
    "XML": ("ET.fromstring", "ElementTree.fromstring", "etree.fromstring"),
    "CSV": ("csv.reader", "csv.DictReader", "pd.read_csv", "pandas.read_csv"),
}
_ASKED_TWICE: Final = 2
_NUMBERS: Final = ("3", "81")


@also("PF525", severity=Severity.WARNING, scores=True)
def asked_place_not_read(study: Study) -> Iterator[Finding]:
    """Report filters that take an answer from another place than the one that the prompt requests."""
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
                saw = f"the {place} answer is requested, but {gold!r} is not read from {longer!r}"
                at = "filter_list" if study.task.filter_list else "process_results"
                yield finding("the answer is not read from the place that the prompt requests", saw, at, trial.instance)
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


@also("PF525", severity=Severity.WARNING, scores=True)
def answer_read_from_reasoning(study: Study) -> Iterator[Finding]:
    """Report filters that take the answer from the block of reasoning that the prompt requests before it."""
    asked = study.own_text if study.generates else ""
    tag = next((one[1] for one in _CLOSED.finditer(asked) if REASONING_TAG.fullmatch(one[1])), None)
    if tag is None or study.has_guessed_text or study.has_own_scorer or gold_kind(study) in ("tests", "nothing"):
        return
    chain, trials = (scored_answers(study) if looks_for_answers(study.task) else None) or (None, ())
    if chain is None or any(tag in pattern for pipeline in chain.pipelines for pattern in pipeline.patterns):
        return
    for trial in trials[:1]:
        other, gold = _other(trial), trial.answers.labels[trial.answers.gold]
        for text in (gold, *(form.written(gold) for form in study.contract.wrapped)):
            # the tag of another name, because models' own reasoning is cut off before filters
            longer = f"<notes>It may be {other}, or not.</notes>\n{text}"
            if other and _is_right(chain, trial, text) and not _is_right(chain, trial, longer):
                saw = f"<{tag}>It may be {other}, or not.</{tag}> {text}"
                yield finding("the answer is read from the reasoning before it", saw, "filter_list", trial.instance)
                return


@also("PF525", severity=Severity.WARNING, scores=True)
def one_of_several_read(study: Study) -> Iterator[Finding]:
    """Report filters that read only one answer, if the prompt requests several in the same form."""
    asked = study.own_text if study.generates else ""
    wrapped = [*study.contract.of("boxed"), *study.contract.of("tagged")] if asked else []
    forms = [form for form in wrapped if _EACH.search(_sentence_of(asked, form.said))]
    if not forms or not looks_for_answers(study.task) or study.has_guessed_text or study.has_own_scorer:
        return
    chain, trials = scored_answers(study) or (None, ())
    for trial in trials[:1]:
        if chain is None:
            return
        text = " and ".join(map(forms[0].written, _NUMBERS))
        read = [str(chain.read(one, text, trial.instance.doc, "two answers").extracted) for one in chain.pipelines]
        if any(all(number in one for number in _NUMBERS) for one in read):
            return
        if any(number in one for one in read for number in _NUMBERS):
            saw = f"{text} is read as {read[0]}"
            yield finding("one answer is read where the prompt requests several", saw, "filter_list", trial.instance)


def _sentence_of(text: str, said: str) -> str:
    """Return the sentence in which a form is requested."""
    start = max(text.find(said), 0)
    begin = max(text.rfind(mark, 0, start) for mark in ".?!\n") + 1
    return text[begin : start + len(said)] + re.split(r"[.?!\n]", text[start + len(said) :], maxsplit=1)[0]


@also("PF525", severity=Severity.WARNING)
def format_read_otherwise(study: Study) -> Iterator[Finding]:
    """Report a scorer that parses another format than the prompt requests, such as JSON where that is YAML."""
    scorer = study.config.get("process_results")
    if not study.generates or not isinstance(scorer, FunctionRef) or study.has_guessed_text:
        return
    asked = [one[0].upper() for one in _FORMAT.finditer(study.own_text)]
    calls = [(ast.unparse(call.func), position) for call, position in calls_reached([scorer])]
    read = {name: position for call, position in calls for name, known in _PARSERS.items() if call in known}
    if asked and read and not set(asked) & set(read) and not ("JSON" in asked and "YAML" in read):
        name, position = next(iter(read.items()))
        yield finding("the scorer parses another format than the prompt requests", f"{asked[0]} and {name}", position)


@also("PF525", severity=Severity.WARNING)
def no_room_for_length(study: Study) -> Iterator[Finding]:
    """Report a token budget with fewer tokens than the prompt requests words."""
    budget, words = token_budget(study.task), study.contract.least_words
    if study.generates and budget is not None and words is not None and budget < words:
        saw = f"{study.contract.length}, {budget} tokens"
        yield finding("the token budget has no room for the length that is requested", saw, "generation_kwargs")


@also("PF714")
def gold_longer_than_asked(study: Study) -> Iterator[Finding]:
    """Report gold answers that all have more words than the prompt allows."""
    most = study.contract.most_words
    if most is None or not study.generates or study.has_own_scorer or gold_kind(study) != "text":
        return
    golds = [str(instance.target) for instance in study.real_instances]
    if golds and all(len(gold.split()) > most for gold in golds):
        saw = f"{study.contract.length}; gold is {golds[0][:50]!r}"
        yield finding("the gold answers have more words than the prompt allows", saw, "doc_to_target")


@also("PF714")
def gold_in_other_format(study: Study) -> Iterator[Finding]:
    """Report gold answers that all lack the format that the prompt requests: a date, a number, a list."""
    if not study.generates or study.has_own_scorer or looks_for_answers(study.task) or gold_kind(study) != "text":
        return
    golds = [str(instance.target).strip() for instance in study.real_instances]
    asked = study.own_text if golds and scores_exact_match(study) else ""
    table: list[list[str]] = data_table("contract")["formats"]
    for wording, written in table if asked else ():
        found = re.search(wording, asked, re.IGNORECASE)
        if found is not None and not any(re.fullmatch(written, gold, re.DOTALL) for gold in golds):
            saw = f"{found[0]}; gold is {golds[0][:40]!r}"
            yield finding("the gold answers do not have the format that the prompt requests", saw, "doc_to_target")
            return


@also("PF714")
def letter_and_text(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for the letter of an option in one sentence, and for its text in another."""
    letters = [form for form in study.contract.of("letter") if form.is_certain]
    for instance in study.instances[:1] if letters and study.generates and not study.has_guessed_text else ():
        text = _TEXT.search(study.own_text)
        if text is not None and letters[0].said not in text[0] and text[0].strip() not in letters[0].said:
            saw = f"{letters[0].said[:60]} and {text[0].strip()[:60]}"
            yield finding("the prompt requests both a letter and the text of an option", saw, "doc_to_text", instance)

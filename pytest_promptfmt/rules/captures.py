"""Rules about how much of a completion a filter takes: less than the answer, more, or a part of a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from pytest_promptfmt.answers.completions import Chain, is_nothing
from pytest_promptfmt.answers.trials import AnswerTrial
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.completion_reader import (
    Filters,
    Reader,
    filters_of,
    misread_by_all,
    reader_of,
    scored_answers,
)
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, mapped
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers, pipelines_of

_PROBES: Final = data_table("rules")
_WHOLE: Final = re.compile(r"[^\W\d_]{2,}")
_LONG: Final = 2000


@also("PF512", severity=Severity.ERROR, scores=True)
def filters_change_gold(study: Study) -> Iterator[Finding]:
    """Report filters that pick nothing out of a completion, and turn the gold answer into a wrong one.

    Fix: change the gold answer in the same way, or ignore the difference in the metric.
    """
    if not study.generates or not study.real_docs or not study.renders_fields or not study.task.filter_list:
        return
    if study.has_own_scorer or set(study.metrics) != {"exact_match"}:
        return
    scored = scored_answers(study)
    if scored is None:
        return
    chain, answers = scored
    for number, pipeline in enumerate(chain.pipelines):
        for trial in answers if not pipeline.looks else ():
            doc, gold = trial.instance.doc, trial.gold
            if trial.best is None or trial.nonsense is None or trial.best <= trial.nonsense or not gold.strip():
                continue
            stages = chain.read(pipeline, gold, doc, "the gold answer")
            if stages.problem is None and not chain.is_right(trial.question, doc, stages.extracted):
                if stages.stopped != gold or gold in mapped(study).values():
                    continue  # a stop sequence cuts it, which PF903 reports, or filters make it of other words
                saw = f"{gold!r} becomes {stages.extracted!r}"
                yield finding("the filters make the gold answer wrong", saw, ("filter_list", number), trial.instance)
                return


@rule("PF512", "gold-cut-by-filter", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def gold_cut(study: Study) -> Iterator[Finding]:
    r"""Report a filter that reads short answers in some form and only a part of the docs' own answers in the same form.

    Why: `\\boxed\{(.+?)\}` ends at the first brace of `\frac{1}{6}`, `answer is (\w+)` reads one word of two, and `.`
    matches no newline, so that code of several lines is not found. A right answer scores 0.

    Fix: match as much as an answer may have: nested braces, several words, several lines (`[\s\S]*?`).

    Real: boxed answers with fractions in the extraction of several harnesses; code blocks read without DOTALL.
    """
    if not study.generates or not looks_for_answers(study.task) or not study.has_real_docs or study.has_own_scorer:
        return
    chain, answers = scored_answers(study) or (None, ())
    found = []
    for number, pipeline in enumerate(chain.pipelines if chain is not None else ()):
        if chain is None or not pipeline.patterns:
            continue
        cut = next(filter(None, (_cut(chain, pipeline, trial) for trial in answers)), None)
        if cut is None:
            return  # one of the pipelines reads all answers
        found.append((number, *cut))
    for number, text, read, doc in found[:1]:
        saw = f"{text!r} is read as {read!r}"
        yield finding(
            "a filter reads only a part of the gold answer, or nothing of it", saw, ("filter_list", number), doc
        )


def _cut(chain: Chain, pipeline: FilterPipeline, trial: AnswerTrial) -> tuple[str, str, int] | None:
    """Return a sentence with the gold answer that is not read, where the same with a simple answer is."""
    gold, doc = trial.gold, trial.instance.doc
    filters = Filters(chain, doc)
    if trial.best is None or trial.nonsense is None or trial.best <= trial.nonsense or not 0 < len(gold) < _LONG:
        return None
    if re.fullmatch(r"\w+|-?[\d.,]+", gold) or any(gold in form for form in _PROBES["gold_forms"]):
        return None
    alone = chain.read(pipeline, gold, doc, "the gold answer itself")
    if alone.problem is not None or not is_nothing(alone.extracted, pipeline):
        return None  # a worked solution, which has the cue itself
    wrong = None
    for form in _PROBES["gold_forms"]:
        if not any(filters.read(pipeline, form.format(one)) == one for one in _PROBES["simple_answers"]):
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


@also("PF504", scope="scoring")
def capture_runs_on(study: Study) -> Iterator[Finding]:
    """Report filters whose pattern runs to the last closing mark of the line instead of the next one.

    Fix: exclude the mark from what is captured, or use `.*?`.
    """
    reader = reader_of(study)
    if reader is None:
        return
    wrong = misread_by_all(reader.pipelines, partial(_read_on, reader, reader.examples[-1]))
    if wrong is not None:
        severity = None if study.asks_for_reasoning else Severity.INFO
        yield wrong.finding("a filter reads on to a closing mark after the answer", severity)


def _read_on(reader: Reader, answer: str, pipeline: FilterPipeline) -> tuple[str, str] | None:
    """Return a sentence with an answer between marks that is read beyond the closing mark, and what is read."""
    for form in _PROBES["marked_forms"]:
        sentence = f"The answer is {form.format(answer)}."
        text = f"{sentence}{_PROBES['after_marks']}"
        if reader.is_read(pipeline, sentence, answer) and not reader.is_read(pipeline, text, answer):
            read = reader.read(pipeline, text)
            if read.startswith(answer) and "Check" in read:
                return text, read
    return None


@also("PF504", scope="scoring")
def part_of_a_word(study: Study) -> Iterator[Finding]:
    r"""Report filters that find an answer inside another word.

    Fix: put `\b` before and after the words.
    """
    filters = filters_of(study)
    if filters is None or not all(pipeline.patterns for pipeline in filters.chain.pipelines):
        return  # code may read anything
    wrong = misread_by_all(enumerate(filters.chain.pipelines), partial(_found_in_word, filters))
    if wrong is not None:
        yield wrong.finding("a filter finds an answer inside another word")


def _found_in_word(filters: Filters, pipeline: FilterPipeline) -> tuple[str, str] | None:
    readings = ((text, filters.read(pipeline, text)) for text in _PROBES["without_answer"])
    return next(((text, read) for text, read in readings if _is_inside(read, text)), None)


def _is_inside(read: str, text: str) -> bool:
    word, text = read.casefold(), text.casefold()
    return bool(_WHOLE.fullmatch(word)) and word in text and re.search(rf"\b{word}\b", text) is None


@also("PF504", scope="scoring")
def capture_may_be_empty(study: Study) -> Iterator[Finding]:
    """Report a pattern that finds the words before an answer, and takes nothing where no answer follows them.

    Fix: let the group match at least one character.
    """
    reader = reader_of(study)
    if reader is None:
        return
    wrong = misread_by_all(reader.pipelines, partial(_taken_empty, reader, reader.examples[-1]))
    if wrong is not None:
        yield wrong.finding("a pattern takes nothing where no answer follows its words")


def _taken_empty(reader: Reader, answer: str, pipeline: FilterPipeline) -> tuple[str, str] | None:
    """Return a text of which nothing is read: a sentence that is read, after its form with a placeholder."""
    sentences = (each for each in reader.sentences(answer) if each.strip() != answer)
    sentence = next((each for each in sentences if reader.is_read(pipeline, each, answer)), None)
    if sentence is None:
        return None
    text = f"The form is {sentence.replace(answer, '[X]')}\n{sentence}"
    return None if reader.read(pipeline, text).strip("[]() \n") else (text, "")


@also("PF504", severity=Severity.ERROR, scope="scoring")
def sign_not_read(study: Study) -> Iterator[Finding]:
    """Report filters that read a number without the minus sign before it.

    Fix: allow `-?` before the digits.
    """
    reader = reader_of(study)
    if reader is None or reader.answers.kind != "number":
        return
    wrong = misread_by_all(reader.pipelines, partial(_without_sign, reader))
    if wrong is not None:
        is_negative = any(str(instance.target).strip().startswith("-") for instance in study.real_instances)
        yield wrong.finding("a filter loses the minus sign of a number", None if is_negative else Severity.INFO)


def _without_sign(reader: Reader, pipeline: FilterPipeline) -> tuple[str, str] | None:
    forms = (form for form in _PROBES["number_forms"] if reader.is_read(pipeline, form.format("42"), "42"))
    lost = (form.format("-42") for form in forms if not reader.is_read(pipeline, form.format("-42"), "-42"))
    text = next(lost, None)
    return None if text is None else (text, reader.read(pipeline, text))


@also("PF509", severity=Severity.ERROR, scores=True)
def answers_stay_a_list(study: Study) -> Iterator[Finding]:
    """Report filters after which an answer is still a list of one answer.

    Fix: end the filters with `take_first`.
    """
    task = study.written
    is_plain = study.generates and task.process_results is None and task.repeats in (None, 1)
    compares = all(name == "exact_match" for name in study.metrics)
    if not is_plain or not compares or task.filter_list is None or not study.renders_fields:
        return
    try:
        pipelines = pipelines_of(task)
    except PromptfmtError:
        return  # PF109 reports it
    for number, pipeline in enumerate(pipelines):
        if pipeline.fingerprint is None:
            continue
        try:
            left = pipeline.extract("The answer is (A). It is 1.", {})
        except LimitExceededError:
            raise
        except Exception:
            continue  # PF109 reports it
        if isinstance(left, list | tuple):
            saw = ", ".join(str(step.get("function")) for step in task.filter_list[number]["filter"])
            yield finding("after the filters an answer is still a list", saw, ("filter_list", number))

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
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers, pipelines_of

_PROBES: Final = data_table("rules")
_WHOLE: Final = re.compile(r"[^\W\d_]{2,}")
_LONG: Final = 2000


@rule("PF511", "filters-change-gold", severity=Severity.ERROR, family=Family.EXTRACTION, scores=True)
def filters_change_gold(study: Study) -> Iterator[Finding]:
    r"""Report filters that pick nothing out of a completion, and turn the gold answer into a wrong one.

    Why: `lowercase` turns `Paris` into `paris`, which exact_match compares with `Paris`. A completion equal to the gold
    answer is wrong.

    Example:
        output_type: generate_until
        metric_list: [{metric: exact_match}]
        filter_list: [{name: x, filter: [{function: uppercase}, {function: take_first}]}]

    Silent with:
        metric_list: [{metric: exact_match, ignore_case: true}]

    Fix: change the gold answer in the same way, or ignore the difference in the metric.

    Real: facebookresearch/multiloko #9.
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
                if stages.stopped != gold:
                    continue  # a stop sequence cuts it, which PF903 reports
                saw = f"{gold!r} becomes {stages.extracted!r}"
                yield finding("the filters make the gold answer wrong", saw, ("filter_list", number), trial.instance)
                return


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


@rule("PF521", "capture-runs-on", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def capture_runs_on(study: Study) -> Iterator[Finding]:
    r"""Report filters whose pattern runs to the last closing mark of the line instead of the next one.

    Why: `\\boxed\{(.*)\}` is greedy. Of `\boxed{7}, which is \frac{14}{2}` it reads `7}, which is \frac{14}{2`, and a
    right answer is wrong. Reported as info unless the prompt asks for reasoning or for the misread form.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nThink step by step, and put the answer in \\boxed{}.\n"
        doc_to_target: "{{answer}}"
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '\\boxed\{(.*)\}'}, {function: take_first}]}
        metadata: {promptfmt: {docs: [{question: How many legs have 9 spiders?, answer: "72"}]}}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '\\boxed\{([^{}]*)\}'}, {function: take_first}]}

    Fix: exclude the mark from what is captured, or use `.*?`.

    Real: EvolvingLMMs-Lab/lmms-eval #1511 (mathvision).
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


@rule("PF523", "part-of-a-word", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def part_of_a_word(study: Study) -> Iterator[Finding]:
    r"""Report filters that find an answer inside another word.

    Why: `(yes|no)` reads `no` in `I don't know`, and `(true|false)` reads `true` in `untrue`. A completion without an
    answer, or with the opposite one, counts as right.

    Example:
        output_type: generate_until
        doc_to_target: "yes"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "(yes|no)"}, {function: take_first}]}]

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '\b(yes|no)\b'}, {function: take_first}]}

    Fix: put `\b` before and after the words.

    Real: open-compass/VLMEvalKit #73 (`notice` read as no), UKGovernmentBEIS/inspect_evals #2334 (boolq: `know`).
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


@rule("PF526", "capture-may-be-empty", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def capture_may_be_empty(study: Study) -> Iterator[Finding]:
    r"""Report a pattern that finds the words before an answer, and takes nothing where no answer follows them.

    Why: models repeat the demanded form, `Answer: [LETTER]`, before they use it. `Answer: ([A-D]*)` then reads nothing,
    although the answer is in the next line. With `+` the first match is the answer.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nThink step by step. End with #### N.\n"
        doc_to_target: "{{answer}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "#### ?([0-9]*)"}, {function: take_first}]}]
        metadata: {promptfmt: {docs: [{question: What is 3 + 4?, answer: "7"}]}}

    Silent with:
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "#### ?([0-9]+)"}, {function: take_first}]}]

    Fix: let the group match at least one character.

    Real: modelscope/evalscope #1549 (gpqa).
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


@rule("PF527", "sign-not-read", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def sign_not_read(study: Study) -> Iterator[Finding]:
    r"""Report filters that read a number without the minus sign before it.

    Why: `#### ([0-9]+)` does not find `#### -3`, and `([0-9]+)` reads 3 of it. Docs with a negative answer are always
    wrong. Reported as info if none of your docs has one.

    Example:
        output_type: generate_until
        doc_to_target: "{{answer}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "#### ([0-9]+)"}, {function: take_first}]}]
        metadata: {promptfmt: {docs: [{question: It was 2 degrees and falls by 5., answer: "-3"}]}}

    Silent with:
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "#### (-?[0-9]+)"}, {function: take_first}]}]

    Fix: allow `-?` before the digits.

    Real: google-deepmind/proeval #19, allenai/open-instruct #1530 (gsm8k).
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


@rule("PF541", "answers-stay-a-list", severity=Severity.ERROR, family=Family.EXTRACTION, scores=True)
def answers_stay_a_list(study: Study) -> Iterator[Finding]:
    r"""Report filters after which an answer is still a list of one answer.

    Why: every filter gets the list of a doc's answers, and `take_first` or `majority_vote` makes one of it. Without
    them the metric compares a list with the gold answer: lm-eval 0.4.13 then splits the gold into letters, and no
    answer is right. Nothing is reported where a task repeats its questions, or has another metric than exact_match.

    Example:
        output_type: generate_until
        metric_list: [{metric: exact_match}]
        filter_list: [{name: x, filter: [{function: remove_whitespace}]}]

    Silent with:
        filter_list: [{name: x, filter: [{function: remove_whitespace}, {function: take_first}]}]

    Fix: end the filters with `take_first`.

    Real: read in lm-evaluation-harness 0.4.13 (`ConfigurableTask.process_results`).
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

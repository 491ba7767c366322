"""Rules about how much of a completion a pattern takes: less than the answer, more than it, or a part of a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.trials import trials_of
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.extraction_probes import Reader, reader_of
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study import Study
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_NUMBER_FORMS: Final = ("{}", "The answer is {}.", "#### {}", "Answer: {}", "\\boxed{{{}}}")
_REST: Final = " Check: $\\frac{1}{2}$ (a half) [twice] **is** one."
"""Text after an answer with every mark that may close one."""

_WHOLE: Final = re.compile(r"[^\W\d_]{2,}")
_WITHOUT: Final = (
    "I don't know what is meant.",
    "I don't know",
    "Nothing is said about it, and it is not certain.",
    "This is untrue.",
    "That is incorrect.",
    "It is unlikely.",
)
"""Sentences whose words contain other answers: no, not, true, correct, likely."""


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
    found = []
    for number, pipeline in reader.pipelines:
        forms = (form for form in _NUMBER_FORMS if reader.is_read(pipeline, form.format("42"), "42"))
        lost = next((form.format("-42") for form in forms if not _keeps_sign(reader, pipeline, form)), None)
        if lost is None:
            return  # one of the pipelines gets it
        found.append((number, lost, reader.read(pipeline, lost)))
    is_negative = any(str(instance.target).strip().startswith("-") for instance in study.real_instances)
    for number, text, saw in found[:1]:
        yield finding(
            "a filter loses the minus sign of a number",
            f"{text!r} is read as {saw!r}",
            ("filter_list", number),
            severity=None if is_negative else Severity.INFO,
        )


def _keeps_sign(reader: Reader, pipeline: FilterPipeline, form: str) -> bool:
    return reader.is_read(pipeline, form.format("-42"), "-42")


@rule("PF521", "capture-runs-on", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def capture_runs_on(study: Study) -> Iterator[Finding]:
    r"""Report filters whose pattern goes on to the last closing mark of the line instead of the next one.

    Why: `\\boxed\{(.*)\}` is greedy. Of `\boxed{7}, which is \frac{14}{2}` it reads `7}, which is \frac{14}{2`, and a
    right answer is wrong. Reported as info unless the prompt asks for reasoning or for the form that is misread.

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
    said = reader.said[-1]
    found = []
    for number, pipeline in reader.pipelines:
        for form in (f"\\boxed{{{said}}}", f"**{said}**", f"[[{said}]]", f"<answer>{said}</answer>"):
            text = f"The answer is {form}.{_REST}"
            if reader.is_read(pipeline, f"The answer is {form}.", said) and not reader.is_read(pipeline, text, said):
                read = reader.read(pipeline, text)
                if read.startswith(said) and "Check" in read:
                    found.append((number, text, read))
                    break
        else:
            return
    for number, text, read in found[:1]:
        yield finding(
            "a filter reads on to a closing mark after the answer",
            f"{text!r} is read as {read!r}",
            ("filter_list", number),
            severity=None if study.asks_for_reasoning else Severity.INFO,
        )


@rule("PF526", "capture-may-be-empty", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def capture_may_be_empty(study: Study) -> Iterator[Finding]:
    r"""Report a pattern that finds the words before an answer, and takes nothing where no answer follows them.

    Why: models repeat the form they are asked for, `Answer: [LETTER]`, before they use it. `Answer: ([A-D]*)` then
    reads nothing, though the answer comes in the next line. With `+` the first match is the answer.

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
    said = reader.said[-1]
    found = []
    for number, pipeline in reader.pipelines:
        for sentence in reader.sentences(said):
            text = f"The form is {sentence.replace(said, '[X]')}\n{sentence}"
            if sentence.strip() != said and reader.is_read(pipeline, sentence, said):
                if not _bare_text(reader.read(pipeline, text)):
                    found.append((number, text))
                break
    for number, text in found[:1] if len(found) == len(reader.pipelines) else ():
        yield finding(
            "a pattern takes nothing where no answer follows its words",
            f"{text!r} is read as ''",
            ("filter_list", number),
        )


def _bare_text(text: str) -> str:
    return text.strip("[]() \n")


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
    chain = chain_of(study)
    if chain is None:
        return
    misread = []
    for number, pipeline in enumerate(chain.pipelines):
        if not pipeline.patterns:
            return  # code, which may read anything
        readings = ((text, read_by(study, chain, pipeline, text)) for text in _WITHOUT)
        wrong = next(((text, read) for text, read in readings if _is_inside(read, text)), None)
        if wrong is None:
            return  # one of the pipelines leaves it alone
        misread.append((number, *wrong))
    for number, text, read in misread[:1]:
        yield finding(
            "a filter finds an answer inside another word", f"{text!r} is read as {read!r}", ("filter_list", number)
        )


def _is_inside(read: str, text: str) -> bool:
    word, text = read.casefold(), text.casefold()
    return bool(_WHOLE.fullmatch(word)) and word in text and re.search(rf"\b{word}\b", text) is None


def chain_of(study: Study) -> Chain | None:
    """Return the filters and metrics of a generation task that looks for answers; None where they cannot be tried."""
    if not study.generates or not looks_for_answers(study.task) or study.has_guessed_text:
        return None
    if scoring_failure(study) is not None or not trials_of(study).scoring.instances:
        return None
    return trials_of(study).chain


def read_by(study: Study, chain: Chain, pipeline: FilterPipeline, text: str) -> str:
    """Return what a pipeline reads, as text; "" for an exception, or a pattern that takes too long."""
    stages = chain.read(pipeline, text, trials_of(study).scoring.instances[0].doc, "a probe")
    return "" if stages.problem is not None else str(stages.extracted).strip()

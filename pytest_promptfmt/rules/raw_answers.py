"""Rules about slips of the keyboard in answers: choices, targets, delimiters, stops and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.fixes import Fix, nothing, rewritten
from pytest_promptfmt.rules.generation import stop_before_answer
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import continuations, finding, question_template, severity_of_shots
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.configuration import read_template
from pytest_promptfmt.tasks import pipelines_of

_DOUBLED: Final = re.compile(r"\\\\(?:[dwsDWS](?=[+*?{\]])|[.,](?=[)?*+\]\\]|\Z))")
_STRAY: Final = re.compile(r"\A[\"']|[\"']\Z")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")


@rule("PF740", "one-choice-padded", severity=Severity.WARNING, family=Family.ANSWERS)
def one_choice_padded(study: Study) -> Iterator[Finding]:
    """Report a list of choices of which only some begin or end with a space.

    Why: `["A", " B"]` scores one choice after two spaces and the others after one.

    Example:
        doc_to_choice: ["yes", " no"]
        doc_to_target: "{{answer % 2}}"

    Silent with:
        doc_to_choice: ["yes", "no"]

    Fix: write all choices alike.

    Real: lm-evaluation-harness #3500 (mmlu_pro), where the data had it.
    """
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or not all(isinstance(each, str) and each.strip() for each in choices):
        return
    for inside in (str.lstrip, str.rstrip):
        padded = [number for number, each in enumerate(choices) if inside(each) != each]
        if 0 < len(padded) < len(choices):
            yield finding(
                "only some of the listed choices begin or end with a space",
                choices[padded[0]],
                ("doc_to_choice", padded[0]),
            )
            return


@rule("PF742", "stray-quote-in-choice", severity=Severity.WARNING, family=Family.ANSWERS)
def stray_quote(study: Study) -> Iterator[Finding]:
    r"""Report a quote at one end of a choice that has no partner, where other choices have none.

    Why: a quote that was left over or forgotten is scored with the choice, and makes it less likely than the others.
    Texts of your own docs are not looked at: an apostrophe may end a word.

    Example:
        doc_to_choice: "{{[choices[0], choices[1] ~ '\"']}}"
        metadata: {note: no docs}

    Silent with:
        doc_to_choice: "{{['\"' ~ choices[0] ~ '\"', '\"' ~ choices[1] ~ '\"']}}"

    Fix: write all choices alike.

    Real: bigscience-workshop/promptsource #391.
    """
    if not study.has_choices or study.has_real_docs or not study.renders_fields:
        return
    for instance in study.instances[:1]:
        choices = [text.strip() for text in continuations(instance)]
        stray = [text for text in choices if _STRAY.search(text) and any(text.count(mark) % 2 for mark in "\"'")]
        if 0 < len(stray) < len(choices):
            yield finding("a choice has a quote without a partner", stray[0][-40:], "doc_to_choice", 0)


@rule("PF741", "target-with-other-words", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def target_with_other_words(study: Study) -> Iterator[Finding]:
    r"""Report a multiple-choice target with words that are in none of the choices.

    Why: the target has to be one of the choices, or the number of one. With `The answer is B` no choice is right, and
    every doc counts as wrong.

    Example:
        doc_to_choice: ["A", "B", "C"]
        doc_to_target: "The answer is {{['A', 'B', 'C'][answer]}}"

    Silent with:
        doc_to_target: "{{['A', 'B', 'C'][answer]}}"

    Fix: print the choice alone.

    Real: mistakes of this kind stay unseen with synthetic docs, whose answers are in no list.
    """
    spec = study.written.doc_to_target
    if not study.has_choices or not isinstance(spec, str) or "{{" not in spec:
        return
    words = {word.casefold() for constant in read_template(spec).constants for word in _WORD.findall(constant)}
    choices = " ".join(text for instance in study.instances for text in continuations(instance)).casefold()
    if words and choices and not any(word in choices for word in words):
        yield finding("the target has words that are in no choice", spec, "doc_to_target")


@rule("PF840", "shots-on-one-line", severity=Severity.WARNING, family=Family.FEWSHOT)
def shots_on_one_line(study: Study) -> Iterator[Finding]:
    r"""Report a few-shot delimiter of spaces between examples that have several lines or labels.

    Why: the next question follows the answer on the same line, `Answer: Paris Question: …`, and no stop sequence that
    is a newline separates them.

    Example:
        doc_to_text: "Question: {{question}}\nAnswer:"
        fewshot_delimiter: " "
        num_fewshot: 2

    Silent with:
        fewshot_delimiter: "\n\n"

    Fix: use a delimiter with a newline.

    Real: lm-evaluation-harness #2137 (drop), where examples ran into each other.
    """
    delimiter = study.written.fewshot_delimiter
    if (
        isinstance(delimiter, str)
        and delimiter
        and not delimiter.strip(" ")
        and "\n" in question_template(study).strip()
    ):
        yield finding(
            "few-shot examples of several lines are separated by a space",
            delimiter,
            "fewshot_delimiter",
            severity=severity_of_shots(study),
        )


def _with_single_escapes(study: Study, finding: Finding) -> Fix | None:
    return rewritten(study, finding, lambda text: _DOUBLED.sub(lambda match: match[0][1:], text), keeps=nothing)


@rule("PF540", "escape-doubled", severity=Severity.ERROR, family=Family.EXTRACTION, fix=_with_single_escapes)
def escape_doubled(study: Study) -> Iterator[Finding]:
    r"""Report a pattern with `\\d+`, which looks for a backslash and the letter d.

    Why: in single quotes, without quotes and in block scalars YAML keeps both backslashes. The pattern then matches no
    number.

    Example:
        output_type: generate_until
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '(\\d+)'}, {function: take_first}]}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: '(\d+)'}, {function: take_first}]}

    Fix: write one backslash, or use double quotes.

    Real: the opposite of lm-evaluation-harness #1305 (nq_open), where one was missing.
    """
    for keys, text in study.strings:
        found = _DOUBLED.search(text) if any("regex" in str(key) for key in keys[-3:]) else None
        if found is not None:
            yield finding("the pattern looks for a backslash", text, keys)


@rule("PF541", "answers-stay-a-list", severity=Severity.ERROR, family=Family.EXTRACTION, scores=True)
def answers_stay_a_list(study: Study) -> Iterator[Finding]:
    r"""Report filters after which an answer is still a list of one answer.

    Why: every filter gets the list of a doc's answers, and `take_first` or `majority_vote` makes one of it. Without
    them the metric compares a list with the gold answer: lm-eval 0.4.13 then splits the gold into letters, and no
    answer is right. Nothing is reported where a task repeats its questions, or where another metric than
    exact_match is used.

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
        return  # PF109 says why
    for number, pipeline in enumerate(pipelines):
        if pipeline.fingerprint is None:
            continue
        try:
            left = pipeline.extract("The answer is (A). It is 1.", {})
        except LimitExceededError:
            raise
        except Exception:
            continue  # PF109 says why
        if isinstance(left, list | tuple):
            yield finding(
                "after the filters an answer is still a list",
                ", ".join(str(step.get("function")) for step in task.filter_list[number]["filter"]),
                ("filter_list", number),
            )


@rule("PF940", "stop-is-a-space", severity=Severity.WARNING, family=Family.GENERATION, scores=True)
def stop_is_a_space(study: Study) -> Iterator[Finding]:
    r"""Report a stop sequence that is only a space.

    Why: a completion that begins with a space ends at once, and every other one after its first word. Where the prompt
    shows that the answer begins with a space, PF912 reports it.

    Example:
        output_type: generate_until
        gen_prefix: "It is"
        generation_kwargs: {until: [" "]}

    Silent with:
        generation_kwargs: {until: ["\n"]}

    Fix: use a stop sequence that comes after an answer.

    Real: no task of lm-evaluation-harness 0.4.13 has one.
    """
    number = next((number for number, stop in enumerate(study.stop_texts) if stop and not stop.strip(" ")), None)
    if study.generates and number is not None and not any(stop_before_answer(study)):
        yield finding("a stop sequence is a space", study.stop_texts[number], ("generation_kwargs", "until", number))

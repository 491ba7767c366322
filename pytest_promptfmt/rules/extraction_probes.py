"""Rules about what filters read: a few completions that differ in one thing, through the task's own filters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.task import UNSET
from pytest_promptfmt.rules import Family, Finding, Severity, Study
from pytest_promptfmt.rules.extraction import Misread, Reader, bare_answer, misread_by_all, readers, scored_answers
from pytest_promptfmt.rules.page import error_query, query, task
from pytest_promptfmt.rules.rule_views import finding, first_text, has_given_shots
from pytest_promptfmt.tasks import FilterPipeline, looks_for_answers

_WORDS: Final = re.compile(r"[^\W\d_]{3,}(?: [^\W\d_]+)*|#{2,}")
_CLASSES: Final = re.compile(r"\\[A-Za-z]|\[[^\]]*\]|\(\?[a-zA-Z]+\)|\(\?P?<\w+>|\\u[0-9a-fA-F]{4}")
_PROBES: Final = data_table("rules")
_USUAL: Final = 4
"""Sentences that are tried for every task, after those that its prompt demands."""

_SEPARATED: Final = re.compile(r"(?<![\d.,])(?<!\d )[1-9]\d{0,2}([ \u00a0\u202f’'.])\d{3}(?!\d|[\d., ]\d)")
"""A number with a mark before its last three digits, not two in a row of numbers."""

_WITHOUT_SEPARATOR: Final = 3
"""Digits of a number that has no separator."""


@query("PF525", "the filter needs words that the prompt does not request", task, scope="scoring")
def _phrase_asked_nowhere(study: Study) -> Iterator[Finding]:
    are_known = study.shots == 0 or has_given_shots(study)
    for reader in readers(study):
        shown = reader.subject.instances[0].prompts[0].text if are_known else reader.subject.prompt
        prompt, answer = " ".join(shown.casefold().split()), reader.examples[0]
        missing = []
        for number, pipeline in reader.pipelines:
            forms = (answer, f"({answer})", f"{answer}.", f"The {answer}")
            if any(reader.is_read(pipeline, form, answer) for form in forms):
                continue
            words = [one for pattern in pipeline.patterns for one in _WORDS.findall(_CLASSES.sub(" ", pattern))]
            are_answers = any(reader.is_read(pipeline, word, word) for word in words)
            if words and not are_answers and not any(word.casefold() in prompt for word in words):
                missing.append((number, words))
        is_sure = are_known and len(missing) == len(reader.chain.pipelines)
        for number, words in missing[:1]:
            is_sure = is_sure or _never_shown(study, words)
            natural = study.asks_for_reasoning and any("answer" in word.casefold() for word in words)
            severity = None if is_sure and not natural else Severity.INFO
            saw = f"the filter needs {', '.join(map(repr, dict.fromkeys(words)))}"
            yield finding("", saw, ("filter_list", number), severity=severity)


def _never_shown(study: Study, words: Sequence[str]) -> bool:
    """Return whether few-shot examples cannot show words: they show the gold answers, which do not have them.

    The same column gives both. If it had the words, what a filter reads after them would not be equal to it.
    """
    task = study.written
    target = task.doc_to_target
    if not isinstance(target, str) or "{%" in target or " if " in target or study.metrics != ("exact_match",):
        return False
    if any(getattr(task.fewshot, key) not in (UNSET, None) for key in ("doc_to_target", "samples", "process_docs")):
        return False
    ignored = [one for entry in task.metric_list or () for one in entry.get("regexes_to_ignore") or ()]
    return not any(word in str(pattern) or word in target for word in words for pattern in ignored or ("",))


@error_query(
    "PF504",
    "a filter finds some option labels, but not others",
    task,
    name="filter-misreads",
    family=Family.EXTRACTION,
    scope="scoring",
    every=True,
)
def _some_options_unread(study: Study) -> Iterator[Finding]:
    """Report a filter that misreads an answer, for example because its pattern does not match all labels.

    Why: for example, the pattern matches fewer letters than the prompt has options, or it matches a letter inside a
    word. Docs with such an answer always count as wrong. The rule tries the filters with several sentences. The finding
    is an error if the prompt requests the sentence that the filters misread. Otherwise it is a warning. It is only an
    info if most models would answer with only the label, or if the sentence and the prompt are in different languages.

    Fix: change the pattern so that it matches every label that the prompt lists.

    Real: patterns for A to D in tasks with five options.
    """
    reader = next(iter(readers(study)), None)
    if reader is None or reader.answers.kind != "choice" or len(reader.examples) < 2:
        return
    constant = study.own_text
    is_foreign = not constant.isascii() and "answer" not in constant.casefold()
    free = Severity.INFO if is_foreign else _of_free_answers(study, reader)
    for number, pipeline in reader.pipelines:
        forms = [[label, *reader.sentences(label)] for label in reader.examples]
        demanded = len(forms[0]) - _USUAL
        for place, texts in enumerate(zip(*forms, strict=False)):
            if any(reader.chain.begun(text).stopped != text for text in texts):
                continue  # a stop sequence cuts one of them, which PF903 reports
            pairs = zip(texts, reader.examples, strict=True)
            is_read = [reader.is_read(pipeline, text, label) for text, label in pairs]
            if False in is_read and any(is_read):
                unread, right = texts[is_read.index(False)], texts[is_read.index(True)]
                saw = f"the filter finds {right!r}, but it extracts {reader.read(pipeline, unread)!r} from {unread!r}"
                yield finding("", saw, ("filter_list", number), severity=None if place < demanded else free)
                break


def _of_free_answers(study: Study, reader: Reader) -> Severity:
    """Return how bad it is that sentences are misread: an info where the prompt ends with a cue for the label."""
    has_cue = reader.subject.prompt.rstrip().endswith((":", "："))
    return Severity.INFO if has_cue and not study.asks_for_reasoning else Severity.WARNING


@error_query(
    "PF525", "a filter searches for words of gen_prefix, which are not in the completion", task, scope="scoring"
)
def _prefix_sought_again(study: Study) -> Iterator[Finding]:
    prefix = str(study.task.gen_prefix or "").rstrip()
    for trial in scored_answers(study)[:1] if prefix and looks_for_answers(study.task) else ():
        forms = (f"{trial.gold}", f" {trial.gold}", f" {trial.gold}.", f"\n{trial.gold}")
        if any(map(trial.counts, forms)):
            return
        for number, pipeline in enumerate(trial.chain.pipelines):
            if trial.reads_right(pipeline, f"{prefix} {trial.gold}"):
                saw = f"gen_prefix ends with {prefix[-30:]!r}, but the filter finds nothing in {forms[1]!r}"
                yield finding("", saw, ("filter_list", number), trial.instance)


@error_query("PF504", "a filter extracts a part of the reasoning, not the answer", task, scope="scoring")
def _first_of_reasoning(study: Study) -> Iterator[Finding]:
    for reader in readers(study) if study.asks_for_reasoning else ():
        *others, answer = reader.examples
        kind = "option_reasoning" if reader.answers.kind == "choice" else "number_reasoning"
        reasoning = _PROBES[kind].format(" and ".join(others[:2]))
        misread = []
        for number, pipeline in reader.pipelines:
            sentence = next((each for each in reader.sentences(answer) if reader.is_read(pipeline, each, answer)), None)
            if sentence is None:
                continue
            text = reasoning + sentence
            if reader.is_read(pipeline, text, answer):
                return  # one of the pipelines reads it
            if reader.chain.begun(text).stopped != text:
                return  # a stop sequence cuts it, which PF903 reports
            misread.append(Misread(number, text, reader.read(pipeline, text)))
        for wrong in misread[:1]:
            if any(char.isalnum() for char in wrong.read) and len(wrong.read) < len(wrong.text) // 2:
                yield wrong.finding(None if len(misread) == len(reader.pipelines) else Severity.WARNING)


@query("PF504", "a filter misreads a number that has a comma", task, scope="scoring")
def _number_cut(study: Study) -> Iterator[Finding]:
    golds = [re.sub(r"\D", "", str(instance.target)) for instance in study.real_instances]
    are_small = bool(golds) and all(len(gold) <= _WITHOUT_SEPARATOR for gold in golds)
    marks = Counter(found[1] for one in study.real_instances for found in _SEPARATED.finditer(first_text(one)))
    for reader in readers(study):
        probe = partial(_cut_number, marks=[",", *(mark for mark, count in marks.items() if count > 1)])
        for wrong in misread_by_all(reader, probe) if reader.answers.kind == "number" else ():
            is_comma = re.search(r"1,234|42\D", wrong.text) is not None
            found = wrong.finding(Severity.INFO if are_small and "234" in wrong.text else None)
            message = "" if is_comma else "a filter misreads a number that is written like those of the prompt"
            yield replace(found, message=message)


def _cut_number(reader: Reader, pipeline: FilterPipeline, marks: Sequence[str]) -> tuple[str, str] | None:
    """Return a text with a mark in its number or a comma after it, of which a part is read, and what is read."""
    for form in _PROBES["separator_forms"]:
        if not reader.is_read(pipeline, form.format("1234"), "1234"):
            continue
        text = f"{form.format('42').rstrip('.')} apples, in total."
        read = reader.read(pipeline, text)
        if read in (",", "") and reader.is_read(pipeline, form.format("42"), "42"):
            return text, read
        for text in (form.format(f"1{mark}234") for mark in marks):
            read = reader.read(pipeline, text)
            if bare_answer(read) in ("1", "234"):
                return text, read
    return None


@query("PF504", "a filter reads a letter inside a word as an option", task, scope="scoring")
def _letter_of_a_word(study: Study) -> Iterator[Finding]:
    for reader in readers(study):
        are_capitals = reader.answers.kind == "choice" and all(one.isupper() for one in reader.examples)
        if not are_capitals or any(_some_options_unread(study)):
            return  # the last explains it
        answer = reader.examples[1]
        texts = [form.format(answer) for form in _PROBES["letter_forms"]]
        demanded = reader.sentences(answer)[:-_USUAL]
        begun = [text[: text.rindex(answer)] for text in demanded if study.asks_for_reasoning]
        texts += [f"{text}{text}{answer}" for text in begun if text.rstrip().endswith((":", "："))]  # the cue twice
        texts += [_PROBES["letter_i_form"].format(answer)] if "I" in reader.examples else []
        for wrong in misread_by_all(reader, partial(_other_label, answer=answer, texts=texts)):
            yield wrong.finding(_of_free_answers(study, reader))


def _other_label(reader: Reader, pipeline: FilterPipeline, answer: str, texts: Sequence[str]) -> tuple[str, str] | None:
    """Return the first text of which another letter than the answer is read, and what is read."""
    for text in texts:
        read = reader.read(pipeline, text)
        label = bare_answer(read)
        if len(label) == 1 and label.isalpha() and label.upper() != answer:
            return text, read
    return None

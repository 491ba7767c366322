"""Rules about what filters read: a few completions that differ in one thing, through the task's own filters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pytest_promptfmt.answers.metric_scores import with_gold
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.task import UNSET
from pytest_promptfmt.rules.completion_reader import Reader, bare_answer, reader_of
from pytest_promptfmt.rules.patterns import unescaped_dot
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.study import constant_spans
from pytest_promptfmt.tasks import FilterPipeline

_WORDS: Final = re.compile(r"[^\W\d_]{3,}(?: [^\W\d_]+)*|#{2,}")
_CLASSES: Final = re.compile(r"\\[A-Za-z]|\[[^\]]*\]|\(\?[a-zA-Z]+\)|\(\?P?<\w+>|\\u[0-9a-fA-F]{4}")
_COMMON: Final = 4
"""Sentences that are tried of every task, after the label alone and those that its prompt asks for."""

_WITHOUT_SEPARATOR: Final = 3
"""Digits of a number that nobody writes with a separator."""


@rule("PF503", "phrase-asked-nowhere", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def phrase_asked_nowhere(study: Study) -> Iterator[Finding]:
    r"""Report filters that only read an answer after words that nothing in the prompt asks for.

    Why: a model that gives the right answer in another form is counted as wrong. Reported as info if another filter of
    the task reads the answer alone, and if few-shot examples may show the words: then 0 examples give 0 right answers.
    Examples that show the gold answer, with which what is read is compared, cannot show the words.

    Example:
        output_type: generate_until
        doc_to_text: "Answer with a number.\n{{question}}\nAnswer:"
        doc_to_target: "{{answer}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "RESULT: ([0-9]+)"}, {function: take_first}]}]

    Silent with:
        doc_to_text: "End with RESULT: and a number.\n{{question}}\nAnswer:"

    Fix: ask for the words in the prompt, show them in few-shot examples, or let the filter read a bare answer.

    Real: lm-evaluation-harness #3438 (gsm8k without examples), #3404 (gpqa), UKGovernmentBEIS/inspect_evals #2458.
    """
    reader = reader_of(study)
    if reader is None:
        return
    are_known = study.shots == 0 or (study.docs is not None and study.docs.fewshot_kind == "given")
    shown = reader.subject.instances[0].prompts[0].text if are_known else reader.subject.prompt
    prompt = " ".join(shown.casefold().split())
    said = reader.said[0]
    missing = []
    for number, pipeline in reader.pipelines:
        if any(reader.is_read(pipeline, form, said) for form in (said, f"({said})", f"{said}.", f"The {said}")):
            continue
        words = [one for pattern in pipeline.patterns for one in _WORDS.findall(_CLASSES.sub(" ", pattern))]
        are_answers = any(reader.is_read(pipeline, word, word) for word in words)
        if words and not are_answers and not any(word.casefold() in prompt for word in words):
            missing.append((number, words))
    is_sure = are_known and len(missing) == len(reader.chain.pipelines)
    for number, words in missing[:1]:
        is_sure = is_sure or _never_shown(study, words)
        natural = study.asks_for_reasoning and any("answer" in word.casefold() for word in words)
        yield finding(
            "the filter needs words that nothing in the prompt asks for",
            ", ".join(dict.fromkeys(words)),
            ("filter_list", number),
            severity=None if is_sure and not natural else Severity.INFO,
        )


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


@rule("PF504", "some-options-unread", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def some_options_unread(study: Study) -> Iterator[Finding]:
    r"""Report a filter that reads the same sentence with some labels and not with others.

    Why: the pattern has fewer letters than the prompt has options, or a letter of another word is read. Docs whose
    answer is such an option are always wrong. It is an error if the prompt asks for the sentence, and an info if the
    prompt ends with a cue after which most models write the label alone, or is in another language than the sentence.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"
        doc_to_target: "{{'ABC'[answer]}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "([AB])\\b"}, {function: take_first}]}]

    Silent with:
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "([ABC])\\b"}, {function: take_first}]}]

    Fix: let the pattern read every label that the prompt lists.

    Real: patterns for A to D in tasks with five options.
    """
    reader = reader_of(study)
    if reader is None or reader.answers.kind != "choice" or len(reader.said) < 2:
        return
    constant = "".join(span.text for instance in study.instances[:1] for span in constant_spans(instance))
    is_foreign = not constant.isascii() and "answer" not in constant.casefold()
    free = Severity.INFO if is_foreign else _of_free_answers(study, reader)
    for number, pipeline in reader.pipelines:
        forms = [[label, *reader.sentences(label)] for label in reader.said]
        asked = len(forms[0]) - _COMMON
        for place, texts in enumerate(zip(*forms, strict=False)):
            if any(reader.chain.begun(text).stopped != text for text in texts):
                continue  # a stop sequence cuts one of them, which PF903 and PF904 report
            is_read = [reader.is_read(pipeline, text, label) for text, label in zip(texts, reader.said, strict=True)]
            if False in is_read and any(is_read):
                unread, right = texts[is_read.index(False)], texts[is_read.index(True)]
                yield finding(
                    "a filter reads some options and not others",
                    f"{unread!r} is read as {reader.read(pipeline, unread)!r}, {right!r} is right",
                    ("filter_list", number),
                    severity=None if place < asked else free,
                )
                break


def _of_free_answers(study: Study, reader: Reader) -> Severity:
    """Return how bad it is that sentences are misread: an info where the prompt ends with a cue for the label alone."""
    has_cue = reader.subject.prompt.rstrip().endswith((":", "："))
    return Severity.INFO if has_cue and not study.asks_for_reasoning else Severity.WARNING


@rule("PF505", "depends-on-full-stop", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def depends_on_full_stop(study: Study) -> Iterator[Finding]:
    r"""Report a filter that reads another answer if the full stop or the last newline of a sentence is missing.

    Why: models end their sentences with or without a full stop. `The answer is 18` must not be read as 1, nor
    `The answer is 18.` as `18.`, which is compared with `18`.

    Example:
        output_type: generate_until
        doc_to_target: "{{answer}}"
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "answer is ([0-9.]+)"}, {function: take_first}]}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "answer is ([0-9]+)"}, {function: take_first}]}

    Fix: let the pattern end with the answer, or ignore the full stop in `regexes_to_ignore`.

    Real: lm-evaluation-harness #2013 (bbh_cot_fewshot), gsm8k_cot reads "The answer is 18" as "1".
    """
    reader = reader_of(study)
    if reader is None or any(unescaped_dot(study)):
        return
    for number, pipeline in reader.pipelines:
        said = reader.said[-1]
        for text in reader.sentences(said):
            bare = text.rstrip(".")
            forms = [bare, f"{bare}.", f"{bare}.\n", f"{bare}\n"]
            right = [_is_right(reader, pipeline, form, said) for form in forms]
            if any(right) and not all(right):
                wrong = forms[right.index(False)]
                yield finding(
                    "what is read depends on the full stop or newline after the answer",
                    f"{wrong!r} is read as {reader.read(pipeline, wrong)!r}",
                    ("filter_list", number),
                )
                break


def _is_right(reader: Reader, pipeline: FilterPipeline, text: str, said: str) -> bool:
    """Return whether the metrics count what is read as this answer."""
    stages = reader.chain.read(pipeline, text, reader.subject.instances[0].doc, "a probe")
    if stages.problem is not None:
        return False
    answers, subject = reader.answers, reader.subject
    question = subject.questions[0]
    if callable(subject.task.process_results):
        return bare_answer(str(stages.extracted)) == bare_answer(said)
    target: Any = answers.target_with(said) if answers.kind == "number" else answers.targets[answers.labels.index(said)]
    index = answers.labels.index(said) if answers.kind == "choice" else 0
    try:
        return reader.chain.is_right(with_gold(question, target, index), subject.instances[0].doc, stages.extracted)
    except PromptfmtError:
        raise
    except Exception:
        return False


@rule("PF506", "first-of-reasoning", severity=Severity.ERROR, family=Family.EXTRACTION, scope="scoring")
def first_of_reasoning(study: Study) -> Iterator[Finding]:
    r"""Report filters that read a number or letter of the reasoning instead of the answer after it.

    Why: the prompt asks for reasoning, which names numbers and options before it gives the answer. A pattern that
    takes the first of them reads a step, not the result. It is a warning where another filter reads only sentences
    that are not tried, such as those of another language.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nThink step by step, and finish with 'The answer is N'."
        doc_to_target: "{{answer}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "(-?[0-9]+)"}, {function: take_first}]}]

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}, {function: take_first}]}

    Fix: use `group_select: -1`, or a pattern with the words before the answer.

    Real: open-compass/opencompass #1462 (mmlu_pro).
    """
    reader = reader_of(study)
    if reader is None or not study.asks_for_reasoning:
        return
    said = reader.said[-1]
    if reader.answers.kind == "choice":
        others = [label for label in reader.said if label != said][:2]
        reasoning = f"First, look at the options. {' and '.join(others)} do not fit.\n"
    else:
        reasoning = "First, 3 + 4 = 7. Then 7 * 5 = 35, and 35 less 17 is left.\n"
    misread = []
    for number, pipeline in reader.pipelines:
        for text in reader.sentences(said):
            if not reader.is_read(pipeline, text, said):
                continue
            if reader.is_read(pipeline, reasoning + text, said):
                return  # one of the pipelines gets it
            if reader.chain.begun(reasoning + text).stopped != reasoning + text:
                return  # a stop sequence cuts it, which PF904 reports
            misread.append((number, reasoning + text, reader.read(pipeline, reasoning + text)))
            break
    for number, text, saw in misread[:1]:
        if saw and any(char.isalnum() for char in saw) and len(saw) < len(text) // 2:
            yield finding(
                "a filter reads a part of the reasoning, not the answer",
                f"{text!r} is read as {saw!r}",
                ("filter_list", number),
                severity=None if len(misread) == len(reader.pipelines) else Severity.WARNING,
            )


@rule("PF507", "number-cut", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def number_cut(study: Study) -> Iterator[Finding]:
    r"""Report filters that cut a number at its thousands separator, or take a comma for a number.

    Why: models write `1,234`. A pattern without the comma reads 1 or 234, a pattern of commas alone reads the comma
    after `42 apples, in total`. The answer is then another number, and nothing shows it. Reported as info if all
    answers of your docs have at most three digits.

    Example:
        output_type: generate_until
        doc_to_target: "{{answer}}"
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "([0-9]+)"}, {function: take_first}]}]
        metadata: {promptfmt: {docs: [{question: How many metres are 2 km?, answer: "2000"}]}}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "([0-9][0-9,]*)"}, {function: take_first}]}

    Fix: allow commas between digits, and ignore them with `regexes_to_ignore: [","]`.

    Real: open-compass/opencompass #2647, stanford-crfm/helm #4337.
    """
    reader = reader_of(study)
    if reader is None or reader.answers.kind != "number":
        return
    cut = []
    for number, pipeline in reader.pipelines:
        found = None
        for form in ("{}", "The answer is {}.", "#### {}"):
            if not reader.is_read(pipeline, form.format("1234"), "1234"):
                continue
            text = form.format("1,234")
            saw = reader.read(pipeline, text)
            if saw and bare_answer(saw) != "1234" and bare_answer(saw) in ("1", "234"):
                found = (number, text, saw)
            text = f"{form.format('42').rstrip('.')} apples, in total."
            saw = reader.read(pipeline, text)
            if saw in (",", "") and reader.is_read(pipeline, form.format("42"), "42"):
                found = (number, text, saw)
            if found:
                break
        if found is None:
            return  # one of the pipelines gets it
        cut.append(found)
    golds = [re.sub(r"\D", "", str(instance.target)) for instance in study.real_instances]
    are_small = bool(golds) and all(len(gold) <= _WITHOUT_SEPARATOR for gold in golds)
    for number, text, saw in cut[:1]:
        yield finding(
            "a filter reads only a part of a number, or a comma",
            f"{text!r} is read as {saw!r}",
            ("filter_list", number),
            severity=Severity.INFO if are_small and "1,234" in text else None,
        )


@rule("PF508", "letter-of-a-word", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def letter_of_a_word(study: Study) -> Iterator[Finding]:
    r"""Report filters that take a letter of an ordinary word for the label of an option.

    Why: `The answer appears to be B` is read as A, the first letter of `appears`. A pattern without regard to case
    reads the article `a`, and the last of A to J may be the word `I`. All give a wrong option instead of none.
    Reported as info if the prompt ends with a cue.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"
        doc_to_target: "{{'ABC'[answer]}}"
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "(?i)answer[: is]*([A-C])"}, {function: take_first}]}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "(?i)answer[: is]*([A-C])\\b"}, {function: take_first}]}

    Fix: end the label with `\b`, and match it with regard to case.

    Real: groq/openbench #348, openai/simple-evals #33, lm-evaluation-harness #4188 (mmlu generative).
    """
    reader = reader_of(study)
    if reader is None or reader.answers.kind != "choice" or not all(one.isupper() for one in reader.said):
        return
    if any(some_options_unread(study)):
        return  # which says more
    said = reader.said[1]
    texts = [f"The answer {word} to be {said}." for word in ("appears", "clearly seems")]
    texts += [
        f"{said}\n\nBecause it Can.",
        f"The answer is clearly {said}.",
        f"Answer: Definitely {said}.",
        f"The answer is {said} because it is a city.",
    ]
    asked = reader.sentences(said)[:-_COMMON]
    begun = [text[: text.rindex(said)] for text in asked if study.asks_for_reasoning]
    texts += [f"{text}{text}{said}" for text in begun if text.rstrip().endswith((":", "："))]  # the cue twice
    texts += [f"The answer is {said} because I computed it."] if "I" in reader.said else []
    misread = []
    for number, pipeline in reader.pipelines:
        wrong = next((text for text in texts if _is_other(reader.read(pipeline, text), said)), None)
        if wrong is None:
            return
        misread.append((number, wrong, reader.read(pipeline, wrong)))
    for number, text, saw in misread[:1]:
        yield finding(
            "a filter takes a letter of a word for an option",
            f"{text!r} is read as {saw!r}",
            ("filter_list", number),
            severity=_of_free_answers(study, reader),
        )


def _is_other(read: str, said: str) -> bool:
    label = bare_answer(read)
    return len(label) == 1 and label.isalpha() and label.upper() != said


@rule("PF510", "depends-on-case", severity=Severity.WARNING, family=Family.EXTRACTION, scope="scoring")
def depends_on_case(study: Study) -> Iterator[Finding]:
    r"""Report filters that read the sentence with the answer only if it begins with a capital letter.

    Why: models write `So the answer is 42.` as often as `The answer is 42.` A pattern that begins with `The` misses the
    first one. Reported as info unless the prompt asks for reasoning, and where another filter needs real docs.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}}\nThink step by step."
        doc_to_target: "{{answer}}"
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "The answer is ([0-9]+)"}, {function: take_first}]}

    Silent with:
        filter_list:
        - {name: x, filter: [{function: regex, regex_pattern: "[Tt]he answer is ([0-9]+)"}, {function: take_first}]}

    Fix: begin the pattern with `[Tt]he`, or with `answer is`.

    Real: bbh_cot_fewshot of lm-evaluation-harness reads both spellings, its twins in other folders read one.
    """
    reader = reader_of(study)
    if reader is None:
        return
    said = reader.said[-1]
    missed = []
    for number, pipeline in reader.pipelines:
        for text in reader.sentences(said):
            lower = f"So {text[:1].lower()}{text[1:]}"
            if not text.startswith("The ") or not reader.is_read(pipeline, text, said):
                continue
            if not reader.is_read(pipeline, lower, said):
                missed.append((number, lower, reader.read(pipeline, lower)))
                break
        else:
            forms = (f"So the answer is {form}" for form in (said, f"({said})", f"{said}."))
            if any(reader.is_read(pipeline, form, said) for form in forms):
                return  # one of the pipelines gets it
    for number, text, saw in missed[:1]:
        yield finding(
            "a filter misses the answer after a lower-case beginning",
            f"{text!r} is read as {saw!r}",
            ("filter_list", number),
            severity=None if study.asks_for_reasoning and _is_sure(reader, text) else Severity.INFO,
        )


def _is_sure(reader: Reader, text: str) -> bool:
    """Return whether every pipeline can read a text: one that needs columns of real docs may read what others miss."""
    doc = reader.subject.instances[0].doc
    return all(reader.chain.read(one, text, doc, "a probe").problem is None for one in reader.chain.pipelines)

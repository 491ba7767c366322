"""Rules about the layout of few-shot examples: their joins, their answers, and examples written into a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

from jinja2 import TemplateSyntaxError

from pytest_promptfmt.answers.phrasings import answer_words
from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.prompt import Instance, join
from pytest_promptfmt.core.task import Unset
from pytest_promptfmt.core.text import shared_start
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.data import NOT_ASKED
from pytest_promptfmt.rules.page import (
    Page,
    demonstrated,
    error_query,
    first,
    own,
    part_of,
    query,
    shown,
    task,
    with_shots,
)
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    around,
    finding,
    instruction_key,
    pattern,
    scores_exact_match,
    severity_of_shots,
    words,
)
from pytest_promptfmt.study.contract import number_of_word
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.tasks import has_docs_for_shots, looks_for_answers

_ANSWERS: Final = words("answer_labels") | {word.casefold() for word in answer_words().values()}
_MARKS: Final = "().[]*\"' "
_FEW_WORDS: Final = 4
_LEAST_WRITTEN: Final = 2
"""Solved examples in a text that show a layout; a single one may be a part of the question."""

_ANNOUNCED: Final = pattern("shot_layout", "announced")
_STEPS: Final = re.compile(r"(?:step[- ]by[- ]step|chain[- ]of[- ]thought|reasoning)[^\n]{0,20}\Z", re.I)
_ONE_COLUMN: Final = re.compile(r"\w+|\{\{-?\s*[\w.\[\]'\"]+\s*-?\}\}")


@rule("PF808", "shots-fail", severity=Severity.ERROR, family=Family.FEWSHOT)
def shots_fail(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that cannot be rendered, including those of tasks that use none by default.

    Why: if someone runs the task with `--num_fewshot`, the run ends with an exception. Without this option, lm-eval
    does not render the keys of `fewshot_config`, so nobody notices the mistake.

    Fix: correct the template or column in `fewshot_config` that the error names.

    Real: lm-evaluation-harness #2323 (agieval fails with any number of few-shot examples).
    """
    failure = study.shots_failure
    if not isinstance(failure, RenderError):
        return
    are_real = study.task.fewshot.samples is not None or has_docs_for_shots(study.task)
    if not (study.has_real_docs and are_real) and not isinstance(failure.__cause__, TemplateSyntaxError):
        return  # synthetic docs need not be what code and templates expect, but nothing can be made of such a template
    is_own = "fewshot_config" in study.config
    do = failure.hint or ("" if is_own else "correct the value that the error names")
    severity, at = None if is_own else severity_of_shots(study), ("fewshot_config",)
    if severity and any(isinstance(instance.target, list) for instance in study.instances):
        severity = Severity.INFO  # lm-eval 0.4.13 shows no example with the indices of several right choices
    message, place = "few-shot examples cannot be rendered", failure.position
    yield finding(message, failure.message, at, do=do, severity=severity, position=place)


@query("PF807", "", lambda study: first(study) if not study.is_multimodal else ())
def _unlike_written_examples(page: Page) -> Iterator[Finding]:
    """Report a question without a label, if solved examples in the same text have one."""
    written = _written_examples(page.study.instances)
    if written is None or len(page.instance.prompts) != 1:
        return
    tail = page.instance.prompts[0].text[written.end :]
    labels = [label.name.casefold() for label in layout_of(tail).labels]
    for label, where in ((written.question, "before"), (written.answer, "after")):
        if label.casefold() not in labels:
            message = f"few-shot examples have a label {where} the question, but the question of the doc has none"
            yield finding(message, f"the examples have the label {label!r}, but the prompt ends with {tail[-60:]!r}")


@query(
    "PF807",
    "few-shot examples label the options differently from the question",
    shown,
    at=("fewshot_config", "doc_to_text"),
)
def _other_options(page: Page) -> Iterator[Finding]:
    own, fewshot = page.layout.listed_labels[:2], page.study.written.fewshot
    is_by_data = fewshot.samples is None and isinstance(fewshot.doc_to_text, Unset) and not page.study.asks_by_code
    for shot in page.shots if own and not is_by_data else ():
        other = layout_of(shot.question).listed_labels[:2]
        if min(len(other), len(own)) > 1 and other != own:  # one line may hold all options
            saw = f"{', '.join(other)} in a few-shot example, but {', '.join(own)} in the question"
            yield finding("", saw, severity=severity_of_shots(page.study))


@query(
    "PF807",
    "a few-shot example has an answer that is not a choice",
    lambda study: demonstrated(study) if isinstance(study.written.doc_to_choice, list) else (),
    at=("fewshot_config", "doc_to_target"),
)
def _shot_answer_not_a_choice(page: Page) -> Iterator[str]:
    answers = [shot.answer.strip() for shot in page.shots if shot.answer and shot.answer.strip()]
    other = next((answer for answer in answers if answer not in page.scored), None)
    if page.scored and other is not None and not any("«" in answer for answer in answers):
        yield f"the answer is {other[:40]!r}, but {', '.join(sorted(set(map(repr, page.scored))))} are scored"


@error_query("PF807", "few-shot examples have answers that are not choices", task)
def _written_answers_not_scored(study: Study) -> Iterator[Finding]:
    choices = study.written.doc_to_choice
    scored = {str(one).strip().casefold() for one in choices} if isinstance(choices, list) else set()
    for template in study.templates if scored and not study.has_guessed_text else ():
        for text in template.text.constants if template.keys[-1] in ("description", "doc_to_text") else ():
            answers = [one.value for one in layout_of(text).labels if one.name.casefold() in _ANSWERS and one.value]
            said = {answer.strip(_MARKS).casefold() for answer in answers}
            are_short = all(len(answer.split()) < _FEW_WORDS for answer in answers)
            is_other = len(said) > 1 and not said & {one.strip(_MARKS) for one in scored}
            if len(answers) >= _LEAST_WRITTEN and are_short and is_other:
                saw = f"answers {answers[0]!r}, {answers[1]!r}, but {', '.join(map(repr, choices or ()))} are scored"
                yield finding("", saw, template.keys)


@query(
    "PF812",
    "the prompt announces examples, but has none",
    # else a number of examples may be given on the command line
    lambda study: first(study) if study.task.num_fewshot == 0 or study.shots else (),
    name="announced-and-missing",
    family=Family.FEWSHOT,
)
def _announced_examples(page: Page) -> Iterator[Finding]:
    """Report a prompt that announces a text which it does not contain, such as examples.

    Why: a sentence such as "Here are some examples" belongs in a few-shot prompt. If a single question follows, either
    the examples were lost, or someone forgot to remove the sentence.

    Fix: remove the sentence, or set `num_fewshot`.

    Real: GPQA's own few-shot prompts, which lost their examples (idavidrein/gpqa #22).
    """
    text, labels = _constant_labels(page)
    found = _ANNOUNCED.search(text)
    solved = sum(labels[word] for word in _ANSWERS) + labels["example"] + labels["examples"]
    if found is not None and not page.shots and solved < _LEAST_WRITTEN and len(text) - found.end() < _MUCH:
        yield finding("", around(text, found, 10, 30), instruction_key(page.study))


@query(
    "PF812", "the prompt states a wrong number of examples", lambda study: shown(study) if study.shots else first(study)
)
def _number_of_examples(page: Page) -> Iterator[Finding]:
    text, labels = _constant_labels(page)
    found = _EXAMPLES.search(text)
    labels -= Counter([page.cue.name.casefold()] if page.cue is not None else ())
    count = len(page.shots) or max((labels[name] for name in _ANSWERS), default=0)
    if found is not None and count and count != number_of_word(found[1]):
        yield finding("", f"{found[0]!r}, but the prompt has {count}", instruction_key(page.study))


@query(
    "PF807",
    "few-shot examples show only the answer, but the prompt requests reasoning",
    lambda study: with_shots(study) if study.generates and looks_for_answers(study.task) else (),
    at="doc_to_target",
)
def _shots_without_reasoning(page: Page) -> Iterator[Finding]:
    study, shots, text = page.study, page.study.task.fewshot, page.text.rstrip()
    target = str(study.written.doc_to_target).strip()
    is_column = _ONE_COLUMN.fullmatch(target) is not None and shots.samples is None and not shots.doc_to_target
    are_short = all(len(str(instance.target).split()) < _FEW_WORDS for instance in study.real_instances)
    is_judged = scores_exact_match(study) and not study.has_own_scorer
    if is_column and are_short and is_judged and _STEPS.search(text) and any(shot.answer for shot in page.shots):
        is_shown = study.shots or _ANNOUNCED.search(page.instance.prompts[0].text)
        saw = f"the prompt ends with {text[-40:]!r}, but the target is {target!r}"
        yield finding("", saw, severity=None if is_shown else Severity.INFO)


def _constant_labels(page: Page) -> tuple[str, Counter[str]]:
    """Return the text of the prompt that is the same for every doc, and how often it has each label."""
    text = join(span for span in page.instance.prompts[0].spans if span.origin.field is None)
    return text, Counter(label.name.casefold() for label in layout_of(text).labels)


@query("PF812", "the prompt mentions a passage that it does not show")
def _announced_passage(page: Page) -> Iterator[str]:
    found = _SPEAKS_OF.search(page.study.own_text)
    printed = {span.origin.field: span.text for span in page.message.content if span.origin.field is not None}
    others = [name for name in printed if not _QUESTION.fullmatch(name) and not _OPTIONS.fullmatch(name)]
    if found is not None and printed and not others and max(map(len, printed.values())) < _MUCH:
        yield f"the prompt mentions {found[0]!r}, but has only the question: {page.text[-40:]!r}"
    shown, named = (set(one.findall(page.constant)) for one in (_BLOCK, _TAG))
    read = f"{page.study.task.filter_list}{page.study.stop_texts}{page.instance.target}"
    unknown = sorted(one for one in named if f"</{one}>" not in page.constant and one not in read)
    is_read = page.study.has_own_scorer or page.shots or any(page.constant.count(f"<{one}>") > 1 for one in shown)
    if unknown and shown and not is_read and _OF_TAGS.search(page.study.own_text):
        yield f"the prompt mentions <{unknown[0]}>, but has only <{'>, <'.join(sorted(shown))}>"


@query("PF812", "a label has nothing after it", task, every=True)
def _empty_field(study: Study) -> Iterator[Finding]:
    for template in study.templates:
        found = next(filter(None, map(_EMPTY_FIELD.search, template.text.constants)), None)
        if found is not None and template.keys[-1] == "doc_to_text":
            yield finding("", found[0], template.keys)


@query("PF812", "a label has nothing after it", own)
def _empty_label(page: Page) -> Iterator[Finding]:
    """Report a label without a text after it, if the prompt lacks a text of the doc."""
    unused = [
        name
        for name, value in page.instance.doc.items()
        if isinstance(value, str) and len(value.split()) > _FEW_WORDS and value.strip() not in page.text
        if not NOT_ASKED.search(name) and value not in page.scored
    ]
    for label, after in pairwise(page.layout.labels if not page.shots else ()):
        is_passage = len(unused) == 1 and len(page.instance.doc[unused[0]]) >= _PASSAGE
        only = unused[0] if is_passage and unused[0] not in page.study.used_names else None
        named = next((name for name in unused if name.casefold() == label.name.casefold()), only)
        if named is not None and not page.text[label.end : after.start].strip() and after.value:
            yield finding("", f"{label.name}{label.colon}", field=named)


@query(
    "PF203", "no newline between few-shot examples, although each has several lines", with_shots, at="fewshot_delimiter"
)
def _shots_on_one_line(page: Page) -> Iterator[str]:
    delimiter = page.study.task.fewshot_delimiter
    if delimiter.isspace() and "\n" not in delimiter and page.shots and "\n" in page.text.strip():
        yield f"fewshot_delimiter is {delimiter!r}"


@query("PF812", "the prompt refers to a text 'above' or 'below', but the text is on the other side")
def _pointer_to_other_side(page: Page) -> Iterator[str]:
    found = _POINTER.search(page.constant)
    if found is not None:
        noun, side = (found[1], found[2]) if found[1] else (found[4], found[3])
        labels = [one for one in layout_of(page.constant).labels if COLUMN in one.value]
        places = [one.start for one in labels if one.name.casefold() == noun.casefold()]
        if places and all((place > found.start()) == (side.casefold() == "above") for place in places):
            yield part_of(page.constant, found)


def _written_shots(study: Study) -> Sequence[Page]:
    """Return the page with few-shot examples of a task that generates."""
    return shown(study) if study.generates else ()


@query("PF242", "the answer of a few-shot example repeats the end of its question", _written_shots)
def _end_repeated(page: Page) -> Iterator[str]:
    for shot in page.shots:
        constant = join(span for span in shot.messages[0].content[-1:] if not span.origin.field).rstrip()
        end = re.search(r"[^\n.!?:]{12,}[.!?:]*\Z", constant[-200:])  # which takes the square of the length
        if end is not None and (shot.answer or "").strip().startswith(end[0].strip()):
            yield end[0].strip()


@query("PF242", "doc_to_text contains solved examples, so every few-shot example repeats them", shown)
def _examples_in_question(page: Page) -> Iterator[str]:
    labels = [one for one in layout_of(page.constant).labels if one.value]
    solved = {one.name: one for one in labels if COLUMN not in one.value}
    one = solved.get(page.cue.name) if page.study.shots and page.cue is not None else None
    # without a question, the label of the answer shows its form
    if one is not None and any(COLUMN in label.value and label.name in solved for label in labels):
        yield f"{one.name}{one.colon} {one.value}"


@query("PF807", "the first example has no label before its question, but the other examples have one")
def _first_label_lost(page: Page) -> Iterator[str]:
    labels = layout_of(page.constant).labels
    pair = {label.name: label for label in labels[-2:]}
    shown = [label for label in labels if label.name in pair]
    names, before = [label.name for label in shown], page.constant[: shown[0].start if shown else 0].strip()
    is_lost = len(pair) == _LEAST_WRITTEN < len(names) // 2 + 1 and names[0] == names[-1] and len(names) % 2 == 1
    is_lost &= all(one != other for one, other in pairwise(names))
    if is_lost and before and COLUMN not in before and COLUMN in labels[-2].value:
        yield before[:60]


_EXAMPLES: Final = pattern("shot_layout", "count")
_POINTER: Final = pattern("shot_layout", "pointer")
_TAG: Final = re.compile(r"<([a-z]{3,}(?:_[a-z]+)?)>")
_BLOCK: Final = re.compile(r"<([a-z]{3,}(?:_[a-z]+)?)>[^<]*\0[^<]*</\1>")
_OF_TAGS: Final = pattern("shot_layout", "of_tags")
_SPEAKS_OF: Final = pattern("shot_layout", "speaks_of")
_QUESTION: Final = pattern("shot_layout", "question")
_OPTIONS: Final = pattern("shot_layout", "options")
_EMPTY_FIELD: Final = pattern("shot_layout", "empty_field")
_PASSAGE: Final = 40
"""Characters of a column that is no remark."""

_MUCH: Final = 300
"""Characters of constant text that may hold the examples in another form."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The layout of solved examples in a text: their labels, and where the last of them ends."""

    question: str
    answer: str
    end: int


def _written_examples(instances: Sequence[Instance]) -> _Written | None:
    """Return the layout of the solved examples that constant text before the question holds, None without them.

    Text that an expression prints together with a column is constant as well: what all docs begin with.
    """
    prompts = [instance.prompts[0] for instance in instances if instance.prompts]
    if not prompts or any(span.origin.shot is not None for span in prompts[0].spans):
        return None
    of_template = join(takewhile(lambda span: span.origin.field is None, prompts[0].spans))
    texts = [prompt.text for prompt in prompts]
    shared = min(texts)[: shared_start(min(texts), max(texts))] if len(texts) > 1 else ""
    constant = max(of_template, shared, key=len)
    found = layout_of(constant).labels
    labels = [each.name for each in found]
    answers = [label for label in dict.fromkeys(labels) if label.casefold() in _ANSWERS]
    for answer in answers:
        places = [number for number, label in enumerate(labels) if label == answer]
        asked = _asked_before(labels, places)
        if len(places) >= _LEAST_WRITTEN and asked is not None and "B" not in labels:
            after = found[places[-1]].end
            end = max(constant.find("\n\n", after), constant.find("\n", after) if "\n\n" not in constant else -1)
            return _Written(asked, answer, end) if end >= 0 else None
    return None


def _asked_before(labels: Sequence[str], places: Sequence[int]) -> str | None:
    """Return the label that comes before every one of the answers, None where they differ."""
    before = {labels[place - 1] for place in places if place}
    return before.pop() if len(before) == 1 and all(places) else None

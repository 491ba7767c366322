"""Rules about gold answers that are invalid, that no completion equals, or that are given away."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.answers.metric_scores import gold_text, normalised
from pytest_promptfmt.answers.phrasings import answer_words
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.gold_values import LocalDocs, local_questions
from pytest_promptfmt.rules.page import Page, asked_first, comparing, error_query, own, query, task
from pytest_promptfmt.rules.rule_views import (
    finding,
    first_text,
    pattern,
    question_layout,
    question_message,
    without_delimiter,
)
from pytest_promptfmt.study.gold import gold_column, gold_kind
from pytest_promptfmt.tasks import Question, looks_for_answers

_CHOICE_COLUMNS: Final = ("choices", "options", "endings", "candidates", "alternatives")
_MARKED: Final = re.compile(r"(?:[^\W_]+ ?){1,2}\.|(\*\*|__)[^*_]+\1\.?")
_BOLD: Final = re.compile(r"(?i)\bbold|\*\*|\bmarkdown\b")
"""A word or two with a full stop, which are no sentence, or anything in bold."""

_MARKS: Final = re.compile(r"(?:is_)?(?:correct|right|gold)\w*|(?:\w+_)?(?:label|target|answer)s?", re.IGNORECASE)

_SEVERAL: Final = pattern("gold_answers", "several")
"""Words of a prompt that asks for several things, and scripts in which they are not known."""

_IDENTIFIER: Final = pattern("data", "identifier")
_COPIED: Final = pattern("gold_answers", "copied")
_ANY_WORD: Final = re.compile(r"\w+")
_SOME_WORD: Final = 5
"""The length of an answer that is more than a label, with a space on both sides."""

_LISTED: Final = re.compile(r"^[ \t]*[(\[]?[A-Z\d][).\]:][ \t]*\{\{", re.MULTILINE)
_SENTENCES: Final = re.compile(r"(?<=[.!?。！？।])\s+|\n+|(?<=[。！？])(?=\S)")
_ANSWER: Final = re.compile("|".join(["answer", *map(re.escape, answer_words().values())]), re.IGNORECASE)
_FEW_DOCS: Final = 3
_PAIR: Final = 2
"""Labels of which another column may have the wrong one."""

_PRINTED: Final = re.compile(r"\{\{-?\s*(.+?)\s*-?\}\}", re.DOTALL)
_MANY_DOCS: Final = 4
_CERTAINLY_MANY: Final = 10
"""Docs of which two different gold answers are enough."""

_OPTION: Final = re.compile(r"[(\[]?[A-Z\d][)\].][ \t]*$")


@rule("PF701", "gold-not-a-choice", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def gold_not_a_choice(study: Study) -> Iterator[Finding]:
    """Report a doc without a correct choice: the gold index is out of range, or the gold text is not among the choices.

    Why: lm-eval compares the target with the text of each choice. If no choice is equal, the doc counts as wrong. If
    labels count from 1 but are used as indices, the last label fails, and each other label selects the next choice. The
    rule checks all local docs, not only those in the snapshot.

    Fix: use an index that starts at 0, or the exact text of a choice.

    Real: lm-evaluation-harness #1216 (social_iqa), #2434 (catcola); pattern 1 of eval-framework's guide.
    """
    if not study.has_choices or gold_kind(study) == "nothing" or not study.real_instances:
        return
    for number, question in enumerate(local_questions(study).questions or study.scoring_of_prompts.questions):
        choices, target = question.choices, question.target
        if not isinstance(choices, list | tuple) or question.has_several_inputs or isinstance(target, bool):
            return
        texts = [str(choice) for choice in choices]
        is_lost = _has_lost(target, texts) or (isinstance(target, int) and not 0 <= target < len(texts))
        if is_lost or target == [] or (isinstance(target, str) and target not in texts):
            yield _not_a_choice(target, texts, number)
            if number >= len(study.real_instances):
                return  # one of those that are not rendered


def _has_lost(target: Any, choices: Sequence[str]) -> bool:
    return isinstance(target, list) and any(isinstance(one, int) and one >= len(choices) for one in target)


def _not_a_choice(target: Any, choices: Sequence[str], doc: int) -> Finding:
    if _has_lost(target, choices):
        message = "one of the gold indices is out of range"
    elif isinstance(target, int):
        message = f"the gold index is {'negative, as in a split without labels' if target < 0 else 'out of range'}"
    elif isinstance(target, list) and not target:
        message = "the list of gold answers is empty"
    else:
        message = "the gold answer is not among the choices"
    saw = f"the target is {target!r}, and the choices are {choices!r}"
    return finding(message, saw, "doc_to_target", doc, do=_closest(target, choices) or "")


def _closest(target: Any, choices: Sequence[str]) -> str | None:
    """Return the fix for a target that is almost a choice."""
    if not isinstance(target, str):
        return None
    nearly = next((choice for choice in choices if choice.strip().casefold() == target.strip().casefold()), None)
    if nearly is not None:
        differ = "spaces" if nearly.strip() == target.strip() else "letter case"
        return f"make target and choice equal: {nearly!r} differs only in {differ}"
    if target.strip().isdigit():
        return f"if the target is an index, write {target.strip()}|int, because text is compared with the choices"
    return None


@rule("PF702", "gold-never-equal", severity=Severity.ERROR, family=Family.ANSWERS)
def padded_target(study: Study) -> Iterator[Finding]:
    """Report a gold answer that no completion can equal, such as a text with a space at its start.

    Why: filters return `7`, which never equals ` 7`. If the target delimiter is a space, there are two spaces before
    the answer in few-shot examples. If the task has neither filters nor few-shot examples, the finding is a warning.

    Fix: remove the whitespace from the target, as in `{{answer.strip()}}`.

    Real: lm-evaluation-harness #1275 (gsm8k_cot), #3795 (fda).
    """
    if not study.generates or study.has_own_scorer:
        return
    is_exact = "exact_match" in (study.metrics or ("exact_match",))
    is_doubled = study.task.target_delimiter[:1].isspace()
    if not is_doubled and not study.task.filter_list:
        return  # the space is the delimiter, and completions keep theirs
    for instance in study.instances:
        target = instance.target
        if not isinstance(target, str) or "\n" in target.strip() or not target.strip():
            continue
        is_line = first_text(instance).endswith("\n")  # which may be indented, as code is
        if (target[0].isspace() and not is_line) or (study.has_real_docs and target[-1].isspace()):
            # without filters a completion keeps its space as well: only examples and other back ends differ
            entries = [one for one in study.task.metric_list or () if one.get("metric") == "exact_match"]
            is_ignored = any(normalised(target, one) == normalised(target.strip(), one) for one in entries)
            if is_ignored and not is_doubled:
                return  # the delimiter as above, which the metric removes
            is_lost = target[0].isspace() and is_exact and (bool(study.task.filter_list) or study.shots > 0)
            severity = None if is_lost and not is_ignored else Severity.WARNING
            yield finding(
                "the gold answer begins or ends with whitespace", target, "doc_to_target", instance, severity=severity
            )
            return


def _written_golds(study: Study) -> Sequence[Study]:
    """Return a task that compares what is generated, whose text is known."""
    return (study,) if study.generates and not study.has_own_scorer and not study.has_guessed_text else ()


@query(
    "PF701",
    "only one choice counts as correct, but the doc marks several choices",
    lambda study: () if study.has_own_scorer else own(study),
    at="doc_to_target",
)
def _several_correct_answers(page: Page) -> Iterator[Finding]:
    golds = [request for request in page.instance.requests if request.prompt is not None and request.gold]
    marked = marked_right(page.instance.doc, page.scored) if len(page.scored) > 1 and len(golds) == 1 else ()
    if sum(marked or ()) > 1:
        yield finding("", f"the choices are {page.scored!r}, and their marks {marked}")
    elif marked and sum(marked) == 1 and not marked[page.instance.requests.index(golds[0])]:
        saw = f"the choices are {page.scored!r}, and their marks {marked}"
        yield finding(
            "the gold choice differs from the choice that the doc marks",
            saw,
            do="set doc_to_target to the marked choice",
        )


def marked_right(doc: Mapping[str, Any], choices: Sequence[str]) -> Sequence[int] | None:
    """Return the list of zeros and ones next to the choices in a doc, or in one of its mappings."""
    for fields in (doc, *(value for value in doc.values() if isinstance(value, Mapping))):
        lists = {key: value for key, value in fields.items() if isinstance(value, list) and len(value) == len(choices)}
        if any([str(each).strip() for each in value] == list(choices) for value in lists.values()):
            for value in (value for key, value in lists.items() if _MARKS.fullmatch(str(key))):
                if all(isinstance(each, int) and each in (0, 1) for each in value):
                    return [int(each) for each in value]
    return None


@error_query(
    "PF701",
    "the model must write the index of a choice, but the prompt shows no indices",
    _written_golds,
    at="doc_to_target",
)
def _index_as_answer(study: Study) -> Iterator[Finding]:
    if study.task.doc_to_choice is not None or not all(map(_is_index, study.real_instances)):
        return
    for instance in study.real_instances[:1]:
        yield finding("", f"the gold answer is {instance.target!r}", doc=instance)


def _is_index(instance: Instance) -> bool:
    """Return whether a gold answer is the index of an option, where the prompt does not show the numbers."""
    target, shown = instance.target, first_text(instance)
    if isinstance(target, bool) or not isinstance(target, int | str) or not str(target).strip().isdecimal():
        return False
    index = int(str(target).strip())
    held = [
        value
        for name, value in instance.doc.items()
        if isinstance(value, list) and max(1, index) < len(value) <= 10 and all(isinstance(one, str) for one in value)
        if value[index].strip() in shown or name in _CHOICE_COLUMNS
    ]
    return bool(held) and not re.search(rf"(?<!\d){index}[.):]", shown) and not any(str(index) in one for one in held)


@error_query(
    "PF701",
    "the choices have another order than the labels in a column of the docs",
    task,
    at="doc_to_choice",
    scores=True,
)
def _labels_in_other_order(study: Study) -> Iterator[Finding]:
    choices = study.written.doc_to_choice
    known = {str(one).casefold() for one in choices} if isinstance(choices, list) and study.has_choices else set()
    local = local_questions(study) if len(known) > _PAIR else LocalDocs((), ())
    golds = [str(gold_text(question)).casefold() for question in local.questions]
    for name in local.docs[0] if golds and local.failure is None else ():
        said = [str(doc.get(name)).casefold() for doc in local.docs]
        pairs = Counter(zip(golds, said, strict=True)) if known.issuperset(said) else Counter[tuple[str, str]]()
        is_each_once = len(pairs) == len({gold for gold, _ in pairs}) == len({text for _, text in pairs}) > _PAIR
        others = {pair: count for pair, count in pairs.items() if pair[0] != pair[1]}
        if is_each_once and others and min(others.values()) > 1:
            gold, text = next(iter(others))
            yield finding("", f"where {name} is {text!r}, the gold choice is {gold!r}", field=name)


@query("PF701", "the gold answer is the identifier of the doc", comparing, at="doc_to_target")
def _identifier_as_gold(study: Study) -> Iterator[str]:
    name = gold_column(study)
    golds = [str(doc[name]) for doc in study.real_docs if name in doc]
    are_distinct = not _COPIED.search(study.own_text) and len(golds) > 1 and len(set(golds)) == len(golds)
    if are_distinct and _IDENTIFIER.fullmatch(name) and all(any(map(str.isdigit, gold)) for gold in golds):
        yield f"{name}: {golds[0]}"


@query(
    "PF702",
    "the gold answer has decomposed accents, and is compared without Unicode normalization",
    own,
    at="doc_to_target",
)
def _separate_accents(page: Page) -> Iterator[str]:
    gold, study = page.instance.target, page.study
    composed = unicodedata.normalize("NFC", gold) if isinstance(gold, str) else None
    is_shorter = composed is not None and len(composed) < len(gold)  # else NFC took letters apart, or reordered marks
    for trial in scored_answers(study) if is_shorter else ():
        if trial.instance.doc == page.instance.doc and not trial.counts(str(composed)):
            yield str(gold)


@query("PF702", "gold answers have whole numbers with .0 at the end", comparing, at="doc_to_target")
def _float_as_gold(study: Study) -> Iterator[str]:
    golds = [str(instance.target) for instance in study.real_instances]
    if golds and all(re.fullmatch(r"-?\d+\.0", gold) for gold in golds):
        yield ", ".join(golds[:3])


@query("PF702", "gold answers end with punctuation, which is also compared", comparing, at="doc_to_target")
def _gold_with_marks(study: Study) -> Iterator[str]:
    entries = study.task.metric_list or ()
    if study.shots > 0 or looks_for_answers(study.task):
        return
    if any(one.get("ignore_punctuation") or one.get("regexes_to_ignore") for one in entries):
        return
    golds, asked = [str(instance.target).strip() for instance in study.real_instances], study.own_text
    values = {line.value[-1:] for instance in study.real_instances for line in question_layout(instance).labels}
    if values >= {gold[-1:] for gold in golds}:
        return  # the question has the mark as well
    is_shown = any(gold in asked for gold in golds) or _BOLD.search(asked) is not None
    if len(golds) > 1 and all(_MARKED.fullmatch(gold) for gold in golds) and not is_shown:
        yield ", ".join(golds[:3])


@query("PF702", "several accepted answers are joined into one text", comparing, at="doc_to_target")
def _accepted_answers_joined(study: Study) -> Iterator[Finding]:
    joined = [(instance, _joined(instance)) for instance in study.real_instances if isinstance(instance.target, str)]
    if not joined or looks_for_answers(study.task) or _SEVERAL.search(study.own_text):
        return
    instance, name = joined[0]
    if all(name for _, name in joined):
        yield finding("", str(instance.target)[:60], doc=instance, field=name)


def _joined(instance: Instance) -> str | None:
    """Return the column whose texts the gold answer joins with a mark between them; None if it is no list."""
    for name, values in instance.doc.items():
        texts = [str(one).strip() for one in values] if isinstance(values, list) else []
        if len(texts) > 1 and all(texts):
            mark = re.escape(str(instance.target).removeprefix(texts[0])[:3].strip()[:1])
            if mark and re.fullmatch(rf"\s*{mark}\s*".join(map(re.escape, texts)), str(instance.target).strip()):
                return name
    return None


@rule("PF706", "leaked-gold", severity=Severity.WARNING, family=Family.ANSWERS)
def leaked_gold(study: Study) -> Iterator[Finding]:
    """Report a task in which each prompt contains the gold choice of its doc, but none of the other choices.

    Why: the text of the prompt gives the answer away. The rule needs at least three such docs. If a passage contains
    the answer on purpose, ignore this rule with that reason.

    Fix: remove the passage that contains the answer.

    Real: eval-framework #81 (sciq with its passage).
    """
    if len(study.real_instances) < 3 or not study.has_choices:
        return
    for instance in study.real_instances:
        scored = [request for request in instance.requests if request.continuation and request.prompt is not None]
        golds, others = list[str](), list[str]()
        for request in scored:
            (golds if request.gold else others).append(_words(without_delimiter(study, request.continuation)))
        message = question_message(instance)
        text = _words(message.text) if message is not None else ""
        is_alone = len(golds) == 1 and golds[0] in text and not any(other in text for other in others)
        if not is_alone or len(others) < 2 or len(golds[0]) < _SOME_WORD:
            return
    first = next(request for request in study.real_instances[0].requests if request.gold)
    saw = without_delimiter(study, first.continuation)
    yield finding("in every doc, only the gold choice appears in the prompt", saw, "doc_to_choice", 0)


def _words(text: str) -> str:
    return f" {' '.join(_ANY_WORD.findall(text.casefold()))} "


@query("PF706", "the question contains a solution that ends with the gold answer", task)
def _solution_in_question(study: Study) -> Iterator[Finding]:
    shown = [(one, gold_text(question)) for one, question in _questions_shown(study)]
    if len({gold for _, gold in shown}) < 2 or _COPIED.search(study.own_text):
        return
    for name, value in shown[0][0].doc.items():
        if isinstance(value, str) and all(_concludes(name, gold, instance) for instance, gold in shown):
            yield finding("", value[-60:], field=name)


def _questions_shown(study: Study) -> Sequence[tuple[Instance, Question]]:
    instances, questions = study.real_instances, local_questions(study).questions
    return list(zip(instances, questions, strict=False)) if len(instances) >= _FEW_DOCS else ()


def _concludes(column: str, gold: str | None, instance: Instance) -> bool:
    """Return whether the prompt has a column whose last sentence is "The answer is …" with this answer."""
    spans = (span for prompt in instance.prompts[:1] for span in prompt.spans if span.origin.shot is None)
    sentences = _SENTENCES.split(str(instance.doc.get(column)).strip())
    is_shown = len(sentences) > 1 and any(span.origin.field == column for span in spans)
    return is_shown and _ANSWER.search(sentences[-1]) is not None and _words(gold or "?") in _words(sentences[-1])


@error_query("PF706", "the question contains the gold answer", task)
def _gold_in_question(study: Study) -> Iterator[Finding]:
    text, target = study.written.doc_to_text, study.written.doc_to_target
    if not isinstance(text, str) or not isinstance(target, str) or "{%" in text or _COPIED.search(study.own_text):
        return
    if not (study.generates or study.has_choices) or (study.generates and study.has_own_scorer):
        return  # a function may run the target, tests that the question shows, on what is generated
    whole = _PRINTED.fullmatch(target.strip())
    gold = _bare(whole[1] if whole is not None else target if target.isidentifier() else "")
    is_known = bool(gold) and "question" not in gold and not gold.isdigit()
    for found in _PRINTED.finditer(text):
        shown = _bare(found[1])
        is_gold = is_known and (shown == gold or shown.endswith(f"[{gold}]"))
        if (is_gold or (shown != gold and _has_golds(study, shown))) and not _OPTION.search(text[: found.start()]):
            saw = text[max(0, found.start() - 20) : found.end()]
            yield finding("", saw, severity=None if is_gold else Severity.WARNING)  # which may be what is asked for


def _has_golds(study: Study, column: str) -> bool:
    """Return whether a column that is no option has the gold answer of each doc, too often to be chance."""
    docs = study.local_docs
    if len(docs) < _MANY_DOCS or column not in docs[0] or column in str(study.written.doc_to_choice):
        return False
    local = local_questions(study)
    golds = [gold_text(question) for question in local.questions]
    are_many = len(set(golds)) > (1 if len(golds) > _CERTAINLY_MANY else 2)
    return are_many and None not in golds and [doc.get(column) for doc in local.docs] == golds


def _bare(expression: str) -> str:
    bare = re.sub(r"\s|\|(?:trim|string|int|lower|upper)\b|^\(|\)$", "", expression)
    return re.sub(r"^(?:'\w*'|\"\w*\"|\[[^\[\]]*\])\.index\((\w+)\)?$", r"\1", bare)


@error_query("PF706", "the prompt shows the question with its gold answer, and then asks the question again", task)
def _asked_after_its_answer(study: Study) -> Iterator[str]:
    cued = [(page, [line.strip() for line in page.text.strip().splitlines()]) for page in own(study) if page.cue]
    ends = [(lines[-2:-1], f"{lines[-1]} {str(page.instance.target).strip()}") for page, lines in cued]
    pairs = [[([one], other) for one, other in pairwise(lines)] for _, lines in cued]
    if study.generates and len(ends) > 1 and all(end in shown for end, shown in zip(ends, pairs, strict=True)):
        yield f"{ends[0][0][0]} {ends[0][1]}"[-60:]


@error_query("PF706", "the right option has the same position in every doc", asked_first, at="doc_to_target")
def _gold_in_one_place(page: Page) -> Iterator[str]:
    target, text = page.study.written.doc_to_target, page.study.written.doc_to_text
    is_constant = isinstance(target, int) or (isinstance(target, str) and re.fullmatch(r"\{*\s*\d+\s*\}*", target))
    listed = _LISTED.findall(text) if isinstance(text, str) and "{%" not in text else []
    if is_constant and not isinstance(target, bool) and len(listed) > 1 < len(page.scored):
        yield f"the gold index is always {target}"

"""Rules about choices, and the values of gold columns of all local docs: what they mean, and whether each is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from string import ascii_uppercase
from typing import Any, Final

from pytest_promptfmt.answers.trials import trials_of
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.columns import is_misspelling
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.options import template_names
from pytest_promptfmt.rules.page import Page, asked_first, error_query, own, query, task
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import choices_of, finding, first_text, question_layout, warning
from pytest_promptfmt.rules.scores import is_rate
from pytest_promptfmt.study.gold import compares_likelihoods, gold_column, gold_kind
from pytest_promptfmt.study.layout import follow_each_other
from pytest_promptfmt.tasks import FilterPipeline, Question, looks_for_answers, questions_of

_FEW_MARKS: Final = 2
"""Full stops of a text that is not an abbreviation, such as `U.S.`"""

_FEW_WORDS: Final = 4

_GENERIC: Final = re.compile(r"(?:correct_|gold_|true_|the_)?(?:answer|label|target|gold|class|verdict|output)", re.I)
_BOOLEAN_NAME: Final = re.compile(r"(?:is|has|are|was|contains)_(\w{3,})|(\w{3,})_(?:flag|bool)", re.IGNORECASE)
_NEGATED: Final = re.compile(r"\b(?:not|\w+n't|never|without|lacks?|incorrect|wrong|untrue|opposite|fails?)\b", re.I)
_RATING: Final = re.compile(r"(?:\w+_)?(?:stars?|ratings?)(?:_\w+)?", re.IGNORECASE)
_COLUMN: Final = re.compile(r"\w+|\{\{-? *\w+ *-?\}\}")
_SHIFTED: Final = re.compile(r"\{\{ *(\w+)(?: *\| *int)? *\+ *\d+ *\}\}")
_ENOUGH: Final = 8
"""Docs among which a label from 0 would have a 0."""
_SENTENCE: Final = re.compile(r"[^.!?\n]+")
_LEGEND: Final = re.compile(r"\b(\d)\b[\"')]* ?(?:=|:|-+>?|→|for|means|stands for|is) ?[\"'(]*([^\W\d_]+)", re.I)
_LEGEND_AFTER: Final = re.compile(r"\b([^\W\d_]+)[\"')]* ?(?:=|:|→|as|is|\() ?[\"'(]?([01])\b", re.I)

_CAST: Final = re.compile(r"\{\{-? *(\w+) *\| *int *-?\}\}")
_MOST_LABELS, _MOST_BY_CODE = 20, 30
_LONGEST: Final = 60
"""Characters of a gold answer that a sentence may give."""


@rule("PF703", "padded-choice", severity=Severity.WARNING, family=Family.ANSWERS)
def padded_choice(study: Study) -> Iterator[Finding]:
    """Report choices of which only some begin or end with whitespace.

    Why: if only one choice begins with an additional space, someone edited this choice by hand. In some datasets, it is
    always the right choice.

    Fix: remove the whitespace from the choices in the template.

    Real: lm-evaluation-harness #3500 (mmlu_pro).
    """
    is_fixed = isinstance(study.written.doc_to_choice, list)
    for instance in study.instances if is_fixed else study.real_instances:
        choices = choices_of(study, instance)
        padded = [choice for choice in choices if choice != choice.strip() and choice.strip()]
        if padded and len(padded) < len(choices):
            yield _padded(padded[0], instance.index, ("doc_to_choice",))
            return
        text = first_text(instance)
        options = [
            each
            for value in instance.doc.values()
            if isinstance(value, list | tuple) and 2 <= len(value) <= 30 and all(isinstance(one, str) for one in value)
            for each in (value if 0 < sum(one != one.strip() for one in value) < len(value) else ())
        ]
        for option in options:
            if option[:1] == " " and option.strip() and f" {option}" in text:
                yield _padded(option, instance.index, ("doc_to_text",))
                return


def _padded(choice: str, doc: int, keys: tuple[str, ...]) -> Finding:
    return finding("only some choices begin or end with whitespace", choice, keys, doc)


@rule("PF704", "empty-choice", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def empty_choice(study: Study) -> Iterator[Finding]:
    """Report a choice without a visible character.

    Why: an empty choice has the highest possible likelihood, so the model always chooses it. Every doc with such a
    choice counts as wrong.

    Fix: drop missing choices in `doc_to_choice` or `process_docs`.

    Real: lm-evaluation-harness #1760 (m_arc with four options).
    """
    for instance in study.instances:
        choices = choices_of(study, instance)
        if any(not choice.strip() for choice in choices):
            yield finding("a choice has no visible character", str(choices), "doc_to_choice", instance)


@rule("PF705", "same-choices", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def same_choices(study: Study) -> Iterator[Finding]:
    """Report two choices that are equal, or differ only in case or whitespace.

    Why: two equal choices have equal scores. So the first one always wins over the second one, even if the second one
    is the gold choice.

    Fix: correct the data, or drop such docs in `process_docs`.

    Real: lm-evaluation-harness #3735 (gpqa: options became equal when brackets were removed).
    """
    for instance in study.instances if isinstance(study.written.doc_to_choice, list) else study.real_instances:
        prompts = [prompt.text for prompt in instance.prompts]
        choices = choices_of(study, instance) or (prompts if study.has_choices and len(prompts) > 1 else ())
        bare = [" ".join(choice.casefold().split()) for choice in choices]
        if len(set(bare)) < len(bare):
            same = len(set(choices)) < len(choices)
            if not same and study.has_own_scorer:
                return  # it may add the scores of `yes` and `Yes`
            message = "two choices are equal" if same else "two choices differ only in case or whitespace"
            yield finding(message, str(choices), "doc_to_choice", instance, severity=None if same else Severity.WARNING)


@query("PF714", "the options are listed with letters, but their texts are scored", asked_first, at="doc_to_choice")
def _letters_shown(page: Page) -> Iterator[str]:
    choices, options = page.scored, page.layout.options
    listed = {one.label: one.text.strip() for one in options if one.label in ascii_uppercase and one.space}
    is_listed = 1 < len(choices) <= len(listed) and list(listed.values())[-len(choices) :] == choices
    if page.study.has_choices and is_listed and not any(len(choice) == 1 for choice in choices):
        yield f"'{next(iter(listed))}. {choices[0]}' is listed, but {choices[0]!r} is scored"


@error_query(
    "PF704",
    "a doc has only one choice, so every answer is right",
    lambda study: own(study) if compares_likelihoods(study) else (),
    at="doc_to_choice",
    scores=True,
)
def _single_choice(page: Page) -> Iterator[str]:
    if len(page.scored) == 1:
        yield page.scored[0][:60]


@query("PF703", "", task)
def _one_choice_unlike(study: Study) -> Iterator[Finding]:
    """Report short choices of which only one ends with punctuation, or begins in another letter case."""
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or not all(isinstance(each, str) and each.strip() for each in choices):
        return
    texts = [each.strip() for each in choices]
    marked = [each for each in texts if each[-1] in ".,;:!?)" and each.count(".") < _FEW_MARKS]
    capitals, small = [each for each in texts if each.istitle()], [each for each in texts if each.islower()]
    odd = capitals if len(capitals) == 1 else small
    if len(marked) == 1 < len(texts) and max(len(each.split()) for each in texts) < _FEW_WORDS:
        at = ("doc_to_choice", texts.index(marked[0]))
        yield finding("only one of the choices ends with punctuation", ", ".join(texts), at)
    are_words = all(each.isalpha() and len(each) > 1 for each in texts)
    if are_words and len(capitals) + len(small) == len(texts) > 1 == len(odd):
        at = ("doc_to_choice", texts.index(odd[0]))
        kind = "capital" if odd is capitals else "small"
        yield finding(f"only one choice begins with a {kind} letter", ", ".join(texts), at)


@query("PF703", "a choice is spelled differently from the label in a column", task, at="doc_to_choice")
def _choice_misspelt(study: Study) -> Iterator[Finding]:
    fixed = study.written.doc_to_choice
    choices = [*map(str, fixed)] if isinstance(fixed, list) else []
    for name in study.real_docs[0] if study.real_docs and choices else ():
        values = {str(doc[name]) for doc in study.local_docs if isinstance(doc.get(name), str)}
        odd = values.difference(choices)
        for value in odd if 1 == len(odd) < len(values) else ():
            unlike = (one for one in choices if one not in values)
            near = [one for one in unlike if is_misspelling(one, value) or is_misspelling(value, one)]
            yield from [finding("", f"the choice is {near[0]!r}, but {name} is {value!r}", field=name)] if near else ()


@also("PF701")
def gold_of_opposite_meaning(study: Study) -> Iterator[Finding]:
    """Report a boolean column whose choices are swapped: true selects no, and false selects yes."""
    column = _only_column(study)
    docs = study.docs
    yield from _numbered_otherwise(study)
    if column is None or docs is None or not docs.evaluated or study.has_guessed_text or study.has_own_scorer:
        return
    pair = _values(study, column)
    stem = _stem(column)
    if pair is None or not _is_about(study, column, stem, pair):
        return
    legend = _legend(study)
    golds = [_gold_of(study, {**docs.evaluated[0], column: value}) for value in pair]
    if [_meaning(gold, legend, stem) for gold in golds] == [False, True]:
        saw = f"{column}: {pair[0]!r} is {golds[0]!r}, {pair[1]!r} is {golds[1]!r}"
        at = "doc_to_choice" if study.written.doc_to_choice is not None else "doc_to_target"
        yield finding("the true value of a column selects the negative answer", saw, at, field=column)


def _numbered_otherwise(study: Study) -> Iterator[Finding]:
    """Yield choices that the prompt numbers otherwise, as `0 = no, 1 = yes`, than they are indexed by a column."""
    target, choices = study.written.doc_to_target, study.written.doc_to_choice
    if not isinstance(choices, list) or not isinstance(target, str) or not study.instances or study.has_guessed_text:
        return
    legend = [(int(one[1]), one[2].casefold()) for one in _LEGEND.finditer(study.own_text)]
    texts = [str(one).casefold() for one in choices]
    places = [(number, texts.index(text)) for number, text in legend if text in texts]
    is_swapped = len(places) > 1 and {number for number, _ in places} == {place for _, place in places}
    if is_swapped and target.strip("{} -").isidentifier() and all(number != place for number, place in places):
        saw = f"{', '.join(f'{number} is {text}' for number, text in legend)}; choices are {', '.join(texts)}"
        yield finding("the prompt does not number the choices in the order of doc_to_choice", saw, "doc_to_choice", 0)


def _only_column(study: Study) -> str | None:
    """Return the column of which the gold answer is made, where it is a single one."""
    names = template_names(study.written.doc_to_target)
    known = study.docs.columns if study.docs is not None else ()
    return next(iter(names)) if len(names) == 1 and names <= set(known) and study.renders_fields else None


def _values(study: Study, column: str) -> tuple[Any, Any] | None:
    """Return the values of a column for yes and no; None where it has others, or nothing shows which they are."""
    values = [doc.get(column) for doc in study.local_docs]
    if not values:
        return (1, 0) if _BOOLEAN_NAME.fullmatch(column) or _names_choice(study, column) else None
    if all(isinstance(value, bool) for value in values):
        return True, False
    if all(isinstance(value, int) and value in (0, 1) for value in values):
        return None if _GENERIC.fullmatch(column) else (1, 0)
    folded = {str(value).casefold() for value in values}
    for yes, no in _pairs():
        if folded == {yes, no}:
            of_yes = next(value for value in values if str(value).casefold() == yes)
            return of_yes, next(value for value in values if str(value).casefold() == no)
    shorter, *longer = sorted({*map(str, values)}, key=len)  # such as entailment and not_entailment
    places = [study.task.position(key) for key in ("doc_to_choice", "doc_to_target")]
    is_one_file = len({place.path for place in places if place is not None}) < len(places)  # which knows its order
    is_pair = len(longer) == 1 and _is_negation(longer[0].casefold().replace("_", " "), _stem(shorter))
    return (shorter, longer[0]) if is_pair and not is_one_file else None


def _is_about(study: Study, column: str, stem: str, pair: tuple[Any, Any]) -> bool:
    """Return whether the prompt asks for what the column says, or the choices name it, and nothing turns it round."""
    asked = study.own_text
    if _GENERIC.fullmatch(column):
        return isinstance(pair[0], bool | str) and not _NEGATED.search(asked)
    if _names_choice(study, column):
        return True
    named = [one[0] for one in _SENTENCE.finditer(asked) if re.search(rf"\b{re.escape(stem[:6])}", one[0], re.I)]
    return bool(named) and not any(map(_NEGATED.search, named))


def _names_choice(study: Study, column: str) -> bool:
    """Return whether one choice is the name of the column, and another one the same with a negation."""
    choices, stem = study.written.doc_to_choice, _stem(column)
    texts = [str(one).casefold() for one in choices] if isinstance(choices, list) else []
    return stem in texts and any(_is_negation(text, stem) for text in texts)


def _stem(column: str) -> str:
    found = _BOOLEAN_NAME.fullmatch(column)
    return ((found[1] or found[2]) if found is not None else column).casefold().replace("_", " ")


def _is_negation(text: str, stem: str) -> bool:
    return re.fullmatch(rf"(?:not |non[- ]?|no |un|in|im|ir|dis|il)(?:an? )?{re.escape(stem)}", text) is not None


def _legend(study: Study) -> Mapping[str, str]:
    """Return what labels stand for: options listed with their texts, and `0 = no` or `no (0)` in the instruction."""
    asked = study.own_text
    found = {one[2]: one[1] for one in _LEGEND_AFTER.finditer(asked)}
    found |= {one[1]: one[2] for one in _LEGEND.finditer(asked)}
    return found | {option.label: option.text.strip() for option in question_layout(study.instances[0]).listed}


def _gold_of(study: Study, doc: Mapping[str, Any]) -> str:
    """Return the text of the gold answer of a doc, "" where there is none."""
    try:
        question = questions_of(study.bound, [doc])[0]
    except PromptfmtError:
        return ""
    choices, target = question.choices, question.target
    if isinstance(choices, list) and isinstance(target, int):
        return str(choices[target]).strip() if 0 <= target < len(choices) else ""
    return str(target).strip()


def _meaning(gold: str, legend: Mapping[str, str], stem: str) -> bool | None:
    """Return whether an answer means yes; None where it means neither yes nor no."""
    text = legend.get(gold, gold).casefold().strip(" .()[]\"'")
    if text == stem or _is_negation(text, stem):
        return text == stem
    found = {text == yes for yes, no in _pairs() if text in (yes, no)}
    return found.pop() if len(found) == 1 else None


def _pairs() -> Sequence[tuple[str, str]]:
    return [(yes.casefold(), no.casefold()) for yes, no in data_table("contract")["pairs"]]


@query("PF701", "a rating that starts at 1 is used as an index, but indices start at 0", task, at="doc_to_target")
def _rating_as_index(study: Study) -> Iterator[Finding]:
    column, choices = _only_column(study), study.written.doc_to_choice
    are_numbers = isinstance(choices, list) and [*map(str, choices)] == [str(each + 1) for each in range(len(choices))]
    if column is None or not study.has_choices or not isinstance(choices, list) or not are_numbers:
        return
    values = [doc.get(column) for doc in study.local_docs]
    is_index = gold_column(study) == column
    if not values or not is_index or not all(isinstance(each, int) and 0 < each <= len(choices) for each in values):
        return
    if _RATING.fullmatch(column) or (len(values) >= _ENOUGH and len(set(values)) > 1):
        yield finding(
            "",
            f"the ratings are {', '.join(map(str, values[:3]))}; the rating 1 selects the choice {choices[1]!r}",
            doc=0,
        )


@query("PF701", "the gold index is shifted, although the column already counts from 0", task, at="doc_to_target")
def _index_shifted(study: Study) -> Iterator[Finding]:
    shifted, choices = _SHIFTED.fullmatch(str(study.written.doc_to_target).strip()), study.written.doc_to_choice
    shown = [one.label for each in study.instances[:1] for one in question_layout(each).listed_in_other_scripts]
    are_labels = isinstance(choices, list) and (shown == choices or follow_each_other([str(each) for each in choices]))
    is_column = study.has_choices and isinstance(choices, str) and _COLUMN.fullmatch(choices.strip()) is not None
    if shifted is None or not (are_labels or is_column):
        return
    values = [doc.get(shifted[1]) for doc in study.local_docs]
    lists = [len(each) for doc in study.local_docs for each in doc.values() if isinstance(each, list)]
    # of which the options are the others
    is_after_one = isinstance(choices, list) and (len(choices) - 1 in lists or str(choices[0]) == "0")
    if 0 in values and not is_after_one and all(isinstance(each, int) and each >= 0 for each in values):
        yield finding("", f"{shifted[1]} is 0 in doc {values.index(0)}", field=shifted[1])


@error_query(
    "PF701", "a negative index selects the gold answer from the end of a list", task, at="doc_to_target", scores=True
)
def _negative_index(study: Study) -> Iterator[Finding]:
    """Report a column with -1, if this value selects the last label of a list."""
    docs = study.local_docs if study.renders_fields else ()
    rows = [(name, doc) for doc in docs for name, value in doc.items() if type(value) is int and value == -1]
    for name, doc in rows[:1]:
        found = [[_gold_of(study, {**one, name: value}) for value in range(_MOST_LABELS)] for one in (doc, *docs[:2])]
        golds = list(takewhile(bool, found[0]))
        lowest, last = (_gold_of(study, {**doc, name: value}) for value in (-1 - len(golds), -1))
        are_labels = found.count(found[0]) == len(found) and 1 < len(golds) == len(set(golds)) < _MOST_LABELS
        if are_labels and not lowest and last == golds[-1]:
            yield finding("", f"{name} is -1 in a doc; -1 and {len(golds) - 1} both give {last!r}", field=name)


@error_query("PF701", "Jinja's filter int turns every text of the column into 0", task, at="doc_to_target", scores=True)
def _text_cast_to_number(study: Study) -> Iterator[str]:
    cast = _CAST.fullmatch(str(study.written.doc_to_target))
    held = [doc.get(cast[1]) for doc in study.local_docs] if cast is not None else []
    values = {value for value in held if isinstance(value, str) and not re.search(r"\d", value)}
    if len(values) > 1 and all(value in values for value in held):
        yield ", ".join(sorted(values)[:3])


@dataclass(frozen=True, slots=True)
class LocalDocs:
    """The user's docs, many more than are rendered, each with what scoring needs, up to one where that fails."""

    docs: Sequence[Mapping[str, Any]]
    questions: Sequence[Question]
    failure: PromptfmtError | None = None


def local_questions(study: Study) -> LocalDocs:
    """Return the user's docs with their golds and choices; none where nothing is rendered or scored by docs."""
    return study.once("local questions", lambda: _questions(study))


def _questions(study: Study) -> LocalDocs:
    docs = study.local_docs if study.failure is None and study.renders_fields else ()
    if not docs:
        return LocalDocs((), ())
    try:
        are_rendered = len(docs) == len(study.instances)
        return LocalDocs(docs, study.scoring_of_prompts.questions if are_rendered else questions_of(study.bound, docs))
    except PromptfmtError as error:
        failure = error  # which names the doc
    questions: list[Question] = []
    for doc in docs:
        try:
            questions += questions_of(study.bound, [doc])
        except PromptfmtError:
            return LocalDocs(docs, questions, failure)
    return LocalDocs(docs, questions)


@also("PF109", severity=Severity.ERROR)
def later_doc_fails(study: Study) -> Iterator[Finding]:
    """Report a template or function that fails on a local doc that is not in the snapshot."""
    local = local_questions(study)
    number = len(local.questions)
    if local.failure is not None and number >= len(study.real_docs):
        failure, message = local.failure, "a doc that is not in the snapshot cannot be rendered"
        yield finding(message, failure.message, failure.position, number, do=failure.hint or "")


@also("PF512", severity=Severity.ERROR, scores=True)
def later_gold_misread(study: Study) -> Iterator[Finding]:
    """Report filters that extract the gold answers of the first docs, but misread the gold answer of a later doc."""
    if not study.generates or not (study.has_own_scorer or (looks_for_answers(study.task) and study.task.filter_list)):
        return
    local = local_questions(study)
    first = len(study.real_docs)
    if len(local.questions) <= first or gold_kind(study) != "text":
        return
    trials = scored_answers(study)
    if not trials or any(trial.error for trial in trials):
        return
    chain, are_short = trials[0].chain, all(_is_short(trial.gold) for trial in trials)
    if study.has_own_scorer and is_rate(study, trials_of(study)):
        return
    known = [(trial.question, trial.instance.doc) for trial in trials]
    asked = [form.written("{}") for form in study.contract.wrapped]
    forms = ["{}", *(asked if are_short else ()), *(data_table("rules")["gold_forms"] if are_short else ())]
    for number, pipeline in enumerate(chain.pipelines):

        def reads(form: str, question: Question, row: Doc, pipeline: FilterPipeline = pipeline) -> bool:
            return chain.reads_right(pipeline, _said(form, question.target), question, row)

        read = [form for form in forms if all(reads(form, *one) for one in known)]
        most = first + _MOST_BY_CODE if study.has_own_scorer else None
        later = list(zip(local.questions, local.docs, strict=False))[first:most]
        for doc, (question, row) in enumerate(later if read else (), first):
            if (_is_short(question.target) or not are_short) and not any(reads(form, question, row) for form in read):
                text = _said(read[0], question.target)
                saw = (
                    f"the filter extracts {chain.read(pipeline, text, row, 'a gold answer').extracted!r} from {text!r}"
                )
                lost = "for some docs, the gold answer does not score better than a wrong one"
                if not study.has_own_scorer:
                    yield finding("a filter misreads the gold answer of a doc", saw, ("filter_list", number), doc)
                else:
                    yield warning(lost, saw, "process_results", doc)
                return


def _is_short(gold: Any) -> bool:
    return isinstance(gold, str | int | float) and 0 < len(str(gold).strip()) <= _LONGEST and "\n" not in str(gold)


def _said(form: str, gold: Any) -> str:
    return form.replace("{{", "{").replace("}}", "}").replace("{}", str(gold).strip(), 1)

"""Rules about few-shot examples: unused or leaked ones, and examples unlike the question in labels and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from pytest_promptfmt.answers.phrasings import answer_words
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.prompt import Message, join
from pytest_promptfmt.core.task import UNSET, Task, Unset
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.page import Page, demonstrated, error_query, given_shots, own, query, shown, task
from pytest_promptfmt.rules.rule_views import (
    Shot,
    compares_whole,
    finding,
    has_given_shots,
    severity_of_shots,
    shots_of,
    warning,
)
from pytest_promptfmt.study.layout import layout_of

_NUMBER: Final = r"(\d[\d,]*(?:\.\d+)?)"
_CALCULATED: Final = re.compile(
    rf"[-+*/×÷x] ?\d[\d.,]* ?= ?{_NUMBER}(?: [^\W\d_]+){{0,2}}[.\n][^\d.=\n]{{0,30}}"
    rf"(?:answer|{'|'.join(map(re.escape, answer_words().values()))})(?: [^\W\d_]{{1,4}}){{0,2}}[:：]? ?{_NUMBER}\.?$",
    re.IGNORECASE,
)
"""A calculation, at most two words after its result, and a last sentence that states a number as the answer."""

_FEWEST_ALIKE: Final = 2
_FEW_WORDS: Final = 3


@rule("PF801", "unused-samples", severity=Severity.ERROR, family=Family.FEWSHOT)
def unused_samples(study: Study) -> Iterator[Finding]:
    """Report `fewshot_config.samples` that are never used.

    Why: if the task has a few-shot split, lm-eval ignores `samples`. If a task has `num_fewshot: 0`, lm-eval shows no
    examples, even if the command line requests some. In both cases, no prompt has the examples of the file.

    Fix: remove the few-shot split, and set `num_fewshot`.

    Real: lm-evaluation-harness #2299 (mmlu_flan_cot_fewshot).
    """
    task = study.written
    saw, at = f"split {_pool_split(task)!r}", ("fewshot_config", "samples")
    if task.fewshot.samples is None:
        return
    if _pool_split(task) is not None:
        message = "fewshot_config.samples are never used, because the few-shot split replaces them"
        yield finding(message, saw, at, do="remove the few-shot split")
    elif task.num_fewshot == 0 and _in_one_file(task, ("num_fewshot",), at):
        message = "fewshot_config.samples are never used, because num_fewshot is 0"
        yield warning(message, at="num_fewshot", do="set num_fewshot")


@query("PF801", "num_fewshot is under metadata, where lm-eval ignores it", task, at="metadata")
def _shots_in_metadata(study: Study) -> Iterator[str]:
    metadata = study.config.get("metadata")
    number = metadata.get("num_fewshot") if isinstance(metadata, Mapping) else None
    if study.written.fewshot.samples is not None and study.written.num_fewshot is None and number:
        yield f"num_fewshot: {number}"


@rule("PF803", "shots-from-test", severity=Severity.WARNING, family=Family.FEWSHOT)
def shots_from_test(study: Study) -> Iterator[Finding]:
    """Report few-shot examples from the evaluated split.

    Why: if a task has no few-shot, training or validation split, lm-eval silently draws examples from the test split.
    Some prompts then contain their own answer. If `fewshot_split` names the evaluated split, although the task has
    another split, lm-eval does not use the evaluated doc as its own example. But the prompts still contain other test
    docs with their answers.

    Fix: set `fewshot_split` to another split, or write `fewshot_config.samples`.

    Real: lm-evaluation-harness #4145, #4168; release 0.4.13 has 3,356 tasks in which this can happen.
    """
    task, data = study.written, study.written.dataset
    if task.fewshot.samples is not None and _pool_split(task) is None:
        return
    own = _pool_split(task)
    if own is not None:
        others = {data.training_split, data.validation_split} - {None, own}
        if own == data.evaluation_split and others and (task.num_fewshot or 0) > 0:
            saw = f"split {own!r}, not {' or '.join(sorted(map(repr, others)))}"
            yield finding("few-shot examples come from the evaluated split", saw, "fewshot_split")
        return
    if data.training_split is None and data.validation_split is None and data.test_split is not None:
        # Releases that make no turns drop a shot that equals the evaluated doc, and draw no other one.
        how = (
            "and the evaluated doc can be one of them"
            if task.release.makes_turns
            else "and there is one example less if the evaluated doc is one of them"
        )
        severity, at = (None, "num_fewshot") if task.num_fewshot else (Severity.INFO, "test_split")
        message, saw = f"few-shot examples come from the test split, {how}", f"split {data.test_split!r}"
        yield finding(message, saw, at, severity=severity)


@error_query(
    "PF803",
    "a doc is one of its own few-shot examples",
    lambda study: own(study) if has_given_shots(study) and study.shots else (),
    at="fewshot_split",
)
def _own_shot(page: Page) -> Iterator[str]:
    if any(shot.messages[0].text == page.text and shot.answer for shot in page.shots) and len(page.text.strip()) > 11:
        yield page.text[-60:]


@rule("PF806", "answer-in-user-turn", severity=Severity.ERROR, family=Family.FEWSHOT)
def answer_in_user_turn(study: Study) -> Iterator[Finding]:
    """Report few-shot examples whose question contains the answer, and whose target is empty.

    Why: with a chat template, such answers are in user turns, and there are no assistant turns. The model sees a user
    who answers their own questions.

    Fix: put the answer into `fewshot_config.doc_to_target`.

    Real: lm-evaluation-harness #3693 (mmlu_pro), #3747 (mmlu_pro_plus), #2780.
    """
    task = study.written
    own = task.fewshot.doc_to_target
    if isinstance(own, str) and own == "" and not isinstance(task.fewshot.doc_to_text, Unset):
        saw = next((shot.question[-60:] for each in study.demonstrated[:1] for shot in shots_of(each)), "")
        message = "few-shot answers are in the user's turn, because fewshot_config.doc_to_target is empty"
        yield finding(message, saw, ("fewshot_config", "doc_to_target"))
        return
    for page in demonstrated(study):
        empty = next((shot for shot in page.shots if not (shot.answer or "").strip()), None)
        if empty is not None:
            message, do = "a few-shot example has no answer, because its target is empty", "give every example a target"
            at, severity = ("fewshot_config", "doc_to_target"), severity_of_shots(study)
            yield finding(message, empty.question[-60:], at, page.instance, severity=severity, do=do)


@query("PF807", "", shown, at=("fewshot_config", "doc_to_text"), name="shots-unlike-question", family=Family.FEWSHOT)
def _unlike_question(page: Page) -> Iterator[Finding]:
    """Report few-shot examples whose layout differs from the question, for example because of another cue.

    Why: a model imitates the few-shot examples. If the examples have the cue `Answer:`, but the question ends with
    `A:`, the model sees two layouts. The same is true if only the examples or only the question has a cue, or a space
    after the cue. If a task has no few-shot examples, the rule checks it with two examples.

    Fix: use the same layout for few-shot examples and the question.

    Real: lm-evaluation-harness #2587 (mgsm), #1055.
    """
    shots = [shot for shot in page.shots if (shot.answer or "").strip()]  # PF806 reports the others
    asked = [page.message, *(shot.messages[0] for shot in shots)]
    if not shots or page.study.task.gen_prefix:
        return
    if page.study.asks_by_code and not all(any(span.origin.field for span in each.content) for each in asked):
        return  # it is not known where the columns are
    cue = _cue(page.message)
    other = next((_cue(shot.messages[0]) for shot in shots if not _goes_on_as(cue, shot)), None)
    if other is None or not (_is_cue(cue) or _is_cue(other)):
        return
    if cue.strip() == other.strip():
        message = "spaces around the answer cue differ between few-shot examples and the question"
    elif not other.strip() or not cue.strip():
        message = "only the question has an answer cue" if cue.strip() else "only few-shot examples have an answer cue"
    else:
        message = "few-shot examples and the question have different answer cues"
    yield finding(message, f"{other!r} in a few-shot example, but {cue!r} in the question")


def _goes_on_as(cue: str, shot: Shot) -> bool:
    """Return whether a few-shot example ends with this cue, or its answer begins with the rest of it."""
    own = _cue(shot.messages[0])
    whole = f"{own}{join(shot.messages[0].delimiter)}{shot.answer or ''}"
    return own == cue or (0 < len(own) < len(cue) and whole.startswith(cue))


def _cue(message: Message) -> str:
    """Return the constant text after the last column of a question, of its last line; "" if it ends with a column."""
    text = join([*takewhile(lambda span: span.origin.field is None, reversed(message.content))][::-1])
    kept = text.rstrip()
    return kept.rpartition("\n")[2].lstrip() + text[len(kept) :] if kept else text


def _is_cue(text: str) -> bool:
    return text.rstrip().endswith((":", "：")) and len(text) <= 40


def _pool_split(task: Task) -> Any:
    return task.dataset.fewshot_split if isinstance(task.fewshot.split, Unset) else task.fewshot.split


def _in_one_file(task: Task, *keys: tuple[str, ...]) -> bool:
    """Return whether keys are in the same file: a file may switch off what its include sets."""
    positions = [task.position(*path) for path in keys]
    return len({position.path for position in positions if position is not None}) <= 1


@query("PF242", "the prompt contains a few-shot example twice", given_shots)
def _shot_repeated(page: Page) -> Iterator[Finding]:
    at = ("fewshot_config", "samples") if page.study.task.fewshot.samples is not None else ("fewshot_split",)
    texts = [f"{shot.question}{shot.answer}".strip() for shot in page.shots]
    yield from (
        finding("", shot.question[-60:], at)
        for number, shot in enumerate(page.shots)
        if texts[number] in texts[:number] and len(texts[number]) > 12
    )


@error_query(
    "PF807",
    "few-shot examples have the choices in another order than the question",
    task,
    at=("fewshot_config", "doc_to_choice"),
)
def _labels_in_other_order(study: Study) -> Iterator[str]:
    fewshot, scored = study.written.fewshot, study.written.doc_to_choice
    shown = fewshot.doc_to_choice
    if not (isinstance(shown, list) and isinstance(scored, list)) or shown == scored:
        return
    is_same = fewshot.doc_to_target in (UNSET, study.written.doc_to_target) and fewshot.process_docs is UNSET
    is_index = not any(one.target in shown for one in study.instances)  # the text of a label has no order
    if is_same and is_index and sorted(map(str, shown)) == sorted(map(str, scored)):
        yield f"{shown} in few-shot examples, but {scored} in the question"


@query("PF807", "all few-shot examples have the same answer", given_shots, at=("fewshot_config", "samples"))
def _one_answer_for_all(page: Page) -> Iterator[str]:
    answers = [(shot.answer or "").strip() for shot in page.shots]
    samples = page.study.written.fewshot.samples
    is_same_for_all = page.study.shots and isinstance(samples, list) and len(samples) == len(answers)
    if is_same_for_all and len(answers) > _FEWEST_ALIKE and len(set(answers)) == 1 < len(set(page.scored)):
        yield answers[0]


@query(
    "PF807",
    "the answer of a few-shot example differs from the result of its calculation",
    given_shots,
    at="fewshot_config",
)
def _other_than_calculated(page: Page) -> Iterator[str]:
    """Report an example that calculates `6 x 5 = 30`, but then has another number as its answer."""
    for shot in page.shots:
        found = _CALCULATED.search((shot.answer or "").strip())
        result, stated = (float(one.replace(",", "")) for one in found.groups()) if found is not None else (0, 0)
        if found is not None and abs(stated - result) >= 1 and stated != 100 * result:  # else it is rounded
            yield found[0][-60:]


@error_query(
    "PF807", "few-shot answers only repeat a column that their question shows", given_shots, at=("fewshot_config",)
)
def _answers_repeat_question(page: Page) -> Iterator[str]:
    """Report examples whose answer repeats a column of their question, although no gold answer does."""
    shots = [shot for shot in page.shots if len((shot.answer or "").split()) >= _FEW_WORDS]
    columns = [{span.text.strip() for span in shot.messages[0].content if span.origin.field} for shot in shots]
    are_repeated = all((shot.answer or "").strip() in texts for shot, texts in zip(shots, columns, strict=True))
    docs = page.study.real_instances
    is_copied = any(str(one.target).strip() in one.prompts[0].text for one in docs)
    if docs and are_repeated and not is_copied and len(page.shots) == len(shots) > 1:
        yield (shots[0].answer or "").strip()[:60]


def _compared(study: Study) -> Sequence[Page]:
    """Return the page with few-shot examples of a task whose whole completions are compared with the user's golds."""
    return demonstrated(study) if study.has_real_docs and compares_whole(study) else ()


@error_query("PF807", "", _compared, at=("fewshot_config", "doc_to_target"))
def _answer_otherwise(page: Page) -> Iterator[Finding]:
    """Report few-shot examples whose answers have another form than the scored answers, such as sentences."""
    golds = [str(instance.target).strip() for instance in page.study.real_instances]
    answers = [shot.answer.strip() for shot in page.shots if shot.answer]
    labels, severity = page.layout.listed_labels, severity_of_shots(page.study)
    if not answers or not golds:
        return
    saw = f"a few-shot example answers {answers[0][:50]!r}, but gold is {golds[0][:50]!r}"
    sides = [{text in labels for text in texts} for texts in (answers, golds)]
    if len(labels) > 1 and {True} in sides and {False} in sides and has_given_shots(page.study):
        how, scored = ("labels", "texts") if sides[0] == {True} else ("texts", "labels")
        message = f"few-shot examples answer with {how} of options, but {scored} are scored"
        yield finding(message, saw, severity=severity)
    styles = [{_style(text) for text in texts} for texts in (answers, golds)]
    if has_given_shots(page.study) and len(answers) > 1 and any(map(_differs, *map(_common, styles))):
        yield warning("few-shot answers and gold answers differ in form", saw)


def _style(text: str) -> tuple[bool, bool | None, bool, str]:
    """Return whether a text ends with a mark, is in capitals (None without letters), is a number, and its pair."""
    pairs = (" ".join(pair) for pair in data_table("contract")["pairs"] if text.casefold().strip(" .") in pair)
    is_case = text.isupper() if len(text) > 1 and text.upper() != text.lower() else None
    return text[-1:] in ".?!", is_case, text[:1].isdigit(), next(pairs, "")


def _common(styles: set[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return what all styles have in common, None for what differs."""
    return tuple(each[0] if len(set(each)) == 1 else None for each in zip(*styles, strict=True))


def _differs(one: Any, other: Any) -> bool:
    return None not in (one, other) and one != other and "" not in (one, other)


@query(
    "PF807",
    "few-shot examples and the question begin with different labels, or with different spaces after the label",
    shown,
    at=("fewshot_config", "doc_to_text"),
)
def _other_labels(page: Page) -> Iterator[Finding]:
    asked = [page.message.content, *(shot.messages[0].content for shot in page.shots)]
    asked = [spans for spans in asked if any(span.origin.field for span in spans)]
    begun = [layout_of(join(takewhile(lambda span: not span.origin.field, spans))).cue for spans in asked]
    leads = [f"{one.name}{one.colon}{one.space}" for one in begun if one is not None]
    other = next((lead for lead in leads if lead != leads[0]), None)
    if len(leads) == len(asked) == len(page.shots) + 1 and other is not None:
        saw = f"{other!r} in a few-shot example, but {leads[0]!r} in the question"
        yield finding("", saw, severity=severity_of_shots(page.study))

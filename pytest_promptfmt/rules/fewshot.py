"""Rules about few-shot examples: unused or leaked ones, and examples unlike the question in labels and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.core.prompt import Message, join
from pytest_promptfmt.core.task import Task, Unset
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    Shot,
    finding,
    has_given_shots,
    listed_labels,
    question_message,
    scores_exact_match,
    severity_of_shots,
    shots_of,
)
from pytest_promptfmt.rules.shot_layout import ANNOUNCED
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.tasks import leaves_evaluated_doc_out, looks_for_answers

_STEPS: Final = re.compile(r"(?:step[- ]by[- ]step|chain[- ]of[- ]thought|reasoning)[^\n]{0,20}\Z", re.I)
_PLAIN: Final = re.compile(r"\w+|\{\{-?\s*[\w.\[\]'\"]+\s*-?\}\}")
"""A `doc_to_target` that is one column."""

_SENTENCE: Final = 6
"""Words of an answer that is a sentence."""

_FEW: Final = 3
"""Words of an answer without any reasoning."""


@rule("PF801", "unused-samples", severity=Severity.ERROR, family=Family.FEWSHOT)
def unused_samples(study: Study) -> Iterator[Finding]:
    """Report `fewshot_config.samples` that are never used.

    Why: a few-shot split overrides samples, and `num_fewshot: 0` cannot be changed on the command line. The solved
    examples in the file are then in no prompt.

    Fix: remove the split, and set `num_fewshot`.

    Real: lm-evaluation-harness #2299 (mmlu_flan_cot_fewshot).
    """
    task = study.written
    if task.fewshot.samples is None:
        return
    if _pool_split(task) is not None:
        yield finding(
            "fewshot_config.samples are never used: the few-shot split replaces them",
            f"split {_pool_split(task)!r}",
            ("fewshot_config", "samples"),
            do="remove the split",
        )
    elif task.num_fewshot == 0 and _in_one_file(task, ("num_fewshot",), ("fewshot_config", "samples")):
        yield finding(
            "fewshot_config.samples are never used: num_fewshot is fixed to 0",
            at="num_fewshot",
            severity=Severity.WARNING,
            do="set num_fewshot",
        )


@also("PF801")
def ignored_indices(study: Study) -> Iterator[Finding]:
    """Report `fewshot_indices`, which lm-eval 0.4.13 accepts and ignores."""
    written = study.config.get("fewshot_config")
    if isinstance(written, dict) and "fewshot_indices" in written:
        yield finding(
            "fewshot_indices have no effect", str(written["fewshot_indices"]), ("fewshot_config", "fewshot_indices")
        )


@rule("PF803", "shots-from-test", severity=Severity.WARNING, family=Family.FEWSHOT)
def shots_from_test(study: Study) -> Iterator[Finding]:
    """Report few-shot examples from the evaluated split.

    Why: without a few-shot, training or validation split, lm-eval silently draws from the test split, and does not
    leave the evaluated doc out. Some prompts then contain their own answer. Where `fewshot_split` names the evaluated
    split, the doc is left out, but its neighbours are shown with their answers, although there is another split.

    Fix: set `fewshot_split`, or write `samples`.

    Real: lm-evaluation-harness #4145, #4168; it can happen to 3,356 tasks of its 0.4.13.
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
            "including the evaluated doc"
            if task.release.makes_turns
            else "and one less where the evaluated doc is drawn"
        )
        yield finding(
            f"few-shot examples come from the test split, {how}",
            f"split {data.test_split!r}",
            "num_fewshot" if task.num_fewshot else "test_split",
            severity=None if (task.num_fewshot or 0) > 0 else Severity.INFO,
        )


@also("PF803", severity=Severity.INFO)
def extra_shot_drawn(study: Study) -> Iterator[Finding]:
    """Report a task whose few-shot examples lm-eval draws as if they came from the test split."""
    task = study.written
    if leaves_evaluated_doc_out(task) and task.dataset.test_split is None and task.num_fewshot != 0:
        yield finding(
            "lm-eval draws one extra few-shot example: test_split and fewshot_split are missing",
            at="num_fewshot" if task.num_fewshot else "validation_split",
        )


@also("PF803", severity=Severity.ERROR)
def own_shot(study: Study) -> Iterator[Finding]:
    """Report a doc that is one of its own few-shot examples, with its answer."""
    if not has_given_shots(study) or study.shots == 0:
        return
    for instance in study.real_instances:
        asked = question_message(instance)
        if asked is None or len(asked.text.strip()) < 12:
            continue
        for shot in shots_of(instance):
            if shot.messages[0].text == asked.text and shot.answer:
                yield finding(
                    "a doc appears as one of its own few-shot examples", asked.text[-60:], "fewshot_split", instance
                )
                return


@rule("PF806", "answer-in-user-turn", severity=Severity.ERROR, family=Family.FEWSHOT)
def answer_in_user_turn(study: Study) -> Iterator[Finding]:
    """Report few-shot examples whose answer is part of the question because their target is empty.

    Why: with a chat template the answers are then in the turns of the user, and the assistant has none. The model sees
    a user who answers their own questions.

    Fix: put the answer into `fewshot_config.doc_to_target`.

    Real: lm-evaluation-harness #3693 (mmlu_pro), #3747 (mmlu_pro_plus), #2780.
    """
    task = study.written
    own = task.fewshot.doc_to_target
    if isinstance(own, str) and own == "" and not isinstance(task.fewshot.doc_to_text, Unset):
        saw = next((shot.question[-60:] for each in study.demonstrated[:1] for shot in shots_of(each)), "")
        message = "few-shot answers are in the user's turn: their target is empty"
        yield finding(message, saw, ("fewshot_config", "doc_to_target"))
        return
    for instance in study.demonstrated[:1]:
        shots = shots_of(instance)
        empty = [shot for shot in shots if shot.answer is None or not shot.answer.strip()]
        if empty:
            yield finding(
                "a few-shot example has no answer: its target is empty",
                empty[0].question[-60:],
                ("fewshot_config", "doc_to_target"),
                instance,
                severity=severity_of_shots(study),
                do="give every few-shot example a target",
            )
            return


@rule("PF807", "shots-unlike-question", severity=Severity.WARNING, family=Family.FEWSHOT)
def unlike_question(study: Study) -> Iterator[Finding]:
    """Report few-shot examples unlike the question, such as ones that end with another cue.

    Why: a model imitates the examples. Examples that end with `Answer:` and a question that ends with `A:` are two
    layouts. So are `Answer:` and `Answer: `, or a cue that only one of them has. Tasks without any are tried with two.

    Fix: use the same layout for few-shot examples and the question.

    Real: lm-evaluation-harness #2587 (mgsm), #1055.
    """
    for instance in () if study.has_guessed_text else study.with_shots[:1]:
        asked = question_message(instance)
        shots = [shot for shot in shots_of(instance) if (shot.answer or "").strip()]  # PF806 reports the others
        if asked is None or not shots or study.task.gen_prefix:
            return
        questions = [asked, *(shot.messages[0] for shot in shots)]
        if study.asks_by_code and not all(any(span.origin.field for span in each.content) for each in questions):
            return  # it is not known where the columns are
        cue = _cue(asked)
        other = next((_cue(shot.messages[0]) for shot in shots if not _goes_on_as(cue, shot)), None)
        if other is None or not (_is_cue(cue) or _is_cue(other)):
            return
        if cue.strip() == other.strip():
            message = "few-shot examples and the question have different spaces next to their cue"
        elif not other.strip() or not cue.strip():
            message = "only the question has a cue" if cue.strip() else "only few-shot examples have a cue"
        else:
            message = "few-shot examples end with another cue than the question"
        saw = f"{other!r} in a few-shot example, {cue!r} in the question"
        yield finding(message, saw, ("fewshot_config", "doc_to_text"), instance)


def _goes_on_as(cue: str, shot: Shot) -> bool:
    """Return whether a few-shot example ends with this cue, or its answer begins with the rest of it."""
    own = _cue(shot.messages[0])
    whole = f"{own}{join(shot.messages[0].delimiter)}{shot.answer or ''}"
    return own == cue or (0 < len(own) < len(cue) and whole.startswith(cue))


def _cue(message: Message) -> str:
    """Return the constant text after the last column of a question, of its last line; "" if it ends with a column."""
    text = ""
    for span in reversed(message.content):
        if span.origin.field is not None:
            break
        text = span.text + text
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


@rule("PF814", "shot-repeated", severity=Severity.WARNING, family=Family.FEWSHOT)
def shot_repeated(study: Study) -> Iterator[Finding]:
    """Report a few-shot example that the prompt shows twice.

    Why: it was copied and not changed. The prompt has one example less than intended, and the model sees one answer
    more often than the others.

    Fix: replace one of them.

    Real: hand-written examples, and few-shot splits with duplicate rows.
    """
    is_given = has_given_shots(study)
    for instance in study.demonstrated[:1] if is_given else ():
        seen: set[str] = set()
        for shot in shots_of(instance):
            text = f"{shot.question}{shot.answer}".strip()
            if text in seen and len(text) > 12:
                yield finding(
                    "a few-shot example is shown twice",
                    shot.question[-60:],
                    ("fewshot_config", "samples") if study.task.fewshot.samples is not None else ("fewshot_split",),
                    instance,
                )
                return
            seen.add(text)


@also("PF807")
def other_labels(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that begin with another label than the question, or with other spaces after it."""
    for instance in () if study.has_guessed_text else study.with_shots[:1]:
        asked = question_message(instance)
        own = _first_label(asked) if asked is not None else None
        for shot in shots_of(instance):
            other = _first_label(shot.messages[0])
            if own is None or other is None or own == other:
                continue
            what = "another label than" if own[0] != other[0] else "another space after their label than"
            message = f"few-shot examples have {what} the question"
            saw = f"{''.join(other)!r} in a few-shot example, {''.join(own)!r} in the question"
            yield finding(message, saw, ("fewshot_config", "doc_to_text"), instance, severity=severity_of_shots(study))
            return


def _first_label(message: Message) -> tuple[str, str] | None:
    """Return the label before the first column of a question, and the space after it."""
    constant = ""
    for span in message.content:
        if span.origin.field is not None:
            label = layout_of(constant).cue
            return (label.name + label.colon, label.space) if label is not None else None
        constant += span.text
    return None


@also("PF807")
def answer_otherwise(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that answer in sentences where the gold answers are single words or numbers."""
    if not study.generates or study.has_own_scorer or looks_for_answers(study.task):
        return
    if not scores_exact_match(study) or not study.has_real_docs:
        return
    golds = [instance.target for instance in study.real_instances]
    if not golds or not all(isinstance(gold, str) and len(gold.split()) == 1 for gold in golds):
        return
    for instance in study.demonstrated[:1]:
        answers = [shot.answer.strip() for shot in shots_of(instance) if shot.answer]
        if answers and all(len(answer.split()) >= _SENTENCE for answer in answers):
            yield finding(
                "few-shot examples answer in sentences, but single words are scored",
                f"{answers[0][:50]!r}, gold is {golds[0]!r}",
                ("fewshot_config", "doc_to_target"),
                instance,
                severity=severity_of_shots(study),
            )


@also("PF807", severity=Severity.ERROR)
def shots_of_another_kind(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that answer with the label of an option where its text is scored, or the reverse."""
    if not study.generates or study.has_own_scorer or looks_for_answers(study.task) or not study.has_real_docs:
        return
    golds = [str(instance.target).strip() for instance in study.real_instances]
    for instance in study.demonstrated[:1] if scores_exact_match(study) and has_given_shots(study) else ():
        labels = listed_labels(instance)
        answers = [shot.answer.strip() for shot in shots_of(instance) if shot.answer]
        sides = [{text in labels for text in texts} for texts in (answers, golds)]
        if len(labels) > 1 and {True} in sides and {False} in sides:
            shown, scored = ("labels", "texts") if sides[0] == {True} else ("texts", "labels")
            yield finding(
                f"few-shot examples answer with {shown} of options, but {scored} are scored",
                f"{answers[0][:50]!r}, gold is {golds[0][:50]!r}",
                ("fewshot_config", "doc_to_target"),
                instance,
                severity=severity_of_shots(study),
            )


@also("PF807")
def shots_without_reasoning(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that have the bare answer after a cue for reasoning."""
    target, shots = study.written.doc_to_target, study.task.fewshot
    if not study.generates or study.has_own_scorer or not looks_for_answers(study.task):
        return
    if not scores_exact_match(study) or shots.samples is not None or shots.doc_to_target:
        return
    if not isinstance(target, str) or not _PLAIN.fullmatch(target.strip()):
        return
    if any(len(str(instance.target).split()) > _FEW for instance in study.real_instances):
        return
    for instance in study.with_shots[:1]:
        asked = question_message(instance)
        if asked is not None and _STEPS.search(asked.text.rstrip()) and any(shot.answer for shot in shots_of(instance)):
            yield finding(
                "few-shot examples show only the answer, but the prompt requests reasoning",
                f"{asked.text.rstrip()[-40:]}, and the target is {target.strip()}",
                "doc_to_target",
                instance,
                severity=None if study.shots or ANNOUNCED.search(instance.prompts[0].text) else Severity.INFO,
            )


@rule("PF819", "delimiter-in-shots", severity=Severity.INFO, family=Family.FEWSHOT)
def delimiter_in_shots(study: Study) -> Iterator[Finding]:
    """Report a few-shot example with a column that contains the delimiter between examples.

    Why: the model sees more examples than there are, some without an answer. Where the delimiter is also what stops the
    answer, as it is by default, an answer that contains it ends early.

    Fix: choose a delimiter that no column contains, or replace it in `process_docs`.

    Real: passages with blank lines in tasks whose delimiter is a blank line.
    """
    delimiter = study.task.fewshot_delimiter
    is_given = has_given_shots(study)
    for instance in study.demonstrated[:1] if is_given and delimiter.strip(" ") else ():
        for shot in shots_of(instance):
            spans = (span for message in shot.messages for span in message.content)
            inside = next((span for span in spans if span.origin.field is not None and delimiter in span.text), None)
            if inside is not None:
                at = inside.text.index(delimiter)
                yield finding(
                    "a column of a few-shot example contains the delimiter between examples",
                    inside.text[max(0, at - 24) : at + len(delimiter) + 16],
                    "fewshot_delimiter",
                    instance,
                )
                return


@rule("PF841", "shot-answers-with-question", severity=Severity.ERROR, family=Family.FEWSHOT)
def shot_answers_with_question(study: Study) -> Iterator[Finding]:
    """Report few-shot examples whose answer is a text that the question before it prints.

    Why: the target names the column of the question, or the source of a translation instead of the translation. The
    examples teach the model to repeat the question. Choices are not reported: a question may list them.

    Fix: print the answer in `doc_to_target`, and in that of `fewshot_config`.

    Real: lukemelas/mtob #2 (examples of a translation that repeat the source).
    """
    written = study.config.get("fewshot_config")
    is_written = isinstance(written, Mapping) and "doc_to_target" in written
    if not (is_written or study.generates):
        return
    for instance in study.with_shots[:1]:
        shots = shots_of(instance)
        if len(shots) > 1 and all(shot.answer and _prints(shot, shot.answer.strip()) for shot in shots):
            yield finding(
                "few-shot examples answer with a text of their question",
                (shots[0].answer or "").strip()[:60],
                ("fewshot_config", "doc_to_target") if is_written else ("doc_to_target",),
                instance,
                severity=severity_of_shots(study),
            )


def _prints(shot: Shot, answer: str) -> bool:
    """Return whether a column that the question prints first is the answer, word for word."""
    spans = [span for message in shot.messages if message.role == "user" for span in message.content]
    first = next((span.text.strip() for span in spans if span.origin.field is not None), "")
    return first == answer

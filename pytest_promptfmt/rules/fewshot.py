"""Rules about few-shot examples: unused ones, leaked answers, and layouts that differ from the question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_promptfmt.core.prompt import Message, join
from pytest_promptfmt.core.task import Task, Unset
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    Shot,
    finding,
    has_given_shots,
    question_message,
    severity_of_shots,
    shots_of,
)
from pytest_promptfmt.tasks import leaves_evaluated_doc_out


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
    """Report `fewshot_indices`, which lm-eval 0.4.13 accepts and ignores.

    Fix: use `sampler: first_n`, or inline `samples`.
    """
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
    """Report a task whose few-shot examples are drawn as if they came from the test split, although they do not.

    Fix: set `fewshot_split`.
    """
    task = study.written
    if leaves_evaluated_doc_out(task) and task.dataset.test_split is None and task.num_fewshot != 0:
        yield finding(
            "one extra few-shot example is drawn: neither split has a name",
            at="num_fewshot" if task.num_fewshot else "validation_split",
        )


@also("PF803", severity=Severity.ERROR)
def own_shot(study: Study) -> Iterator[Finding]:
    """Report a doc that is one of its own few-shot examples, with its answer.

    Fix: draw few-shot examples from another split.
    """
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

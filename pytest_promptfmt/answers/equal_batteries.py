"""Tasks that read, score and ask alike have the same verdicts: the battery tries their phrasings once in a process.

lm-eval's 2,470 tasks that generate have 163 different pipelines, and most questions on synthetic docs are the same.
Only what plain values decide is shared, never what depends on code of a task or on its docs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Final

from pytest_promptfmt.answers.completions import THINK_END
from pytest_promptfmt.answers.phrasing_verdicts import SLOW, Matrix
from pytest_promptfmt.answers.subject import Subject
from pytest_promptfmt.core.limits import are_applied
from pytest_promptfmt.core.task import UNSET
from pytest_promptfmt.tasks import Question, ValueCache, key_of_metrics, plain_key

_MOST_KEPT: Final = 8_000_000
"""Characters of the matrices that a process keeps, and of what they were made of."""


def shared_matrix(subject: Subject, make: Callable[[], Matrix]) -> Matrix:
    """Return the matrix of a task without expected completions: that of an equal one, else what `make` gives."""
    key = _key_of(subject)
    known = None if key is None else _known.get(key)
    if known is not None:
        return known
    made = make()
    if key is None or any(SLOW in cell for row in made.rows for cell in row.verdicts):
        return made  # the time of another trial may differ
    texts = sum(len(row.id) + len(row.evidence) + sum(map(len, row.verdicts)) for row in made.rows)
    return _known.keep(key, made, texts + len(repr(key)))


def _key_of(subject: Subject) -> Hashable | None:
    """Return all that the verdicts depend on; None where code of the task or a doc is part of that."""
    task, chain = subject.task, subject.chain
    metrics = None if callable(task.process_results) else key_of_metrics(chain.metrics)
    pipelines = tuple((each.name, each.fingerprint) for each in chain.pipelines)
    questions = tuple(map(_key_of_question, subject.questions))
    shows_targets = task.fewshot.doc_to_target in (UNSET, None, task.doc_to_target)
    asked = [subject.prompt, subject.prefix, *subject.shot_answers(), subject.instances[0].prompts[0].text[-1:]]
    think_end = task.own_metadata.get("think_end_token", THINK_END)
    read = [
        chain.stops,
        task.repeats,
        think_end,
        task.gen_prefix,
        task.target_delimiter,
        shows_targets,
        subject.longest,
    ]
    written = plain_key([subject.synthetic, asked, read])
    if metrics is None or written is None or None in questions or any(each is None for _, each in pipelines):
        return None
    return metrics, pipelines, questions, written, are_applied()


def _key_of_question(question: Question) -> Hashable | None:
    return plain_key([getattr(question, each.name) for each in fields(question)])


_known: Final[ValueCache[Matrix]] = ValueCache(_MOST_KEPT)

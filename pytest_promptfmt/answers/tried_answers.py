"""Answers that a model may give, made without one: what code that scores is tried on, and two releases of lm-eval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from pytest_promptfmt.answers.battery import phrasing_texts
from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import NONSENSE
from pytest_promptfmt.answers.recordings import read_recording, recordings_of
from pytest_promptfmt.core.errors import CodeNotAllowedError, ScoringError
from pytest_promptfmt.core.recorded import Recorded
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks import HarnessTask, Question, TriedAnswer

_FAR: Final = -9000.0
_MOST_WORDS: Final = 12
_MOST_RECORDED: Final = 200
_SHOWN: Final = 60

Row = tuple[int, str, str, Mapping[str, str]]
"""The doc from 1, 0 for several; the answers as they are shown; the pipeline; and the values of metrics."""


def texts_for(question: Question, words: Iterable[str] = ()) -> list[str]:
    """Return texts around the answer to a doc, and some of the words."""
    gold = str(question.target)
    texts = [gold, "", NONSENSE, f" {gold} \n", gold.swapcase(), f"**{gold}**", f"({gold})", f"{gold}\n\n{gold}"]
    texts += [f"The answer is {gold}.", "(B)", "42", "1,234.50"]
    return [*dict.fromkeys([*texts, *islice(words, _MOST_WORDS)])]


def likelihoods_for(task: Task, count: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield likelihoods of the requests of a doc, each with a description; of choices each is the best once."""
    if task.has_choices:
        for best in range(count):
            likely = [(-1.0, True) if each == best else (_FAR, False) for each in range(count)]
            yield f"request {best} most likely", likely
        yield "equal likelihoods", [(-1.0, False)] * count
    elif task.output_type == "loglikelihood_rolling":
        yield "a likelihood", [-12.0] * count
    else:
        yield from ((f"greedy: {is_greedy}", [(-1.0, is_greedy)] * count) for is_greedy in (True, False))


def scores_by_harness(study: Study) -> list[Row]:
    """Return what the lm-eval of this process makes of answers to each doc: its own filters, metrics, aggregations.

    They are those of the phrasing battery, the user's own completions, and recorded ones. Raises the PromptfmtError
    that stops all scoring.
    """
    if study.settings.no_code:
        raise CodeNotAllowedError("scoring needs code of lm-eval, but no code may run here")
    scoring, material = study.scoring_of_prompts, study.material
    made = HarnessTask(scoring.task, material.docs, material.shots, written=study.given)
    rows: list[Row] = []
    for pipeline, given, values in made.scores([*_answers(study, scoring)]):
        shown = [each.shown for each in given[:2]]
        about = shown[0] if len(given) == 1 else ", then ".join(shown) if len(given) == 2 else "all answers"
        rows.append((given[0].doc if len(given) == 1 else 0, about, pipeline, values))
    return rows


def _answers(study: Study, scoring: Scoring) -> Iterator[TriedAnswer]:
    task, docs = scoring.task, [instance.doc for instance in scoring.instances]
    if not task.generates:
        for number, instance in enumerate(scoring.instances):
            for label, results in likelihoods_for(task, len(instance.requests)):
                yield TriedAnswer(number + 1, label, docs[number], results)
        return
    chain = Chain(task, scoring.stops, is_synthetic=True)
    if chain.scores_nothing:
        raise ScoringError("a metric runs generated code")
    texts: list[tuple[int, str]] = [(one.doc, one.completion) for one in study.expected]
    texts += [(0, text) for text in phrasing_texts(scoring)]
    texts += [(number, text) for number, each in enumerate(scoring.questions) for text in texts_for(each)]
    for number, text in dict.fromkeys((number, chain.begun(text).stopped) for number, text in texts):
        if number < len(docs):
            yield TriedAnswer(number + 1, _short(text), docs[number], [text])
    for path in recordings_of(study.given):
        for record in islice(read_recording(path), _MOST_RECORDED):
            if isinstance(record, Recorded) and record.task in (None, task.name, task.id):
                known = record.doc or (docs[record.doc_index] if record.doc_index in range(len(docs)) else None)
                if known is not None:
                    yield TriedAnswer(record.doc_index + 1, _short(record.completion), known, [record.completion])


def _short(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…, {len(text):,} characters"

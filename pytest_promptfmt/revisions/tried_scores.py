"""How a task scores fixed answers, without a model: so changed code of scoring runs on both sides of a comparison."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import NONSENSE, SECONDS_FOR_CODE
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.limits import must_propagate, time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks import Question, score_doc

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_FAR: Final = -9000.0
_MOST_WORDS: Final = 12


def tried_scores(study: Study, words: Iterable[str]) -> dict[str, str]:
    """Return the scores of answers to each doc as texts, after a description; `words` are answers, too.

    A text that begins with `!` is an exception. Raises the PromptfmtError that stops all scoring.
    """
    scoring = study.scoring_of_prompts
    found: dict[str, str] = {}
    for number, (instance, question) in enumerate(zip(scoring.instances, scoring.questions, strict=True)):
        for label, results in _results(scoring, instance, question, words):
            found[f"{label}, doc {number}"] = _score(scoring, instance, question, results)
    return found


def _results(
    scoring: Scoring, instance: Instance, question: Question, words: Iterable[str]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield results of a model for one doc: a description, and what process_results gets."""
    task, count = scoring.task, len(instance.requests)
    if task.generates:
        chain = Chain(task, scoring.stops, is_synthetic=scoring.is_synthetic)
        if chain.scores_nothing:
            raise ScoringError("its metric runs generated code")
        gold = str(question.target)
        texts = [gold, "", NONSENSE, f" {gold} \n", gold.swapcase(), f"**{gold}**", f"({gold})", f"{gold}\n\n{gold}"]
        texts += [f"The answer is {gold}.", "(B)", "42", "1,234.50"]
        for text in dict.fromkeys([*texts, *islice(words, _MOST_WORDS)]):
            for pipeline in chain.pipelines:
                read = chain.read_uncounted(pipeline, text, instance.doc, "an answer")
                yield f"{text[:40]!r} by {pipeline.name!r}", [read.problem or read.extracted]
    elif task.has_choices:
        for best in range(count):
            likely = [(-1.0, True) if each == best else (_FAR, False) for each in range(count)]
            yield f"request {best} most likely", likely
        yield "equal likelihoods", [(-1.0, False)] * count
    elif task.output_type == "loglikelihood_rolling":
        yield "a likelihood", [-12.0] * count
    else:
        yield from ((f"greedy: {is_greedy}", [(-1.0, is_greedy)] * count) for is_greedy in (True, False))


def _score(scoring: Scoring, instance: Instance, question: Question, results: list[Any]) -> str:
    try:
        with time_limit(SECONDS_FOR_CODE, "scoring one doc"):
            values = score_doc(scoring.task, scoring.metrics, copy.deepcopy(instance.doc), question, results)
    except BaseException as error:
        if must_propagate(error):
            raise
        return f"! {type(error).__name__}"
    return _ADDRESS.sub("", ", ".join(f"{name} {values[name]!r}" for name in sorted(values)))

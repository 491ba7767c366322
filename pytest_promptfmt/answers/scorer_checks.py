"""Scorer checks without a model: the gold answer wins, nothing else does, and no stop sequence cuts it.

Each check yields findings; none of them looks at how an answer is phrased, which is the battery's part.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_promptfmt.answers.answers import answers_of
from pytest_promptfmt.answers.choice_checks import check_choices
from pytest_promptfmt.answers.completions import NONSENSE, Chain, normalised
from pytest_promptfmt.answers.scorer_findings import ScorerFinding
from pytest_promptfmt.answers.stop_checks import check_stops, stops_of
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.lm_eval.scoring.metrics import TaskMetric, metrics_of, takes_arguments
from pytest_promptfmt.systems.lm_eval.scoring.results import Question, questions_of


def check_scorer(
    task: Task, instances: Sequence[Instance], *, few_shot: Sequence[Instance] = (), synthetic: bool = False
) -> list[ScorerFinding]:
    """Return what is wrong with the scoring of a task whose functions are bound; each finding once.

    `few_shot` are the same docs with demonstrations, for stop sequences of tasks that are often run with some. Raises
    ScoringError or RenderError for a task that cannot be scored at all.
    """
    questions = questions_of(task, [instance.doc for instance in instances])
    metrics = metrics_of(task)
    found = list(_arguments(task, metrics))
    if task.output_type == "multiple_choice":
        for instance, question in zip(instances, questions, strict=True):
            found += check_choices(task, metrics, instance, question, synthetic=synthetic)
    elif task.output_type == "generate_until":
        chain = Chain(task, stops_of(instances[0]))
        found += check_stops(task, instances, questions, few_shot)
        for instance, question in zip(instances, questions, strict=True):
            found += _generation(chain, instance, question, synthetic)
        found += _random_fallback(chain, instances[0])
    return list({(finding.name, finding.message): finding for finding in found}.values())


# -- arguments ---------------------------------------------------------------------------------------------------------


def _arguments(task: Task, metrics: Sequence[TaskMetric]) -> Iterator[ScorerFinding]:
    if callable(task.process_results) or task.output_type != "generate_until":
        return
    for metric in metrics:
        if metric.name == "exact_match" and not takes_arguments(metric):
            yield ScorerFinding(
                name="metric-arguments",
                message=f"exact_match does not take {', '.join(metric.arguments)}: scoring ends with a TypeError",
                hint="it takes regexes_to_ignore, ignore_case, ignore_punctuation and ignore_numbers",
                position=task.position("metric_list"),
            )


# -- generation --------------------------------------------------------------------------------------------------------


def _generation(chain: Chain, instance: Instance, question: Question, synthetic: bool) -> Iterator[ScorerFinding]:
    task = chain.task
    at = task.position("process_results" if callable(task.process_results) else "metric_list")
    doc = f"doc {instance.index + 1}"
    answers = answers_of(question, instance.prompts[0].text)
    if answers is None:
        return
    gold = str(answers.labels[answers.gold] if answers.kind == "text" else answers.targets[answers.gold])
    if not gold.strip():
        yield ScorerFinding(
            name="empty-gold", message=f"{doc}: the gold answer is {gold!r}", position=task.position("doc_to_target")
        )
        return
    yield from _normalised(chain, question, answers.targets if answers.kind == "choice" else (gold,), doc)
    try:
        scores = {text: chain.score(question, instance.doc, text) for text in (gold, "", NONSENSE)}
    except PromptfmtError:
        raise
    except Exception as error:
        if not (synthetic and callable(task.process_results)):
            yield ScorerFinding(
                name="scorer-crashes",
                message=f"{doc}: scoring the gold answer {gold!r} ends with {type(error).__name__}: {error}",
                position=at,
            )
        return
    best, empty, nonsense = scores[gold], scores[""], scores[NONSENSE]
    if best is None or empty is None or nonsense is None or callable(task.process_results):
        return
    if best <= nonsense:
        if synthetic:
            return  # a text of one made-up word is too short for BLEU
        yield ScorerFinding(
            name="gold-does-not-win",
            message=f"{doc}: the gold answer {gold!r} scores {best:g}, as nonsense does",
            hint="target and metric do not fit: the score is the same whatever the model says",
            position=at,
        )
        return
    if empty >= best:
        yield ScorerFinding(
            name="empty-wins", message=f"{doc}: an empty completion scores {empty:g}, as the gold answer", position=at
        )
    if answers.kind == "choice":
        for index, target in enumerate(answers.targets):
            if index != answers.gold and chain.is_right(question, instance.doc, target):
                yield ScorerFinding(
                    name="another-choice-wins",
                    message=f"{doc}: {target!r} counts as right where {gold!r} is the gold answer",
                    position=at,
                )


def _normalised(chain: Chain, question: Question, targets: Sequence[Any], doc: str) -> Iterator[ScorerFinding]:
    metric = next((metric for metric in chain.metrics if metric.name == "exact_match"), None)
    if metric is None or callable(chain.task.process_results):
        return
    at = chain.task.position("metric_list")
    texts = {str(target): normalised(str(target), metric.arguments) for target in targets}
    gold = str(targets[0] if len(targets) == 1 else targets[question.target] if _is_index(question, targets) else "")
    for target, text in texts.items():
        if not text and (target == gold or len(targets) > 1):
            yield ScorerFinding(
                name="gold-normalises-to-nothing",
                message=f"{doc}: after what exact_match ignores, nothing is left of {target!r}",
                hint="an empty completion, or one of punctuation alone, counts as right",
                position=at,
            )
    left = [text for text in texts.values() if text]
    if len(set(left)) < len(left):
        yield ScorerFinding(
            name="choices-normalise-alike",
            message=f"{doc}: after what exact_match ignores, some of {sorted(texts)!r} are the same",
            position=at,
        )


def _is_index(question: Question, targets: Sequence[Any]) -> bool:
    return isinstance(question.target, int) and 0 <= question.target < len(targets)


def _random_fallback(chain: Chain, instance: Instance) -> Iterator[ScorerFinding]:
    state = random.getstate()
    try:
        for pipeline in chain.pipelines:
            found = set()
            for seed in range(8):
                random.seed(seed)
                found.add(repr(chain.read(pipeline, NONSENSE, instance.doc, "nonsense").extracted))
            if len(found) > 1:
                yield ScorerFinding(
                    name="random-fallback",
                    message=f"the filters {pipeline.name!r} make {' or '.join(sorted(found))} of nonsense, by chance",
                    hint="give a fixed fallback: a guess hides that nothing was found",
                    position=chain.task.position("filter_list"),
                )
    finally:
        random.setstate(state)

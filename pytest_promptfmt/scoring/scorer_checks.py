"""Scorer checks without a model: the gold answer wins, nothing else does, and no stop sequence cuts it.

Each check yields findings; none of them looks at how an answer is phrased, which is the battery's part.
"""

from __future__ import annotations

import copy
import math
import random
import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_promptfmt.errors import Position, PromptfmtError
from pytest_promptfmt.rendering.prompt import Instance
from pytest_promptfmt.scoring.answers import answers_of
from pytest_promptfmt.scoring.completions import NONSENSE, Chain
from pytest_promptfmt.scoring.metrics import TaskMetric, metrics_of, takes_arguments
from pytest_promptfmt.scoring.results import OUTSIDE, Question, gold_of, questions_of, score_doc
from pytest_promptfmt.tasks import Task

_UNDERFLOW: Final = -1000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerFinding:
    """One thing wrong with how a task scores; `name` is that of the check."""

    name: str
    message: str
    hint: str | None = None
    position: Position | None = None


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
            found += _choices(task, metrics, instance, question)
    elif task.output_type == "generate_until":
        chain = Chain(task, _stops(instances[0]))
        found += _stop_sequences(task, instances, questions, few_shot)
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


# -- log-likelihoods ---------------------------------------------------------------------------------------------------


def _choices(
    task: Task, metrics: Sequence[TaskMetric], instance: Instance, question: Question
) -> Iterator[ScorerFinding]:
    choices = question.choices
    doc = f"doc {instance.index + 1}"
    at = task.position("doc_to_target")
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) for choice in choices):
        return
    yield from _odd_choices(task, choices, doc)
    gold = gold_of(question)
    golds = gold if isinstance(gold, list) else [gold]
    if OUTSIDE in golds or not golds:
        yield _outside(question, choices, doc, at)
        return
    if not all(isinstance(index, int) for index in golds):
        yield ScorerFinding(
            name="gold-outside-choices", message=f"{doc}: the target {gold!r} is no index and no choice", position=at
        )
        return
    if any(index < 0 for index in golds):
        yield ScorerFinding(
            name="gold-outside-choices",
            message=f"{doc}: the target {gold} is negative: accuracy is 0 whatever the model says",
            hint="count choices from 0",
            position=at,
        )
        return
    yield from _synthetic_scores(task, metrics, instance, question, golds[0])


def _odd_choices(task: Task, choices: Sequence[str], doc: str) -> Iterator[ScorerFinding]:
    at = task.position("doc_to_choice")
    for index, choice in enumerate(choices):
        if not choice.strip():
            yield ScorerFinding(
                name="empty-choice",
                message=f"{doc}: choice {index} is {choice!r}; length-normalised scores divide by its length",
                position=at,
            )
    seen: dict[str, int] = {}
    for index, choice in enumerate(choices):
        first = seen.setdefault(choice, index)
        if first != index and choice.strip():
            yield ScorerFinding(
                name="duplicate-choices",
                message=f"{doc}: choices {first} and {index} are both {choice!r}; of equals the first wins",
                position=at,
            )


def _outside(question: Question, choices: Sequence[str], doc: str, at: Position | None) -> ScorerFinding:
    target = question.text if question.has_several_inputs else question.target
    hint = "let doc_to_target give an index, or one of the texts of doc_to_choice"
    if isinstance(target, str):
        alike = [choice for choice in choices if choice.strip().casefold() == target.strip().casefold()]
        if alike:
            only_blank = alike[0].strip() == target.strip()
            return ScorerFinding(
                name="gold-differs-by-a-blank" if only_blank else "gold-differs-by-case",
                message=f"{doc}: the target {target!r} is none of the choices; {alike[0]!r} differs from it only by "
                + ("blanks" if only_blank else "letter case"),
                hint="every answer scores 0 here: write target and choices alike",
                position=at,
            )
        if target.strip().isdigit():
            hint = f"a text is looked up among the choices; for the choice at that position give {target.strip()}|int"
    shown = [choice if len(choice) <= 30 else f"{choice[:29]}…" for choice in choices]
    return ScorerFinding(
        name="gold-outside-choices",
        message=f"{doc}: the target {target!r} is none of the {len(choices)} choices {shown!r}: it always scores 0",
        hint=hint,
        position=at,
    )


def _synthetic_scores(
    task: Task, metrics: Sequence[TaskMetric], instance: Instance, question: Question, gold: int
) -> Iterator[ScorerFinding]:
    """Score made-up log-likelihoods: the gold best, another best, and all so small that exp() is 0."""
    count = len(question.choices)
    own = len(instance.requests)
    at = task.position("process_results") if task.process_results is not None else task.position("metric_list")
    right = {gold} if not question.has_several_targets else set(gold_of(question))
    # By so far that no length makes up for it.
    scores = {
        "gold best": [(-0.01, True) if index % count in right else (-9000.0, False) for index in range(own)],
        "another best": [(-9000.0, False) if index % count in right else (-0.01, True) for index in range(own)],
        "all tiny": [(_UNDERFLOW - index, False) for index in range(own)],
    }
    values: dict[str, Mapping[str, Any]] = {}
    for name, results in scores.items():
        try:
            values[name] = score_doc(task, metrics, copy.deepcopy(dict(instance.doc)), question, results)
        except Exception as error:
            mutual = "acc_mutual_info" in {metric.name for metric in metrics} and question.has_several_targets
            yield ScorerFinding(
                name="scorer-crashes",
                message=f"doc {instance.index + 1}: scoring ends with {type(error).__name__}: {error}",
                hint="acc_mutual_info takes one gold answer" if mutual else None,
                position=at,
            )
            return
    for name in ("acc", "acc_norm", "acc_bytes"):
        best, other = _number(values["gold best"].get(name)), _number(values["another best"].get(name))
        if best is None or other is None:
            continue
        if best < 1 and question.choices[gold]:
            yield ScorerFinding(
                name="gold-does-not-win",
                message=f"doc {instance.index + 1}: {name} is {best:g} when the gold choice is by far the most likely",
                position=at,
            )
        if other > 0 and len(right) < count and question.choices.count(question.choices[gold]) == 1:
            yield ScorerFinding(
                name="another-choice-wins",
                message=f"doc {instance.index + 1}: {name} is {other:g} when another choice is by far the most likely",
                position=at,
            )
    for name, value in values["all tiny"].items():
        number = _number(value)
        if number is not None and math.isnan(number):
            yield ScorerFinding(
                name="underflow",
                message=f"doc {instance.index + 1}: {name} is NaN for log-likelihoods around {_UNDERFLOW:g}",
                hint="subtract the largest before exp()",
                position=at,
            )


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


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


def normalised(text: str, arguments: Mapping[str, Any]) -> str:
    """Return what exact_match compares of a text, by its arguments (lm-eval 0.4.13)."""
    for pattern in arguments.get("regexes_to_ignore") or ():
        text = re.sub(pattern, "", text)
    if arguments.get("ignore_case"):
        text = text.lower()
    dropped = string.punctuation if arguments.get("ignore_punctuation") else ""
    dropped += string.digits if arguments.get("ignore_numbers") else ""
    return text.translate(str.maketrans("", "", dropped))


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


# -- stop sequences ----------------------------------------------------------------------------------------------------


def _stops(instance: Instance) -> list[Any]:
    until = (instance.requests[0].generation_kwargs or {}).get("until") or ()
    return [until] if isinstance(until, str) else list(until)


def _stop_sequences(
    task: Task, instances: Sequence[Instance], questions: Sequence[Question], few_shot: Sequence[Instance]
) -> Iterator[ScorerFinding]:
    stops = _stops(instances[0])
    at = task.position("generation_kwargs", "until")
    for stop in stops:
        if not isinstance(stop, str):
            yield ScorerFinding(
                name="stop-is-no-text", message=f"the stop sequence {stop!r} is {type(stop).__name__}", position=at
            )
        elif re.search(r"\\[nrt]", stop):
            yield ScorerFinding(
                name="stop-never-fires",
                message=f"the stop sequence {stop!r} is a backslash and a letter, not a line break",
                hint='in YAML only double quotes read "\\n" as a line break',
                position=at,
            )
    texts = [stop for stop in stops if isinstance(stop, str) and stop]
    for stop in texts:
        yield from _cut_answers(task, stop, instances, questions, at)
    shown = few_shot or instances
    yield from _next_question(texts, shown[0], at, surely=shown is instances)


def _cut_answers(
    task: Task, stop: str, instances: Sequence[Instance], questions: Sequence[Question], at: Position | None
) -> Iterator[ScorerFinding]:
    for instance, question in zip(instances, questions, strict=True):
        answers = answers_of(question, instance.prompts[0].text)
        gold = str(answers.labels[answers.gold]).strip() if answers is not None else ""
        if gold and "«" not in gold and stop in gold:
            yield ScorerFinding(
                name="stop-in-gold",
                message=f"doc {instance.index + 1}: the stop sequence {stop!r} is part of the gold answer {gold!r}",
                position=at,
            )
        for shot in _shot_answers(instance):
            cut, _, left = shot.partition(stop)
            if left.strip() and "«" not in shot:
                yield ScorerFinding(
                    name="stop-in-demonstration",
                    message=f"the stop sequence {stop!r} cuts an answer that the prompt shows, to {_end_of(cut)!r}",
                    hint="a model that answers alike is cut there",
                    position=at,
                )
                break
    prompt = instances[0].prompts[0].text
    if task.gen_prefix and stop in prompt[-len(str(task.gen_prefix)) :]:
        yield ScorerFinding(
            name="stop-in-cue", message=f"the stop sequence {stop!r} is part of the end of the prompt", position=at
        )


def _next_question(
    stops: Sequence[str], instance: Instance, at: Position | None, *, surely: bool
) -> Iterator[ScorerFinding]:
    """Look whether anything stops a model that goes on with the next question, as the demonstrations do.

    Where it is not sure that there are demonstrations, only a stop sequence that nearly fits is told.
    """
    spans = instance.prompts[0].spans
    shots = sorted({span.origin.shot for span in spans if span.origin.shot is not None})
    if not shots or not stops:
        return
    after = [span.text for span in spans if span.origin.shot == shots[0] and span.origin.part == "fewshot delimiter"]
    second = shots[1] if len(shots) > 1 else None
    question = "".join(
        span.text for span in spans if span.origin.shot == second and span.origin.part not in ("answer", "description")
    )
    following = "".join(after) + question
    if any(stop in following for stop in stops):
        return
    plain = unicodedata.normalize("NFKC", following)
    alike = [stop for stop in stops if unicodedata.normalize("NFKC", stop) in plain]
    if not alike and ("«" in following or not surely):
        return
    yield ScorerFinding(
        name="no-stop-before-next-question",
        message=f"none of the stop sequences {list(stops)!r} is in what follows an answer, {following[:40]!r}",
        hint=f"{alike[0]!r} differs from what the prompt has only by the width of a character" if alike else None,
        position=at,
    )


def _shot_answers(instance: Instance) -> Iterator[str]:
    spans = instance.prompts[0].spans
    for shot in sorted({span.origin.shot for span in spans if span.origin.shot is not None}):
        yield "".join(span.text for span in spans if span.origin.shot == shot and span.origin.part == "answer")


def _end_of(text: str) -> str:
    return text if len(text) <= 40 else f"…{text[-39:]}"

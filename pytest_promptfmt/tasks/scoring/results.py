"""From a model's answer to one doc to the values of its metrics, as lm-eval 0.4.13's `process_results` does.

At the end, how answers are read and scored, as lines that can be compared: filters, metrics, repeats.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError, ScoringError
from pytest_promptfmt.core.prompt import Place
from pytest_promptfmt.core.task import FunctionRef, OutputType, Task, with_leaves
from pytest_promptfmt.tasks.import_failures import lacking
from pytest_promptfmt.tasks.rendering.field_mappings import choice_field, target_field, text_field
from pytest_promptfmt.tasks.scoring.budget import plain_key
from pytest_promptfmt.tasks.scoring.metrics import DEFAULT_METRICS, METRICS, TaskMetric

OUTSIDE: Final = -100
"""The value of a gold answer outside the choices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The values of one doc that scoring needs.

    `target`, `choices` and `text` are the values of doc_to_target, doc_to_choice (None: the task has none) and
    doc_to_text. `has_several_targets` and `has_several_inputs` are judged by the first doc of the task.
    """

    output_type: OutputType
    target: Any
    choices: Any = None
    text: Any = None
    has_several_targets: bool = False
    has_several_inputs: bool = False


class LogLikelihood(tuple[float, bool]):
    """A (log-likelihood, is greedy) pair as lm-eval's scoring takes it; `logprobs` are those of its tokens (nats)."""

    logprobs: tuple[float, ...]

    def __new__(cls, logprobs: Sequence[float], is_greedy: bool) -> LogLikelihood:
        """Return the pair of a continuation with these tokens."""
        pair = super().__new__(cls, (sum(logprobs), is_greedy))
        pair.logprobs = tuple(logprobs)
        return pair


def key_of_question(question: Question) -> Hashable | None:
    """Return what is equal for questions to which equal answers score alike; None without generation."""
    target, choices = plain_key(question.target), plain_key(question.choices)
    if target is None or choices is None or question.output_type != "generate_until":
        return None
    return target, choices, question.has_several_targets


def questions_of(task: Task, docs: Sequence[Doc]) -> list[Question]:
    """Return what scoring needs of each doc; raises RenderError where a field mapping fails."""
    columns = frozenset(docs[0]) if docs else frozenset()
    text = text_field(task, task.doc_to_text, "doc_to_text", columns)
    target = target_field(task, task.doc_to_target, "doc_to_target", columns)
    choice = None if task.doc_to_choice is None else choice_field(task, task.doc_to_choice, "doc_to_choice", columns)
    several_targets = several_inputs = False
    questions: list[Question] = []
    for number, doc in enumerate(docs):
        place = Place(task.id, number)
        asked, gold = text(doc, place).value, target(doc, place).value
        offered = choice(doc, place).value if choice else None
        if number == 0:
            several_targets = isinstance(gold, list) and len(gold) > 0
            several_inputs = choice is not None and isinstance(asked, int) and bool(offered)
        questions.append(
            Question(
                output_type=task.output_type,
                text=asked,
                target=gold,
                choices=offered,
                has_several_targets=several_targets,
                has_several_inputs=several_inputs,
            )
        )
    return questions


def process_results(metrics: Sequence[TaskMetric], question: Question, results: Sequence[Any]) -> dict[str, Any]:
    """Return the value of each metric for one doc; for corpus metrics the pair that their aggregation takes.

    `results` are the filtered answers to the doc's requests: (log-likelihood, is greedy) pairs, one log-likelihood for
    rolling, or what the filters extracted. Raises what lm-eval's scoring raises, with plain Python exceptions.
    """
    return _PROCESSORS[question.output_type]({metric.name: metric for metric in metrics}, question, results)


Processor = Callable[[Mapping[str, TaskMetric], Question, Sequence[Any]], dict[str, Any]]


def _likelihood(metrics: Mapping[str, TaskMetric], _question: Question, results: Sequence[Any]) -> dict[str, Any]:
    log_likelihood, is_greedy = results[0]
    return _wanted(metrics, {"perplexity": log_likelihood, "acc": int(is_greedy)})


def _rolling(metrics: Mapping[str, TaskMetric], question: Question, results: Sequence[Any]) -> dict[str, Any]:
    (log_likelihood,) = results
    words = len(re.split(r"\s+", question.target))
    size = len(question.target.encode("utf-8"))
    values = {
        "word_perplexity": (log_likelihood, words),
        "byte_perplexity": (log_likelihood, size),
        "bits_per_byte": (log_likelihood, size),
    }
    return _wanted(metrics, values)


def _choice(metrics: Mapping[str, TaskMetric], question: Question, results: Sequence[Any]) -> dict[str, Any]:
    likelihoods, greedy = zip(*results, strict=True)
    choices = question.choices
    unconditional: Sequence[Any] | None = None
    if "acc_mutual_info" in metrics and 2 * len(choices) == len(likelihoods):
        unconditional = likelihoods[len(choices) :]
        likelihoods = likelihoods[: len(choices)]
    best = _first_best(likelihoods)
    best_by_length = _first_best(_per(likelihoods, [len(choice) for choice in choices]))
    best_by_size = _first_best(_per(likelihoods, [len(choice.encode("utf-8")) for choice in choices]))
    gold = gold_of(question)

    def is_right(chosen: Any) -> float:
        return 1.0 if (chosen in gold if question.has_several_targets else _is_gold(chosen, gold)) else 0.0

    golds = gold if question.has_several_targets else [gold]
    exact = int(any(greedy[index] if index != OUTSIDE else 0 for index in golds))
    shifted = [math.exp(each - likelihoods[best]) for each in likelihoods]
    values = {
        "acc": is_right(best),
        "f1": (gold, best),
        "mcc": (gold, best),
        "acc_norm": is_right(best_by_length),
        "acc_bytes": is_right(best_by_size),
        "exact_match": exact,
        "brier_score": (gold, [each / sum(shifted) for each in shifted]),
        "likelihood": (gold, likelihoods),
    }
    result = _wanted(metrics, values)
    if "acc_mutual_info" in metrics:
        if unconditional is None:
            raise UnboundLocalError("acc_mutual_info also needs the log-likelihoods of the choices without the prompt")
        gained = [given - alone for given, alone in zip(likelihoods, unconditional, strict=True)]
        result["acc_mutual_info"] = 1.0 if _is_gold(_first_best(gained), gold) else 0.0
    return result


def _first_best(values: Sequence[float]) -> int:
    """Return the index of the largest value, the first of several; of the first NaN where there is one (numpy)."""
    nan = next((index for index, value in enumerate(values) if math.isnan(value)), None)
    return max(range(len(values)), key=values.__getitem__) if nan is None else nan


def _per(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return values by counts as numpy divides arrays: one of either goes with all, by 0 is infinite or NaN."""
    values, counts = list(values) * (len(counts) if len(values) == 1 else 1), list(counts)
    counts = counts * (len(values) if len(counts) == 1 else 1)

    def per(value: float, count: int) -> float:
        if count:
            return value / count
        return math.nan if not value or math.isnan(value) else math.copysign(math.inf, value)

    return [per(value, count) for value, count in zip(values, counts, strict=True)]


def _is_gold(chosen: int, gold: Any) -> bool:
    """Return whether an index is the gold one; raises ValueError for several golds, as numpy does."""
    if isinstance(gold, list) and len(gold) > 1:
        raise ValueError("this metric compares with one choice, but there are several gold answers")
    return bool(chosen == (gold[0] if isinstance(gold, list) and gold else gold))


def gold_of(question: Question) -> Any:
    """Return the gold index of a multiple-choice doc, or the list of them; OUTSIDE for one that is not a choice."""
    gold = question.text if question.has_several_inputs else question.target
    count = len(question.choices)
    if isinstance(gold, list):
        return [index if index < count else OUTSIDE for index in gold]
    if isinstance(gold, int):
        return gold if gold < count else OUTSIDE
    if isinstance(gold, str):
        return question.choices.index(gold) if gold in question.choices else OUTSIDE
    return gold


def _generation(metrics: Mapping[str, TaskMetric], question: Question, results: Sequence[Any]) -> dict[str, Any]:
    result = results[0]
    gold = expected_answer(metrics, question, result)
    values: dict[str, Any] = {}
    for name, metric in metrics.items():
        if question.has_several_targets:
            golds = gold if isinstance(gold, list) else [gold]
            gold = golds
            if name == "exact_match":
                # lm-eval 0.4.13 keeps the repeated result: every metric after this one sees the list.
                result = [result for _ in golds]
                share = _called(metric, references=golds, predictions=result)[name]
                values[name] = 1.0 if share > 0.0 else 0.0
            else:
                scores = (_of_pair(metric, one, result) for one in golds)
                found = [score[name] if isinstance(score, dict) else score for score in scores]
                values[name] = 1.0 if any(found) else 0.0
            continue
        score = _of_pair(metric, gold, result)
        if isinstance(score, dict):
            values.update(score)
        else:
            values[name] = score
    return values


def expected_answer(metrics: Mapping[str, TaskMetric], question: Question, result: Any) -> Any:
    """Return the gold answer as lm-eval compares it: a choice, a list, or cast to the type of the result."""
    gold = question.target
    if question.choices is not None:
        return question.choices[gold]
    if question.has_several_targets:
        return list(gold)
    if type(gold) is not type(result) and "bypass" not in metrics and not isinstance(result, list):
        return type(result)(gold)
    return gold


def _of_pair(metric: TaskMetric, gold: Any, result: Any) -> Any:
    try:
        return _called(metric, references=[gold], predictions=[result])
    except TypeError:
        # lm-eval's own metrics take one list of both; it tries that after any TypeError, also from inside the metric.
        if metric.function is None:
            raise
        return metric.function([gold, result])


def _called(metric: TaskMetric, **sides: Any) -> Any:
    if metric.function is None:
        raise TypeError(f"{metric.name!r} is not a metric of lm-eval, and the package evaluate does not have it")
    return metric.function(**sides, **metric.arguments)


def _wanted(metrics: Mapping[str, TaskMetric], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in metrics}


_PROCESSORS: Final[Mapping[OutputType, Processor]] = {
    "loglikelihood": _likelihood,
    "loglikelihood_rolling": _rolling,
    "multiple_choice": _choice,
    "generate_until": _generation,
}


def score_doc(
    task: Task, metrics: Sequence[TaskMetric], doc: Doc, question: Question, results: Sequence[Any]
) -> Mapping[str, Any]:
    """Return the metric values of one doc, by the task's own `process_results` where it has one.

    Raises MissingResourceError where code of the task lacks a package or a download, else what it raises.
    """
    try:
        return _score_doc(task, metrics, doc, question, results)
    except PromptfmtError:
        raise
    except Exception as error:
        position = task.position("process_results" if callable(task.process_results) else "metric_list")
        message = f"scoring fails with {type(error).__name__}: {error}"
        if (missing := lacking(error, message, position)) is not None:
            raise missing.naming(repr(task.id)) from error
        raise


def _score_doc(
    task: Task, metrics: Sequence[TaskMetric], doc: Doc, question: Question, results: Sequence[Any]
) -> Mapping[str, Any]:
    if callable(task.process_results):
        values = task.process_results(doc, results)
        if not isinstance(values, Mapping):
            message = f"process_results of {task.id!r} must return a mapping, not {type(values).__name__}"
            raise task.error(ScoringError, message, "process_results").naming(repr(task.id))
        return values
    return process_results(metrics, question, results)


_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def score_texts(values: Mapping[str, Any] | BaseException) -> dict[str, str]:
    """Return the values of metrics as texts, by name in order; an exception that took their place under no name."""
    if isinstance(values, BaseException):
        return {"": f"! {type(values).__name__}"}
    return {str(name): _ADDRESS.sub("", repr(with_leaves(values[name], _plain))) for name in sorted(values, key=str)}


def _plain(value: Any, *_keys: str | int) -> Any:
    """Return a value in Python's own types, a number without the noise of its last digits."""
    value = value.tolist() if hasattr(value, "tolist") else value  # of numpy
    return float(f"{value:.12g}") if isinstance(value, float) else value


def aggregated(metric: TaskMetric, values: Sequence[Any]) -> Any:
    """Return the aggregate of one metric over docs; raises ScoringError for an aggregation that does not exist."""
    if metric.aggregation is None:
        raise ScoringError(f"unknown aggregation of the metric {metric.name!r}")
    return metric.aggregation(values)


# -- the same on every machine: functions and classes are shown by name, never by their code or address ---------------


def reading_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what reads and scores answers, by name, from the keys of a task; what lm-eval assumes is written out.

    A value that lm-eval refuses is shown as it is written. Functions are named: their code is compared elsewhere.
    """
    return dict(_lines(values))


def task_reading(task: Task) -> dict[str, str]:
    """Return what reads and scores the answers of a task whose functions are bound, in its format.

    Nothing for a task that is put together in its own way and names neither filters nor metrics. Raises what stops a
    task class from naming them.
    """
    task = task.assembly.scored(task)
    if not task.assembly.renders_fields and task.filter_list is None and task.metric_list is None:
        return {}
    names = ["filter_list", "metric_list", "repeats", "output_type"]
    # Other systems bring code of ours, which serves the metrics that they name.
    names += ["process_results"] if task.assembly.renders_fields else []
    written = {name: getattr(task, name) for name in names}
    return reading_of({name: value for name, value in written.items() if value is not None})


def _lines(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    filters = values.get("filter_list") or [{"name": "none", "filter": [{"function": "take_first"}]}]
    for name, pipeline in _named_entries(filters, "name"):
        steps = pipeline.get("filter")
        shown = [_call(step) for step in steps] if isinstance(steps, list) else [_shown(steps)]
        yield f"filter {name}", " → ".join(shown)
    metrics = values.get("metric_list")
    if metrics is None:
        metrics = [
            {"metric": name} for name in DEFAULT_METRICS.get(str(values.get("output_type", "generate_until")), ())
        ]
    for name, metric in _named_entries(metrics, "metric"):
        known = METRICS.get(name)
        assumed = {"aggregation": known.aggregation, "higher_is_better": known.higher_is_better} if known else {}
        yield (
            f"metric {name}",
            _arguments({**assumed, **{key: value for key, value in metric.items() if key != "metric"}}),
        )
    yield "repeats", _shown(values.get("repeats", 1))
    if "process_results" in values:
        yield "process_results", _shown(values["process_results"])


def _named_entries(entries: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, entry in enumerate(entries if isinstance(entries, Sequence) else [entries]):
        if isinstance(entry, Mapping):
            name = entry.get(key)
            yield name if isinstance(name, str) else _shown(name), entry
        else:
            yield f"{number + 1}", {"written": entry}


def _call(step: Any) -> str:
    if not isinstance(step, Mapping):
        return _shown(step)
    arguments = _arguments({name: value for name, value in step.items() if name != "function"})
    function = step.get("function")
    return f"{function if isinstance(function, str) else _shown(function)}({arguments})"


def _arguments(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in sorted(given.items(), key=lambda pair: str(pair[0])))


def _shown(value: Any) -> str:
    if isinstance(value, FunctionRef) or callable(value):
        return _name_of_value(value)
    try:
        return json.dumps(_keyed(value), ensure_ascii=False, default=_name_of_value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # a list inside itself
        return _name_of_value(value)


def _keyed(value: Any) -> Any:
    """Return a value whose keys are text, so that they have an order."""
    if isinstance(value, Mapping):
        return {str(key): _keyed(item) for key, item in value.items()}
    return [*map(_keyed, value)] if isinstance(value, list | tuple) else value


def _name_of_value(value: Any) -> str:
    """Return the name of a function or class, with the arguments that are bound to it; of other values the type."""
    if isinstance(value, FunctionRef):
        return f"!function {value}"
    if isinstance(value, partial):
        given = ", ".join(filter(None, [*map(_shown, value.args), _arguments(value.keywords)]))
        return f"{_name_of_value(value.func)}({given})"
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"<{type(value).__module__}.{type(value).__qualname__}>"

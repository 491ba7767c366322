"""The figures and facts that a model's answers show about a task, for a table and for rules.

The facts are those that hold for any model that can do a task at all: it sees the ids that were meant, puts
probability on the candidates as they are spelled, ends where it should, and is understood by filters and metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain, is_nothing
from pytest_promptfmt.answers.metric_scores import number_of
from pytest_promptfmt.answers.phrasings import answers_of
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import ModelError, PromptfmtError, did_you_mean
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.models.model import AskedQuestion, Generation, Likelihood
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.tasks import LogLikelihood, Question, metrics_of, questions_of, score_doc

LABEL_TOKENS: Final = 2
"""A candidate of up to so many tokens is a label, on which a model that follows the format puts its probability."""

_SHOWN: Final = 60
"""Characters of an answer that messages show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Shares from 0 to 1; a value below one is a finding.

    `mass`: the probability that falls on the candidates of a doc, where each is a label of few tokens (mean over
    docs). `stops`: generations that end before their budget does. `extraction`: generations in which the filters find
    an answer. `score`: the mean of the first metric.
    """

    mass: float = 0.01
    stops: float = 0.5
    extraction: float = 0.5
    score: float = 0.0


def thresholds_of(task: Task) -> Thresholds | None:
    """Return the thresholds that the author of a task wrote under `metadata.promptfmt.model`, None without any.

    Raises ModelError for an unknown name, and for a value that is not a share.
    """
    written: Any = task.own_metadata.get("model")
    if written is None:
        return None
    names = [each.name for each in fields(Thresholds)]
    keys = ("metadata", "promptfmt", "model")
    if not isinstance(written, Mapping):
        hint = f"write a mapping with values from 0 to 1 for {', '.join(names)}"
        raise task.error(ModelError, f"metadata.promptfmt.model is {written!r}", *keys, hint=hint)
    for name, share in written.items():
        if name not in names:
            message = f"unknown key {name!r} in metadata.promptfmt.model; expected one of {', '.join(names)}"
            raise task.error(ModelError, message, *keys, name, hint=did_you_mean(str(name), names))
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            message = f"the threshold {name!r} is {share!r}"
            raise task.error(ModelError, message, *keys, name, hint="write a number from 0 to 1")
    return replace(Thresholds(), **written)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A question and its answer; `sent` is the digest of the ids that went to the model."""

    asked: AskedQuestion
    answer: Likelihood | Generation
    sent: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A filter or metric (`part`) that failed on an answer about the doc with this index."""

    part: str
    doc: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """The facts that the replies to one question of a doc show; None where one does not apply.

    `mass` is the probability on the candidates, `rival_mass` that on their other spellings. `stopped` and `extracted`
    are about a generation. `tokens` are the lengths of the candidates, or of what was written.
    """

    tokens: tuple[int, ...]
    mass: float | None = None
    rival_mass: float | None = None
    stopped: bool | None = None
    extracted: bool | None = None
    score: float | None = None
    failures: tuple[Failure, ...] = ()


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean_of(name: str) -> cached_property[float | None]:
    """Return a property: the mean of a fact over the questions to which it applies."""
    return cached_property(lambda judged: _mean(getattr(each, name) for each in judged.questions))


@dataclass(frozen=True, kw_only=True)
class ModelAnswers:
    """The answers of a model about a task's docs in one profile, and what they show.

    `shown` are the digests of ids that the snapshot of the profile shows, None where it shows no tokens. `thresholds`
    are None where shares are shown and not judged. `seconds` is how long the model took.
    """

    task: Task
    profile: str
    replies: Sequence[Reply]
    questions: Sequence[Scored]
    tokenizer: Tokenizer | None
    shown: frozenset[str] | None
    thresholds: Thresholds | None
    seconds: float

    mass = _mean_of("mass")
    """The mean probability on the candidates."""
    rival_mass = _mean_of("rival_mass")
    """The mean probability on the other spellings of the candidates."""
    stops = _mean_of("stopped")
    """The share of generations that end before the maximum length."""
    extraction = _mean_of("extracted")
    """The share of generations in which the filters find an answer."""
    score = _mean_of("score")
    """The mean of the first metric."""

    @cached_property
    def has_labels(self) -> bool:
        """Return whether the candidates are labels of few tokens."""
        return all(length <= LABEL_TOKENS for one in self.questions for length in one.tokens)

    @property
    def first_text(self) -> str:
        """Return the beginning of the first generation, as messages show it."""
        texts = (reply.answer.text for reply in self.replies if isinstance(reply.answer, Generation))
        return _short(next(texts, ""))

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """Return the row of the closing table, by column.

        `mass` is the probability on the candidates, `extracted` the share of generations in which the filters find an
        answer, `tokens` the mean length of what was written or scored.
        """
        mass, extraction, score = self.mass, self.extraction, self.score
        tokens = _mean(length for one in self.questions for length in one.tokens)
        return (
            ("task", self.task.id),
            ("profile", self.profile),
            ("mass", "" if mass is None else f"{mass:.2f}" if mass >= 0.01 else f"{mass:.0e}"),
            ("extracted", "" if extraction is None else f"{extraction:.0%}"),
            ("score", "" if score is None else f"{score:.2f}"),
            ("tokens", f"{tokens or 0.0:.1f}"),
            ("seconds", f"{self.seconds:.2f}"),
        )


def scored_questions(task: Task, instances: Sequence[Instance], replies: Sequence[Reply]) -> tuple[Scored, ...]:
    """Return what the replies show, by question; functions of the task must be bound."""
    return (*_scored_likelihoods(task, instances, replies), *_scored_generations(task, instances, replies))


# -- log-likelihoods ---------------------------------------------------------------------------------------------------


def _scored_likelihoods(task: Task, instances: Sequence[Instance], replies: Sequence[Reply]) -> Iterator[Scored]:
    asked = _by_question([reply for reply in replies if isinstance(reply.answer, Likelihood)], instances)
    questions = questions_of(task, [one.doc for one in asked])
    metrics = metrics_of(task)
    worse = {metric.name for metric in metrics if metric.higher_is_better is False}  # perplexities are not scores
    for one, question in zip(asked, questions, strict=True):
        own = [reply for reply in one.replies if not reply.asked.is_rival]
        results = [
            LogLikelihood(reply.answer.logprobs, reply.answer.is_greedy)
            for reply in own
            if isinstance(reply.answer, Likelihood)
        ]
        scored = Scored(tokens=tuple(len(result.logprobs) for result in results))
        if len(own) > 1:  # a single candidate is not a choice
            rivals = [reply for reply in one.replies if reply.asked.is_rival]
            scored = replace(scored, mass=_mass(own), rival_mass=_mass(rivals))
        if len(own) == one.count:  # unconditional log-likelihoods are not asked
            try:
                values = score_doc(task, metrics, one.doc, question, results)
                score = number_of(metrics, {name: value for name, value in values.items() if name not in worse})
            except Exception as error:
                scored = replace(scored, failures=(Failure("metric", one.number, _reason(error)),))
            else:
                scored = replace(scored, score=score if score is not None and math.isfinite(score) else None)
        yield scored


@dataclass(frozen=True, slots=True)
class _Asked:
    """The replies to the requests that are scored together: the doc they are scored by, and how many there should be.

    `number` is that of the instance's doc.
    """

    number: int
    doc: Doc
    count: int
    replies: list[Reply]


def _by_question(replies: Sequence[Reply], instances: Sequence[Instance]) -> list[_Asked]:
    """Return the replies by what they are scored by: a doc, or one of several questions that it asks."""
    by_number = {instance.index: instance for instance in instances}
    found: dict[tuple[int, int], _Asked] = {}
    for reply in replies:
        instance, own = by_number[reply.asked.doc], reply.asked.request.doc
        key = instance.index, id(own)
        if key not in found:
            count = sum(request.doc is own for request in instance.requests)
            found[key] = _Asked(instance.index, instance.doc if own is None else own, count, [])
        found[key].replies.append(reply)
    return list(found.values())


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PromptfmtError) else f"{type(error).__name__}: {error}"


def _mass(replies: Sequence[Reply]) -> float:
    """Return the probability on the candidates of one doc, equal ones counted once."""
    chances = {
        (reply.asked.ask.context, reply.asked.ask.continuation): math.exp(reply.answer.total)
        for reply in replies
        if isinstance(reply.answer, Likelihood)
    }
    contexts = {context for context, _ in chances} or {""}
    return sum(chances.values()) / len(contexts)


# -- generations -------------------------------------------------------------------------------------------------------


def _scored_generations(task: Task, instances: Sequence[Instance], replies: Sequence[Reply]) -> Iterator[Scored]:
    written = [reply for reply in replies if isinstance(reply.answer, Generation)]
    if not written:
        return
    chain = Chain(task, written[0].asked.ask.stop)
    asked = _by_question(written, instances)
    questions = questions_of(task, [one.doc for one in asked])
    for one, question in zip(asked, questions, strict=True):
        for reply in one.replies:
            yield _scored_generation(chain, reply, one.doc, question)


def _scored_generation(chain: Chain, reply: Reply, doc: Doc, question: Question) -> Scored:
    answer, ask, number = reply.answer, reply.asked.ask, reply.asked.doc
    assert isinstance(answer, Generation)
    scores: list[float] = []
    failures: list[Failure] = []
    found = False
    for pipeline in chain.pipelines:
        stages = chain.read(pipeline, answer.text, doc, f"doc {number + 1}")
        if stages.problem is not None:
            failures.append(Failure("filter", number, f"{pipeline.name}: {stages.problem} on {_short(answer.text)}"))
            continue
        found = found or _is_answer(stages.extracted, question, ask.context)
        try:
            score = chain.score(question, doc, stages.extracted)
        except Exception as error:
            failures.append(Failure("metric", number, _reason(error)))
            continue
        scores += [] if score is None else [score]
    return Scored(
        tokens=(answer.tokens,),
        # A budget of a label's length is there to be used up.
        stopped=answer.finish != "length" or ask.max_tokens <= LABEL_TOKENS,
        extracted=found,
        score=max(scores, default=None),
        failures=tuple(failures),
    )


def _is_answer(extracted: Any, question: Question, prompt: str) -> bool:
    """Return whether what the filters give is one of the possible answers, or at least something."""
    if is_nothing(extracted):
        return False
    possible = answers_of(question, prompt)
    if possible is None or possible.kind == "text":
        return True
    if possible.kind == "number":
        return any(character.isdigit() for character in str(extracted))
    wanted = {str(one).strip() for one in (*possible.labels, *possible.targets)}
    return str(extracted).strip() in wanted


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")

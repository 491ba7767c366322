"""What a model's answers say about a task: whether the chain from prompt to score holds.

The facts are those that hold for any model that can do a task at all: it sees the ids that were meant, puts
probability on the candidates as they are spelled, ends where it should, and is understood by filters and metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.answers.answers import answers_of
from pytest_promptfmt.answers.completions import Chain, is_nothing, number_of
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.models.asking import Asked
from pytest_promptfmt.models.base import Generation, Likelihood
from pytest_promptfmt.models.recording import digest_of
from pytest_promptfmt.models.thresholds import Thresholds
from pytest_promptfmt.systems.lm_eval.scoring.metrics import metrics_of
from pytest_promptfmt.systems.lm_eval.scoring.results import LogLikelihood, Question, questions_of, score_doc

if TYPE_CHECKING:
    from pytest_promptfmt.tokens import Tokenizer

LABEL_TOKENS: Final = 2
"""A candidate of up to so many tokens is a label, on which a model that follows the format puts its probability."""

RIVAL_FACTOR: Final = 10.0
"""The other spelling must be so many times likelier before the task's own is called wrong."""

_SHOWN: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A question and its answer; `sent` is the digest of the ids that went to the model."""

    asked: Asked
    answer: Likelihood | Generation
    sent: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not hold: a short title that is equal for equal problems, and what was seen."""

    title: str
    details: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One row of the closing table, and the problems. Shares are None where they make no sense.

    `tokens` is the mean length of what was written, or of the candidates; `seconds` how long the model took.
    """

    task: str
    profile: str
    mass: float | None = None
    extraction: float | None = None
    score: float | None = None
    tokens: float = 0.0
    seconds: float = 0.0
    docs: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """Return the row of the table, by column.

        `mass` is the probability on the candidates, `extracted` the share of generations in which the filters find an
        answer, `tokens` the mean length of what was written or scored.
        """
        mass = "" if self.mass is None else f"{self.mass:.2f}" if self.mass >= 0.01 else f"{self.mass:.0e}"
        return (
            ("task", self.task),
            ("profile", self.profile),
            ("mass", mass),
            ("extracted", "" if self.extraction is None else f"{self.extraction:.0%}"),
            ("score", "" if self.score is None else f"{self.score:.2f}"),
            ("tokens", f"{self.tokens:.1f}"),
            ("seconds", f"{self.seconds:.2f}"),
        )

    @property
    def problems_text(self) -> str:
        """Return the text of a failing item."""
        lines = [f"{self.task} [{self.profile}]: the chain from prompt to score does not hold for the model's answers"]
        for problem in self.problems:
            lines += [f"  {problem.title}", f"    {problem.details}"]
        return "\n".join(lines)


@dataclass(kw_only=True, slots=True)
class _Sums:
    """What is added up over the docs."""

    masses: list[float] = field(default_factory=list)
    rivals: list[float] = field(default_factory=list)
    are_labels: bool = True
    lengths: list[int] = field(default_factory=list)
    stopped: int = 0
    written: int = 0
    extracted: int = 0
    scores: list[float] = field(default_factory=list)


def judge(
    task: Task,
    instances: Sequence[Instance],
    replies: Sequence[Reply],
    *,
    profile: str,
    tokenizer: Tokenizer | None,
    shown: frozenset[str] | None,
    thresholds: Thresholds,
    enforced: bool,
) -> Judged:
    """Return what the replies say; functions of the task must be bound.

    `shown` are the digests of ids that the snapshot of the profile shows, None where it shows no tokens. With
    `enforced` false, only what is wrong with any model is a problem: ids that are not the prompt's, two BOS tokens,
    metrics that fail; shares are told and not judged.
    """
    problems = [*_about_ids(replies, tokenizer, shown)]
    sums = _Sums()
    problems += _about_likelihoods(task, instances, replies, sums)
    problems += _about_generations(task, instances, replies, sums)
    if enforced:
        problems += _below(sums, thresholds, replies)
    return Judged(
        task=task.id,
        profile=profile,
        mass=_mean(sums.masses),
        extraction=sums.extracted / sums.written if sums.written else None,
        score=_mean(sums.scores),
        tokens=_mean(sums.lengths) or 0.0,
        docs=len(instances),
        problems=tuple(dict.fromkeys(problems)),
    )


# -- what was sent -----------------------------------------------------------------------------------------------------


def _about_ids(
    replies: Sequence[Reply], tokenizer: Tokenizer | None, shown: frozenset[str] | None
) -> Iterator[Problem]:
    for reply in replies:
        ask = reply.asked.ask
        meant = (*ask.context_ids, *ask.continuation_ids)
        where = f"doc {reply.asked.doc + 1}"
        if meant and reply.sent is not None and reply.sent != digest_of(meant):
            yield Problem(
                "the model got other ids than the prompt has",
                f"{where}: {len(meant)} ids were meant; the row is longer than the model takes, or the tokenizer "
                "is not the one that was recorded",
            )
        if shown is not None and not reply.asked.is_rival and digest_of(ask.context_ids) not in shown:
            yield Problem(
                "the model got other ids than the snapshot shows",
                f"{where}: digest {digest_of(ask.context_ids)}, which the snapshot does not have",
            )
        if isinstance(reply.answer, Likelihood) and ask.continuation_ids:
            measured = len(reply.answer.logprobs)
            if measured != len(ask.continuation_ids):
                yield Problem(
                    "a log-likelihood is not that of its continuation",
                    f"{where}: {ask.continuation!r} has {len(ask.continuation_ids)} tokens, {measured} were measured",
                )
        bos = tokenizer.bos_token_id if tokenizer is not None else None
        if bos is not None and ask.context_ids[:2] == (bos, bos):
            yield Problem(
                "the prompt begins with two BOS tokens",
                f"{where}: {tokenizer.bos_token!r} stands in the text, and the tokenizer adds another"
                if tokenizer is not None
                else where,
            )


# -- log-likelihoods ---------------------------------------------------------------------------------------------------


def _about_likelihoods(
    task: Task, instances: Sequence[Instance], replies: Sequence[Reply], sums: _Sums
) -> Iterator[Problem]:
    asked = _by_question([reply for reply in replies if isinstance(reply.answer, Likelihood)], instances)
    questions = questions_of(task, [one.doc for one in asked])
    metrics = metrics_of(task)
    worse = {metric.name for metric in metrics if metric.higher_is_better is False}  # perplexities are no scores
    for one, question in zip(asked, questions, strict=True):
        own = [reply for reply in one.replies if not reply.asked.is_rival]
        rivals = [reply for reply in one.replies if reply.asked.is_rival]
        if len(own) > 1:  # one candidate alone is no choice
            sums.masses.append(_mass(own))
            sums.rivals.append(_mass(rivals))
        results = []
        for reply in own:
            assert isinstance(reply.answer, Likelihood)
            sums.lengths.append(len(reply.answer.logprobs))
            sums.are_labels = sums.are_labels and len(reply.answer.logprobs) <= LABEL_TOKENS
            results.append(LogLikelihood(reply.answer.logprobs, reply.answer.is_greedy))
        if len(own) != one.count:  # unconditional log-likelihoods are not asked
            continue
        try:
            values = score_doc(task, metrics, one.doc, question, results)
            score = number_of(metrics, {name: value for name, value in values.items() if name not in worse})
        except Exception as error:
            yield Problem("a metric fails on the model's answers", f"doc {one.number + 1}: {_in_words(error)}")
            continue
        if score is not None and math.isfinite(score):
            sums.scores.append(score)


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


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, PromptfmtError) else f"{type(error).__name__}: {error}"


def _mass(replies: Sequence[Reply]) -> float:
    """Return the probability on the candidates of one doc, those written alike counted once."""
    chances = {
        (reply.asked.ask.context, reply.asked.ask.continuation): math.exp(reply.answer.total)
        for reply in replies
        if isinstance(reply.answer, Likelihood)
    }
    contexts = {context for context, _ in chances} or {""}
    return sum(chances.values()) / len(contexts)


# -- generations -------------------------------------------------------------------------------------------------------


def _about_generations(
    task: Task, instances: Sequence[Instance], replies: Sequence[Reply], sums: _Sums
) -> Iterator[Problem]:
    written = [reply for reply in replies if isinstance(reply.answer, Generation)]
    if not written:
        return
    chain = Chain(task, written[0].asked.ask.stop)
    asked = _by_question(written, instances)
    questions = questions_of(task, [one.doc for one in asked])
    pairs = [
        (reply, one.doc, question) for one, question in zip(asked, questions, strict=True) for reply in one.replies
    ]
    for reply, doc, question in pairs:
        assert isinstance(reply.answer, Generation)
        sums.written += 1
        # A budget of a label's length is there to be used up.
        sums.stopped += reply.answer.finish != "length" or reply.asked.ask.max_tokens <= LABEL_TOKENS
        sums.lengths.append(reply.answer.tokens)
        best: float | None = None
        found = False
        for pipeline in chain.pipelines:
            stages = chain.read(pipeline, reply.answer.text, doc, f"doc {reply.asked.doc + 1}")
            if stages.problem is not None:
                yield Problem(
                    "a filter fails on what the model wrote",
                    f"doc {reply.asked.doc + 1}, {pipeline.name}: {stages.problem} on {_short(reply.answer.text)}",
                )
                continue
            found = found or _is_answer(stages.extracted, question, reply.asked.ask.context)
            try:
                score = chain.score(question, doc, stages.extracted)
            except Exception as error:
                yield Problem(
                    "a metric fails on what the model wrote",
                    f"doc {reply.asked.doc + 1}: {_in_words(error)}",
                )
                continue
            best = score if best is None or (score is not None and score > best) else best
        sums.extracted += found
        if best is not None:
            sums.scores.append(best)


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


# -- shares ------------------------------------------------------------------------------------------------------------


def _below(sums: _Sums, thresholds: Thresholds, replies: Sequence[Reply]) -> Iterator[Problem]:
    mass, rival = _mean(sums.masses), _mean(sums.rivals)
    if mass is not None and rival is not None and rival > mass * RIVAL_FACTOR:
        own, other = _spellings(replies)
        yield Problem(
            "the candidates are spelled otherwise than the model writes them",
            f"{other} has the probability {rival:.2g}, {own} as the task asks {mass:.2g}: see the blank before the "
            "candidates (target_delimiter, doc_to_choice) and the end of the prompt",
        )
    elif mass is not None and sums.are_labels and mass < thresholds.mass:
        yield Problem(
            "the model puts its probability elsewhere than on the candidates",
            f"{mass:.2g} in the mean over {len(sums.masses)} docs, wanted at least {thresholds.mass:g}: the prompt "
            "does not lead to them",
        )
    if not sums.written:
        return
    written = [reply.answer.text for reply in replies if isinstance(reply.answer, Generation)]
    for name, share, wanted, means in (
        ("stops", sums.stopped / sums.written, thresholds.stops, "end before their budget of tokens does"),
        ("extraction", sums.extracted / sums.written, thresholds.extraction, "hold an answer that the filters find"),
    ):
        if share < wanted:
            yield Problem(
                f"too few answers {means}",
                f"{share:.0%} of {sums.written}, wanted at least {wanted:.0%} ({name}); first {_short(written[0])}",
            )
    score = _mean(sums.scores)
    if score is not None and score < thresholds.score:
        yield Problem("the score is too low", f"{score:.2f}, wanted at least {thresholds.score:g}")


def _spellings(replies: Sequence[Reply]) -> tuple[str, str]:
    own = next(reply for reply in replies if not reply.asked.is_rival)
    other = next(reply for reply in replies if reply.asked.is_rival)
    end = len(other.asked.ask.context) - 8
    shown = f"{other.asked.ask.context[max(end, 0) :]}|{other.asked.ask.continuation}"
    return f"{own.asked.ask.context[-8:] + '|' + str(own.asked.ask.continuation)!r}", f"{shown!r}"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

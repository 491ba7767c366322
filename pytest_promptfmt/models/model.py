"""Questions to a model, made of the requests of a task, its answers, and the protocol of every backend. Values only.

Questions carry text and token ids: a backend that runs a model itself gets exactly the ids that a snapshot shows, one
behind a server that takes only text still gets exactly the text. Log-likelihoods are in nats, lengths in tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, Protocol

from pytest_promptfmt.core.profile import Split
from pytest_promptfmt.core.prompt import Instance, Request
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.profiles.encoding import encode_pairs, encode_prompts

MAX_TOKENS: Final = 256
"""The budget of a task that names none (lm-eval 0.4.13)."""

Finish = Literal["stop", "end", "length"]
"""Why a generation ended: a stop sequence, the model's own end token, or its budget of tokens."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to a model: a log-likelihood (`continuation` is a text) or a generation (it is None).

    `context_ids` and `continuation_ids` are what lm-eval 0.4.13 would send with the model's tokenizer, empty for a
    backend without one. `stop` cuts a generation, `max_tokens` bounds it. `messages` are the chat messages (role,
    content) that the context was made from, for servers that take nothing else.
    """

    context: str
    continuation: str | None = None
    context_ids: tuple[int, ...] = ()
    continuation_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int = MAX_TOKENS
    messages: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def kind(self) -> Literal["loglikelihood", "generate"]:
        """Return which of the two questions this is."""
        return "generate" if self.continuation is None else "loglikelihood"

    @cached_property
    def key(self) -> str:
        """Return the hash of the question, text and limits: 32 hexadecimal digits.

        Ids are left out, so that a recording can be replayed where the tokenizer is not available.
        """
        asked: list[Any] = [self.context, self.continuation]
        if self.continuation is None:
            asked += [list(self.stop), self.max_tokens]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Likelihood:
    """The log-likelihood of a continuation, token by token (nats), and whether greedy decoding would write it.

    `sent` are the ids of the whole row as the model got it, without padding; None where only text was sent.
    """

    logprobs: tuple[float, ...]
    is_greedy: bool
    sent: tuple[int, ...] | None = None

    @property
    def total(self) -> float:
        """Return the log-likelihood of the continuation (nats)."""
        return sum(self.logprobs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A text that a model wrote, cut at the first stop sequence, and why it ended, with its number of tokens."""

    text: str
    finish: Finish
    tokens: int
    sent: tuple[int, ...] | None = None


Answer = Likelihood | Generation


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """How a model is to run.

    `device` is a torch device or `auto`, `dtype` one of torch's names or `auto` (float32 on a CPU, bfloat16 on a GPU
    that has it). `batch_size` is the most rows at once; it is halved when memory runs out. `download` lets a backend
    fetch files. `timeout` is in seconds for one request to a server, `concurrency` the most requests at once.
    """

    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = 16
    download: bool = False
    timeout: float = 60.0
    concurrency: int = 8


class Model(Protocol):
    """A backend. Answers come in the order of the questions and one at a time, so that each can be recorded at once."""

    @property
    def name(self) -> str:
        """Return the name of the model in reports and recordings: `tiny`, `hf:org/model`."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Return what the numbers depend on: versions of libraries, device, dtype."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the model's tokenizer; None where only the server knows it."""

    def loglikelihood(self, asks: Sequence[Ask]) -> Iterator[Likelihood]:
        """Yield the log-likelihood of each continuation; raises ModelError when the model cannot compute it."""

    def generate(self, asks: Sequence[Ask]) -> Iterator[Generation]:
        """Yield what the model writes after each context, greedily; raises ModelError when the model cannot."""


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first of the stop sequences, and whether there was one (as lm-eval 0.4.13 cuts)."""
    found = False
    for stop in stops:
        if stop and stop in text:
            text, found = text.split(stop)[0], True
    return text, found


# -- the questions of a task -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedQuestion:
    """A question, and the request of a doc that it was made from.

    `is_rival` marks the other spelling of a candidate, with or without a space before it: no task asks it, and a model
    that prefers it shows that the task spells its candidates wrongly.
    """

    ask: Ask
    doc: int
    request: Request
    is_rival: bool = False


def questions(instances: Sequence[Instance]) -> list[AskedQuestion]:
    """Return the questions about the docs, in order, each candidate followed by its rival; ids are not filled in.

    Unconditional and rolling log-likelihoods are left out: they do not depend on a prompt.
    """
    return [asked for instance in instances for asked in _of_instance(instance)]


def _of_instance(instance: Instance) -> Iterator[AskedQuestion]:
    for request in instance.requests:
        if request.kind == "generate_until" and request.context is not None:
            messages = instance.prompts[request.prompt].messages if request.prompt is not None else ()
            ask = Ask(
                context=request.context,
                stop=stops_of(request.generation_kwargs or {}),
                max_tokens=budget_of(request.generation_kwargs or {}),
                messages=tuple((message.role, message.text) for message in messages),
            )
            yield AskedQuestion(ask=ask, doc=instance.index, request=request)
        elif request.kind == "loglikelihood" and request.context and request.continuation is not None:
            ask = Ask(context=request.context, continuation=request.continuation)
            yield AskedQuestion(ask=ask, doc=instance.index, request=request)
            yield AskedQuestion(ask=rival_of(ask), doc=instance.index, request=request, is_rival=True)


def rival_of(ask: Ask) -> Ask:
    """Return the same candidate spelled the other way: with a space before it, or without."""
    assert ask.continuation is not None
    if ask.continuation.startswith(" "):
        return replace(ask, continuation=ask.continuation.lstrip(" "))
    return replace(ask, context=ask.context.rstrip(" "), continuation=f" {ask.continuation}")


def stops_of(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stop sequences of generation arguments; values other than text cannot stop anything."""
    until = arguments.get("until") or ()
    written = [until] if isinstance(until, str) else until
    return tuple(stop for stop in written if isinstance(stop, str) and stop)


def budget_of(arguments: Mapping[str, Any]) -> int:
    """Return the most tokens to generate, by the names that lm-eval 0.4.13 takes."""
    for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"):
        budget = arguments.get(name)
        if isinstance(budget, int) and budget > 0:
            return budget
    return MAX_TOKENS


def with_ids(asked: Sequence[AskedQuestion], tokenizer: Tokenizer, *, split: Split) -> list[AskedQuestion]:
    """Return the questions with the ids that lm-eval 0.4.13's HFLM sends."""
    pairs = [(one.ask.context, one.ask.continuation) for one in asked if one.ask.continuation is not None]
    prompts = iter(encode_prompts(tokenizer, [one.ask.context for one in asked if one.ask.continuation is None]))
    encoded_pairs = iter(encode_pairs(tokenizer, pairs, split=split))
    result = []
    for one in asked:
        if one.ask.continuation is None:
            ask = replace(one.ask, context_ids=next(prompts))
        else:
            pair = next(encoded_pairs)
            ask = replace(one.ask, context_ids=pair.context_ids, continuation_ids=pair.continuation_ids)
        result.append(replace(one, ask=ask))
    return result

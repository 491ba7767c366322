"""Questions to a model, its answers, and the protocol of every backend. Values only.

Questions carry text and token ids: a backend that runs a model itself gets exactly the ids that a snapshot shows, one
behind a server that takes only text still gets exactly the text. Log-likelihoods are in nats, lengths in tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pytest_promptfmt.profiles import Tokenizer

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
    max_tokens: int = 256
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
    """What a model wrote, cut at the first stop sequence, and why it ended; `tokens` counts what was generated."""

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

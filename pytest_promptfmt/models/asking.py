"""The requests of a task as questions to a model: text, token ids as lm-eval 0.4.13 makes them, stops and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.prompt import Instance, Request
from pytest_promptfmt.models.model import Ask

if TYPE_CHECKING:
    from pytest_promptfmt.core.profile import Split
    from pytest_promptfmt.profiles import Tokenizer

MAX_TOKENS: Final = 256
"""The budget of a task that names none (lm-eval 0.4.13)."""


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
    from pytest_promptfmt.profiles.encoding import encode_pairs, encode_prompts

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

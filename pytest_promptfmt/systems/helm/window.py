"""Prompts cut to a model's window as HELM's window services do it (0.5.16), and the windows of language modelling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.prompt import Origin, Span
from pytest_promptfmt.systems.helm.prompt_blocks import Built, PromptPiece, cut

CUT: Final = "promptfmt.window"
"""The key of the last span of a prompt that was cut."""

_NO_LIMIT: Final = 2**31 - 1
_REPLACEMENT: Final = "\ufffd"


class Codec(Protocol):
    """The part of a tokenizer that a window needs: ids of a text without special tokens, and the text of ids."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        ...


@dataclass(frozen=True, kw_only=True)
class Window:
    """How many tokens a model takes: in a request, in a sequence, and with what it generates; and how it counts them.

    `prefix_token` is what comes before the first window of a text in language modelling.
    """

    codec: Codec
    max_request_length: int
    max_sequence_length: int | None = None
    max_sequence_and_generated_tokens_length: int | None = None
    prefix_token: str = ""

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self.codec.encode(text))

    def fits(self, text: str, completion: int) -> bool:
        """Return whether a text and so many generated tokens fit into a request."""
        return self.count(text) + completion <= self.max_request_length

    def truncated(self, text: str, completion: int) -> str:
        """Return the text cut from the right, decoded from its ids, and then character by character."""
        length = self.max_request_length - completion
        if length < 0:
            raise RenderError(
                f"max_tokens {completion} is more than the window's {self.max_request_length} tokens",
                hint="lower adapter_spec.max_tokens",
            )
        result = self.codec.decode(self.codec.encode(text)[:length])
        while result and not self.fits(result, completion):
            result = result[:-1]
        return result


def fitted(make: Callable[[int], Built], shots: int, max_tokens: int, window: Window) -> Built:
    """Return the prompt that fits: shots dropped from the end, then the text cut from the right.

    `make` builds the prompt with so many shots. A prompt without shots always goes through the
    tokenizer and back, and is replaced where it comes back shorter; so the end of the question is lost first.
    """
    for kept in range(shots, 0, -1):
        built = make(kept)
        if window.fits(built.text, max_tokens):
            return built
    built = make(0)
    text = window.truncated(built.text, max_tokens)
    if len(text) >= len(built.text):
        return built
    if not text:  # HELM sends the whole prompt where nothing is left of it
        return replace(built, is_truncated=True)
    # The key of the last span marks the cut; the span holds the whole text where the decoded text differs from ours.
    left = cut(built.pieces, 0, len(text)) if built.text.startswith(text) else []
    last = left.pop() if left else PromptPiece(Span(text, Origin("question")), len(built.roles) - 1)
    end = replace(last, span=Span(last.span.text, replace(last.span.origin, key=CUT)))
    return replace(built, pieces=(*left, end), is_truncated=True, answer=0)


def language_windows(text: str, max_tokens: int, window: Window) -> list[tuple[str, int]]:
    """Return the requests of language modelling: each text, and how many of its first tokens are only context.

    Raises RenderError where HELM fails: a window too small for what the tokenizer makes of a text.
    """
    ids = list(window.codec.encode(text))
    together = window.max_sequence_and_generated_tokens_length or _NO_LIMIT
    longest = min(window.max_request_length, together - max_tokens)
    first = min(window.max_sequence_length or window.max_request_length, len(ids))
    prefix = list(window.codec.encode(window.prefix_token))
    prompt, _ = _prompt(prefix, ids[:first], longest, window)
    windows = [(prompt, 1 if window.prefix_token else 0)]
    done = first
    while done < len(ids):
        size = min(len(ids) - done, longest - 1)
        if size < 1:
            raise RenderError(
                f"a window of {longest} tokens has no room for text", hint="lower adapter_spec.max_tokens"
            )
        end = done + size
        windows.append(_prompt(ids[end - longest : done], ids[done:end], longest, window))
        done = end
    return windows


def _prompt(context: list[int], predicted: list[int], longest: int, window: Window) -> tuple[str, int]:
    codec = window.codec
    raw = codec.decode(context + predicted)
    length = window.count(raw)
    while length > longest:
        predicted = predicted[: -(length - longest)]
        raw = codec.decode(context + predicted)
        length = window.count(raw)
        if not predicted:
            raise RenderError(
                "nothing of the text fits into the window once it is decoded and encoded again",
                hint="HELM 0.5.16 fails here; give a larger window",
            )
    prompt = raw.strip(_REPLACEMENT)
    if len(prompt) == len(raw):
        return prompt, len(context)
    leading = longest - window.count(raw.lstrip(_REPLACEMENT))
    trailing = longest - window.count(raw.rstrip(_REPLACEMENT))
    if trailing >= len(predicted):
        return prompt, window.count(prompt)
    return prompt, 1 if leading >= len(context) else len(context) - leading

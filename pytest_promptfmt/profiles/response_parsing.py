"""Answers read back with a `response_template`, by the parser of transformers 5.23 and later, whole and in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from pytest_promptfmt.core.errors import TokenizerError

_PARSER: Final = "transformers.utils.chat_parsing.response_parser"


class ResponseReader:
    """A parser of answers, as `parse_response` of a tokenizer that has this `response_template`."""

    def __init__(self, response_template: Mapping[str, Any]) -> None:
        """Read with a template; raises TokenizerError where transformers is missing or too old, or refuses it."""
        try:
            self._module = import_module(_PARSER)
        except ImportError as error:
            raise TokenizerError(
                "answers cannot be read back: the parser of response templates is missing",
                hint="install transformers 5.23 or later",
            ) from error
        try:
            self._template = self._module.load_response_template(dict(response_template))
        except ValueError as error:
            raise TokenizerError(f"invalid response_template: {error}") from error

    def read(self, pieces: Sequence[str], prompt: str, tools: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
        """Return the message that a server makes of an answer to a prompt, which arrives in pieces.

        Raises ValueError where parsing fails.
        """
        try:
            parser = self._module.ResponseParser(self._template, prefix=prompt, tools=list(tools or ()))
            for piece in pieces:
                parser.feed(piece)
            message, _ = parser.finalize()
        except (RuntimeError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        made: Mapping[str, Any] = message
        return made

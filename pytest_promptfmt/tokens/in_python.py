"""Tokenizers that transformers runs in Python (ByT5, Marian, mistral-common), in the shape of a `tokenizers` backend.

They cannot be frozen, so transformers is imported in every run that uses one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_promptfmt.tokens.freezing import arguments, explained, from_transformers
from pytest_promptfmt.tokens.sources import Source

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, slots=True)
class _Encoded:
    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class PythonBackend:
    """What `Tokenizer` needs of a backend, answered by a tokenizer of transformers. Offsets are all (0, 0)."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> _Encoded:
        """Return the ids that calling the tokenizer gives."""
        sequence.encode("utf-8")  # a lone surrogate is refused like everywhere else
        ids = [int(number) for number in self._loaded(sequence, add_special_tokens=add_special_tokens)["input_ids"]]
        return _Encoded(ids, [self.id_to_token(number) or "" for number in ids], [(0, 0)] * len(ids))

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids."""
        return str(self._loaded.decode(ids, skip_special_tokens=skip_special_tokens))

    def id_to_token(self, token_id: int) -> str | None:
        """Return the piece behind an id."""
        piece = self._loaded.convert_ids_to_tokens(token_id)
        return None if piece is None else str(piece)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece; None for one that the vocabulary lacks."""
        found = self._loaded.convert_tokens_to_ids(token)
        return found if isinstance(found, int) and self.id_to_token(found) == token else None

    def get_added_tokens_decoder(self) -> Mapping[int, tokenizers.AddedToken]:
        """Return the added tokens by id."""
        known = getattr(self._loaded, "added_tokens_decoder", None)
        return known if isinstance(known, dict) else {}  # mistral-common finds no tokens in text


def load_in_python(source: Source) -> PythonBackend:
    """Return the tokenizer that transformers makes of a source; raises TokenizerError."""
    with tempfile.TemporaryDirectory(prefix="promptfmt-") as scratch:
        where = arguments(source, Path(scratch))
        if source.hub_id is not None:  # the folder asks no network for anything
            where = {"location": str(source.folder)}
        try:
            return PythonBackend(from_transformers(**where))
        except Exception as error:
            raise explained(source, type(error).__name__, str(error)) from error

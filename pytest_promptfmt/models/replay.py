"""A recording in the place of a model: the answers of an earlier run, as long as exactly the same is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_promptfmt.core.errors import ModelError, Position
from pytest_promptfmt.models.base import NO_FACTS, Ask, Generation, Likelihood
from pytest_promptfmt.models.recording import Entry, read_entries

if TYPE_CHECKING:
    from pytest_promptfmt.tokens import Tokenizer


class ReplayModel:
    """Answers from a recording; needs no torch, no tokenizer and no network."""

    tokenizer: Tokenizer | None = None

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        """Take the entries of one model's recording."""
        self.name = f"replay:{path}"
        self._path = path
        self._entries = {entry.key: entry for entry in entries}
        self._docs = {(entry.where.task, entry.where.profile, entry.where.doc) for entry in entries}
        self.recorded_by = next((entry.model for entry in entries), "nothing")
        self.facts: Mapping[str, str] = next((entry.facts for entry in entries), NO_FACTS)

    @classmethod
    def read(cls, path: Path) -> ReplayModel:
        """Return the model of a file; raises ModelError for a file that is no recording, or of several models."""
        entries = read_entries(path)
        if not entries:
            raise ModelError("the recording is empty", position=Position(path), hint="write it with --promptfmt-record")
        models = sorted({entry.model for entry in entries})
        if len(models) > 1:
            raise ModelError(
                f"the recording holds the answers of {', '.join(models)}",
                position=Position(path),
                hint="keep one file for each model",
            )
        return cls(path, entries)

    def entry(self, ask: Ask) -> Entry:
        """Return what was recorded for exactly this question; raises ModelError when there is nothing."""
        found = self._entries.get(ask.key)
        if found is None or isinstance(found.answer, Likelihood) != (ask.kind == "loglikelihood"):
            raise ModelError(
                f"there is no recording of this prompt in {self._path.name}: it is new, or it changed since "
                f"{self.recorded_by} answered",
                hint="record it again with --promptfmt-record where the model can run",
            )
        return found

    def loglikelihood(self, asks: Sequence[Ask]) -> Iterator[Likelihood]:
        """Yield the recorded log-likelihoods; raises ModelError at the first question without a recording."""
        for ask in asks:
            answer = self.entry(ask).answer
            assert isinstance(answer, Likelihood)
            yield answer

    def generate(self, asks: Sequence[Ask]) -> Iterator[Generation]:
        """Yield the recorded generations; raises ModelError at the first question without a recording."""
        for ask in asks:
            answer = self.entry(ask).answer
            assert isinstance(answer, Generation)
            yield answer

"""Request states of a HELM run: what was asked, what came back, and the place for a message about either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, ScoringError, SourceError
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.instances import HelmInstance, row_of
from pytest_promptfmt.systems.helm.json_stream import json_items

STATES: Final = "request_states"

Completion = tuple[str, float]
"""A text with its log-probability."""


@dataclass(frozen=True, slots=True)
class RequestState:
    """One request state as written: its number from 0, its value, and what says where it begins."""

    number: int
    value: Any
    place: Callable[[int], Position]

    @property
    def position(self) -> Position:
        """Return where the state begins."""
        return self.place(self.number)

    def error(self, message: str, *, hint: str | None = None) -> SourceError:
        """Return an error that names the state."""
        return SourceError(f"{STATES}[{self.number}]: {message}", position=self.position, hint=hint)

    def get(self, key: str) -> Any:
        """Return the value of a key, None where the state has none or is not a mapping."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def row(self) -> HelmInstance:
        """Return the instance; raises SourceError where it cannot be used."""
        return row_of(self.value, self.number, self.error)

    @property
    def prompt(self) -> str | None:
        """Return the prompt that was sent, None where none is recorded."""
        request = self.get("request")
        prompt = request.get("prompt") if isinstance(request, dict) else None
        return prompt if isinstance(prompt, str) and prompt else None

    @property
    def has_nested_result(self) -> bool:
        """Return whether the result is inside `request`, where HELM does not look for it."""
        request = self.get("request")
        return self.get("result") is None and isinstance(request, dict) and isinstance(request.get("result"), dict)

    @property
    def result(self) -> Mapping[str, Any] | None:
        """Return the result, None where none is recorded."""
        result = self.value["request"]["result"] if self.has_nested_result else self.get("result")
        return result if isinstance(result, dict) else None

    @property
    def output_mapping(self) -> Mapping[str, str] | None:
        """Return what labels mean, where that is written."""
        return mapping_in(self.get)

    def answers(self) -> Sequence[Mapping[str, Any]]:
        """Return the completions as they are written; raises SourceError where they are not a list of mappings."""
        result = self.result
        given = result.get("completions") if result is not None else None
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise self.error("`result.completions` must be a list of mappings")
        return given

    def completions(self, output_format: str = "list") -> list[Completion]:
        """Return the completions, the most likely first; with the format "string" the one that is written first.

        Nothing where there is no result. Raises SourceError for completions without text.
        """
        given = self.answers() if self.result is not None else ()
        if not all(isinstance(each.get("text"), str) for each in given):
            raise self.error("a completion has no text")
        made = [(each["text"], float(each["logprob"]) if is_number(each.get("logprob")) else 0.0) for each in given]
        return made[:1] if output_format == "string" else most_likely_first(made)


def most_likely_first(completions: Sequence[Completion]) -> list[Completion]:
    """Return completions by their log-probability; of equal ones the first counts, as in HELM."""
    return sorted(completions, key=lambda each: -each[1])


def mapping_in(get: Callable[[str], Any]) -> Mapping[str, str] | None:
    """Return the output mapping of a request state or file, given how its keys are read; None where it has none."""
    for name in ("output_mapping", "answer_mapping"):
        given = get(name)
        if isinstance(given, dict) and all(isinstance(each, str) for each in given.values()):
            return given
    return None


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def stream_states(path: Path, progress: Callable[[int], object] = lambda _read: None) -> Iterator[RequestState]:
    """Yield the request states of a plain JSON file, one in memory at a time; raises SourceError as `json_items`."""
    for item in json_items(path, STATES, progress):
        if item.index is not None:
            yield RequestState(item.index, item.value, partial(_known, item.position))


def _known(position: Position, _number: int) -> Position:
    return position


def read_recorded(path: Path, progress: Callable[[int], object]) -> Iterator[Recorded | BadRecord]:
    """Yield the most likely completion of each request state and the label of its gold, for a task that is not HELM's.

    Raises ScoringError for a file without request states.
    """
    number = 0
    plain = AdapterSpec()
    try:
        for state in stream_states(path, progress):
            number = state.number + 1
            try:
                row, completions = state.row(), state.completions()
            except SourceError as error:
                yield BadRecord(number, error.message)
                continue
            if not completions:
                yield BadRecord(number, "no completion in this request state")
                continue
            labels = [label for label, text in (state.output_mapping or {}).items() if text in row.golds]
            target = next(iter((*labels, *row.golds)), "")
            yield Recorded(
                number=number,
                doc_index=state.number,
                completion=completions[0][0],
                doc=row.doc(plain),
                target=target,
            )
    except SourceError as error:
        line = f", line {error.position.line}" if error.position is not None and error.position.line else ""
        yield BadRecord(number + 1, f"the file cannot be read from here on: {error.message}{line}")
        return
    if not number:
        raise ScoringError(f"the file has no {STATES}", position=Position(path))

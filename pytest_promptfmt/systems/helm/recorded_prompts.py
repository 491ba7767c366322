"""The prompts that a HELM run recorded, against those we make: equal byte for byte, or where they begin to differ.

A `scenario_state.json` does not hold the training instances. Their demonstrations are then taken from the recorded
prompts, where they stand between the instructions and the question, and must be the same for all of a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from pytest_promptfmt.core.errors import RenderError, SourceError
from pytest_promptfmt.core.prompt import Origin
from pytest_promptfmt.core.recorded import PromptDifference, RecordedPrompts
from pytest_promptfmt.systems.helm.helm_file import State, is_train, row_of
from pytest_promptfmt.systems.helm.helm_shots import draw_rows
from pytest_promptfmt.systems.helm.helm_source import LOOKED_AT, HelmSource, recorded_prompt
from pytest_promptfmt.systems.helm.layout import CALIBRATION_INPUT, Built, PromptBuilder, Row


def reproduce(source: HelmSource) -> RecordedPrompts:
    """Return how the recorded prompts of a file compare with ours; one state at a time is in memory.

    A text that breaks off is the last of `bad`.
    """
    recorded = _Recorded(source)
    result = RecordedPrompts()
    try:
        for state in source.file.states(to_the_end=True):
            result.states += 1
            prompt = recorded_prompt(state.value) if isinstance(state.value, dict) else None
            try:
                if prompt is None:
                    row_of(source.file, state, source.spec)
                else:
                    result.add(recorded.difference(state, prompt), is_cut=bool(state.value.get("prompt_truncated")))
            except (SourceError, RenderError) as error:
                result.bad.append(error)
    except SourceError as error:
        result.bad.append(error)
    return result


def recorded_demonstrations(source: HelmSource) -> Mapping[int, str]:
    """Return the demonstrations of each trial among the first states, as text with what separates them."""
    if source.has_train or not source.has_prompts:
        return {}
    recorded = _Recorded(source)
    for state in islice(source.file.states(), LOOKED_AT):
        prompt = recorded_prompt(state.value) if isinstance(state.value, dict) else None
        if prompt is not None:
            try:
                recorded.difference(state, prompt)
            except (SourceError, RenderError):
                continue  # told where all prompts are compared
    return {trial: text for trial, text in sorted(recorded.known.items()) if text}


class _Recorded:
    def __init__(self, source: HelmSource) -> None:
        self._source = source
        self._builder = PromptBuilder(source.spec, lambda *keys: source.file.locate(keys))
        self.known: dict[int, str] = {}
        self._train: list[Row] | None = None
        self._drawn: dict[int, list[Row]] = {}

    def difference(self, state: State, prompt: str) -> PromptDifference | None:
        """Return how a recorded prompt differs from ours, None where it does not; raises SourceError, RenderError."""
        spec, value = self._source.spec, state.value
        row = Row.of(row_of(self._source.file, state, spec).doc)
        trial, mode = value.get("train_trial_index", 0), value.get("request_mode")
        reference = value.get("reference_index")
        asks = spec.is_separate or spec.method == "ranking_binary"
        if asks and not (isinstance(reference, int) and 0 <= reference < len(row.references)):
            message = f"request_states[{state.number}]: reference_index {reference!r} is no reference of the instance"
            raise SourceError(message, position=self._source.file.position(state, "reference_index"))
        if spec.method == "language_modeling":
            return self._language(state, prompt, row)
        if mode == "calibration":
            row = replace(row, text=CALIBRATION_INPUT)
        has_shots = mode != "calibration" and isinstance(trial, int)
        shots = self._shots(trial, value.get("num_train_instances")) if has_shots and self._source.has_train else []
        ours = self._builder.built(shots, row, include_output=spec.is_separate, reference=reference if asks else None)
        if value.get("prompt_truncated") is True:
            same = ours.text.startswith(prompt)
            return None if same else self._different(state, prompt, ours)
        if prompt == ours.text:
            return None
        unknown = has_shots and spec.max_train_instances > 0 and not self._source.has_train
        if unknown and value.get("num_train_instances") != 0:
            return self._with_unknown_shots(state, prompt, ours, trial)
        return self._different(state, prompt, ours)

    def _with_unknown_shots(self, state: State, prompt: str, bare: Built, trial: int) -> PromptDifference | None:
        pieces = bare.pieces
        head = "".join(piece.span.text for piece in pieces if bare.roles[piece.message] == "system")
        tail = bare.text[len(head) :]
        known = self.known.get(trial)
        if not (prompt.startswith(head) and prompt.endswith(tail) and len(prompt) > len(head) + len(tail)):
            expected = head + (known if known is not None else _before(tail, prompt[len(head) :])) + tail
            return self._text_difference(state, prompt, expected, bare, len(expected) - len(bare.text), len(head))
        middle = prompt[len(head) : len(prompt) - len(tail)]
        if known is None or middle.startswith(known):
            self.known[trial] = middle
            return None
        # A window drops demonstrations from the end.
        if known.startswith(middle):
            return None
        return self._text_difference(
            state, prompt, head + known + tail, bare, len(known), len(head), why="demonstrations of the states before"
        )

    def _language(self, state: State, prompt: str, row: Row) -> PromptDifference | None:
        # Windows hold whole parts of the text; the first may have the prefix token before it.
        if prompt in row.text or (prompt.endswith(row.text) and row.text):
            return None
        size = _common(prompt, row.text)
        return PromptDifference(where=self._where(state), offset=size, recorded=prompt, ours=row.text)

    def _shots(self, trial: int, count: Any) -> list[Row]:
        if self._train is None:
            self._train = []
            for state in self._source.file.states():
                try:
                    row = row_of(self._source.file, state, self._source.spec)
                except SourceError:
                    continue
                if is_train(row.split):
                    self._train.append(Row.of(row.doc, is_train=True))
        if trial not in self._drawn:
            spec = self._source.spec
            self._drawn[trial] = draw_rows(self._train, spec.max_train_instances, trial=trial, sample=spec.sample_train)
        drawn = self._drawn[trial]
        return drawn[:count] if isinstance(count, int) and count >= 0 else drawn

    def _different(self, state: State, prompt: str, ours: Built) -> PromptDifference:
        return self._text_difference(state, prompt, ours.text, ours, 0, 0)

    def _text_difference(
        self, state: State, prompt: str, ours: str, built: Built, added: int, at: int, *, why: str | None = None
    ) -> PromptDifference:
        offset = _common(prompt, ours)
        origin: Origin | None = Origin("question", why) if why is not None else None
        if origin is None and not at <= offset < at + added:
            place = offset - added if offset >= at + added else offset
            for piece in built.pieces:
                if place < len(piece.span.text):
                    origin = piece.span.origin
                    break
                place -= len(piece.span.text)
        return PromptDifference(where=self._where(state), offset=offset, recorded=prompt, ours=ours, origin=origin)

    def _where(self, state: State) -> str:
        position = self._source.file.position(state, "request", "prompt")
        return f"{position}: request_states[{state.number}]"


def _before(tail: str, text: str) -> str:
    """Return what stands in a text before the last place where as much of `tail` as possible begins."""
    fits, too_long = 0, len(tail) + 1
    while too_long - fits > 1:
        size = (fits + too_long) // 2
        fits, too_long = (size, too_long) if tail[:size] in text else (fits, size)
    return text[: text.rindex(tail[:fits])] if fits else ""


def _common(first: str, second: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(first), len(second)))

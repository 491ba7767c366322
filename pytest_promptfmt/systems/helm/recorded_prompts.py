"""The prompts that a HELM run recorded, against those we make: equal byte for byte, or where they begin to differ.

A `scenario_state.json` does not hold the training instances. Their shots are then taken from the recorded prompts,
between the instructions and the question, and must be the same for all of a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from pytest_promptfmt.core.errors import RenderError, SourceError
from pytest_promptfmt.core.prompt import Origin
from pytest_promptfmt.core.recorded import PromptDifference, RecordedPrompts
from pytest_promptfmt.systems.helm.adapter_files import FIRST_STATES, AdapterFile
from pytest_promptfmt.systems.helm.instances import HelmInstance
from pytest_promptfmt.systems.helm.prompt_blocks import CALIBRATION_INPUT, Built, PromptBuilder
from pytest_promptfmt.systems.helm.request_states import RequestState
from pytest_promptfmt.systems.helm.shots import draw_rows


def compare_recorded(file: AdapterFile) -> RecordedPrompts:
    """Return how the recorded prompts of a file compare with ours; one state at a time is in memory.

    A text that breaks off is the last of `bad`.
    """
    comparison = _Comparison(file)
    result = RecordedPrompts()
    try:
        for state in file.states(to_the_end=True):
            result.states += 1
            try:
                row, prompt = state.row(), state.prompt
                if prompt is not None:
                    result.add(comparison.difference(state, row, prompt), is_cut=bool(state.get("prompt_truncated")))
            except (SourceError, RenderError) as error:
                result.bad.append(error)
    except SourceError as error:
        result.bad.append(error)
    return result


def recorded_shots(file: AdapterFile) -> Mapping[int, str]:
    """Return the shots of each trial among the first states, as text with what separates them."""
    if file.has_train or not file.first.has_prompts:
        return {}
    comparison = _Comparison(file)
    for state in islice(file.states(), FIRST_STATES):
        if state.prompt is not None:
            try:
                comparison.difference(state, state.row(), state.prompt)
            except (SourceError, RenderError):
                continue  # reported where all prompts are compared
    return {trial: text for trial, text in sorted(comparison.known.items()) if text}


class _Comparison:
    """Compares prompt by prompt; `known` are the shots of trials that were read off the prompts so far."""

    def __init__(self, file: AdapterFile) -> None:
        self._file = file
        self._builder = PromptBuilder(file.spec, lambda *keys: file.locate(keys))
        self.known: dict[int, str] = {}
        self._drawn: dict[int, list[HelmInstance]] = {}

    def difference(self, state: RequestState, row: HelmInstance, prompt: str) -> PromptDifference | None:
        """Return how a recorded prompt differs from ours, None where it does not; raises SourceError, RenderError."""
        spec, reference, trial = self._file.spec, state.get("reference_index"), state.value.get("train_trial_index", 0)
        row = replace(row, split=None)  # a shot that was asked about is a question here
        if spec.asks_references and not (isinstance(reference, int) and 0 <= reference < len(row.references)):
            raise state.error(f"reference_index {reference!r} is not a reference of the instance")
        if spec.method == "language_modeling":
            return _of_language(state, row, prompt)
        is_calibration = state.get("request_mode") == "calibration"
        if is_calibration:
            row = replace(row, text=CALIBRATION_INPUT)
        has_shots = not is_calibration and isinstance(trial, int)
        shots = self._shots(trial, state.get("num_train_instances")) if has_shots and self._file.has_train else []
        ours = self._builder.built(
            shots, row, include_output=spec.is_separate, reference=reference if spec.asks_references else None
        )
        if prompt == ours.text or (state.get("prompt_truncated") is True and ours.text.startswith(prompt)):
            return None
        is_unknown = has_shots and spec.max_train_instances > 0 and not self._file.has_train
        if is_unknown and state.get("num_train_instances") != 0 and state.get("prompt_truncated") is not True:
            return self._with_unknown_shots(state, prompt, ours, trial)
        return _difference(state, prompt, ours.text, ours)

    def _with_unknown_shots(self, state: RequestState, prompt: str, bare: Built, trial: int) -> PromptDifference | None:
        head = "".join(piece.span.text for piece in bare.pieces if bare.roles[piece.message] == "system")
        tail = bare.text[len(head) :]
        known = self.known.get(trial)
        if not (prompt.startswith(head) and prompt.endswith(tail) and len(prompt) > len(head) + len(tail)):
            expected = head + (known if known is not None else _before(tail, prompt[len(head) :])) + tail
            return _difference(state, prompt, expected, bare, shots=len(expected) - len(bare.text), at=len(head))
        middle = prompt[len(head) : len(prompt) - len(tail)]
        if known is None or middle.startswith(known):
            self.known[trial] = middle
            return None
        if known.startswith(middle):  # a window drops shots from the end
            return None
        made = _difference(state, prompt, head + known + tail, bare, shots=len(known), at=len(head))
        return replace(made, origin=Origin("question", "the shots of the states before"))

    @cached_property
    def _train(self) -> list[HelmInstance]:
        return [row for row in self._file.rows() if row.is_train]

    def _shots(self, trial: int, count: Any) -> list[HelmInstance]:
        if trial not in self._drawn:
            spec = self._file.spec
            self._drawn[trial] = draw_rows(self._train, spec.max_train_instances, trial=trial, sample=spec.sample_train)
        drawn = self._drawn[trial]
        return drawn[:count] if isinstance(count, int) and count >= 0 else drawn


def _of_language(state: RequestState, row: HelmInstance, prompt: str) -> PromptDifference | None:
    # Windows hold whole parts of the text; the first may have the prefix token before it.
    if prompt in row.text or (prompt.endswith(row.text) and row.text):
        return None
    return _difference(state, prompt, row.text)


def _difference(
    state: RequestState, prompt: str, ours: str, built: Built | None = None, *, shots: int = 0, at: int = 0
) -> PromptDifference:
    """Return the first difference, with what made our text there.

    `shots` characters of ours, from `at` on, are not among the pieces of `built`.
    """
    pairs = enumerate(zip(prompt, ours, strict=False))
    offset = next((number for number, (one, other) in pairs if one != other), min(len(prompt), len(ours)))
    origin: Origin | None = None
    if built is not None and not at <= offset < at + shots:
        place = offset - shots if offset >= at + shots else offset
        for piece in built.pieces:
            if place < len(piece.span.text):
                origin = piece.span.origin
                break
            place -= len(piece.span.text)
    where = f"{state.position}: request_states[{state.number}]"
    return PromptDifference(where=where, offset=offset, recorded=prompt, ours=ours, origin=origin)


def _before(tail: str, text: str) -> str:
    """Return what a text has before the last place where as much of `tail` as possible begins."""
    fits, too_long = 0, len(tail) + 1
    while too_long - fits > 1:
        size = (fits + too_long) // 2
        fits, too_long = (size, too_long) if tail[:size] in text else (fits, size)
    return text[: text.rindex(tail[:fits])] if fits else ""

"""A recorded HELM run: its prompts against ours, byte for byte, and its answers scored again by HELM's rules.

A `scenario_state.json` does not hold the training instances. Their shots are then taken from the recorded prompts,
between the instructions and the question, and must be the same for all of a trial.

For references that were requested one by one, HELM counts the tokens of ` reference` and takes as many from the end of
the completion. Here they are counted by the tokenizer of `promptfmt.window` where the file names one, else by the
tokens of the completion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError, RenderError, SourceError, named_value
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Origin
from pytest_promptfmt.core.recorded import PromptDifference, RecordedPrompts, RecordedScores, ScoredAnswer
from pytest_promptfmt.systems.helm.adapter_files import FIRST_STATES, AdapterFile
from pytest_promptfmt.systems.helm.adapters import draw_rows
from pytest_promptfmt.systems.helm.helm_metrics import (
    Measured,
    mapped_output,
    reference_scores,
    score_completions,
    score_references,
)
from pytest_promptfmt.systems.helm.instances import HelmInstance, RequestState, is_number
from pytest_promptfmt.systems.helm.prompt_blocks import CALIBRATION_INPUT, Built, PromptBuilder


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
            raise _no_reference(state, reference)
        if spec.method == "language_modeling":
            # Windows hold whole parts of the text; the first may have the prefix token before it.
            is_part = prompt in row.text or (prompt.endswith(row.text) and row.text)
            return None if is_part else _difference(state, prompt, row.text)
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
        return replace(made, origin=Origin("question", "the few-shot examples of earlier request states"))

    @cached_property
    def _train(self) -> list[HelmInstance]:
        return [row for row in self._file.rows() if row.is_train]

    def _shots(self, trial: int, count: Any) -> list[HelmInstance]:
        if trial not in self._drawn:
            spec = self._file.spec
            self._drawn[trial] = draw_rows(self._train, spec.max_train_instances, trial=trial, sample=spec.sample_train)
        drawn = self._drawn[trial]
        return drawn[:count] if isinstance(count, int) and count >= 0 else drawn


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
    fits, too_long = 0, len(tail) + 1
    while too_long - fits > 1:
        size = (fits + too_long) // 2
        fits, too_long = (size, too_long) if tail[:size] in text else (fits, size)
    return text[: text.rindex(tail[:fits])] if fits else ""


SECONDS: Final = 10.0
"""How long the completions of one state may take."""

CountTokens = Callable[[str], int]


AskedState = tuple[RequestState, HelmInstance]


def score_recorded(file: AdapterFile) -> RecordedScores:
    """Return the scores of the recorded answers.

    HELM counts the most probable completion, stripped; with labels only what is exactly one of them. Where references
    are asked about one by one, the states of an instance count together. States of the split train and states without
    a result are passed over; one without a right reference cannot be scored.
    """
    found = RecordedScores()
    score = _references if file.spec.is_separate else _completions
    try:
        for scored in score(file, _evaluated(file, found.bad)):
            if isinstance(scored, SourceError):
                found.bad.append(scored)
            else:
                found.add(scored)
    except PromptfmtError as error:
        found.bad.append(error)
    return found


def _evaluated(file: AdapterFile, bad: list[PromptfmtError]) -> Iterator[AskedState]:
    for state in file.states(to_the_end=True):
        try:
            row = state.row()
        except SourceError as error:
            bad.append(error)
            continue
        if not (row.is_train and file.has_evaluated):
            yield state, row


def _completions(file: AdapterFile, states: Iterable[AskedState]) -> Iterator[ScoredAnswer | SourceError]:
    spec = file.spec
    for state, row in states:
        try:
            completions = state.completions(spec.output_format)
        except SourceError as error:
            yield error
            continue
        if not completions:
            continue
        if not row.golds:
            yield _no_gold(state)
            continue
        text, mapping, pattern = completions[0][0], file.output_mapping(state, row), spec.output_mapping_pattern
        what = f"scoring request_states[{state.number}]"
        with time_limit(SECONDS, what, file.locate(("adapter_spec", "output_mapping_pattern"))):
            scores = score_completions(
                file.metrics, row.golds, completions, mapping=mapping, pattern=pattern, num_outputs=spec.num_outputs
            )
            answer = mapped_output(text, mapping, pattern)
        yield _scored(state, row, text, answer, scores)


def _references(file: AdapterFile, states: Iterable[AskedState]) -> Iterator[ScoredAnswer | SourceError]:
    """Yield the scores of each instance whose references were answered; with no answer at all it is passed over."""
    count = _token_counter(file)
    for _, group in groupby(states, key=_trial_and_instance):  # HELM writes them one after another
        asked = list(group)
        state, row = asked[0]
        if all(each.result is None for each, _ in asked):
            continue
        if not row.golds:
            yield _no_gold(state)
            continue
        try:
            yield _scored(state, row, None, *_score_instance(file, row, [each for each, _ in asked], count))
        except SourceError as error:
            yield error


def _trial_and_instance(asked: AskedState) -> tuple[Any, ...]:
    state, row = asked
    return state.get("train_trial_index"), row.id, row.text, row.references


def _scored(
    state: RequestState, row: HelmInstance, text: str | None, answer: str | None, scores: dict[str, float]
) -> ScoredAnswer:
    return ScoredAnswer(number=state.number, id=row.id, completion=text, answer=answer, golds=row.golds, scores=scores)


def _no_reference(state: RequestState, index: object) -> SourceError:
    return state.error(
        f"`reference_index` is {named_value(index)}, but must be the index of a reference of the instance"
    )


def _no_gold(state: RequestState) -> SourceError:
    return state.error("no reference has the tag `correct`, but HELM's metrics need such a reference")


# -- references --------------------------------------------------------------------------------------------------------


def _token_counter(file: AdapterFile) -> CountTokens | None:
    """Return what counts tokens as the model's window service does, where the file names the tokenizer."""
    window = file.own.get("window")
    name = window.get("tokenizer") if isinstance(window, dict) else None
    if not isinstance(name, str):
        return None
    from pytest_promptfmt.profiles import load_tokenizer  # only where references are scored and it is named

    tokenizer = load_tokenizer(name)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _score_instance(
    file: AdapterFile, row: HelmInstance, states: Sequence[RequestState], count: CountTokens | None
) -> tuple[str, dict[str, float]]:
    """Return the text of the reference that comes first, and the metrics of an instance by name.

    Raises SourceError at the state that cannot be scored.
    """
    references = row.references
    modes = ("original", "calibration")[: 1 + (file.spec.method == "multiple_choice_separate_calibrated")]
    found: dict[tuple[str, int], RequestState] = {}
    for state in states:
        index = state.get("reference_index")
        if type(index) is not int or not 0 <= index < len(references):
            raise _no_reference(state, index)
        found[state.get("request_mode") or "original", index] = state
    for mode in modes:
        missing = [index for index in range(len(references)) if (mode, index) not in found]
        if missing:
            raise states[0].error(
                f"no recorded request scores reference {missing[0] + 1} of the instance ({mode} mode)"
            )
    measured = [[_measured(found[mode, at], text, count) for at, text in enumerate(references)] for mode in modes]
    scores = score_references(reference_scores(*measured), row.correct)
    return references[int(scores["predicted_index"])], scores


def _measured(state: RequestState, reference: str, count: CountTokens | None) -> Measured:
    completions = state.answers()
    if len(completions) != 1:
        raise state.error(f"the request has {len(completions)} completions, but HELM expects one")
    tokens = completions[0].get("tokens")
    fits = isinstance(tokens, list) and all(
        isinstance(each, dict) and isinstance(each.get("text"), str) and is_number(each.get("logprob"))
        for each in tokens
    )
    if not tokens or not fits:
        raise state.error("the completion has no log-probabilities of its tokens")
    wanted = f" {reference}"
    size = count(wanted) if count is not None else tokens_of(wanted, [each["text"] for each in tokens])
    if not size:
        raise state.error(
            f"{wanted!r} is not at the end of the returned tokens, so it is unknown which tokens to score",
            hint='name the tokenizer: "promptfmt": {"window": {"max_request_length": 2048, "tokenizer": "…"}}',
        )
    total = sum(float(each["logprob"]) for each in tokens[-size:])
    if math.isnan(total):
        raise state.error("a log-probability of the recording is NaN")
    return Measured(total, size)


def tokens_of(text: str, tokens: Sequence[str]) -> int:
    """Return how many of the tokens the last place of a text reaches over, 0 where it is not in them."""
    start = "".join(tokens).rfind(text)
    if start < 0:
        return 0
    count = at = 0
    for token in tokens:
        count += at < start + len(text) and at + len(token) > start
        at += len(token)
    return count

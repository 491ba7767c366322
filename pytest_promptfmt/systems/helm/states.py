"""Completions that a HELM run recorded, scored again by HELM's rules, one request state at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pytest_promptfmt.core.errors import PromptfmtError, SourceError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.recorded import RecordedScores, ScoredAnswer
from pytest_promptfmt.systems.helm import reference_states
from pytest_promptfmt.systems.helm.helm_file import HelmFile, is_train, row_of
from pytest_promptfmt.systems.helm.helm_metrics import mapped_output, score_completions
from pytest_promptfmt.systems.helm.helm_scoring import golds_of
from pytest_promptfmt.systems.helm.helm_source import HelmSource, output_mapping_of, recorded_completions, result_of

SECONDS: Final = 10.0
"""How long the completions of one state may take."""


def score_recorded(source: HelmSource) -> RecordedScores:
    """Return the scores of the recorded completions.

    HELM counts the most probable completion, stripped; with labels only what is exactly one of them. Where references
    are asked about one by one, the states of an instance count together. States of the split train and states without
    a result are passed over; one without a right reference cannot be scored.
    """
    found = RecordedScores()
    asks_references = source.spec.is_separate or source.spec.method == "ranking_binary"
    try:
        states = _evaluated(source, found.bad)
        for scored in _references(source, states) if asks_references else _completions(source, states):
            if isinstance(scored, SourceError):
                found.bad.append(scored)
            else:
                found.add(scored)
    except PromptfmtError as error:
        found.bad.append(error)
    return found


def _evaluated(source: HelmSource, bad: list[PromptfmtError]) -> Iterator[reference_states.Asked]:
    for state in source.file.states(to_the_end=True):
        try:
            row = row_of(source.file, state, source.spec)
        except SourceError as error:
            bad.append(error)
            continue
        if not (is_train(row.split) and source.has_evaluated):
            yield reference_states.Asked(state, row)


def _completions(source: HelmSource, states: Iterable[reference_states.Asked]) -> Iterator[ScoredAnswer | SourceError]:
    spec, file = source.spec, source.file
    for one in states:
        state, row = one.state, one.row
        where = f"request_states[{state.number}]"
        try:
            completions = recorded_completions(state.value, spec)
        except ValueError as error:
            yield SourceError(f"{where}: {error}", position=file.position(state, "result"))
            continue
        if not completions:
            continue
        golds = golds_of(row.doc)
        if not golds:
            yield _no_gold(file, one)
            continue
        mapping = output_mapping_of(state.value, file, row.doc)
        pattern = spec.output_mapping_pattern
        text = max(completions, key=lambda each: each[1])[0]
        with time_limit(SECONDS, f"scoring {where}", file.locate(("adapter_spec", "output_mapping_pattern"))):
            scores = score_completions(
                source.metrics, golds, completions, mapping=mapping, pattern=pattern, num_outputs=spec.num_outputs
            )
            answer = mapped_output(text, mapping, pattern)
        yield _scored(one, text, answer, golds, scores)


def _references(source: HelmSource, states: Iterator[reference_states.Asked]) -> Iterator[ScoredAnswer | SourceError]:
    """Yield the scores of each instance whose references were answered; with no answer at all it is passed over."""
    count = reference_states.token_counter(source.file)
    for group in reference_states.by_instance(states):
        if all(result_of(one.state.value)[0] is None for one in group):
            continue
        golds = golds_of(group[0].row.doc)
        if not golds and source.spec.method != "ranking_binary":
            yield _no_gold(source.file, group[0])
            continue
        try:
            best, scores = reference_states.score_instance(source, group, count)
        except SourceError as error:
            yield error
            continue
        yield _scored(group[0], None, best, golds, scores)


def _scored(
    one: reference_states.Asked, text: str | None, answer: str | None, golds: Sequence[str], scores: dict[str, float]
) -> ScoredAnswer:
    return ScoredAnswer(
        number=one.state.number,
        id=str(one.row.doc.get("id", "")),
        completion=text,
        answer=answer,
        golds=tuple(golds),
        scores=scores,
    )


def _no_gold(file: HelmFile, one: reference_states.Asked) -> SourceError:
    message = (
        f"request_states[{one.state.number}]: no reference has the tag correct, and HELM's metrics fail without one"
    )
    return SourceError(message, position=file.position(one.state, "instance", "references"))

"""Answers that a HELM run recorded, scored again by HELM's rules, one instance at a time.

Where references were asked about one by one, HELM counts the tokens of ` reference` and takes as many from the end of
what came back. Here they are counted by the tokenizer of `promptfmt.window` where the file names one, else by the
tokens that came back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError, ScoringError, SourceError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.recorded import RecordedScores, ScoredAnswer
from pytest_promptfmt.systems.helm.adapter_files import AdapterFile
from pytest_promptfmt.systems.helm.completion_metrics import mapped_output, score_completions
from pytest_promptfmt.systems.helm.instances import HelmInstance
from pytest_promptfmt.systems.helm.references import (
    MISSING,
    Measured,
    RankedReference,
    ranked,
    reference_scores,
    score_ranking,
    score_references,
)
from pytest_promptfmt.systems.helm.request_states import RequestState, is_number

SECONDS: Final = 10.0
"""How long the completions of one state may take."""

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class AskedState:
    """One state, and its instance."""

    state: RequestState
    row: HelmInstance

    @property
    def instance(self) -> tuple[Any, ...]:
        """Return what distinguishes the instance and its trial from others."""
        return self.state.get("train_trial_index"), self.row.id, self.row.text, self.row.references


def score_recorded(file: AdapterFile) -> RecordedScores:
    """Return the scores of the recorded answers.

    HELM counts the most probable completion, stripped; with labels only what is exactly one of them. Where references
    are asked about one by one, the states of an instance count together. States of the split train and states without
    a result are passed over; one without a right reference cannot be scored.
    """
    found = RecordedScores()
    score = _references if file.spec.asks_references else _completions
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
            yield AskedState(state, row)


def _completions(file: AdapterFile, states: Iterable[AskedState]) -> Iterator[ScoredAnswer | SourceError]:
    spec = file.spec
    for one in states:
        try:
            completions = one.state.completions(spec.output_format)
        except SourceError as error:
            yield error
            continue
        if not completions:
            continue
        if not one.row.golds:
            yield _no_gold(one)
            continue
        text, mapping, pattern = completions[0][0], file.output_mapping(one.state, one.row), spec.output_mapping_pattern
        what = f"scoring request_states[{one.state.number}]"
        with time_limit(SECONDS, what, file.locate(("adapter_spec", "output_mapping_pattern"))):
            scores = score_completions(
                file.metrics, one.row.golds, completions, mapping=mapping, pattern=pattern, num_outputs=spec.num_outputs
            )
            answer = mapped_output(text, mapping, pattern)
        yield _scored(one, text, answer, scores)


def _references(file: AdapterFile, states: Iterable[AskedState]) -> Iterator[ScoredAnswer | SourceError]:
    """Yield the scores of each instance whose references were answered; with no answer at all it is passed over."""
    count = _token_counter(file)
    for _, group in groupby(states, key=lambda one: one.instance):  # HELM writes them one after another
        asked = list(group)
        if all(one.state.result is None for one in asked):
            continue
        if not asked[0].row.golds and file.spec.method != "ranking_binary":
            yield _no_gold(asked[0])
            continue
        try:
            yield _scored(asked[0], None, *_score_instance(file, asked, count))
        except SourceError as error:
            yield error


def _scored(one: AskedState, text: str | None, answer: str | None, scores: dict[str, float]) -> ScoredAnswer:
    return ScoredAnswer(
        number=one.state.number, id=one.row.id, completion=text, answer=answer, golds=one.row.golds, scores=scores
    )


def _no_gold(one: AskedState) -> SourceError:
    return one.state.error("no reference has the tag correct, and HELM's metrics fail without one")


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
    file: AdapterFile, group: Sequence[AskedState], count: CountTokens | None
) -> tuple[str, dict[str, float]]:
    """Return the text of the reference that comes first, and the metrics of an instance by name.

    Raises SourceError at the state that cannot be scored.
    """
    first = group[0]
    references = first.row.references
    modes = ("original", "calibration")[: 1 + (file.spec.method == "multiple_choice_separate_calibrated")]
    found: dict[tuple[str, int], RequestState] = {}
    for one in group:
        index = one.state.get("reference_index")
        if type(index) is not int or not 0 <= index < len(references):
            raise one.state.error(f"reference_index {index!r} is not a reference of the instance")
        found[one.state.get("request_mode") or "original", index] = one.state
    for mode in modes:
        missing = [index for index in range(len(references)) if (mode, index) not in found]
        if missing:
            raise first.state.error(f"no state asks about reference {missing[0] + 1} ({mode})")
    try:
        if file.spec.method == "ranking_binary":
            if file.ranking is None:
                hint = "metric_specs with a RankingMetric, here or in run_spec.json"
                raise ScoringError("no ranking metrics are named", hint=hint)
            judged = [_ranked(found["original", index], index) for index in range(len(references))]
            return references[ranked(judged, file.ranking)[0].index], score_ranking(judged, file.ranking)
        measured = [[_measured(found[mode, at], text, count) for at, text in enumerate(references)] for mode in modes]
        scores = score_references(reference_scores(*measured), first.row.correct)
        return references[int(scores["predicted_index"])], scores
    except ScoringError as error:
        raise first.state.error(error.message, hint=error.hint) from error


def _measured(state: RequestState, reference: str, count: CountTokens | None) -> Measured:
    completions = state.answers()
    if len(completions) != 1:
        raise state.error(f"{len(completions)} completions where HELM wants one")
    tokens = completions[0].get("tokens")
    fits = isinstance(tokens, list) and all(
        isinstance(each, dict) and isinstance(each.get("text"), str) and is_number(each.get("logprob"))
        for each in tokens
    )
    if not tokens or not fits:
        raise state.error("a completion without the log-probabilities of its tokens")
    wanted = f" {reference}"
    size = count(wanted) if count is not None else tokens_of(wanted, [each["text"] for each in tokens])
    if not size:
        raise state.error(
            f"{wanted!r} is not in the tokens that came back, by which its own are counted",
            hint='name the tokenizer: "promptfmt": {"window": {"max_request_length": 2048, "tokenizer": "…"}}',
        )
    total = sum(float(each["logprob"]) for each in tokens[-size:])
    if math.isnan(total):
        raise state.error("a log-probability is NaN")
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


def _ranked(state: RequestState, index: int) -> RankedReference:
    completions = state.answers()
    answer, logprob = MISSING, 0.0
    if completions:
        answer, logprob = completions[0].get("text", None), completions[0].get("logprob", 0.0)
    if not isinstance(answer, str) or not is_number(logprob):
        raise state.error("a completion without text or log-probability")
    judged = RankedReference(index, answer, float(logprob))
    for tag in state.value["instance"]["references"][index].get("tags") or []:
        name, _, value = str(tag).partition("=")
        if "relevance" not in name and "rank" not in name:
            continue
        try:
            number = int(value)
        except ValueError:
            raise state.error(f"the tag {tag!r} has no whole number after `=`") from None
        judged = replace(judged, relevance=number) if "relevance" in name else replace(judged, rank=number)
    return judged

"""Recorded runs of HELM that asked about references one by one: the states of an instance, scored by its rules.

HELM counts the tokens of ` reference` and takes as many from the end of what came back. Here they are counted by the
tokenizer of `promptfmt.window` where the file names one, else by the tokens that came back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_promptfmt.core.errors import ScoringError, SourceError
from pytest_promptfmt.systems.helm.helm_file import STATES, HelmFile, Row, State
from pytest_promptfmt.systems.helm.helm_source import HelmSource, result_of
from pytest_promptfmt.systems.helm.references import (
    MISSING,
    Measured,
    RankedReference,
    ranked,
    reference_scores,
    score_ranking,
    score_references,
)

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Asked:
    """One state of an instance, with the instance as a doc."""

    state: State
    row: Row

    @property
    def instance(self) -> tuple[Any, ...]:
        """Return what tells the instance and its trial from others."""
        doc = self.row.doc
        return self.state.value.get("train_trial_index"), doc.get("id"), doc["input"], tuple(doc["references"])


def by_instance(states: Iterator[Asked]) -> Iterator[list[Asked]]:
    """Yield the states of each instance and trial; HELM writes them one after another."""
    group: list[Asked] = []
    for one in states:
        if group and group[0].instance != one.instance:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def token_counter(file: HelmFile) -> CountTokens | None:
    """Return what counts tokens as the model's window service does, where the file names the tokenizer."""
    own = file.top.get("promptfmt")
    window = own.get("window") if isinstance(own, dict) else None
    name = window.get("tokenizer") if isinstance(window, dict) else None
    if not isinstance(name, str):
        return None
    from pytest_promptfmt.tokens import load_tokenizer  # only where references are scored and it is named

    tokenizer = load_tokenizer(name)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def score_instance(
    source: HelmSource, group: Sequence[Asked], count: CountTokens | None
) -> tuple[str, dict[str, float]]:
    """Return the text of the reference that comes first, and the metrics of an instance by name.

    Raises SourceError at the state that cannot be scored.
    """
    references = group[0].row.doc["references"]
    found: dict[tuple[str, int], Asked] = {}
    for one in group:
        value = one.state.value
        index, mode = value.get("reference_index"), value.get("request_mode") or "original"
        if type(index) is not int or not 0 <= index < len(references):
            raise _refusal(
                source.file, one, f"reference_index {index!r} is no reference of the instance", "reference_index"
            )
        found[mode, index] = one
    is_calibrated = source.spec.method == "multiple_choice_separate_calibrated"
    for mode in ("original", "calibration")[: 1 + is_calibrated]:
        missing = [index for index in range(len(references)) if (mode, index) not in found]
        if missing:
            raise _refusal(source.file, group[0], f"no state asks about reference {missing[0] + 1} ({mode})")
    scores: dict[str, float] = {}
    best = ""
    try:
        if source.spec.method == "ranking_binary":
            if source.ranking is None:
                raise ScoringError(
                    "no ranking metrics are named", hint="metric_specs with a RankingMetric, here or in run_spec.json"
                )
            judged = [_ranked(source.file, found["original", index], index) for index in range(len(references))]
            scores = score_ranking(judged, source.ranking)
            best = references[ranked(judged, source.ranking)[0].index]
        else:
            measured = {
                mode: [_measured(source.file, found[mode, at], text, count) for at, text in enumerate(references)]
                for mode in ("original", "calibration")[: 1 + is_calibrated]
            }
            each = reference_scores(measured["original"], measured.get("calibration", ()))
            scores = score_references(each, group[0].row.doc["correct"])
            best = references[int(scores["predicted_index"])]
    except ScoringError as error:
        raise _refusal(source.file, group[0], error.message, hint=error.hint) from error
    return best, scores


def _measured(file: HelmFile, one: Asked, reference: str, count: CountTokens | None) -> Measured:
    completions = _completions(file, one)
    if len(completions) != 1:
        raise _refusal(file, one, f"{len(completions)} completions where HELM wants one", "result")
    tokens = completions[0].get("tokens")
    fits = isinstance(tokens, list) and all(
        isinstance(each, dict) and isinstance(each.get("text"), str) and _is_number(each.get("logprob"))
        for each in tokens
    )
    if not tokens or not fits:
        raise _refusal(file, one, "a completion without the log-probabilities of its tokens", "result")
    wanted = f" {reference}"
    size = count(wanted) if count is not None else tokens_of(wanted, [each["text"] for each in tokens])
    if not size:
        raise _refusal(
            file,
            one,
            f"{wanted!r} does not stand in the tokens that came back, which tell how many it has",
            "result",
            hint='name the tokenizer: "promptfmt": {"window": {"max_request_length": 2048, "tokenizer": "…"}}',
        )
    total = sum(float(each["logprob"]) for each in tokens[-size:])
    if math.isnan(total):
        raise _refusal(file, one, "a log-probability is NaN", "result")
    return Measured(total, size)


def tokens_of(text: str, tokens: Sequence[str]) -> int:
    """Return how many of the tokens the last place of a text reaches over, 0 where it does not stand in them."""
    start = "".join(tokens).rfind(text)
    if start < 0:
        return 0
    count = at = 0
    for token in tokens:
        count += at < start + len(text) and at + len(token) > start
        at += len(token)
    return count


def _ranked(file: HelmFile, one: Asked, index: int) -> RankedReference:
    completions = _completions(file, one)
    answer: Any = MISSING
    logprob: Any = 0.0
    if completions:
        answer, logprob = completions[0].get("text"), completions[0].get("logprob", 0.0)
    if not isinstance(answer, str) or not _is_number(logprob):
        raise _refusal(file, one, "a completion without text or log-probability", "result")
    judged = RankedReference(index, answer, float(logprob))
    tags = one.state.value["instance"]["references"][index].get("tags") or []
    for tag in tags:
        name, _, value = str(tag).partition("=")
        if "relevance" not in name and "rank" not in name:
            continue
        try:
            number = int(value)
        except ValueError:
            raise _refusal(file, one, f"the tag {tag!r} has no whole number behind `=`", "instance") from None
        judged = replace(judged, relevance=number) if "relevance" in name else replace(judged, rank=number)
    return judged


def _completions(file: HelmFile, one: Asked) -> Sequence[Mapping[str, Any]]:
    result, _ = result_of(one.state.value)
    given = result.get("completions") if result is not None else None
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise _refusal(file, one, "`result.completions` must be a list of mappings", "result")
    return given


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refusal(file: HelmFile, one: Asked, message: str, *keys: str, hint: str | None = None) -> SourceError:
    return SourceError(f"{STATES}[{one.state.number}]: {message}", position=file.position(one.state, *keys), hint=hint)

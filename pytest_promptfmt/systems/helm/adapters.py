"""The requests that HELM's adapters make of an instance (0.5.16): by method, with shots, cut to a model's window."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.prompt import Origin, Span
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.instances import HelmInstance
from pytest_promptfmt.systems.helm.prompt_blocks import CALIBRATION_INPUT, Built, PromptBuilder, PromptPiece, cut

_ECHO: Final = MappingProxyType({"num_completions": 1, "temperature": 0, "echo_prompt": True})
"""The parameters of requests that score the prompt itself."""


@dataclass(frozen=True, kw_only=True)
class HelmRequest:
    """One request: its prompt (or messages), which reference and trial it is of, and what labels mean.

    `parameters` are the fields of HELM's request that the method sets, by HELM's names.
    """

    prompt: Built
    parameters: Mapping[str, Any]
    reference_index: int | None = None
    mode: str | None = None
    trial: int = 0
    output_mapping: Mapping[str, str] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None


def parameters_of(spec: AdapterSpec) -> dict[str, Any]:
    """Return the parameters of a method that generates; joint methods send no stop sequences."""
    counts = {"num_completions": 1, "top_k_per_token": spec.num_outputs}
    return {
        **(counts if spec.is_joint else {"num_completions": spec.num_outputs}),
        "temperature": spec.temperature,
        "max_tokens": spec.max_tokens,
        "stop_sequences": [] if spec.is_joint else list(spec.stop_sequences),
        "random": spec.random,
    }


def arguments_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request as generation arguments, by lm-eval's names where it has one."""
    arguments: dict[str, Any] = {
        "until": list(parameters["stop_sequences"]),
        "max_gen_toks": parameters["max_tokens"],
        "temperature": float(parameters["temperature"]),
        "do_sample": parameters["temperature"] > 0,
    }
    return arguments | {name: parameters[name] for name in ("num_completions", "top_k_per_token") if name in parameters}


class HelmAdapter:
    """Makes the requests of instances by a spec, with shots from the training rows.

    `recorded` are shots of trials as a run recorded them, where the rows they were made of are not known;
    with a window they are kept as they are. `trials` is how many of the trials are made.
    Raises RenderError on construction where HELM's choice of shots never ends or fails, later where its
    labels run out.
    """

    def __init__(
        self,
        spec: AdapterSpec,
        train: Sequence[HelmInstance] = (),
        *,
        window: Window | None = None,
        trials: int | None = None,
        recorded: Mapping[int, str] = MappingProxyType({}),
        locate: Callable[..., Any] = lambda *_keys: None,
    ) -> None:
        self.spec = spec
        self.window = window
        self._recorded = recorded
        self._shown = ""
        self._builder = PromptBuilder(spec, locate)
        if spec.method == "language_modeling":
            self._shots: list[list[HelmInstance]] = [[]]
            return
        # Also for chat, which shows none: HELM draws them all the same, once per trial.
        self._shots = [
            draw_rows(train, spec.max_train_instances, trial=trial, sample=spec.sample_train)
            for trial in range(spec.num_train_trials if trials is None else min(spec.num_train_trials, trials))
        ]

    def requests(self, row: HelmInstance) -> Iterator[HelmRequest]:
        """Yield the requests of an instance, trial by trial, in HELM's order."""
        make = _METHODS[self.spec.method]
        for trial, shots in enumerate(self._shots):
            self._shown = self._recorded.get(trial, "")
            for request in make(self, shots, row):
                yield replace(request, trial=trial)

    # -- methods ---------------------------------------------------------------------------------------------------

    def _generation(self, shots: Sequence[HelmInstance], row: HelmInstance) -> Iterator[HelmRequest]:
        yield HelmRequest(prompt=self._prompt(shots, row), parameters=parameters_of(self.spec))

    def _chat(self, _shots: Sequence[HelmInstance], row: HelmInstance) -> Iterator[HelmRequest]:
        if row.messages is None:
            raise RenderError("the method chat needs `input.messages`, but the instance has no messages")
        yield HelmRequest(prompt=Built((), ()), messages=row.messages, parameters=parameters_of(self.spec))

    def _joint(self, shots: Sequence[HelmInstance], row: HelmInstance) -> Iterator[HelmRequest]:
        spec = self.spec
        prompt = self._prompt(shots, row)
        self._builder.label(0)  # HELM looks for the character, also where there are no references
        mapping = {spec.label(index): text for index, text in enumerate(row.references)}
        yield HelmRequest(prompt=prompt, output_mapping=mapping, parameters=parameters_of(spec))

    def _separate(self, shots: Sequence[HelmInstance], row: HelmInstance) -> Iterator[HelmRequest]:
        for index in range(len(row.references)):
            yield self._scored(self._prompt(shots, row, include_output=True, reference=index), index, "original")
            if self.spec.method.endswith("calibrated"):
                asked = replace(row, text=CALIBRATION_INPUT)
                bare = self._prompt((), asked, include_output=True, reference=index, shown="")
                yield self._scored(bare, index, "calibration")

    def _ranking(self, shots: Sequence[HelmInstance], row: HelmInstance) -> Iterator[HelmRequest]:
        for index in range(len(row.references)):
            prompt = self._prompt(shots, replace(row, split=None), reference=index)
            yield HelmRequest(
                prompt=prompt, reference_index=index, mode="original", parameters=parameters_of(self.spec)
            )

    def _language(self, _shots: Sequence[HelmInstance], row: HelmInstance) -> Iterator[HelmRequest]:
        windows = [row.text]
        if self.window is not None:
            windows = language_windows(row.text, self.spec.max_tokens, self.window)
        origin = Origin("question", "input", field="input")
        for number, text in enumerate(windows):
            own = {"max_tokens": self.spec.max_tokens, "stop_sequences": list(self.spec.stop_sequences)}
            parameters = {**_ECHO, **own, "random": self.spec.random if number == 0 else None}
            built = Built((PromptPiece(Span(text, origin), 0),), ("user",))
            yield HelmRequest(prompt=built, parameters=parameters)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _prompt(
        self,
        shots: Sequence[HelmInstance],
        row: HelmInstance,
        *,
        include_output: bool = False,
        reference: int | None = None,
        shown: str | None = None,
    ) -> Built:
        text = self._shown if shown is None else shown

        def make(count: int) -> Built:
            return self._builder.built(
                shots[:count], row, include_output=include_output, reference=reference, recorded=text
            )

        if self.window is None:
            return make(len(shots))
        return fitted(make, len(shots), self.spec.max_tokens, self.window)

    @staticmethod
    def _scored(prompt: Built, index: int, mode: str) -> HelmRequest:
        parameters = {**_ECHO, "max_tokens": 0, "stop_sequences": []}
        return HelmRequest(prompt=prompt, reference_index=index, mode=mode, parameters=parameters)


_METHODS: Final[Mapping[str, Callable[[HelmAdapter, Sequence[HelmInstance], HelmInstance], Iterator[HelmRequest]]]] = {
    "generation": HelmAdapter._generation,
    "chat": HelmAdapter._chat,
    "language_modeling": HelmAdapter._language,
    "multiple_choice_joint": HelmAdapter._joint,
    "multiple_choice_joint_chain_of_thought": HelmAdapter._joint,
    "multiple_choice_separate_original": HelmAdapter._separate,
    "multiple_choice_separate_calibrated": HelmAdapter._separate,
    "ranking_binary": HelmAdapter._ranking,
}


def draw_rows(rows: Sequence[HelmInstance], count: int, *, trial: int, sample: bool = True) -> list[HelmInstance]:
    """Return the shots of a trial, in the order they are shown: `count`, or all where there are fewer.

    The trial's number is the seed of Python's generator. Rows are grouped by the text of their first right
    reference; groups take turns, the largest first and equal ones shuffled; rows without a right reference come last.
    With `sample` off it is a slice of the rows. Raises RenderError where HELM loops for ever or fails.
    """
    wanted = min(len(rows), count)
    if not sample:
        return list(rows[wanted * trial : wanted * (trial + 1)])
    generator = random.Random(trial)
    groups: dict[str, list[HelmInstance]] = defaultdict(list)
    unlabelled: list[HelmInstance] = []
    for row in rows:
        if row.correct:
            groups[row.references[row.correct[0]]].append(row)
        else:
            unlabelled.append(row)
    labels = _in_turn(groups, generator)
    labelled = len(rows) - len(unlabelled)
    drawn: list[HelmInstance] = []
    for label in cycle(labels):
        # HELM stops at an empty text as it would at the end of the labels.
        if len(drawn) == wanted or not label:
            break
        if len(drawn) == labelled:
            raise RenderError(
                f"HELM 0.5.16 would run forever: it needs {wanted} few-shot examples "
                f"with a correct reference, but only {labelled}"
                f" of {len(rows)} training instances have one",
                hint="tag a reference as correct in each training instance, or lower max_train_instances",
            )
        if groups[label]:
            drawn.append(groups[label].pop(generator.randrange(len(groups[label]))))
    missing = wanted - len(drawn)
    if missing > len(unlabelled):
        raise RenderError(
            f"HELM 0.5.16 fails: it needs {wanted} few-shot examples, but after {len(drawn)} "
            "it draws an example whose correct reference has no text",
            hint="add the text of the correct reference to each training instance",
        )
    return drawn + generator.sample(unlabelled, missing)


def _in_turn(groups: dict[str, list[HelmInstance]], generator: random.Random) -> list[str]:
    by_size: dict[int, list[str]] = defaultdict(list)
    for label in sorted(groups):
        by_size[len(groups[label])].append(label)
    ordered: list[str] = []
    for size in sorted(by_size, reverse=True):
        generator.shuffle(by_size[size])
        ordered += by_size[size]
    return ordered


# -- windows: prompts cut as HELM's window services do it, and the requests of language modelling ----------------------

CUT: Final = "promptfmt.window"
"""The key of the last span of a prompt that was cut."""

_NO_LIMIT: Final = 2**31 - 1
_REPLACEMENT: Final = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class Window:
    """How many tokens a model takes: in a request, in a sequence, and with what it generates; and how it counts them.

    `encode` and `decode` are its tokenizer's, without special tokens. `prefix_token` is what comes before the first
    window of a text in language modelling.
    """

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    max_request_length: int
    max_sequence_length: int | None = None
    max_sequence_and_generated_tokens_length: int | None = None
    prefix_token: str = ""

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self.encode(text))

    def fits(self, text: str, completion: int) -> bool:
        """Return whether a text and so many generated tokens fit into a request."""
        return self.count(text) + completion <= self.max_request_length

    def truncated(self, text: str, completion: int) -> str:
        """Return the text cut from the right, decoded from its ids, and then character by character."""
        length = self.max_request_length - completion
        if length < 0:
            raise RenderError(
                f"max_tokens is {completion}, but the window has only {self.max_request_length} tokens",
                hint="lower adapter_spec.max_tokens",
            )
        result = self.decode(self.encode(text)[:length])
        while result and not self.fits(result, completion):
            result = result[:-1]
        return result


def fitted(make: Callable[[int], Built], shots: int, max_tokens: int, window: Window) -> Built:
    """Return the prompt that fits: shots dropped from the end, then the text cut from the right.

    `make` builds the prompt with so many shots. A prompt without shots always goes through the
    tokenizer and back, and is replaced where it comes back shorter; so the end of the question is lost first.
    """
    for kept in range(shots, 0, -1):
        built = make(kept)
        if window.fits(built.text, max_tokens):
            return built
    built = make(0)
    text = window.truncated(built.text, max_tokens)
    if len(text) >= len(built.text) or not text:  # HELM sends the whole prompt where nothing is left of it
        return built
    # The key of the last span marks the cut; the span holds the whole text where the decoded text differs from ours.
    left = cut(built.pieces, 0, len(text)) if built.text.startswith(text) else []
    last = left.pop() if left else PromptPiece(Span(text, Origin("question")), len(built.roles) - 1)
    end = replace(last, span=Span(last.span.text, replace(last.span.origin, key=CUT)))
    return replace(built, pieces=(*left, end), answer=0)


def language_windows(text: str, max_tokens: int, window: Window) -> list[str]:
    """Return the texts of the requests of language modelling.

    Raises RenderError where HELM fails: a window too small for what the tokenizer makes of a text.
    """
    ids = list(window.encode(text))
    together = window.max_sequence_and_generated_tokens_length or _NO_LIMIT
    longest = min(window.max_request_length, together - max_tokens)
    first = min(window.max_sequence_length or window.max_request_length, len(ids))
    prefix = list(window.encode(window.prefix_token))
    windows = [_prompt(prefix, ids[:first], longest, window)]
    done = first
    while done < len(ids):
        size = min(len(ids) - done, longest - 1)
        if size < 1:
            raise RenderError(
                f"the window of {longest} tokens leaves no space for text", hint="lower adapter_spec.max_tokens"
            )
        end = done + size
        windows.append(_prompt(ids[end - longest : done], ids[done:end], longest, window))
        done = end
    return windows


def _prompt(context: list[int], predicted: list[int], longest: int, window: Window) -> str:
    raw = window.decode(context + predicted)
    while (length := window.count(raw)) > longest:
        predicted = predicted[: longest - length]
        raw = window.decode(context + predicted)
        if not predicted:
            raise RenderError(
                "no part of the text fits into the window, because tokens are "
                "added when it is decoded and encoded again",
                hint="HELM 0.5.16 fails here; give a larger window",
            )
    return raw.strip(_REPLACEMENT)

"""HELM tasks in our terms: the requests of helm_requests.py as prompts, requests and targets of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.chat.chat_prompt import prompt_of
from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Message, Origin, Place, Prompt, Request, Span, Turn
from pytest_promptfmt.core.task import Doc, Task, TaskDocs
from pytest_promptfmt.systems.helm.helm_requests import HelmAdapter, HelmRequest
from pytest_promptfmt.systems.helm.layout import IRRELEVANT, RELEVANT, Built, Row, cut, turns_of
from pytest_promptfmt.systems.helm.recorded_prompts import recorded_demonstrations
from pytest_promptfmt.systems.helm.window import Window

if TYPE_CHECKING:
    from pytest_promptfmt.systems.helm.helm_tasks import HelmAssembly
    from pytest_promptfmt.tokens import Tokenizer

_INSTRUCTION: Final = Origin("system instruction")
_LIMITS: Final = ("max_request_length", "max_sequence_length", "max_sequence_and_generated_tokens_length")


class HelmAssembler:
    """Makes the instances of a HELM task; nothing in it is random but by the trial's own seed."""

    is_repeatable = True

    def __init__(self, task: Task, assembly: HelmAssembly, docs: TaskDocs, num_fewshot: int | None) -> None:
        self._task = task
        self._spec = replace(assembly.spec, max_train_instances=task.shots(num_fewshot))
        self._train = [Row.of(doc, is_train=True) for doc in docs.fewshot]
        source = assembly.source
        wants = source is not None and self._spec.max_train_instances > 0
        self._recorded = recorded_demonstrations(source) if source is not None and wants else {}
        self._trials = assembly.trials
        self._window = _window_settings(task)
        self._adapters: dict[str | None, HelmAdapter] = {}
        self._adapter(None)  # what cannot be drawn is told before the first doc

    def layout(self, number: int, doc: Doc) -> tuple[Row, tuple[HelmRequest, ...] | None]:
        """Return the doc as HELM sees it, with its requests where no tokenizer decides how much of them is left."""
        row = Row.of(doc)
        if self._window is not None:
            return row, None
        return row, self._requests(self._adapter(None), row, number)

    def instance(
        self, layout: tuple[Row, tuple[HelmRequest, ...] | None], number: int, doc: Doc, profile: Profile
    ) -> Instance:
        """Return the doc for a profile; a chat template gets each prompt as one user message, as HELM's clients do."""
        row, made = layout
        if made is None:
            made = self._requests(self._adapter(self._tokenizer_of(profile)), row, number)
        where = str(Place(self._task.id, number)) if profile.chat_template is not None else ""
        made_of = _REQUESTS[_kind(self._spec.method)]
        prompts, requests = made_of(made, row, profile, where)
        return Instance(index=number, doc=doc, prompts=prompts, requests=requests, target=self._target(row))

    def _requests(self, adapter: HelmAdapter, row: Row, number: int) -> tuple[HelmRequest, ...]:
        try:
            return tuple(adapter.requests(row))
        except RenderError as error:
            place = str(Place(self._task.id, number))
            position = error.position or self._task.position("request_states")
            raise RenderError(f"{error.message} ({place})", position=position, hint=error.hint) from error

    def _adapter(self, tokenizer: str | None) -> HelmAdapter:
        if tokenizer not in self._adapters:
            self._adapters[tokenizer] = HelmAdapter(
                self._spec,
                self._train,
                window=None if tokenizer is None else self._loaded(tokenizer),
                trials=len(self._recorded) or self._trials,
                recorded=self._recorded,
                locate=self._task.position,
            )
        return self._adapters[tokenizer]

    def _tokenizer_of(self, profile: Profile) -> str | None:
        assert self._window is not None
        return self._window.tokenizer or profile.tokenizer

    def _loaded(self, tokenizer: str) -> Window:
        from pytest_promptfmt.tokens import load_tokenizer  # only where a window is told

        assert self._window is not None
        return Window(codec=_Codec(load_tokenizer(tokenizer)), **self._window.limits)

    def _target(self, row: Row) -> Any:
        if self._spec.is_separate:
            return list(row.correct) if len(row.correct) != 1 else row.correct[0]
        if self._spec.method == "language_modeling":
            return None
        if self._spec.method == "ranking_binary":
            return [RELEVANT if index in row.correct else IRRELEVANT for index in range(len(row.references))]
        if self._spec.is_joint:
            golds = [self._spec.label(index) for index in row.correct]
        else:
            golds = [row.references[index] for index in row.correct]
        return golds[0] if len(golds) == 1 else golds


@dataclass(frozen=True, slots=True)
class _Codec:
    """A tokenizer as HELM's window services use it: no special tokens in, none dropped out."""

    tokenizer: Tokenizer

    def encode(self, text: str) -> Sequence[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)


@dataclass(frozen=True, slots=True)
class _WindowSettings:
    tokenizer: str | None
    limits: Mapping[str, Any]


def _window_settings(task: Task) -> _WindowSettings | None:
    """Return `promptfmt.window` of the file: HELM keeps a model's window elsewhere than in an adapter."""
    written = task.own_metadata.get("window")
    if written is None:
        return None
    position = task.position("metadata", "promptfmt", "window")
    known = {"tokenizer", "prefix_token", *_LIMITS}
    fits = isinstance(written, Mapping) and set(written) <= known and isinstance(written.get(_LIMITS[0]), int)
    numbers = [written[key] for key in _LIMITS if key in written] if fits else [0]
    texts = [written[key] for key in ("tokenizer", "prefix_token") if key in written] if fits else []
    if not all(type(each) is int and each > 0 for each in numbers) or not all(isinstance(each, str) for each in texts):
        raise RenderError(
            f"promptfmt.window is {written!r:.80}",
            position=position,
            hint='write {"max_request_length": 2048, "tokenizer": "…"}; also max_sequence_length,'
            " max_sequence_and_generated_tokens_length and prefix_token",
        )
    return _WindowSettings(written.get("tokenizer"), {key: written[key] for key in written if key != "tokenizer"})


# -- requests of one doc -----------------------------------------------------------------------------------------------

_Made = tuple[tuple[Prompt, ...], tuple[Request, ...]]


def _kind(method: str) -> str:
    if method.startswith("multiple_choice_separate"):
        return "separate"
    return method if method in ("chat", "language_modeling", "ranking_binary") else "generated"


def _generated(made: Sequence[HelmRequest], _row: Row, profile: Profile, where: str) -> _Made:
    prompts = tuple(_prompt(each.prompt, profile, where) for each in made)
    return _to_generate(made, prompts)


def _ranked(made: Sequence[HelmRequest], row: Row, profile: Profile, where: str) -> _Made:
    """Return a request for each reference; what is right there is Yes or No."""
    prompts, requests = _generated(made, row, profile, where)
    labels = [RELEVANT if each.reference_index in row.correct else IRRELEVANT for each in made]
    docs = [{"input": row.text, "references": [label], "correct": [0], "answer": label} for label in labels]
    return prompts, tuple(replace(one, doc=doc) for one, doc in zip(requests, docs, strict=True))


def _chat(made: Sequence[HelmRequest], _row: Row, profile: Profile, where: str) -> _Made:
    prompts = tuple(_chat_prompt(each.messages or (), profile, where) for each in made)
    return _to_generate(made, prompts)


def _to_generate(made: Sequence[HelmRequest], prompts: tuple[Prompt, ...]) -> _Made:
    requests = [
        Request(
            kind="generate_until",
            index=index,
            context=prompts[index].text,
            generation_kwargs=_arguments(each.parameters),
            prompt=index,
        )
        for index, each in enumerate(made)
    ]
    return prompts, tuple(requests)


def _separate(made: Sequence[HelmRequest], row: Row, profile: Profile, where: str) -> _Made:
    """Return a request for each reference: what HELM scores is the end of a prompt that holds the reference.

    Prompts that are equal up to there are one. With a chat template the answer begins the assistant's turn, without
    the blanks before it: HELM cannot ask chat models so at all.
    """
    prompts: dict[str, Prompt] = {}
    requests = []
    # As lm-eval orders them: the unconditional requests after the others.
    for index, each in enumerate(sorted(made, key=lambda one: one.mode == "calibration")):
        text, size = each.prompt.text, each.prompt.answer
        context = text[: len(text) - size]
        if context not in prompts:
            pieces = tuple(cut(each.prompt.pieces, 0, len(context)))
            prompts[context] = _prompt(replace(each.prompt, pieces=pieces), profile, where)
        continuation = text[len(context) :]
        requests.append(
            Request(
                kind="loglikelihood",
                index=index,
                context=prompts[context].text,
                continuation=continuation.lstrip() if profile.chat_template is not None else continuation,
                prompt=list(prompts).index(context),
                gold=each.reference_index in row.correct and each.mode == "original",
            )
        )
    return tuple(prompts.values()), tuple(requests)


def _language(made: Sequence[HelmRequest], _row: Row, _profile: Profile, _where: str) -> _Made:
    requests = [
        Request(kind="loglikelihood_rolling", index=index, continuation=each.prompt.text)
        for index, each in enumerate(made)
    ]
    return (), tuple(requests)


_REQUESTS: Final = {
    "generated": _generated,
    "chat": _chat,
    "separate": _separate,
    "ranking_binary": _ranked,
    "language_modeling": _language,
}


def _prompt(built: Built, profile: Profile, where: str) -> Prompt:
    instruction = profile.system_instruction
    system = (Span(instruction, _INSTRUCTION),) if instruction else ()
    return prompt_of(profile, system, turns_of(built, profile), where=where)


def _chat_prompt(messages: Sequence[Mapping[str, Any]], profile: Profile, where: str) -> Prompt:
    origin, gap = Origin("question", "input.messages", field="messages"), Origin("fewshot delimiter", "input.messages")
    system: tuple[Span, ...] = ()
    if profile.system_instruction:
        system = (Span(profile.system_instruction, _INSTRUCTION),)
    told = list(messages)
    if told and told[0]["role"] == "system":
        system = (*system, Span(told.pop(0)["content"], origin))
    last = len(told) - 1
    made = tuple(
        Message(each["role"], (Span(each["content"], origin),), () if number == last else (Span("\n", gap),))
        for number, each in enumerate(told)
    )
    if system and profile.chat_template is None:
        system = (*system, Span("\n", gap))
    return prompt_of(profile, system, (Turn.of(made),), where=where)


def _arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's parameters, by lm-eval's names where it has one."""
    arguments: dict[str, Any] = {
        "until": list(parameters["stop_sequences"]),
        "max_gen_toks": parameters["max_tokens"],
        "temperature": float(parameters["temperature"]),
        "do_sample": parameters["temperature"] > 0,
        "num_completions": parameters["num_completions"],
    }
    if "top_k_per_token" in parameters:
        arguments["top_k_per_token"] = parameters["top_k_per_token"]
    return arguments

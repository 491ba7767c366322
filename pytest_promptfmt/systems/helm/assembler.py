"""HELM tasks as prompts, requests and targets of a profile, from the requests that adapters.py makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Message, Origin, Place, Prompt, Request, Span, Turn
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.chat_prompt import prompt_of
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.adapters import HelmAdapter, HelmRequest, Window, arguments_of
from pytest_promptfmt.systems.helm.instances import HelmInstance
from pytest_promptfmt.systems.helm.prompt_blocks import IRRELEVANT, RELEVANT, Built, cut, turns_of
from pytest_promptfmt.systems.helm.recorded_runs import recorded_shots

if TYPE_CHECKING:
    from pytest_promptfmt.systems.helm.adapter_files import AdapterFile

_INSTRUCTION: Final = Origin("system instruction")
_LIMITS: Final = ("max_request_length", "max_sequence_length", "max_sequence_and_generated_tokens_length")
_TEXTS: Final = ("tokenizer", "prefix_token")


class HelmAssembler:
    """Makes the instances of a HELM task; nothing in it is random but by the trial's own seed."""

    is_repeatable = True

    def __init__(self, task: Task, file: AdapterFile, docs: TaskDocs, num_fewshot: int | None, *, trials: int) -> None:
        self._task = task
        self.spec = replace(file.spec, max_train_instances=task.shots(num_fewshot))
        self._train = [HelmInstance.of(doc, split="train") for doc in docs.fewshot]
        self._recorded = recorded_shots(file) if self.spec.max_train_instances > 0 else {}
        self._trials = trials
        self._window = _window_settings(task)
        self._adapters: dict[str | None, HelmAdapter] = {}
        self._adapter(None)  # shots that cannot be drawn are an error before the first doc

    def layout(self, number: int, doc: Doc) -> tuple[HelmInstance, tuple[HelmRequest, ...] | None]:
        """Return the doc as HELM sees it, with its requests where no tokenizer decides how much of them is left."""
        row = HelmInstance.of(doc)
        return row, self._requests(self._adapter(None), row, number) if self._window is None else None

    def instance(
        self, layout: tuple[HelmInstance, tuple[HelmRequest, ...] | None], number: int, doc: Doc, profile: Profile
    ) -> Instance:
        """Return the doc for a profile; a chat template gets each prompt as one user message, as HELM's clients do."""
        row, made = layout
        if made is None:
            made = self._requests(self._adapter(self._tokenizer(profile)), row, number)
        where = str(Place(self._task.id, number)) if profile.chat_template is not None else ""
        prompts, requests = _prompts_and_requests(self.spec, made, row, profile, where)
        return Instance(index=number, doc=doc, prompts=prompts, requests=requests, target=_target(self.spec, row))

    def _requests(self, adapter: HelmAdapter, row: HelmInstance, number: int) -> tuple[HelmRequest, ...]:
        try:
            return tuple(adapter.requests(row))
        except RenderError as error:
            place = str(Place(self._task.id, number))
            position = error.position or self._task.position("request_states")
            raise RenderError(f"{error.message} ({place})", position=position, hint=error.hint) from error

    def window(self, profile: Profile) -> Window | None:
        """Return the window that requests for a profile are cut to, None without one."""
        tokenizer = self._tokenizer(profile) if self._window is not None else None
        return None if tokenizer is None else self._loaded(tokenizer)

    def _tokenizer(self, profile: Profile) -> str | None:
        return (self._window or {}).get("tokenizer") or profile.tokenizer

    def _adapter(self, tokenizer: str | None) -> HelmAdapter:
        if tokenizer not in self._adapters:
            self._adapters[tokenizer] = HelmAdapter(
                self.spec,
                self._train,
                window=None if tokenizer is None else self._loaded(tokenizer),
                trials=len(self._recorded) or self._trials,
                recorded=self._recorded,
                locate=self._task.position,
            )
        return self._adapters[tokenizer]

    def _loaded(self, tokenizer: str) -> Window:
        from pytest_promptfmt.profiles import load_tokenizer  # only where the file gives a window

        limits = {key: value for key, value in (self._window or {}).items() if key != "tokenizer"}
        loaded = load_tokenizer(tokenizer)
        return Window(
            encode=lambda text: loaded.encode(text, add_special_tokens=False).ids, decode=loaded.decode, **limits
        )


def _window_settings(task: Task) -> Mapping[str, Any] | None:
    """Return `promptfmt.window` of the file: HELM keeps a model's window elsewhere than in an adapter."""
    written: Mapping[str, Any] | None = task.own_metadata.get("window")
    if written is None:
        return None
    fits = (
        isinstance(written, Mapping)
        and _LIMITS[0] in written
        and all(
            (key in _LIMITS and type(value) is int and value > 0) or (key in _TEXTS and isinstance(value, str))
            for key, value in written.items()
        )
    )
    if not fits:
        raise RenderError(
            f"promptfmt.window cannot be {written!r:.80}",
            position=task.position("metadata", "promptfmt", "window"),
            hint='write {"max_request_length": 2048, "tokenizer": "…"}. Other keys are max_sequence_length,'
            " max_sequence_and_generated_tokens_length and prefix_token",
        )
    return written


def _target(spec: AdapterSpec, row: HelmInstance) -> Any:
    if spec.method == "language_modeling":
        return None
    if spec.method == "ranking_binary":
        return [RELEVANT if index in row.correct else IRRELEVANT for index in range(len(row.references))]
    golds: list[Any] = [spec.label(index) for index in row.correct] if spec.is_joint else list(row.golds)
    if spec.is_separate:
        golds = list(row.correct)
    return golds[0] if len(golds) == 1 else golds


# -- requests of one doc -----------------------------------------------------------------------------------------------

_Made = tuple[tuple[Prompt, ...], tuple[Request, ...]]


def _prompts_and_requests(
    spec: AdapterSpec, made: Sequence[HelmRequest], row: HelmInstance, profile: Profile, where: str
) -> _Made:
    if spec.method == "language_modeling":
        texts = enumerate(each.prompt.text for each in made)
        return (), tuple(Request(kind="loglikelihood_rolling", index=index, continuation=text) for index, text in texts)
    if spec.is_separate:
        return _separate(made, row, profile, where)
    prompts = tuple(
        _prompt(each.prompt, profile, where) if each.messages is None else _chat_prompt(each.messages, profile, where)
        for each in made
    )
    requests = (
        Request(
            kind="generate_until",
            index=index,
            context=prompts[index].text,
            generation_kwargs=arguments_of(each.parameters),
            prompt=index,
            doc=_ranked_doc(row, each.reference_index) if each.reference_index is not None else None,
        )
        for index, each in enumerate(made)
    )
    return prompts, tuple(requests)


def _ranked_doc(row: HelmInstance, reference: int) -> Doc:
    """Return the doc of one reference of a ranking, where Yes or No is right."""
    label = RELEVANT if reference in row.correct else IRRELEVANT
    return {"input": row.text, "references": [label], "correct": [0], "answer": label}


def _separate(made: Sequence[HelmRequest], row: HelmInstance, profile: Profile, where: str) -> _Made:
    """Return a request for each reference: what HELM scores is the end of a prompt that holds the reference.

    Prompts that are equal up to there are one. With a chat template the answer begins the assistant's turn, without
    the whitespace before it: HELM cannot ask chat models so at all.
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


def _prompt(built: Built, profile: Profile, where: str) -> Prompt:
    return prompt_of(profile, _instruction(profile), turns_of(built, profile), where=where)


def _chat_prompt(messages: Sequence[Mapping[str, Any]], profile: Profile, where: str) -> Prompt:
    origin, gap = Origin("question", "input.messages", field="messages"), Origin("fewshot delimiter", "input.messages")
    system, left = _instruction(profile), list(messages)
    if left and left[0]["role"] == "system":
        system = (*system, Span(left.pop(0)["content"], origin))
    last = len(left) - 1
    made = tuple(
        Message(each["role"], (Span(each["content"], origin),), () if number == last else (Span("\n", gap),))
        for number, each in enumerate(left)
    )
    if system and profile.chat_template is None:
        system = (*system, Span("\n", gap))
    return prompt_of(profile, system, (Turn.of(made),), where=where)


def _instruction(profile: Profile) -> tuple[Span, ...]:
    return (Span(profile.system_instruction, _INSTRUCTION),) if profile.system_instruction else ()

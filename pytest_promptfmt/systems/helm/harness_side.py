"""The requests of a HELM task as the installed crfm-helm makes them: by its adapters, cut by its window service."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, fields
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FunctionError, RenderError, described
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.systems.helm.adapter_spec import AdapterSpec
from pytest_promptfmt.systems.helm.adapter_tasks import HelmAssembly
from pytest_promptfmt.systems.helm.adapters import Window, arguments_of, parameters_of
from pytest_promptfmt.systems.helm.instances import HelmInstance
from pytest_promptfmt.systems.helm.recorded_runs import recorded_shots

_MODULES: Final = {
    "spec": "helm.benchmark.adaptation.adapter_spec",
    "adapter": "helm.benchmark.adaptation.adapters.adapter",
    "factory": "helm.benchmark.adaptation.adapters.adapter_factory",
    "scenario": "helm.benchmark.scenarios.scenario",
    "window": "helm.benchmark.window_services.local_window_service",
    "encoded": "helm.benchmark.window_services.window_service",
    "token": "helm.common.tokenization_request",
}
_ENDLESS: Final = Window(
    encode=lambda text: [*map(ord, text)],
    decode=lambda ids: "".join(map(chr, ids)),
    max_request_length=2**31 - 1,
)
"""The window of a file that names none: a token for each character."""

Requests = list[list[tuple[Any, ...]]]


def sees(task: Task, profile: Profile) -> bool:
    """Return whether HELM makes requests for a profile: text for models that complete it, else one user message.

    It can score references in plain text only, and send messages to chat models only.
    """
    spec = task.assembly.spec if isinstance(task.assembly, HelmAssembly) else None
    if spec is None or profile.system_instruction or profile.formatter is not None:
        return False
    if spec.method == "chat":
        return profile.chat_template is not None
    return profile.chat_template is None or not (spec.is_separate or spec.method == "language_modeling")


def requests_of(task: Task, docs: TaskDocs, shots: int) -> Callable[[Profile], Requests]:
    """Return what makes the requests of a task for a profile, doc by doc.

    Each request once, also where `num_trials` repeats it. Raises FunctionError where HELM cannot be imported, or draws
    shots from instances that a file does not have; RenderError where it fails.
    """
    assembly = task.assembly
    assert isinstance(assembly, HelmAssembly)
    ours = assembly.assembler(task, docs, shots)
    spec = ours.spec
    if spec.max_train_instances and recorded_shots(assembly.file):
        raise FunctionError("the shots are only in recorded prompts, but HELM draws them from training instances")
    helm = _imported()

    def requests(profile: Profile) -> Requests:
        instances = [_instance(helm, HelmInstance.of(doc), "train", "") for doc in docs.fewshot]
        split = spec.eval_splits[0] if spec.eval_splits else "test"
        instances += [
            _instance(helm, HelmInstance.of(doc), split, str(number)) for number, doc in enumerate(docs.evaluated)
        ]
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                adapter = _adapter(helm, _spec(helm, spec, assembly.trials), ours.window(profile) or _ENDLESS)
                states = adapter.adapt(instances, 1)
        except Exception as error:
            message = f"HELM makes no requests for {task.name!r}: it raises {described(error)}"
            raise RenderError(message, position=task.position("adapter_spec")) from error
        found: Requests = [[] for _ in docs.evaluated]
        for state in sorted(states, key=lambda each: each.request_mode == "calibration"):
            found[int(state.instance.id)].append(_arguments(spec, state.request, profile))
        return found

    return requests


def _arguments(spec: AdapterSpec, request: Any, profile: Profile) -> tuple[Any, ...]:
    text = request.prompt
    if profile.chat_template is not None:  # as HELM's client of transformers does it
        messages = request.messages or [{"role": "user", "content": text}]
        text = render_messages(profile, messages, add_generation_prompt=True)
    if spec.is_separate or spec.method == "language_modeling":
        return (text,)
    return text, arguments_of({name: getattr(request, name) for name in parameters_of(spec)})


def _imported() -> Any:
    try:
        nltk: Any = import_module("nltk")
        download, nltk.download = nltk.download, lambda *_, **__: True  # HELM fetches word lists while it is imported
        try:
            return SimpleNamespace(**{key: import_module(name) for key, name in _MODULES.items()})
        finally:
            nltk.download = download
    except Exception as error:
        raise FunctionError(f"HELM cannot be imported: {type(error).__name__}: {error}") from error


def _spec(helm: Any, spec: AdapterSpec, trials: int) -> Any:
    kind = helm.spec.AdapterSpec
    known = {each.name for each in fields(kind)} & {each.name for each in fields(spec)}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(spec).items()}
    given["substitutions"] = [helm.spec.Substitution(*each) for each in given["substitutions"]]
    given |= {"num_train_trials": min(spec.num_train_trials, trials), "num_trials": 1}
    return kind(**{name: given[name] for name in known})


def _instance(helm: Any, row: HelmInstance, split: str, name: str) -> Any:
    scenario = helm.scenario
    references = [
        scenario.Reference(scenario.Output(text=text), tags=[scenario.CORRECT_TAG] if at in row.correct else [])
        for at, text in enumerate(row.references)
    ]
    messages: dict[str, Any] = {} if row.messages is None else {"messages": [dict(each) for each in row.messages]}
    extra = {"chain_of_thought": row.chain_of_thought} if row.chain_of_thought else None
    asked = scenario.Input(text=row.text, **messages)
    return scenario.Instance(asked, references, split=split, id=name, extra_data=extra)


def _adapter(helm: Any, spec: Any, window: Window) -> Any:
    """Return HELM's adapter for a spec, with the limits and the tokenizer of a window in place of its models'."""
    limits = {
        "max_sequence_length": window.max_sequence_length or window.max_request_length,
        "max_request_length": window.max_request_length,
        "max_sequence_and_generated_tokens_length": window.max_sequence_and_generated_tokens_length,
        "prefix_token": window.prefix_token,
    }
    kind = type("Service", (helm.window.LocalWindowService,), {})
    given = {name: value for name, value in limits.items() if value is not None}
    service = kind(service=None, tokenizer_name="promptfmt", **given)

    def encode(text: str, truncation: bool = False, max_length: int | None = None) -> Any:
        ids = list(window.encode(text))
        ids = ids[: window.max_request_length if max_length is None else max_length] if truncation else ids
        return helm.encoded.EncodeResult(text=text, tokens=[helm.token.TokenizationToken(each) for each in ids])

    service.encode = encode
    service.decode = lambda tokens, *_: window.decode([token.value for token in tokens])
    services = helm.adapter.WindowServiceFactory
    helm.adapter.WindowServiceFactory = SimpleNamespace(get_window_service=lambda *_: service)
    try:
        return helm.factory.AdapterFactory.get_adapter(spec, None)
    finally:
        helm.adapter.WindowServiceFactory = services

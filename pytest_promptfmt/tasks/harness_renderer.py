"""Requests and scores as the installed lm-eval makes them: its own task object, with our docs in place of its dataset.

lm-eval is imported here and in no other module: a release, a fork, or a checkout on the search path. What a class, a
sampler or an output type of a fork does, it does here as well.
"""

from __future__ import annotations

import copy
import inspect
import io
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    FunctionError,
    PromptfmtError,
    RenderError,
    SyntheticDocsError,
    described,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Origin, Prompt, Request, Span
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import FIELDS, UNSET, FieldAssembly, FunctionRef, Task
from pytest_promptfmt.profiles.chat_prompt import prompt_of_text, takes_media, with_parts
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.tasks.harness import installed_harness
from pytest_promptfmt.tasks.renderer import LmEvalAssembler, gold_indices
from pytest_promptfmt.tasks.rendering.context import DocParts
from pytest_promptfmt.tasks.rendering.media import shown_media
from pytest_promptfmt.tasks.rendering.sampling import FEWSHOT_SEED
from pytest_promptfmt.tasks.scoring.results import score_texts
from pytest_promptfmt.tasks.task_config import MAPPINGS, OWN_KEYS, STRUCTURAL_KEYS

Arguments = tuple[Any, ...]
"""The arguments of one request: context and continuation, or context and generation arguments."""

_DROPPED: Final = (
    *("dataset_kwargs", "dataset_path", "dataset_name", "custom_dataset", "process_docs", "metric_list", "filter_list"),
    *("process_results", "should_decontaminate", "class", "include", "metadata", "task_alias", "group_alias"),
    *(*OWN_KEYS, *STRUCTURAL_KEYS),
)
"""The keys that no prompt is made of, or that our docs take the place of."""

_LAID_OUT: Final = (
    *("doc_to_text", "doc_to_choice", "doc_to_target", "output_type", "description", "gen_prefix"),
    *("target_delimiter", "fewshot_delimiter", "generation_kwargs"),
)
"""The keys that a format or template writes."""

_SCORING: Final = ("metric_list", "filter_list", "process_results")
"""The keys that scores are made of."""

_PACKAGE: Final = "lm_eval"
_MODULE: Final = "lm_eval.api.task"

_SECONDS: Final = 30.0
_MOST_PAIRS: Final = 4
"""Pairs of answers with different values that are aggregated: an aggregation may depend on their order."""

_UNCONDITIONAL: Final = "acc_mutual_info"
"""The metric that needs more requests."""


@dataclass(frozen=True, slots=True)
class TriedAnswer:
    """What a model may give for each request of a doc, texts or likelihoods; `doc` counts from 1."""

    doc: int
    shown: str
    given: Doc
    results: Sequence[Any]


class HarnessTask:
    """A task as the installed lm-eval builds it, with its functions bound.

    For scores it needs the task as it is `written`, whose filters and metrics are names. Raises FunctionError where
    lm-eval cannot be imported, RenderError where it refuses the task, SyntheticDocsError where a class needs real docs.
    """

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None, *, written: Task | None = None) -> None:
        self._task = task
        self._docs = docs
        self._random = OwnRandomness(task)
        self.chats: dict[str, Sequence[tuple[str, str]]] = {}  # the roles and contents of each chat text
        base, own = _task_class(), getattr(task.assembly, "made", None)
        if own is not None:
            base = type(own).__mro__[1]  # of a `class:`, without what binds it here
        splits = _Splits(docs)
        kind = type(base.__name__, (base,), {"download": lambda made, *_, **__: setattr(made, "dataset", splits)})
        config = _config(task, written)
        config["num_fewshot"] = task.shots(num_fewshot)
        self._made = self._run("builds no task", lambda: kind(config=config))
        self._run("has no name", lambda: [getattr(self._made, "task_name", "") for _ in range(3)])
        self._built = self._random.states
        if own is not None:  # most classes take no configuration, and lm-eval sets this key
            self._made.set_config(key="num_fewshot", value=config["num_fewshot"])

    def requests(self, profile: Profile, *, with_media: bool = False) -> list[list[Arguments]]:
        """Return the requests of each evaluated doc for a profile; raises RenderError for any that fails.

        `with_media` adds a tuple of their images and sound, as snapshots show them, to those that have some.
        """
        made, is_chat = self._made, profile.chat_template is not None
        self._random = OwnRandomness(self._task, self._docs.random_states or self._built)
        made.set_fewshot_seed(FEWSHOT_SEED)
        sampler = getattr(made, "sampler", None)
        if sampler is not None:
            setattr(
                sampler, "df" if hasattr(sampler, "df") else "docs", _given(self._docs.fewshot_kind, self._docs.fewshot)
            )
        given = {
            "limit": len(self._docs.evaluated),
            "rank": 0,
            "world_size": 1,
            "system_instruction": profile.system_instruction,
            "apply_chat_template": is_chat,
            "fewshot_as_multiturn": profile.fewshot_as_turns,
            "chat_template": self._chat(profile) if is_chat else None,
            "tokenizer_name": "",
        }
        build = made.build_all_requests
        known = {**inspect.signature(build).parameters}
        if any(each.kind is each.VAR_KEYWORD for each in known.values()):  # of a class that passes them on
            known |= inspect.signature(_task_class().build_all_requests).parameters
        self._run("makes no requests", lambda: build(**{key: value for key, value in given.items() if key in known}))
        found: list[list[Arguments]] = [[] for _ in self._docs.evaluated]
        for instance in made.instances:
            arguments = tuple(instance.arguments)
            if arguments and isinstance(arguments[-1], Mapping) and not {"visual", "audio"}.isdisjoint(arguments[-1]):
                shown = shown_media([arguments[-1].get(each) for each in ("visual", "audio")], self._task)
                arguments = (*arguments[:-1], shown) if with_media else arguments[:-1]
            found[instance.doc_id].append(arguments)
        return found

    def scores(self, answers: Sequence[TriedAnswer]) -> Iterator[tuple[str, Sequence[TriedAnswer], dict[str, str]]]:
        """Yield pipelines, one answer or those that are aggregated, and the values of metrics as texts.

        A text that begins with `!` is an exception. Aggregated are all answers, and some with the one after it.
        """
        for pipeline in getattr(self._made, "_filters", ()):
            values: dict[str, list[tuple[TriedAnswer, Any]]] = {}
            for answer, read in zip(answers, self._filtered(pipeline, answers), strict=True):
                found = read if isinstance(read, Exception) else self._tried(lambda: self._made.process_results(*read))  # noqa: B023
                yield pipeline.name, [answer], score_texts(found)
                for name, value in found.items() if isinstance(found, Mapping) else ():
                    values.setdefault(name, []).append((answer, value))
            for name, scored in values.items():
                changes = [pair for pair in pairwise(scored) if repr(pair[0][1]) != repr(pair[1][1])]
                for some in (scored, *changes[:_MOST_PAIRS]):
                    given = [value for _, value in some]
                    total = self._tried(lambda: {name: self._made.aggregation()[name](given)})  # noqa: B023
                    yield pipeline.name, [answer for answer, _ in some], score_texts(total)

    def _filtered(self, pipeline: Any, answers: Sequence[TriedAnswer]) -> list[Any]:
        """Return doc and filtered results of each answer, as lm-eval filters all at once; exceptions one by one."""
        make = import_module(f"{_PACKAGE}.api.instance").Instance
        repeats = self._task.repeats if isinstance(self._task.repeats, int) else 1
        docs = [copy.deepcopy(dict(each.given)) for each in answers]
        made = [
            [make("", doc, (), index, resps=[result] * repeats) for index, result in enumerate(each.results)]
            for doc, each in zip(docs, answers, strict=True)
        ]
        done = self._tried(lambda: pipeline.apply([one for each in made for one in each]))
        if not isinstance(done, Exception):
            read = ([one.filtered_resps[pipeline.name] for one in each] for each in made)
            return [*zip(docs, read, strict=True)]
        if len(answers) < 2:
            return [done for _ in answers]
        halves = answers[: len(answers) // 2], answers[len(answers) // 2 :]
        return [one for half in halves for one in self._filtered(pipeline, half)]

    def _chat(self, profile: Profile) -> Callable[..., str]:
        """Return `apply_chat_template` as lm-eval's wrapper of transformers has it."""
        has_parts = bool(self._task.config.get("doc_to_image")) and takes_media(profile)

        def render(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
            given: dict[str, Any] = {
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": not add_generation_prompt,
                "tools": profile.template_args.get("tools"),
                "documents": profile.template_args.get("documents"),
            }
            contents = [(each["role"], str(each["content"])) for each in messages]
            messages = with_parts(messages) if has_parts else messages
            try:
                text = render_messages(profile, messages, **given)
            except TemplateError:
                text = render_messages(profile, [each for each in messages if each["role"] != "system"], **given)
            self.chats[text] = contents
            return text

        return render

    def _tried(self, work: Callable[[], Any]) -> Any:
        try:
            with redirect_stderr(io.StringIO()), self._random.used(), time_limit(_SECONDS, "scoring with lm-eval"):
                return work()
        except PromptfmtError:
            raise
        except Exception as error:
            return error

    def _run(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            with redirect_stderr(io.StringIO()), self._random.used():  # a progress bar
                return work()
        except Exception as error:
            # Code of the task may read a column that no prompt shows, and no synthetic doc has.
            is_column = isinstance(error, _NoColumnError)
            kind = SyntheticDocsError if is_column else RenderError
            docs, raised = (" with synthetic docs", KeyError(*error.args)) if is_column else ("", error)
            message = f"lm-eval {what} for {self._task.id!r}{docs}: it raises {described(raised)}"
            raise kind(message, position=self._task.position()).naming(repr(self._task.id)) from error


@dataclass(frozen=True)
class HarnessAssembly(FieldAssembly):
    """Field mappings rendered by the installed lm-eval, and scored as lm-eval does."""

    def assembler(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> HarnessAssembler:
        """Return the installed lm-eval's assembler; raises as `HarnessTask`."""
        return HarnessAssembler(task, docs, num_fewshot)


class HarnessAssembler:
    """Requests of the installed lm-eval. Where ours are the same, prompts know the origin of their text."""

    is_repeatable = False

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> None:
        self._made = HarnessTask(task, docs, num_fewshot)
        self._requests: dict[str, list[list[Arguments]]] = {}
        self._ours: LmEvalAssembler | None = None
        with suppress(RenderError):
            self._ours = LmEvalAssembler(task, docs, num_fewshot)

    def layout(self, number: int, doc: Doc) -> DocParts | None:
        """Return description, shots and question of a doc as we lay it out, None where we cannot."""
        with suppress(RenderError):
            return self._ours.layout(number, doc) if self._ours is not None else None
        return None

    def instance(self, layout: DocParts | None, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the doc for a profile, with the requests of lm-eval; raises RenderError."""
        if self._ours is not None and layout is not None and profile.formatter is not None:
            return self._ours.instance(layout, number, doc, profile)  # a formatter of eval-framework
        if profile.name not in self._requests:
            self._requests[profile.name] = self._made.requests(profile)
        theirs = self._requests[profile.name][number]
        if self._ours is not None and layout is not None:
            with suppress(RenderError):
                ours = self._ours.instance(layout, number, doc, profile)
                if [each.arguments for each in ours.requests] == theirs:
                    return ours
        contexts = list(dict.fromkeys(each[0] for each in theirs if len(each) > 1 and each[0]))
        golds = gold_indices(layout.target, layout.choices) if layout is not None and layout.choices else ()
        return Instance(
            index=number,
            doc=doc,
            prompts=tuple(self._prompt(text) for text in contexts),
            requests=tuple(_request(each, at, contexts, golds) for at, each in enumerate(theirs)),
            target=layout.target if layout is not None else None,
        )

    def _prompt(self, text: str) -> Prompt:
        origin, chat = Origin("question"), self._made.chats.get(text)
        return Prompt((Span(text, origin),)) if chat is None else prompt_of_text(text, chat, origin)


def _request(arguments: Arguments, index: int, contexts: list[str], golds: Collection[int]) -> Request:
    """Return a request of lm-eval; one of an output type that only a fork has is what its arguments look like."""
    if len(arguments) == 1:
        return Request(kind="loglikelihood_rolling", index=index, continuation=arguments[0])
    context, second = arguments[:2]
    prompt = contexts.index(context) if context in contexts else None
    if second is None or isinstance(second, Mapping):
        return Request(kind="generate_until", index=index, context=context, generation_kwargs=second, prompt=prompt)
    gold = index in golds and prompt is not None
    return Request(kind="loglikelihood", index=index, context=context, continuation=second, prompt=prompt, gold=gold)


def needs_harness(task: Task) -> bool:
    """Return whether a task has an output type that only the installed lm-eval knows, a fork."""
    harness = installed_harness() if task.output_type == "other" and task.system == "lm-eval" else None
    is_fork = harness is not None and harness.folder.name == _PACKAGE
    return is_fork and harness is not None and harness.has_output_type(task.config.get("output_type"))


def rendered_by_harness(task: Task, seconds: float, *, no_code: bool) -> Task:
    """Return the bound task so that the installed lm-eval renders it, and import that.

    Classes, and tasks of other systems or in a format, stay as they are.

    Raises CodeNotAllowedError where no code may run that files ask for (lm-eval may be the checkout itself),
    FunctionError where lm-eval cannot be imported, LimitExceededError after these seconds.
    """
    if task.system != "lm-eval" or task.assembly.is_class:
        return task
    if no_code:
        raise CodeNotAllowedError("`renderer: installed` runs the code of lm-eval, but no code may run here")
    with time_limit(seconds, "the import of lm-eval"):
        _task_class()
    is_laid_out = task.assembly is not FIELDS or task.format is not None
    return task if is_laid_out else replace(task, assembly=HarnessAssembly())


def _task_class() -> Any:
    try:
        try:
            return import_module(_MODULE).ConfigurableTask
        except ImportError:
            _import_without_models()
            return import_module(_MODULE).ConfigurableTask
    except Exception as error:
        raise FunctionError(f"lm-eval cannot be imported: {type(error).__name__}: {error}") from error


def _import_without_models() -> None:
    """Replace the package by one without its `__init__`, which before 0.4.10 imports torch for models."""
    spec = find_spec(_PACKAGE)
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]
    package = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
    package.__spec__ = spec
    package.__path__ = list((spec.submodule_search_locations if spec is not None else None) or ())


class _NoColumnError(KeyError):
    """A synthetic doc lacks a key; any other KeyError is a mistake of the code."""


class _SyntheticDoc(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise _NoColumnError(key)


def _given(kind: str, docs: Sequence[Doc]) -> list[Doc]:
    """Return copies of docs for code of the task."""
    return [_noting(doc) if kind == "synthetic" else copy.deepcopy(dict(doc)) for doc in docs]


def _noting(value: Any) -> Any:
    """Return a copy of a synthetic doc or of a value in it, in which mappings tell which key they lack."""
    if isinstance(value, Mapping):
        return _SyntheticDoc({key: _noting(each) for key, each in value.items()})
    return [_noting(each) for each in value] if isinstance(value, list) else copy.deepcopy(value)


class _Rows(list[Doc]):
    """Docs with the names of their columns, as a dataset has them."""

    features: Mapping[str, None]


class _Splits(dict[str, _Rows]):
    """The evaluated docs under the name of any split; the few-shot docs are given to the sampler."""

    def __init__(self, docs: TaskDocs) -> None:
        self._docs = docs

    def __contains__(self, split: object) -> bool:
        return True  # a class may ask which splits its dataset has

    def __missing__(self, split: str) -> _Rows:
        rows = _Rows(_given(self._docs.kind, self._docs.evaluated))
        rows.features = dict.fromkeys(self._docs.columns)
        return rows


def _config(task: Task, written: Task | None) -> dict[str, Any]:
    """Return the configuration as lm-eval takes it, with bound functions; `written` is the task whose scores count."""
    config = {key: copy.deepcopy(value) for key, value in task.config.items() if key not in _DROPPED}
    config["task"] = task.name
    for key, value in config.items():
        if isinstance(value, FunctionRef):
            config[key] = task.media.get(key, getattr(task, key, value))
    is_laid_out = getattr(task, "written", None) is not None
    if is_laid_out:
        config |= {key: getattr(task, key) for key in _LAID_OUT}
    shots = config.get("fewshot_config")
    if isinstance(shots, dict) and is_laid_out:
        shots |= {key: value for key in MAPPINGS if (value := getattr(task.fewshot, key)) is not UNSET}
    if isinstance(shots, dict):
        shots.pop("process_docs", None)
        shots |= {key: getattr(task.fewshot, key) for key, value in shots.items() if isinstance(value, FunctionRef)}
    if written is not None:
        kept = {name: _bound_names(getattr(written, name), getattr(task, name)) for name in _SCORING}
        return config | {name: value for name, value in kept.items() if value is not None}
    metrics = [each for each in task.metric_list or () if isinstance(each, Mapping)]
    metric = _UNCONDITIONAL if any(each.get("metric") == _UNCONDITIONAL for each in metrics) else "acc"
    # One that needs no package; without any, lm-eval looks for those of the output type, which a fork may lack.
    config["metric_list"] = [{"metric": metric, "aggregation": "mean", "higher_is_better": True}]
    return config


def _bound_names(written: Any, bound: Any) -> Any:
    """Return what is written with the bound functions in place of references; names stay as they are."""
    if isinstance(written, FunctionRef):
        return bound
    if isinstance(written, Mapping):
        return {key: _bound_names(value, bound[key]) for key, value in written.items()}
    if isinstance(written, list | tuple):
        return [_bound_names(*pair) for pair in zip(written, bound, strict=True)]
    return copy.deepcopy(written)

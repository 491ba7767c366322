"""One task@format under the settings of a run: each part of it is made at most once, by its study.

Functions are bound, docs loaded, prompts rendered and texts encoded when they are first needed. An error that stops a
part is cached like the part, and raised each time. Only the study of the most recent task is held, so that a run over
thousands of tasks stays small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Final, TypeVar

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc, DocsKind, PlacedDocs, TaskDocs
from pytest_promptfmt.core.errors import (
    FunctionError,
    MissingResource,
    MissingResourceError,
    PromptfmtError,
    ScoringError,
    kept,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Instance, Span, join
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.profile_loading import LoadedProfile, load_profile
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study.configuration import Configuration, WrittenTemplate, read_template
from pytest_promptfmt.study.contract import Contract, contract_of
from pytest_promptfmt.study.layout import with_columns
from pytest_promptfmt.study.scoring import ExpectedCompletion, Scoring, expected_completions
from pytest_promptfmt.study.shared_results import SharedResults
from pytest_promptfmt.tasks import (
    DEFAULT_COUNT,
    TaskRenderer,
    bind_functions,
    bind_scoring,
    leaves_evaluated_doc_out,
    load_docs,
    needs_harness,
    refuse_mistyped_columns,
    rendered_by_harness,
    renderer_with_shots,
    with_pool,
)

_TRIED_SHOTS: Final = 2
"""Few-shot examples that rules look at where the run shows none."""

_MOST_LOCAL: Final = 500
"""Docs of the user whose gold answers rules look at."""

T = TypeVar("T")
Load = Callable[[Profile], LoadedProfile]


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """The parts of a task that its profiles share: functions bound, docs, and what renders them."""

    task: Task
    docs: TaskDocs
    shots: int
    renderer: TaskRenderer


class Study(Configuration):
    """One task@format under the settings of its folder: `collected` as it was read, `given` as its release reads it.

    The properties for rules raise nothing: they are empty where the task cannot be rendered, and `failure` is the
    reason. Every other one raises the PromptfmtError that stopped it.
    """

    def __init__(
        self, given: Task, settings: Settings, load: Load | None = None, results: SharedResults | None = None
    ) -> None:
        self.collected = given
        self.given = given.following(settings.release)
        self.settings = settings
        self.load_profile = load or (lambda profile: load_profile(profile, download=settings.download))
        self._made: dict[Hashable, object] = {}
        self._results = results or SharedResults()

    @cached_property
    def shared(self) -> dict[Hashable, Any]:
        """Return the results that are the same for each task that differs from this one only in its names.

        None of them holds a name, a path or a place in a file. They are those of this task where it has no docs.
        """
        with suppress(PromptfmtError):
            material = self.material
            return self._results.of(material.task, material.docs, material.shots, self.settings)
        return {}

    def renders(self, profile: Profile = PLAIN) -> bool:
        """Return whether it is known that the task can be rendered: this one, or one with the same content."""
        return ("rendered", profile.name) in self.shared

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, kept under a key as long as the study is; its PromptfmtError is raised each time.

        For costly values that are derived from the task: two makers must not share a key.
        """
        return kept(self._made, key, make)

    # -- made of the task --------------------------------------------------------------------------------------------

    @property
    def bound(self) -> Task:
        """Return the task with the functions that rendering needs.

        Raises CodeNotAllowedError, FunctionError or SourceError.
        """
        settings = self.settings

        def make() -> Task:
            folder, dataset = settings.docs_folder(self.given.path), self.given.dataset
            if folder is not None and isinstance(dataset.given, PlacedDocs):
                dataset = replace(dataset, given=dataset.given.placed(folder))
            given = replace(self.given, docs_folder=folder, dataset=dataset)
            bound = bind_functions(given, trusted=settings.trusts, time_limit=settings.import_limit)
            if settings.renderer == "installed":
                return rendered_by_harness(bound, settings.import_limit, no_code=settings.no_code)
            with suppress(FunctionError):  # its requests are unknown then
                if not settings.no_code and needs_harness(given):
                    return rendered_by_harness(bound, settings.import_limit, no_code=False)
            return bound

        return self.once("bound", make)

    @property
    def bound_for_scoring(self) -> Task:
        """Return the task with the functions that score it as well; raises as `bound`."""
        settings = self.settings

        def make() -> Task:
            by = settings.renderer == "installed" and self.given.system == "lm-eval"
            return bind_scoring(self.bound, trusted=settings.trusts, time_limit=settings.import_limit, by_installed=by)

        return self.once("bound for scoring", make)

    def require_requests(self) -> None:
        """Raise MissingResourceError where the requests are unknown: those of an output type that only a fork has."""
        if self.given.output_type == "other" and not any(each.requests for each in self.render()):
            name = self.given.config.get("output_type")
            reason = f"promptfmt does not know the requests of output type {name!r}, so only prompts are tested"
            missing = MissingResource(reason, "install the harness with this output type")
            raise MissingResourceError(reason, missing, position=self.given.position("output_type"))

    def require_material(self) -> None:
        """Raise what stops `material`."""
        self._material(self.settings.docs)

    @property
    def material(self) -> Material:
        """Return the docs and what renders them; raises what stops binding, DocsError or LimitExceededError."""
        return self._material(self.settings.docs)

    def render(self, profile: Profile = PLAIN) -> tuple[Instance, ...]:
        """Return the rendered docs for a loaded profile; raises as `material`, and RenderError."""
        return self._rendered(self.settings.docs, profile)

    @property
    def tested(self) -> TemplateTrial | None:
        """Return the trial of the chat template under test, None for other tasks."""
        trial = self.once("template trial", lambda: self.given.assembly.trial(self))
        return trial if isinstance(trial, TemplateTrial) else None

    def load(self, profile: Profile) -> LoadedProfile:
        """Return a profile with its tokenizer; raises TokenizerError or SettingsError."""
        return self.once(("profile", profile.name), lambda: self.load_profile(profile))

    @property
    def expected(self) -> tuple[ExpectedCompletion, ...]:
        """Return the completions that the task's author wrote down; raises ScoringError for invalid ones."""
        return self.once("expected", lambda: expected_completions(self.given))

    @property
    def scoring(self) -> Scoring:
        """Return what scoring needs: as many docs as usual, and those that expected completions answer.

        Raises what stops binding or rendering, and ScoringError for a completion that answers a doc that is not there.
        """
        last = max((one.doc for one in self.expected), default=0)
        scoring = self._scoring(last + 1 if last > 1 else None)
        unknown = next((one for one in self.expected if one.doc >= len(scoring.instances)), None)
        if unknown is not None:
            known = len(scoring.instances) - 1
            raise ScoringError(
                f"the completion {unknown.id!r} answers doc {unknown.doc}, but the last doc has the index {known}",
                position=self.given.position("metadata", "promptfmt", "completions"),
            )
        return scoring

    @property
    def scoring_of_prompts(self) -> Scoring:
        """Return what scoring needs of all docs that are rendered; raises what stops binding or rendering."""
        return self._scoring(self.settings.docs)

    def _scoring(self, count: int | None) -> Scoring:
        def make() -> Scoring:
            self.require_requests()
            task, instances = self.bound_for_scoring, self._rendered(count, PLAIN)
            docs = self._material(count).docs
            return Scoring(task=task, docs=docs, instances=tuple(map(_of_first_question, instances)))

        return self.once(("scoring", count), make)

    def _material(self, count: int | None) -> Material:
        def make() -> Material:
            task, shots = self.bound, self.settings.num_fewshot
            with self._limit():
                docs = load_docs(task, count=count, num_fewshot=shots)
                refuse_mistyped_columns(task, docs)
                renderer, drawn = renderer_with_shots(task, docs, shots)  # PF808 reports fewer
            return Material(task=task, docs=docs, shots=drawn, renderer=renderer)

        return self.once(("material", count), make)

    def _rendered(self, count: int | None, profile: Profile) -> tuple[Instance, ...]:
        def make() -> tuple[Instance, ...]:
            renderer = self._material(count).renderer
            with self._limit(profile):
                instances = tuple(renderer.instances(profile))
            if count == self.settings.docs:
                self.shared["rendered", profile.name] = True
            return instances

        return self.once(("instances", count, profile.name), make)

    def _limit(self, profile: Profile = PLAIN) -> AbstractContextManager[None]:
        seen = f" with the chat template of profile {profile.name!r}" if profile.is_chat else ""
        what = f"rendering {self.given.id}{seen}"
        return time_limit(self.settings.time_limit, what, self.given.position("doc_to_text"))

    # -- for rules ---------------------------------------------------------------------------------------------------

    @cached_property
    def task(self) -> Task:
        """Return the task as its author wrote it; a task class with what its code defines, where that may run."""
        if self.given.assembly.is_class:
            with suppress(PromptfmtError):
                return self.bound
        return self.given

    @property
    def renders_fields(self) -> bool:
        """Return whether its prompts are field mappings as lm-eval renders them, and its answers scored as there."""
        return self.given.assembly.renders_fields

    def prepare(self) -> PromptfmtError | None:
        """Render now, under the limits of rendering; return what stops that, as `failure` does from now on."""
        return self.failure

    @cached_property
    def failure(self) -> PromptfmtError | None:
        """Return what stopped rendering, None when nothing did."""
        try:
            if not self.renders():
                self.render()
        except PromptfmtError as error:
            return error
        return None

    @cached_property
    def instances(self) -> Sequence[Instance]:
        """Return the rendered docs for the profile plain; the values in questions that code makes have columns."""
        rendered = self.render() if self.failure is None else ()
        return tuple(map(with_columns, rendered)) if self.asks_by_code and self.has_real_docs else rendered

    @property
    def docs(self) -> TaskDocs | None:
        """Return the docs, None where they cannot be had or rendered."""
        return self.material.docs if self.failure is None else None

    @property
    def shots(self) -> int:
        """Return the number of few-shot examples in `instances`."""
        return self.material.shots if self.failure is None else self.task.shots()

    @property
    def has_real_docs(self) -> bool:
        """Return whether the docs are the user's own; synthetic ones show nothing about data."""
        return self.docs is not None and self.docs.kind == "given"

    @property
    def real_docs(self) -> Sequence[Doc]:
        """Return the evaluated docs when they are the user's own."""
        return self.docs.evaluated if self.docs is not None and self.has_real_docs else ()

    @cached_property
    def local_docs(self) -> Sequence[Doc]:
        """Return the evaluated docs that are the user's own, many more than are rendered."""
        has_more = len(self.real_docs) >= (self.settings.docs or DEFAULT_COUNT)
        if self.has_real_docs and self.renders_fields and has_more:
            with suppress(PromptfmtError), self._limit():
                return load_docs(self.bound, count=_MOST_LOCAL, num_fewshot=0).evaluated
        return self.real_docs

    @property
    def real_instances(self) -> Sequence[Instance]:
        """Return the rendered docs when the docs are the user's own."""
        return self.instances if self.has_real_docs else ()

    @cached_property
    def demonstrated(self) -> Sequence[Instance]:
        """Return rendered docs with few-shot examples: `instances`, or a doc with 2 where the run has none.

        Empty where there are no examples, or only synthetic ones.
        """
        if self.shots > 0:
            return self.instances
        return self.with_shots if self.has_real_docs and self._tried_shots[1] == "given" else ()

    @cached_property
    def with_shots(self) -> Sequence[Instance]:
        """Return rendered docs with few-shot examples as `demonstrated`, synthetic ones too.

        For rules about layout: what synthetic examples answer means nothing. Empty where they cannot be rendered.
        """
        return self.instances if self.shots > 0 else self._tried_shots[0]

    @property
    def shots_failure(self) -> PromptfmtError | None:
        """Return what stops rendering with few-shot examples where the run has none, None when nothing does."""
        return self._tried_shots[2] if self.failure is None and self.shots == 0 else None

    @cached_property
    def _tried_shots(self) -> tuple[Sequence[Instance], DocsKind, PromptfmtError | None]:
        """Return the first doc with few-shot examples, of which kind they are, and what stopped them."""
        if self.failure is not None or not self.given.has_question or self.task.num_fewshot == 0:
            return (), "synthetic", None  # lm-eval 0.4.13 does not let the command line change a written 0
        kind: DocsKind = "synthetic"
        try:
            task, docs = self.bound, self.material.docs
            if not task.shots(_TRIED_SHOTS):
                task = replace(task, num_fewshot=_TRIED_SHOTS)
            shown = with_pool(task, replace(docs, evaluated=docs.evaluated[:1]), _TRIED_SHOTS)
            kind = shown.fewshot_kind
            count = min(_TRIED_SHOTS, len(shown.fewshot))
            if leaves_evaluated_doc_out(task):
                others = sum(doc != docs.evaluated[0] for doc in shown.fewshot)
                count = min(count, others, len(shown.fewshot) - 1)
            if count < 1:
                return (), kind, None
            with self._limit():
                renderer = TaskRenderer(replace(task, num_fewshot=count), shown, num_fewshot=count)
                return tuple(renderer.instances()), kind, None
        except PromptfmtError as error:
            return (), kind, error

    @cached_property
    def templates(self) -> tuple[WrittenTemplate, ...]:
        """Return the templates of the task, as its author wrote them; plain column names are none."""
        columns = set(self.docs.columns) if self.docs is not None else set()
        return tuple(
            WrittenTemplate(keys, spec, read_template(spec))
            for keys, spec in self.field_specs()
            if isinstance(spec, str) and spec and spec not in columns
        )

    @property
    def has_guessed_text(self) -> bool:
        """Return whether the question is what Python code makes of synthetic docs, so that its ends mean nothing."""
        return self.asks_by_code and not self.has_real_docs

    @cached_property
    def own_text(self) -> str:
        """Return the text of the first prompt that the author wrote: no columns, and no few-shot examples."""
        return "".join(join(constant_spans(instance)) for instance in self.instances[:1])

    @cached_property
    def contract(self) -> Contract:
        """Return the answer that the task's own text asks for, read without the columns of the first doc."""
        return contract_of(self.own_text)

    @cached_property
    def asks_for_reasoning(self) -> bool:
        """Return whether the prompt asks the model to reason before it answers."""
        if not self.generates:
            return False
        texts = [constant for template in self.templates for constant in template.text.constants]
        return any(map(_reasoning().search, [*texts, self.own_text]))


class Studies:
    """The studies of a run: that of the task worked on last is held, and every profile is loaded once."""

    def __init__(self, settings_of: Callable[[Task], Settings]) -> None:
        self._settings_of = settings_of
        self._last: Study | None = None
        self._results = SharedResults()
        # By identity, for two folders may give one name to different profiles, which are kept alive.
        self._profiles: dict[int, Profile] = {}
        self._loaded_profiles: dict[int, Any] = {}

    def of(self, task: Task) -> Study:
        """Return the study of a task: the one there is, as long as no other task came between."""
        if self._last is None or self._last.given is not task:
            settings = self._settings_of(task)
            load = partial(self._loaded, download=settings.download)
            self._last = Study(task, settings, load, self._results)
        return self._last

    def _loaded(self, profile: Profile, *, download: bool) -> LoadedProfile:
        self._profiles[id(profile)] = profile
        return kept(self._loaded_profiles, id(profile), partial(load_profile, profile, download=download))


@cache
def _reasoning() -> re.Pattern[str]:
    phrases = (phrase for each in data_table("reasoning_phrases").values() for phrase in each)
    return re.compile("|".join(phrases), re.IGNORECASE)


def constant_spans(instance: Instance) -> tuple[Span, ...]:
    """Return the spans of the first prompt that belong to no few-shot example and print no column."""
    prompts = instance.prompts[:1]
    return tuple(
        span for prompt in prompts for span in prompt.spans if span.origin.field is None and span.origin.shot is None
    )


def _of_first_question(instance: Instance) -> Instance:
    """Return the instance with only its first question, and what that is scored by, where its doc has several."""
    own = instance.requests[0].doc if instance.requests else None
    if own is None:
        return instance
    return replace(instance, doc=own, requests=tuple(one for one in instance.requests if one.doc is own))

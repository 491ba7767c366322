"""One task through the rooms: functions bound, docs found, prompts rendered, limits kept, a snapshot document made.

The profile-independent part of a task is done once and shared by its profiles; only the task worked on last is
held, so that a run over thousands of tasks stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pytest_promptfmt.answers.smoke import Failure, scoring_failure
from pytest_promptfmt.chat.profile_loading import LoadedProfile, load_profile
from pytest_promptfmt.checks.profile_views import ProfileView, TemplateView
from pytest_promptfmt.checks.running import Checked, check_view
from pytest_promptfmt.checks.selection import Selection
from pytest_promptfmt.checks.views import FileView, Material, TaskView
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError, UnavailableError
from pytest_promptfmt.core.limits import RENDERING_MEMORY, time_limit
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import CodeAssembly, Task, TaskDocs
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.content import header_facts, make_document
from pytest_promptfmt.snapshots.document import Document, Section
from pytest_promptfmt.snapshots.lock import LockEntry
from pytest_promptfmt.snapshots.token_sections import profile_facts, token_sections
from pytest_promptfmt.systems.lm_eval.docs.loading import load_docs
from pytest_promptfmt.systems.lm_eval.functions import bind_functions, bind_scoring
from pytest_promptfmt.systems.lm_eval.rendering.fields import refuse_mistyped_columns
from pytest_promptfmt.systems.renderer import TaskRenderer
from pytest_promptfmt.tokens import Tokenizer
from pytest_promptfmt.tokens.encoding import PairEncoder

_TOO_MUCH_TEXT: Final = "the docs are very long: show fewer of them, or raise time_limit"
_TRIED_SHOTS: Final = 2
"""Demonstrations that checks look at where a task shows none by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """What the profiles of a task share."""

    task: Task
    docs: TaskDocs
    shots: int
    renderer: TaskRenderer
    instances: dict[str, tuple[Instance, ...]] = field(default_factory=dict)
    """Those already rendered, by the name of their profile."""

    pairs: dict[str, PairEncoder] = field(default_factory=dict)
    """What is scored, in tokens, by the name of the profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """What came out for one task and profile: the instances, and the document that a snapshot stores."""

    instances: Sequence[Instance]
    docs: TaskDocs
    document: Document
    tokenizer: tuple[str, LockEntry] | None
    """The name and state of the tokenizer, where there is one."""

    loaded: LoadedProfile
    """The profile with its tokenizer."""

    pairs: PairEncoder | None
    """What was encoded of it, and encodes more."""


class Pipeline:
    """Renders tasks by the settings of one run, `settings_for` giving those of a task's folder."""

    def __init__(self, settings: Settings, settings_for: Callable[[Task], Settings] | None = None) -> None:
        self._settings_for = settings_for or (lambda _task: settings)
        self._task: Task | None = None
        self._prepared: _Prepared | PromptfmtError | None = None
        # By identity, for two folders may give one name to different profiles; the profile is kept alive beside it.
        self._profiles: dict[int, tuple[Profile, LoadedProfile | PromptfmtError]] = {}
        self._view: TaskView | None = None
        self._view_of: Task | None = None
        self._seen_profiles: list[Profile] = []

    def render(self, task: Task, profile: Profile, profile_id: str) -> Rendered:
        """Return the instances of a task's docs for a profile, and their document.

        Raises the PromptfmtError that stopped it: code not allowed, docs not found, a template that fails, the time
        limit. The part that profiles share is tried once: its error is raised for each of them.
        """
        prepared = self._prepare(task)
        loaded = self._loaded(task, profile)
        profile, tokenizer = loaded.profile, loaded.tokenizer
        instances = self._instances(task, prepared, profile)
        facts = dict(prepared.task.assembly.facts) if prepared.task.assembly is not None else {}
        more: Callable[[Instance], Iterable[Section]] = lambda _instance: ()  # noqa: E731
        if tokenizer is not None:
            facts |= profile_facts(profile, tokenizer)
            what = f"encoding the prompts of {task.id} with {tokenizer.name}"
            position = task.position("doc_to_text")
            with time_limit(self._settings_for(task).time_limit, what, position, hint=_TOO_MUCH_TEXT):
                more = token_sections(tokenizer, profile, instances, self._pairs(prepared, profile, tokenizer))
        header = header_facts(
            task=task.id,
            profile=profile_id,
            template_args=profile.template_args if profile.is_chat else {},
            output=prepared.task.output_type,
            docs=prepared.docs.origin,
            shots=prepared.shots,
            fewshot_docs=prepared.docs.fewshot_origin,
            more=facts,
        )
        document = make_document(header, instances, more, shows_text=profile.shows_text)
        entry = None
        if tokenizer is not None:
            entry = profile.tokenizer_name, LockEntry(loader=tokenizer.loader, content=tokenizer.digest)
        pairs = None if tokenizer is None else self._pairs(prepared, profile, tokenizer)
        return Rendered(
            instances=instances,
            docs=prepared.docs,
            document=document,
            tokenizer=entry,
            loaded=loaded,
            pairs=pairs,
        )

    def checked(
        self,
        task: Task,
        selection: Selection,
        *,
        file: FileView | None = None,
        profile: Profile = PLAIN,
        profile_id: str = PLAIN.name,
        is_first: bool = True,
    ) -> Checked:
        """Return what the rules say about a task as a profile sees it; with the first profile, about the task itself.

        With the task, its file is looked at when that is given. The docs and the prompts are those of `render`, and
        shared with it. A task that cannot be rendered is checked as far as it is written; `Checked.failure` tells why.
        Raises LimitExceededError for the time limit.
        """
        view = self._viewed(task)
        view.prepare()  # rendering has limits of its own
        loaded = LoadedProfile(profile=profile)
        with suppress(PromptfmtError):  # the item of the snapshot tells
            loaded = self._loaded(task, profile)
        tokenizer = loaded.tokenizer
        seen = ProfileView(
            view,
            loaded.profile,
            name=profile_id,
            prepare=lambda: self._rendered(task, profile),
            tokenizer=tokenizer,
            pairs=(lambda: self._pairs(self._prepare(task), loaded.profile, tokenizer)) if tokenizer else None,
        )
        template = None
        if selection.looks_at_profiles:
            seen.prepare()
            if profile not in self._seen_profiles and not isinstance(seen.failure, LimitExceededError):
                self._seen_profiles.append(profile)
                template = TemplateView(loaded.profile, name=profile_id, tokenizer=loaded.tokenizer)
        with time_limit(self._settings_for(task).time_limit, f"checking {task.id}", task.position("doc_to_text")):
            return check_view(
                selection,
                path=task.path or Path(),
                name=task.id,
                task=view if is_first else None,
                file=file,
                profile=seen,
                template=template,
            )

    def bound_for_scoring(self, task: Task) -> Task:
        """Return a task with the functions that score it bound as well; raises as `render`."""
        settings = self._settings_for(task)
        return bind_scoring(self._prepare(task).task, trusted=settings.trusts, time_limit=settings.import_limit)

    def _viewed(self, task: Task) -> TaskView:
        if self._view is None or self._view_of is not task:
            self._view_of = task
            self._view = TaskView(
                self._as_rules_see(task),
                prepare=lambda: self._material(task),
                demonstrate=lambda: self._demonstrated(task),
                score=lambda: self._scoring_failure(task),
            )
        return self._view

    def _as_rules_see(self, task: Task) -> Task:
        """Return the task as it is written; a task class with what only its code can say."""
        if isinstance(task.assembly, CodeAssembly):
            with suppress(PromptfmtError):
                return self._prepare(task).task
        return task

    def _material(self, task: Task) -> Material:
        prepared = self._prepare(task)
        return Material(docs=prepared.docs, shots=prepared.shots, instances=self._instances(task, prepared, PLAIN))

    def _scoring_failure(self, task: Task) -> Failure | None:
        if task.assembly is not None:
            return None  # another system scores it
        prepared = self._prepare(task)
        settings = self._settings_for(task)
        try:
            bound = bind_scoring(prepared.task, trusted=settings.trusts, time_limit=settings.import_limit)
        except UnavailableError:
            return None
        except PromptfmtError as error:
            return Failure.of_setting_up(error)
        try:
            with time_limit(settings.time_limit, f"scoring {task.id}", task.position("metric_list")):
                return scoring_failure(
                    bound, self._instances(task, prepared, PLAIN), is_synthetic=prepared.docs.kind == "synthetic"
                )
        except LimitExceededError as error:
            return Failure(what="the gold answer is scored", error=error.message, keys=("metric_list",))

    def _rendered(self, task: Task, profile: Profile) -> Sequence[Instance]:
        return self._instances(task, self._prepare(task), self._loaded(task, profile).profile)

    def _loaded(self, task: Task, profile: Profile) -> LoadedProfile:
        """Return the profile with its tokenizer; what stops loading is tried once in a run, and raised each time."""
        known = self._profiles.get(id(profile))
        if known is None:
            loaded: LoadedProfile | PromptfmtError
            try:
                loaded = load_profile(profile, download=self._settings_for(task).download)
            except PromptfmtError as error:
                loaded = error
            known = self._profiles[id(profile)] = profile, loaded
        if isinstance(known[1], PromptfmtError):
            raise known[1].with_traceback(None)
        return known[1]

    def _instances(self, task: Task, prepared: _Prepared, profile: Profile) -> tuple[Instance, ...]:
        if profile.name not in prepared.instances:
            with self._limit(task, profile=profile):
                prepared.instances[profile.name] = tuple(prepared.renderer.instances(profile))
        return prepared.instances[profile.name]

    def _pairs(self, prepared: _Prepared, profile: Profile, tokenizer: Tokenizer) -> PairEncoder:
        return prepared.pairs.setdefault(profile.name, PairEncoder(tokenizer, profile.split))

    def _demonstrated(self, task: Task) -> Sequence[Instance]:
        """Return one doc with demonstrations, for a task that shows none by itself."""
        settings = self._settings_for(task)
        bound = bind_functions(task, trusted=settings.trusts)
        if not bound.shots(_TRIED_SHOTS):
            bound = replace(bound, num_fewshot=_TRIED_SHOTS)
        docs = load_docs(bound, count=1, num_fewshot=_TRIED_SHOTS)
        if docs.fewshot_kind != "given":
            return ()
        return tuple(TaskRenderer(bound, docs, num_fewshot=_TRIED_SHOTS).instances(PLAIN))

    def _prepare(self, task: Task) -> _Prepared:
        if self._task is not task:
            self._task = task
            try:
                self._prepared = self._fresh(task)
            except PromptfmtError as error:
                self._prepared = error
        assert self._prepared is not None
        if isinstance(self._prepared, PromptfmtError):
            raise self._prepared.with_traceback(None)
        return self._prepared

    def _fresh(self, task: Task) -> _Prepared:
        settings = self._settings_for(task)
        bound = bind_functions(task, trusted=settings.trusts, time_limit=settings.import_limit)
        with self._limit(task):
            docs = load_docs(bound, count=settings.docs, num_fewshot=settings.num_fewshot)
            refuse_mistyped_columns(bound, docs)
            return _Prepared(
                task=bound,
                docs=docs,
                shots=bound.shots(settings.num_fewshot),
                renderer=TaskRenderer(bound, docs, num_fewshot=settings.num_fewshot),
            )

    def _limit(self, task: Task, profile: Profile = PLAIN) -> AbstractContextManager[None]:
        seconds = self._settings_for(task).time_limit
        seen = f" with the chat template of profile {profile.name!r}" if profile.is_chat else ""
        return time_limit(seconds, f"rendering {task.id}{seen}", task.position("doc_to_text"), memory=RENDERING_MEMORY)

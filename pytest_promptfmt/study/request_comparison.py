"""The requests of a task made in two ways, compared byte by byte: by two releases, or here and by an installed harness.

Tasks without shots are also compared with some. The result can be JSON, since a worker makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any, Final, Protocol, runtime_checkable

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FunctionError, PromptfmtError, SyntheticDocsError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.release import LATEST, Release, numbers_of, releases
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.core.text import shared_start
from pytest_promptfmt.study.study import Study
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import (
    PLACEHOLDERS,
    Arguments,
    load_docs,
    render_task,
    renderer_with_shots,
    sent_media,
    shot_split,
    with_media_columns,
    with_pool,
)

_LM_EVAL: Final = "lm-eval"
_TRIED_SHOTS: Final = 2
_BEFORE: Final = 30
_SHOWN: Final = 90

Requests = list[list[Arguments]]
"""The arguments of the requests of each doc."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first difference of a task for one profile and number of shots, with the text around it on both sides.

    `doc` and `request` count from 1, 0 where a side makes no requests at all. `offset` is the first character that
    differs, from 0.
    """

    profile: str = ""
    shots: int = 0
    cause: str = ""
    doc: int = 0
    request: int = 0
    part: str = ""
    offset: int = 0
    old: str = ""
    new: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreChange:
    """The score of one answer in two releases, or the aggregate of several; `doc` counts from 1, 0 for an aggregate."""

    doc: int
    answer: str
    pipeline: str
    metric: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The result for one task: how many requests were compared, how they differ, or why they could not be compared.

    `scores` are the changes between two releases that may give the same answers other scores, `changed_scores` those
    that both computed, of `tried` values; `not_scored` states why they could not be computed. `system` is the name of
    what made the requests to compare with, `file` that of the task.
    """

    file: str = ""
    task: str
    system: str = ""
    requests: int = 0
    failures: int = 0
    unknown: str = ""
    differences: Sequence[Difference] = ()
    scores: Sequence[str] = ()
    tried: int = 0
    changed_scores: Sequence[ScoreChange] = ()
    not_scored: str = ""

    @property
    def is_different(self) -> bool:
        """Return whether requests or scores differ, or may."""
        return bool(self.differences or self.scores or self.changed_scores)


Side = Callable[[Task, TaskDocs, int], Callable[[Profile], Requests]]
"""From a task, its docs and a number of shots to what makes the requests for a profile."""


@runtime_checkable
class AsksHarness(Protocol):
    """A system whose harness, where it is installed, makes the requests of a task from the same docs."""

    name: str
    """The name of the system."""

    packages: Sequence[str]
    """The packages of the harness, the one it is known by first."""

    distribution: str
    """The name under which the harness is installed."""

    sends_whole: bool
    """Whether a continuation is sent as the end of its prompt."""

    harness: str
    """The module of two functions, imported when they are called.

    `sees(task, profile)` returns whether the harness has requests of a task for a profile, `requests_of(task, docs,
    shots)` what makes them; it raises FunctionError or SyntheticDocsError if they are unknown, else RenderError.
    """


def compared_with_harness(study: Study, profiles: Sequence[Profile]) -> Compared:
    """Return how our requests differ from those that the harness of the task makes of the same docs."""
    system = known_systems().get(study.given.system)
    if not isinstance(system, AsksHarness):
        return Compared(task=study.given.id, unknown="no supported harness reads such tasks")
    asks: AsksHarness = system
    name, harness, causes = asks.name, import_module(asks.harness), data_table("release_causes")

    def cause(task: Task, docs: TaskDocs, profile: Profile, shots: int, theirs: Requests | PromptfmtError) -> str:
        followed = study.settings.release
        for field, behaviour in causes.items() if name == _LM_EVAL else ():
            for value in dict.fromkeys(getattr(each, field) for each in releases()):
                changed = replace(followed, **{field: value})
                if _result(_requests_by, changed, task, docs, shots, profile) == theirs:
                    return f"it differs from lm-eval {followed.version} in {behaviour}"
        for release in reversed(releases()) if name == _LM_EVAL else ():
            if _result(_requests_by, release, task, docs, shots, profile) == theirs:
                return f"its requests are those of lm-eval {release.version}"
        return f"{name} raises {type(theirs.__cause__).__name__}" if isinstance(theirs, PromptfmtError) else ""

    def ours(task: Task, docs: TaskDocs, shots: int) -> Callable[[Profile], Requests]:
        docs = with_media_columns(task, docs)
        made = _by(study.settings.release)(task, docs, shots)
        if study.is_multimodal:
            return lambda profile: _with_media(made(profile), task, docs)
        return (lambda profile: _joined(made(profile))) if asks.sends_whole else made

    def theirs(task: Task, docs: TaskDocs, shots: int) -> Callable[[Profile], Requests]:
        own = _followed(study.settings.release, task, with_media_columns(task, docs), shots)[1]
        return harness.requests_of(task, own, shots)

    seen = [each for each in profiles if harness.sees(study.given, each)]
    unread = [key for key in study.media_keys if key not in PLACEHOLDERS]
    reason = f"{name} cannot read {unread[0]}" if unread else ""
    if find_spec(asks.packages[0]) is None:
        reason = f"{name} is not installed"
    elif not seen:
        reason = f"{name} has no requests for these profiles"
    return replace(_compared(study, seen, reason, (ours, theirs), cause, draws_own=True), system=name)


def _with_media(requests: Requests, task: Task, docs: TaskDocs) -> Requests:
    """Return requests with the images and sound of their docs, as digests."""
    shown = [sent_media(task, doc) for doc in docs.evaluated]
    return [[(*each, media) for each in own] for own, media in zip(requests, shown, strict=True)]


def _joined(requests: Requests) -> Requests:
    """Return requests whose continuation is the end of the prompt."""
    return [[("".join(each),) if isinstance(each[-1], str) else each for each in own] for own in requests]


def compared_releases(study: Study, profiles: Sequence[Profile], new: Release) -> Compared:
    """Return how the requests of a study change with another release."""
    old, causes = study.settings.release, data_table("release_causes")
    names = [each.name for each in fields(Release) if getattr(old, each.name) != getattr(new, each.name)]

    def cause(task: Task, docs: TaskDocs, profile: Profile, shots: int, _new: Requests | PromptfmtError) -> str:
        def changed(*changes: str) -> Any:
            release = replace(old, **{name: getattr(new, name) for name in changes})
            return _result(_requests_by, release, task, docs, shots, profile)

        if any(each.unknown_keys & task.config.keys() for each in (old, new)):
            return str(causes["unknown_keys"])
        before = changed()
        return next((causes[name] for name in names if name in causes and changed(name) != before), "several changes")

    is_read = study.given.system == _LM_EVAL and (study.renders_fields or study.given.assembly.is_class)
    reason = "" if is_read else _OTHER_SYSTEM
    draws_own = shot_split(study.given) == study.given.dataset.evaluation_split
    made = _compared(study, profiles, reason, (_by(old), _by(new)), cause, draws_own)
    return replace(made, scores=() if reason else tuple(_score_changes(study.given, old, new)))


def _score_changes(task: Task, old: Release, new: Release) -> Iterator[str]:
    first, last = sorted(numbers_of(each.version) for each in (old, new))
    pipelines = task.config.get("filter_list") or ()
    steps = [step for each in pipelines if isinstance(each, Mapping) for step in each.get("filter") or ()]
    metrics = [each for each in task.metric_list or () if isinstance(each, Mapping)]
    used = [each.get("function") for each in steps if isinstance(each, Mapping)]
    used += [each.get("aggregation") for each in metrics]
    for version, changes in data_table("score_changes").items():
        if first < numbers_of(version) <= last:
            yield from (f"{name} since {version}: {what}" for name, what in changes.items() if name in used)


def _by(release: Release) -> Side:
    """Return the side that makes requests here as a release does, also of the docs that it draws shots from."""

    def make(task: Task, docs: TaskDocs, shots: int) -> Callable[[Profile], Requests]:
        followed, own = _followed(release, task, docs, shots)
        if own is docs and shots and docs.fewshot_kind == "given":
            with suppress(PromptfmtError):
                own = with_pool(followed, docs, shots)
        return lambda profile: [
            [each.arguments for each in one.requests] for one in render_task(followed, own, profile, num_fewshot=shots)
        ]

    return make


def _followed(release: Release, task: Task, docs: TaskDocs, shots: int) -> tuple[Task, TaskDocs]:
    """Return a task as the release has it, and its docs, which are others where `process_docs` draws at random."""
    followed, own = task.following(release), docs
    if docs.random_states is not None:
        with suppress(PromptfmtError):
            own = load_docs(followed, count=len(docs.evaluated), num_fewshot=shots)
    return followed, own


def _requests_by(release: Release, task: Task, docs: TaskDocs, shots: int, profile: Profile) -> Requests:
    return _by(release)(task, docs, shots)(profile)


_OTHER_SYSTEM: Final = "this task does not use lm-eval's fields for its prompts"


def _compared(
    study: Study,
    profiles: Sequence[Profile],
    reason: str,
    sides: tuple[Side, Side],
    cause: Callable[[Task, TaskDocs, Profile, int, Requests | PromptfmtError], str],
    draws_own: bool,
) -> Compared:
    name = study.given.id
    if reason:
        return Compared(task=name, unknown=reason)
    try:
        ways = list(_ways(whole_study(study), draws_own))
        loaded = [study.load(each).profile for each in profiles if each.shows_text]
    except PromptfmtError as error:
        return Compared(task=name, unknown=error.message)
    found, requests, failures = [], 0, 0
    for way in ways:
        makers = [_result(side, *way) for side in sides]
        unknown = next((each for each in makers if isinstance(each, FunctionError | SyntheticDocsError)), None)
        if unknown is not None and way is ways[0]:
            return Compared(task=name, unknown=unknown.message)
        if unknown is not None:  # with more shots than the task sets
            break
        for profile in loaded:
            old, new = (each if isinstance(each, PromptfmtError) else _result(each, profile) for each in makers)
            both_fail = isinstance(old, PromptfmtError) and isinstance(new, PromptfmtError)
            failures += both_fail
            requests += 0 if isinstance(old, PromptfmtError) else sum(map(len, old))
            if not both_fail and old != new:
                why = cause(way[0], way[1], profile, way[2], new)
                why = why or ("an error here" if isinstance(old, PromptfmtError) else "")
                found.append(replace(_first(old, new), profile=profile.name, shots=way[2], cause=why))
    return Compared(task=name, requests=requests, failures=failures, differences=tuple(found))


def whole_study(study: Study) -> Study:
    """Return a study of the task with all its keys: the latest release ignores none, and each side ignores its own."""
    return Study(study.collected, replace(study.settings, lm_eval=LATEST.version, renderer="fast"))


def _ways(study: Study, draws_own: bool) -> Iterator[tuple[Task, TaskDocs, int]]:
    """Yield the task with its docs and shots, and with some shots where it has none.

    With `draws_own` the first evaluated doc is among synthetic docs to draw from.
    """

    def with_own(docs: TaskDocs) -> TaskDocs:
        adds = draws_own and docs.fewshot and docs.fewshot_kind == "synthetic"
        return replace(docs, fewshot=(docs.evaluated[0], *docs.fewshot)) if adds else docs

    material = study.material
    task, docs, shots = material.task, with_own(material.docs), material.shots
    yield replace(task, num_fewshot=shots), docs, shots
    if not shots and task.has_question and task.num_fewshot is None:
        with suppress(PromptfmtError):
            tried = replace(task, num_fewshot=_TRIED_SHOTS)
            pool = with_pool(tried, docs, _TRIED_SHOTS)
            _, drawn = renderer_with_shots(tried, pool, _TRIED_SHOTS)
            if drawn:
                yield replace(task, num_fewshot=drawn), with_own(pool), drawn


def _result(make: Callable[..., Any], *given: object) -> Any:
    try:
        return make(*given)
    except PromptfmtError as error:
        return error


def _first(old: Requests | PromptfmtError, new: Requests | PromptfmtError) -> Difference:
    if isinstance(old, PromptfmtError) or isinstance(new, PromptfmtError):
        shown = [f"! {each.message}" if isinstance(each, PromptfmtError) else "requests" for each in (old, new)]
        return Difference(old=shown[0], new=shown[1])
    nothing: list[Arguments] = []
    for doc, requests in enumerate(zip_longest(old, new, fillvalue=nothing), start=1):
        for number, arguments in enumerate(zip_longest(*requests, fillvalue=()), start=1):
            for place, (left, right) in enumerate(zip_longest(*arguments)):
                if left != right:
                    part = "generation arguments" if isinstance(left, Mapping) else _PARTS[min(place, 1)]
                    part = "images and sound" if isinstance(left, tuple) else part
                    return _around(left, right, Difference(doc=doc, request=number, part=part))
    return Difference()


def _around(left: Any, right: Any, difference: Difference) -> Difference:
    texts = [each if isinstance(each, str) else repr(each) for each in (left, right)]
    offset = shared_start(*texts)
    begin = max(0, offset - _BEFORE)
    shown = [f"{'…' * (begin > 0)}{text[begin : begin + _SHOWN]}" for text in texts]
    return replace(difference, offset=offset, old=shown[0], new=shown[1])


_PARTS: Final = ("prompt", "continuation")

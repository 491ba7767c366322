"""From a raw completion to its score, stage by stage: stop sequences, reasoning tags, filters, metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import process_time
from typing import Any, Final

from pytest_promptfmt.answers.metric_scores import SLOW_PROBLEM, MetricScores
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError, ScoringError, UnavailableError
from pytest_promptfmt.core.limits import are_applied, time_limit
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks import BUDGET_SECONDS, FilterPipeline, Question, ValueCache, pipelines_of, within_budget

THINK_END: Final = "</think>"
"""The reasoning tag that is stripped when it occurs; `metadata.promptfmt.think_end_token` names another, or none."""

_MOST_REPEATS: Final = 64
_MOST_READ: Final = 24_000_000
"""Characters of filtered texts whose extractions a process keeps."""

_LONG: Final = 1_000
"""Characters of a completion from which it takes time to cut it; the longest are the same for many tasks."""


@dataclass(frozen=True, slots=True)
class Stages:
    """One completion stage by stage: `answer` is the text after its reasoning, `stopped` is that up to a stop sequence.

    `problem` is the reason for a missing extraction: `CRASH …` or `SLOW …`.
    """

    raw: str
    answer: str
    stopped: str
    extracted: Any = None
    problem: str | None = None


class Chain(MetricScores):
    """A task's stops, tag stripping, filters and metrics, ready to be tried; functions must be bound already.

    Raises ScoringError on construction for filters and metrics that do not exist. Every method that filters or scores
    raises TooSlowError once most completions were too slow.
    """

    def __init__(self, task: Task, stops: Sequence[str], *, is_synthetic: bool = False) -> None:
        self.stops = tuple(stop for stop in stops if isinstance(stop, str) and stop)
        self.pipelines = pipelines_of(task)
        super().__init__(task, is_synthetic=is_synthetic)
        self._repeats = max(1, min(task.repeats, _MOST_REPEATS)) if isinstance(task.repeats, int) else 1
        self._think_end = _think_end_of(task)
        self._fingerprints: dict[int, tuple[FilterPipeline, Hashable | None]] = {}  # of pipelines that live as long
        self._least: defaultdict[str, list[float]] = defaultdict(list)
        self._expected: dict[tuple[int, str, int], tuple[Doc, str]] = {}  # with the doc, so that it lives as long

    def begun(self, raw: str) -> Stages:
        """Return what is left after reasoning and stop sequences are cut off, in lm-eval 0.4.13's order."""
        return Stages(raw, *_cut(raw, self._think_end, self.stops))

    def read(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return what a pipeline makes of a completion, within its time budget."""
        stages = self.read_uncounted(pipeline, raw, doc, what)
        slow = stages.problem if stages.problem is not None and stages.problem.startswith(SLOW_PROBLEM) else None
        # Most are not slow: looking up the place for each took 3 % of a large run.
        self.patience.count(slow, self.task.position("filter_list") if slow is not None else None)
        return stages

    def read_uncounted(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return the same as `read`; a slow completion does not bring the end of all trials nearer."""
        answer, stopped = (_cut_once if len(raw) > _LONG else _cut)(raw, self._think_end, self.stops)
        if id(pipeline) not in self._fingerprints:
            self._fingerprints[id(pipeline)] = pipeline, pipeline.fingerprint
        _, fingerprint = self._fingerprints[id(pipeline)]
        expected = self._expected.get((id(pipeline), stopped, id(doc)))
        if expected is not None:
            extracted, problem = expected[1], None
        elif fingerprint is None:
            extracted, problem = self._filtered(pipeline, stopped, doc, _about(pipeline, what))
        else:
            extracted, problem = self._filtered_once(fingerprint, pipeline, stopped, doc)
            if problem is not None and problem.startswith(SLOW_PROBLEM):
                problem = f"{SLOW_PROBLEM}{_about(pipeline, what)}{problem.removeprefix(SLOW_PROBLEM)}"
        return Stages(raw, answer, stopped, extracted, problem)

    def _filtered_once(
        self, fingerprint: Hashable, pipeline: FilterPipeline, text: str, doc: Doc
    ) -> tuple[Any, str | None]:
        """Return the extraction of all pipelines of this fingerprint, which read no doc; made once in this process."""
        key = fingerprint, self._repeats, are_applied(), text
        known = _read_before.get(key)
        if known is not None:
            return known
        extracted, problem = filtered = self._filtered(pipeline, text, doc, "")
        if type(extracted) is str or extracted is None:  # mutable values are not shared
            _read_before.keep(key, filtered, len(text) + len(extracted or "") + len(problem or ""))
        return filtered

    def _filtered(self, pipeline: FilterPipeline, text: str, doc: Doc, what: str) -> tuple[Any, str | None]:
        """Return what a pipeline extracts of a text, and the problem if there is one, which begins with `what`."""
        try:
            extract = partial(pipeline.extract, doc=doc, repeats=self._repeats)
            return within_budget(extract, text, self._least[pipeline.name], what=what), None
        except LimitExceededError as error:
            return None, f"{SLOW_PROBLEM}{error.message}"
        except Exception as error:
            return None, f"CRASH: {type(error).__name__}: {error}"

    def reads_right(self, pipeline: FilterPipeline, text: str, question: Question, doc: Doc) -> bool:
        """Return whether a completion counts as right; not where code fails on it. Raises PromptfmtError as `read`."""
        return self.judges(self.read(pipeline, text, doc, "a probe"), question, doc) is True

    def judges(self, stages: Stages, question: Question, doc: Doc) -> bool | None:
        """Return whether a completion that was read is right; None where nothing was read, or code fails on it."""
        try:
            return None if stages.problem is not None else self.is_right(question, doc, stages.extracted)
        except UnavailableError:
            return None
        except PromptfmtError:
            raise
        except Exception:
            return None

    def read_all(
        self, pipeline: FilterPipeline, raws: Sequence[str], docs: Sequence[Doc], whats: Sequence[str]
    ) -> list[Stages]:
        """Return what a pipeline makes of many completions at once, as lm-eval applies it; one by one if that fails."""
        begun = [self.begun(raw) for raw in raws]
        try:
            values, _ = self._at_once(pipeline, [(one.stopped, doc) for one, doc in zip(begun, docs, strict=True)])
        except Exception:
            return [self.read(pipeline, *one) for one in zip(raws, docs, whats, strict=True)]
        return [replace(stages, extracted=value) for stages, value in zip(begun, values, strict=True)]

    def expect(self, asked: Sequence[tuple[str, Doc]], *, are_timed: bool = False) -> None:
        """Read completions of docs at once with each pipeline that has code of the task, to be asked for one by one.

        Nothing is kept of a pipeline that fails on one of them, that gives values which code may change, or that draws
        at random: how often it draws must not depend on times. If `are_timed`, nothing is kept either where all of them
        take longer than a short one: each is timed alone then.
        """
        begun = [(self.begun(raw).stopped, doc) for raw, doc in asked]
        for pipeline in self.pipelines:
            if not begun or pipeline.fingerprint is not None:
                continue  # without code, each is read once in a process
            own = OwnRandomness(self.task)
            try:
                with own.used():
                    short = self._at_once(pipeline, [("", begun[0][1])])[1] if are_timed else 0.0
                    values, took = self._at_once(pipeline, begun)
            except Exception:  # each is read alone then, which tells which one fails
                continue
            if own.has_drawn or (are_timed and took >= 2 * short):
                continue
            for (text, doc), value in zip(begun, values, strict=True):
                if type(value) is str:
                    self._expected[id(pipeline), text, id(doc)] = doc, value

    def _at_once(self, pipeline: FilterPipeline, begun: Sequence[tuple[str, Doc]]) -> tuple[list[Any], float]:
        """Return what a pipeline extracts of many completions, and the processor time.

        Raises what a filter raises, and ValueError if one gives more or fewer values.
        """
        responses, docs = [[text] * self._repeats for text, _ in begun], [doc for _, doc in begun]
        began = process_time()
        with time_limit(2 * BUDGET_SECONDS, "many completions"):
            values = pipeline.apply(responses, docs)
        if len(values) != len(begun):
            raise ValueError
        return values, process_time() - began

    def puts_doc_in(self, pipeline: FilterPipeline, raw: str, docs: Sequence[Doc]) -> bool:
        """Return whether what a pipeline reads of a completion holds something of the doc, as code to be run does."""
        if pipeline.fingerprint is not None:
            return False  # it has no code of the task
        read = {repr(self.read_uncounted(pipeline, raw, doc, "a completion").extracted) for doc in docs}
        return len(read) > 1


def _cut(raw: str, think_end: str | None, stops: tuple[str, ...]) -> tuple[str, str]:
    answer = raw.split(think_end)[-1].lstrip() if think_end and think_end in raw else raw
    stopped = answer
    for stop in stops:
        stopped = stopped.split(stop)[0]
    return answer, stopped


_cut_once: Final = lru_cache(maxsize=256)(_cut)


def _about(pipeline: FilterPipeline, what: str) -> str:
    patterns = "".join(f" (regex {one!r})" for one in pipeline.patterns)
    return f"applying the filters {pipeline.name!r}{patterns} to {what}"


def _think_end_of(task: Task) -> str | None:
    written: Any = task.own_metadata.get("think_end_token", THINK_END)
    if written is None or isinstance(written, str):
        return written
    raise ScoringError(
        f"think_end_token is {written!r}, but must be the closing tag of the reasoning, or null",
        position=task.position("metadata", "promptfmt", "think_end_token"),
    )


_read_before: Final[ValueCache[tuple[Any, str | None]]] = ValueCache(_MOST_READ)


def is_nothing(extracted: Any, pipeline: FilterPipeline | None = None) -> bool:
    """Return whether an extraction means that no answer was found: empty, or a fallback, usual or of the pipeline."""
    text = str(extracted).strip()
    if pipeline is not None and text in pipeline.fallbacks:
        return True
    return text.lower() in ("", "[invalid]", "invalid", "none", "[]", "['invalid']")

"""One task through the scoring room by the settings of a run: prepared once, then battery and scorer checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_promptfmt.answers.battery import Known, try_phrasings
from pytest_promptfmt.answers.prepared import DocsByNumber, Prepared, prepare
from pytest_promptfmt.answers.replaying import replayed
from pytest_promptfmt.answers.scorer_checks import check_scorer
from pytest_promptfmt.answers.scorer_findings import ScorerFinding
from pytest_promptfmt.answers.told import expected_failures, judge_expected
from pytest_promptfmt.answers.transcripts import Transcript
from pytest_promptfmt.answers.verdicts import Matrix, Row
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.systems.lm_eval.scoring.filters import pipelines_of

_SHOTS_TO_SEE_STOPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What the battery made of a task: the matrix, the rows that fail and are not expected to, and what is told."""

    matrix: Matrix
    failing: Sequence[Row]
    problems: Sequence[str]
    docs: str


class Scoring:
    """Tries the scoring of tasks by the settings of their folders; what was prepared for the last task is kept."""

    def __init__(self, settings: Settings, settings_for: Callable[[Task], Settings] | None = None) -> None:
        self._settings_for = settings_for or (lambda _task: settings)
        self._task: Task | None = None
        self._prepared: Prepared | PromptfmtError | None = None

    def extraction(self, task: Task, known: Known | None = None) -> Tried:
        """Return what the battery makes of a generation task; raises the PromptfmtError that stops it.

        `known` are the verdicts that were accepted, which stand where time is near the budget.
        """
        ready = self._ready(task)
        matrix = try_phrasings(ready.task, ready.instances, synthetic=ready.is_synthetic, told=ready.told, known=known)
        expected = expected_failures(task)
        failing = [row.id for row in matrix.failures]
        problems = judge_expected(expected, failing, [row.id for row in matrix.rows])
        left = [row for row in matrix.failures if row.id not in expected]
        return Tried(matrix=matrix, failing=left, problems=problems, docs=ready.docs)

    def replayed(self, task: Task, path: Path, progress: Callable[[int], object]) -> Transcript:
        """Return the verdicts of a recording; raises the PromptfmtError that stops it.

        `progress` is told how many bytes were read so far.
        """
        ready = self._ready(task)
        transcript = Transcript([pipeline.name for pipeline in pipelines_of(ready.task)])
        docs = DocsByNumber(ready, self._settings_for(task).time_limit)
        for record in replayed(ready.task, ready.instances, path, docs, progress=progress):
            transcript.add(record)
        return transcript

    def findings(self, task: Task) -> Sequence[ScorerFinding]:
        """Return what the scorer checks find; raises the PromptfmtError that stops them."""
        ready = self._ready(task)
        return check_scorer(ready.task, ready.instances, few_shot=self._with_shots(task), synthetic=ready.is_synthetic)

    def _with_shots(self, task: Task) -> Sequence[Instance]:
        """Return the docs with demonstrations, for a task that leaves their number to the command line."""
        settings = self._settings_for(task)
        unsaid = task.num_fewshot is None and settings.num_fewshot is None
        if not unsaid or task.output_type != "generate_until" or task.generation_kwargs is None:
            return ()
        try:
            return prepare(
                task,
                trusted=settings.trusts,
                num_fewshot=_SHOTS_TO_SEE_STOPS,
                seconds=settings.time_limit,
            ).instances
        except PromptfmtError:
            return ()  # a task that cannot be run with demonstrations is told by its snapshot

    def _ready(self, task: Task) -> Prepared:
        if self._task is not task:
            self._task = task
            settings = self._settings_for(task)
            try:
                self._prepared = prepare(
                    task,
                    trusted=settings.trusts,
                    num_fewshot=settings.num_fewshot,
                    seconds=settings.time_limit,
                )
            except PromptfmtError as error:
                self._prepared = error
        assert self._prepared is not None
        if isinstance(self._prepared, PromptfmtError):
            raise self._prepared.with_traceback(None)
        return self._prepared

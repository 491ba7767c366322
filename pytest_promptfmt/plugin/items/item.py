"""The base of all pytest items: an outcome, a place in the YAML, failures as plain text, and a bar for slow steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn

import pytest

from pytest_promptfmt.core.errors import Position, PromptfmtError, UnavailableError, display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.results.failures import accept_command, compared_lines, outcome_of, repeated_failure
from pytest_promptfmt.results.text_changes import text_change
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.document import Document
from pytest_promptfmt.snapshots.paths import SnapshotPath
from pytest_promptfmt.study import Study

NOT_ADOPTED: Final = (
    "the file has no snapshots yet. To write snapshots, use --snapshot-update with the path of the file"
)

SHOWN_FROM_ANSWERS: Final = 200
"""The number of answers from which a model shows a bar."""


class ItemFailedError(Exception):
    """A failure of an item; the message is its whole text."""


class Selectable(NamedTuple):
    """The names by which a task is chosen: `name`, and `id`, which is `name` or `name@format`."""

    name: str
    id: str
    format: str | None = None


class PromptItem(pytest.Item):
    """The base of our items: an outcome, a location in the YAML, and failures as plain text."""

    marker = "promptfmt_snapshot"
    kind = "Prompts"
    """The name of the item in --collect-only."""
    runs_in_worker = True
    repeats: Literal["", "findings", "change"] = ""
    """The part of a failure that is shortened if an earlier item had the same."""
    met: Sequence[Profile] = ()
    """The profiles that this item reports findings about if it is the first of the run with them."""
    introduces: Sequence[Profile] | None = None
    """Those of which it is the first; None before that is known."""

    def __init__(self, *, name: str, parent: pytest.Collector, task: Task | None = None, **kwargs: Any) -> None:
        # As text, which pytest 9.2 parses like the ids that it stored: else --lf and --ff find none of ours.
        super().__init__(name=name, parent=parent, nodeid=f"{parent.nodeid}::{name}", **kwargs)
        self.task = task
        self.selectable = Selectable(name=task.name, id=task.id, format=task.format) if task is not None else None
        self.outcome: Outcome | None = None
        self.own_markers.append(_mark(self.marker))

    @property
    def run(self) -> Run:
        """Return the run that the item is part of."""
        return self.config.stash[RUN]

    def listchain(self) -> list[Any]:
        """Return the collectors above and the item itself, without Python packages.

        pytest sets them all up first, which imports the `__init__.py` of a package: that of lm-eval's folder of tasks
        would load lm-eval and torch, or fail without them. A task needs nothing of it.
        """
        return [node for node in super().listchain() if not isinstance(node, pytest.Package)]

    def __repr__(self) -> str:
        """Return the line of --collect-only: `<Prompts snapshot[plain]>`."""
        return f"<{self.kind} {self.name}>"

    def place_in_file(self) -> Position | None:
        """Return the line of the file that reports and annotations point at."""
        return self.task.position("task") if self.task is not None else None

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the YAML file, the line (from 0) of the task, and the item's name."""
        position = self.place_in_file()
        line = 0
        if position is not None and position.line is not None and position.path.name == self.path.name:
            line = position.line - 1
        return self.path, line, self.nodeid.partition("::")[2]

    @contextmanager
    def failures_of(self, outcome: Outcome) -> Iterator[None]:
        """Make an error of the block the item's outcome: skip if something is unavailable, else fail."""
        try:
            yield
        except PromptfmtError as error:
            if not isinstance(error, UnavailableError) or self.run.folders.settings_for(self.path).strict:
                self.fail_with(error, outcome)
            self.outcome = outcome.unavailable(error)
            pytest.skip(str(error))

    def fail_with(self, error: PromptfmtError, outcome: Outcome) -> NoReturn:
        """Raise the error and make it the item's outcome; an error in the baseline is an expected failure."""
        self.outcome = self.run.baseline.judge_error(outcome, error)
        if self.outcome.category == "accepted":
            pytest.xfail(f"in the baseline: {error.message}")
        raise error

    @contextmanager
    def on_terminal(self, count: int, what: str) -> Iterator[Callable[[int], object]]:
        """Yield the function of a bar for so many answers, which needs the terminal: pytest captures it."""
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        if capture is None:
            yield lambda _done: None
            return
        with capture.global_and_fixture_disabled(), answering(count, what) as show:
            yield show

    def repeated(self, outcome: Outcome, first: str) -> str | None:
        """Return the short text for a problem that the item `first` had; None for the full one."""
        return repeated_failure(self.repeats, outcome, first, lambda: self.accept_command)

    @property
    def accept_command(self) -> str:
        """Return the command line that accepts what the item found."""
        return accept_command_of(self.run, self.path, self.nodeid, self.task.id if self.task is not None else "")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of our own errors; a traceback only for a defect of this run."""
        # Expected failures have a message, too: a traceback of each takes longer than the test.
        if isinstance(excinfo.value, (PromptfmtError, ItemFailedError, pytest.xfail.Exception)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class LoadItem(PromptItem):
    """A file, task or snapshot place that could not be made into tests: always fails, with one message."""

    kind = "Error"
    runs_in_worker = False

    def __init__(self, *, error: PromptfmtError, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def place_in_file(self) -> Position | None:
        """Return the place that the error points at."""
        return self.error.position or super().place_in_file()

    def runtest(self) -> None:
        """Raise what went wrong at collection."""
        name = self.task.id if self.task is not None else self.path.name
        self.fail_with(self.error, Outcome(task=name, file=str(self.path)))


class ClassItem(PromptItem):
    """A file whose tasks are Python classes and are not available: one of lm-eval's, or one that is not imported."""

    kind = "TaskClass"
    runs_in_worker = False

    def __init__(self, *, task_name: str, error: UnavailableError, **kwargs: Any) -> None:
        super().__init__(name=node_name(task_name), **kwargs)
        self.selectable = Selectable(name=task_name, id=task_name)
        self.task_name = task_name
        self.error = error

    def runtest(self) -> None:
        """Skip, with the reason."""
        with self.failures_of(Outcome(task=self.task_name, file=str(self.path))):
            raise self.error


class TaskItem(PromptItem):
    """The base of items about one task@format."""

    def __init__(self, *, task: Task, **kwargs: Any) -> None:
        super().__init__(task=task, **kwargs)
        self.tested = task

    @property
    def study(self) -> Study:
        """Return the study of the task, made once for all of its items."""
        return self.run.studies.of(self.tested)

    @property
    def may_be_missing(self) -> bool:
        """Return whether the settings only test adopted files, and this one has no snapshot."""
        is_asked = self.run.folders.settings_of(self.tested).snapshots == "adopted"
        return is_asked and not self.run.expected.has_snapshots(self.path)

    def skip_unadopted(self, verdict: snapshots.Verdict, outcome: Outcome) -> None:
        """Skip if the snapshot is missing and may be."""
        if verdict.not_adopted:
            self.outcome = replace(outcome.skipped(NOT_ADOPTED), tokenizer=None)
            pytest.skip(NOT_ADOPTED)


class AnswersItem(TaskItem):
    """The base of items whose document of answers is compared with a snapshot."""

    def __init__(self, *, place: SnapshotPath, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place

    def compared(self, document: Document, outcome: Outcome) -> tuple[snapshots.Verdict, Outcome]:
        """Return how a document of answers compares with its snapshot, and the outcome with that."""
        run = self.run
        verdict = snapshots.check(
            self.config, self, self.place, document, expected=run.expected, may_be_missing=self.may_be_missing
        )
        change = text_change(verdict.comparison, ()) if verdict.comparison is not None else None
        return verdict, run.outputs.with_edit(outcome_of(verdict, outcome, change=change), verdict)

    def fail(self, problems: Sequence[str], changed: str, verdict: snapshots.Verdict) -> NoReturn:
        """Fail with the problems, and with how the snapshot compares if it differs."""
        assert self.outcome is not None
        who = f"{self.outcome.task} [{self.outcome.profile}]"
        compared = [] if verdict.passed else [*compared_lines(who, changed, verdict), f"accept: {self.accept_command}"]
        # `promptfmt check` shows the detail, and needs no snapshots.
        shown = problems if problems and verdict.state == "missing" else [*problems, *compared]
        self.outcome = replace(self.outcome, detail="\n".join(shown))
        raise ItemFailedError("\n".join([*problems, *compared]))


def accept_command_of(run: Run, path: Path, nodeid: str, task: str) -> str:
    """Return the command line that accepts the change that the item of this node id found."""
    return accept_command(display_path(path), nodeid.partition("::")[2], run.settings.repeat, task)


@cache
def _mark(name: str) -> pytest.Mark:
    """Return the mark of a registered name; pytest would read all registered names each time."""
    mark: pytest.Mark = getattr(pytest.mark, name).mark
    return mark


def node_name(task_id: str) -> str:
    """Return a task's name as part of a node id, where `::` separates names and `[` begins the last of them."""
    return task_id.replace("::", ".").replace("[", "(").replace("]", ")")


@contextmanager
def answering(count: int, what: str) -> Iterator[Callable[[int], object]]:
    """Yield a function of the number of answers so far; it shows a bar on standard error if that is a terminal."""
    stream = sys.__stderr__
    if count < SHOWN_FROM_ANSWERS or stream is None or not stream.isatty():
        yield lambda _done: None
        return
    from rich.console import Console  # only where it is shown
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        bar = progress.add_task(what, total=count)
        yield lambda done: progress.update(bar, completed=done)

"""The scores of the same answers by two releases of lm-eval, each with its own filters, metrics and aggregations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pytest_promptfmt.core.release import numbers_of
from pytest_promptfmt.revisions.pytest_process import RevisionError, run_pytest
from pytest_promptfmt.study.request_comparison import Compared, ScoreChange
from pytest_promptfmt.tasks import Harness, installed_harness, package_in

COMPARISON: Final = ("-p", "pytest_promptfmt.plugin.items.command_items", "--promptfmt-no-cache")
"""Options of pytest that run comparisons in place of tests."""


@dataclass(frozen=True, slots=True)
class ReleaseScores:
    """What a release makes of answers to each task, by file and name, or `problem`, why it makes nothing of any."""

    version: str
    problem: str = ""
    tasks: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def of(self, file: str, task: str) -> tuple[str, dict[tuple[int, str, str], dict[str, str]]]:
        """Return why a task is not scored, "" where it is; and its values by doc, answers and pipeline."""
        found: Mapping[str, Any] = self.tasks.get((file, task), {"problem": "the release lacks the task", "scores": ()})
        problem = self.problem or (found["problem"] and f"lm-eval {self.version}: {found['problem']}")
        values: dict[tuple[int, str, str], dict[str, str]] = {}
        for doc, answer, pipeline, made in found["scores"]:
            values.setdefault((doc, answer, pipeline), {}).update(made)
        return problem, values


def release_scores(
    version: str, folders: Sequence[Path], paths: Sequence[Path], options: Sequence[str]
) -> ReleaseScores:
    """Return the scores by a release that is in one of the folders, or installed; `options` are those of pytest.

    Raises SettingsError where the run does not start, and for a folder without lm-eval.
    """
    given = [Harness(package_in(folder, "lm_eval"), is_installed=False) for folder in folders]
    installed = installed_harness()
    known = [*given, *([installed] if installed is not None and installed.folder.name == "lm_eval" else [])]
    # A fork may state an older release than that of its code.
    by_release = [*((each.stated_release, each) for each in known), *((each.release, each) for each in known)]
    harness = next((each for release, each in by_release if numbers_of(release) == numbers_of(version)), None)
    if harness is None:
        return ReleaseScores(version, f"lm-eval {version} is not installed. Name its folder with --lm-eval")
    with TemporaryDirectory(prefix="promptfmt-") as folder:
        chosen = [f"--promptfmt-comparisons={folder}", f"--promptfmt-scored-by={harness.folder}"]
        chosen += [f"--promptfmt-allow-code={harness.folder}"]
        try:
            run_pytest(Path.cwd(), [*COMPARISON, *chosen, *options], [*map(str, paths)])
        except RevisionError as error:
            return ReleaseScores(version, f"lm-eval {version}: {error.message}")
        read = [json.loads(path.read_text("utf-8", "surrogateescape")) for path in Path(folder).glob("*.json")]
    return ReleaseScores(version, tasks={(each["file"], each["task"]): each for each in read})


def with_scores(compared: Compared, old: ReleaseScores, new: ReleaseScores) -> Compared:
    """Return the comparison of a task with the scores of both releases."""
    if compared.unknown:
        return compared
    (problem, before), (other, after) = old.of(compared.file, compared.task), new.of(compared.file, compared.task)
    problems = [each for each in (problem, other) if each]
    both = before.keys() & after.keys()
    changes = [
        ScoreChange(doc=doc, answer=answer, pipeline=pipeline, metric=metric, old=values[0], new=values[1])
        for doc, answer, pipeline in before
        if (doc, answer, pipeline) in both
        for metric, values in _pairs(before[doc, answer, pipeline], after[doc, answer, pipeline])
        if values[0] != values[1]
    ]
    if not problems and {key for key in before if key[0]} != {key for key in after if key[0]}:
        problems = ["the two releases interpret the task differently, so only some answers were scored with both"]
    return replace(compared, tried=len(both), changed_scores=tuple(changes), not_scored="; ".join(problems))


def _pairs(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, tuple[str, str]]]:
    """Return both values of each metric; an exception is the value of all."""
    names = [name for name in dict.fromkeys([*old, *new]) if name] or [""]
    return [(name, (_value(old, name), _value(new, name))) for name in names]


def _value(values: Mapping[str, str], name: str) -> str:
    return values.get(name, values.get("", "no value"))

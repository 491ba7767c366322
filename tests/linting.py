"""What the rules say of a task, without pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.linter import Linter, LintResult
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study, seen_by


def study_of(task: Task, folder: Path = Path(), **settings: Any) -> Study:
    """Return the study of a task whose files lie below a folder."""
    return Study(task, Settings(rootdir=folder, profiles=(PLAIN,), **settings))


def linted(
    study: Study, selection: Selection, *profiles: Profile, name: str = "", file: FileView | None = None
) -> LintResult:
    """Return what the rules say of a task as it stands and as profiles see it; `name` is that of the only profile."""
    views = [seen_by(study, profile, name) for profile in profiles or (PLAIN,)]
    return Linter().check(study, selection, views, file=file)

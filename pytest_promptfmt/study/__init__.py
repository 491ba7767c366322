"""One task@format under the settings of a run: everything that tests need of it, each part made once."""

from __future__ import annotations

from pytest_promptfmt.study.profile_view import ProfileView, seen_by
from pytest_promptfmt.study.study import Studies, Study

__all__ = ["ProfileView", "Studies", "Study", "seen_by"]

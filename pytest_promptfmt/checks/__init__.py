"""Lint rules for prompts. One rule is one function; see `registry.check`.

A rule of your own needs the names below and nothing else.
"""

from __future__ import annotations

from pytest_promptfmt.chat.profile_loading import LoadedProfile
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import FileView
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study import ProfileView, Study

TaskView = Study
TemplateView = LoadedProfile
"""What rules written before there were studies call them."""

__all__ = [
    "Family",
    "FileView",
    "Finding",
    "LoadedProfile",
    "ProfileView",
    "Severity",
    "Study",
    "TaskView",
    "TemplateView",
    "check",
]

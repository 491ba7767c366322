"""Lint rules for prompts. One rule is one function; see `rule_registry.rule`.

A rule of your own needs the names below and nothing else.
"""

from __future__ import annotations

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.study import ProfileView, Study

__all__ = [
    "Family",
    "FileView",
    "Finding",
    "LoadedProfile",
    "ProfileView",
    "Severity",
    "Study",
    "rule",
]

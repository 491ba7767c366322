"""Checks: what a prompt has been doing wrong all along. One rule is one function; see `registry.check`.

A rule of your own needs the names below and nothing else.
"""

from __future__ import annotations

from pytest_promptfmt.checks.profile_views import ProfileView, TemplateView
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import FileView, TaskView
from pytest_promptfmt.core.finding import Family, Finding, Severity

__all__ = ["Family", "FileView", "Finding", "ProfileView", "Severity", "TaskView", "TemplateView", "check"]

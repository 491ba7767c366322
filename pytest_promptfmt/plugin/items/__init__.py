"""The pytest items: what each tests, when it skips, and how its failure reads.

What an item compares and says is made by the rooms to the left; the state of the run is the plugin object's.
"""

from __future__ import annotations

from pytest_promptfmt.plugin.items.answers import ExtractionItem, RecordingItem
from pytest_promptfmt.plugin.items.base import PLUGIN, ClassItem, LoadItem, PromptItem, node_name
from pytest_promptfmt.plugin.items.lint import FileLintItem, LintItem, ScoringItem
from pytest_promptfmt.plugin.items.models import ModelItem
from pytest_promptfmt.plugin.items.prompts import SnapshotItem, VariantItem
from pytest_promptfmt.plugin.items.recorded import RecordedPromptsItem, RecordedScoresItem

__all__ = [
    "PLUGIN",
    "ClassItem",
    "ExtractionItem",
    "FileLintItem",
    "LintItem",
    "LoadItem",
    "ModelItem",
    "PromptItem",
    "RecordedPromptsItem",
    "RecordedScoresItem",
    "RecordingItem",
    "ScoringItem",
    "SnapshotItem",
    "VariantItem",
    "node_name",
]

"""The settings of a run: one table, and from it one `Settings` for each folder of task files.

`Settings` is loaded when it is first used: pytest imports the table at every start of every project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.lazy_names import loaded

if TYPE_CHECKING:
    from pytest_promptfmt.settings.tree import Settings as Settings, SettingsTree as SettingsTree


def __getattr__(name: str) -> Any:
    return loaded(globals(), name)

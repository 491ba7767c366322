"""The settings of a run: one table, and from it one `Settings` for each folder of task files.

`Settings` is loaded when it is first used: pytest imports the table at every start of every project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_promptfmt.settings.tree import Settings, SettingsTree

__all__ = ["Settings", "SettingsTree"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_promptfmt.settings import tree

    return getattr(tree, name)

"""The plugin of runs that commands start: only task files are collected, and no plugin of another package takes part.

Such a run loads pytest's own plugins, syrupy and ours by name (`revisions.pytest_process.ISOLATED`), and the conftests
of the repository. Settings and hooks for plugins that are not loaded are accepted. (PYTEST_DONT_REWRITE: a command has
imported this module before pytest does.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

_OURS: Final = "promptfmt"


class _NoTests(pytest.Module):
    """A Python file of the command line; its tests do not run, so it is not imported."""

    def collect(self) -> Sequence[pytest.Item]:
        return ()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Exclude ordinary tests, also those in files of the command line."""
    module: pytest.Module = _NoTests.from_parent(parent, path=module_path)
    return module


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Let conftests implement hooks of plugins that are not loaded."""
    for hook in manager.get_hookcallers(plugin) or ():
        if not hook.has_spec():
            for implementation in hook.get_hookimpls():
                implementation.optionalhook = True  # type: ignore[misc]


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> None:
    """Take ini values of plugins that are not loaded as known, since strict projects refuse others."""
    known = vars(early_config)
    for name in known.get("_inicfg", known.get("inicfg", ())):  # since pytest 9 the first, without the warning
        try:
            early_config.getini(name)
        except ValueError:
            if not name.startswith(_OURS):
                parser.addini(name, "An option of a plugin that is not loaded.", type="args")

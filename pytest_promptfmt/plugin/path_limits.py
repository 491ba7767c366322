"""What a run may open and whose code it may run, before anything is collected: only the command line says more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from pytest_promptfmt.core import gate
from pytest_promptfmt.settings.setting_lookup import SettingLookup, given_places

_RUN_PYTHON: Final = ("python", "unittest", "doctest")
"""The plugins of pytest that run what is in test modules, packages and doctests of a folder."""


def limit_paths(config: pytest.Config, places: Sequence[Path]) -> None:
    """Let this run open files below the rootdir and what the command line names alone, and restore that at its end."""
    before = gate.limits()
    config.add_cleanup(partial(gate.restore, before))
    written = SettingLookup(config)
    is_without_code = bool(written.option("no_code"))
    gate.forbid_code(is_without_code)
    for name in _RUN_PYTHON if is_without_code else ():
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)
    gate.limit_to([config.rootpath, *given_places(written, places)])

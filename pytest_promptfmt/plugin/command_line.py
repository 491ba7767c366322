"""The places that the user typed, without those of an ini's `addopts`: only they may be outside the rootdir."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_promptfmt.core import gate
from pytest_promptfmt.settings.setting_lookup import SettingLookup, given_places


def allowed_places(config: pytest.Config, paths: Sequence[Path]) -> list[Path]:
    """Return the rootdir, and the places outside of it that the command line names; `paths` are those to collect."""
    inherited = gate.allowed_folders()
    if hasattr(config, "workerinput") and inherited is not None:  # pytest-xdist sends options without their origin
        return [config.rootpath, *map(Path, inherited)]
    if config.getini("addopts"):
        words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]
        typed = config._parser.parse_known_args(words)
        config = copy.copy(config)
        config.option = typed
        given = {Path(path.partition("::")[0]) for path in typed.file_or_dir}
        paths = [path for path in paths if path in given]
    return [config.rootpath, *given_places(SettingLookup(config), paths)]

"""Whether a run uses cached outcomes, and the inputs that pytest gives to all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from pytest_promptfmt.inputs.outcome_cache import OutcomeCache
from pytest_promptfmt.inputs.store import remove_store, store_folder
from pytest_promptfmt.inputs.task_inputs import RunInputs
from pytest_promptfmt.plugin.hash_seeds import varying
from pytest_promptfmt.plugin.item_results import is_stored
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.settings.setting_lookup import SettingLookup

_COLLECTING: Final = ("ignore", "ignore_glob", "noconftest", "confcutdir", "importmode", "keepduplicates", "plugins")
_COLLECTING_INI: Final = ("norecursedirs", "python_files")
"""Options and settings of pytest that decide which files are collected in a folder."""


def inputs_of(config: pytest.Config) -> RunInputs:
    """Return the inputs of a run of pytest; plugins may change them until they are read."""
    written, option = SettingLookup(config), config.option

    def options() -> Sequence[object]:
        filters = config.getoption("pythonwarnings", None), list(config.getini("filterwarnings"))
        return [*filters, config.get_verbosity() > 0, option.promptfmt, written.value("baseline_update")]

    def collecting() -> Sequence[object]:
        options = [(name, repr(getattr(option, name, None))) for name in _COLLECTING]
        settings = [(name, repr(config.getini(name))) for name in _COLLECTING_INI]
        named = sorted({os.path.abspath(each.partition("::")[0]) for each in config.args})  # where templates are tested
        return [named, options, settings]

    return RunInputs(
        rootdir=config.rootpath,
        plugins=lambda: (str(getattr(each, "__file__", "") or "") for each in config.pluginmanager.get_plugins()),
        options=options,
        baseline=lambda: written.value("baseline"),
        collecting=collecting,
        can_try_orders=lambda: not option.promptfmt_no_code and not option.noconftest,  # else code would run here
        varying=partial(varying, config),
    )


def cache_of(run: Run, workers: int) -> OutcomeCache:
    """Return the cache of a run with so many workers."""
    folder, shows = _folder_of(run, workers)
    return OutcomeCache(inputs_of(run.config), run.folders, folder, run.expected.tree, shows=shows, is_valid=is_stored)


def _folder_of(run: Run, workers: int) -> tuple[Path | None, bool]:
    """Return the folder of the cached outcomes, None for no cache, and whether this run shows them.

    Only outcomes of workers are cached, because only those are traced. A run that writes each prompt has to render all.
    """
    config, outputs = run.config, run.outputs
    if getattr(config, "cache", None) is None:
        return None, False
    folder = store_folder(config.rootpath)
    if folder is not None and config.option.cacheclear and not hasattr(config, "workerinput"):
        remove_store(folder)
    is_off = SettingLookup(config).value("no_cache") or not workers
    if is_off or outputs.needs_views or outputs.needs_edits:
        return None, False
    updates = config.option.update_snapshots or config.option.update_new_snapshots_only
    return folder, not (updates or outputs.baseline_update)


def collapses(run: Run) -> bool:
    """Return whether unchanged files may be shown as one item each: neither an option nor xdist needs their items."""
    option, settings = run.config.option, run.settings
    names = ("keyword", "markexpr", "collectonly", "deselect", "lf", "failedfirst", "newfirst", "stepwise", "xmlpath")
    asked = (
        getattr(option, "verbose", 0) > 0
        or any(getattr(option, name, None) for name in names)
        or settings.task_globs
        or settings.formats
        or option.include_snapshot_details
        or hasattr(run.config, "workerinput")
    )
    return run.cache.is_on and not asked and run.outputs.baseline is None

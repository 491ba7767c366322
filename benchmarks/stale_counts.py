"""A plugin of pytest that writes how much a run took from memory: files by folder, files, items; and what it ran."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.run import RUN
from pytest_promptfmt.plugin.unchanged import Unchanged, UnchangedFolder

FILE_NAME = "memory.json"

_COUNTS: pytest.StashKey[Counter[str]] = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Count the files that are not gone into."""
    counts = session.config.stash[_COUNTS] = Counter[str]()
    for item in items:
        if isinstance(item, Unchanged):
            is_below = any(isinstance(above, UnchangedFolder) for above in item.listchain())
            counts["files of folders" if is_below else "files"] += len(item.files)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count the other items, before what was found out is kept."""
    run = session.config.stash.get(RUN, None)
    counts = session.config.stash.get(_COUNTS, Counter[str]())
    if run is None or hasattr(session.config, "workerinput"):
        return
    for item in getattr(session, "items", ()):
        if isinstance(item, PromptItem):
            counts["run" if run.cache.shown(item) is None else "items"] += 1
    (Path(run.config.invocation_params.dir) / FILE_NAME).write_text(json.dumps(counts), "utf-8")

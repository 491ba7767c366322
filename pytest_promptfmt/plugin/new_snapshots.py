"""Snapshots that are not accepted yet: their outcomes are cached, unless an obsolete snapshot may become theirs.

A renamed task leaves its snapshot to another one, so a new snapshot depends on all obsolete ones of a run. These are
known once all files are collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from pytest_promptfmt.inputs.cached_files import Shown
from pytest_promptfmt.inputs.store import mapping
from pytest_promptfmt.plugin.collection import task_file_node
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.plugin.unchanged import UnchangedItem


def may_be_renamed(run: Run, shown: Shown) -> bool:
    """Return whether a cached result is about a missing snapshot, which an obsolete one may replace in this run."""
    return _is_new(shown) and bool(run.expected.obsolete())


def with_new_collected(run: Run, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items; unchanged files with snapshots that `may_be_renamed` are collected."""
    for item in items:
        is_open = isinstance(item, UnchangedItem) and any(may_be_renamed(run, shown) for shown in item.cached.loud())
        if is_open and item.parent is not None:
            yield from item.session.genitems(task_file_node(item.parent, item.path))
        else:
            yield item


def _is_new(shown: Shown) -> bool:
    return any(mapping(report.get("promptfmt")).get("category") == "new" for report in shown["reports"])

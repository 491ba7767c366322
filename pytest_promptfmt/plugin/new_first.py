"""What `--new-first` knows of the items of task files: it is kept in the store, by file.

pytest reads, sorts and writes the ids of all items that it ever met in each run. For the items of a large tree that
takes longer than to see that nothing in it has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.engine.store import Store
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.outcome_cache import MET
from pytest_promptfmt.plugin.unchanged import UnchangedFiles, UnchangedItem


class NewFirst:
    """The hooks that tell pytest which of our items were met, where it asks, and keep that in the `store`, not there.

    Where there is no store to write to, pytest keeps what is met.
    """

    def __init__(self, config: pytest.Config, store: Store | None) -> None:
        self._config = config
        self._store = store

    @property
    def _known(self) -> set[Any]:
        """Return the ids that pytest knows and will write; they are its own."""
        plugin: Any = self._config.pluginmanager.get_plugin("nfplugin")
        return set() if plugin is None else plugin.cached_nodeids

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tell pytest which items were met, where it sorts by that."""
        cache = getattr(self._config, "cache", None)
        if cache is None or not self._config.option.newfirst:
            return
        store = self._store or Store(cache.mkdir("promptfmt"))
        for path, names in _by_file(items).items():
            self._known.update(names[name] for name in names.keys() & _met(store, path))
        if self._store is None:
            store.close()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the names of our items instead of pytest."""
        if self._store is None or self._config.option.collectonly:
            return
        for path, names in _by_file(session.items).items():
            met = _met(self._store, path)
            if not names.keys() <= met:
                self._store.put(MET, str(path), sorted(met.union(names)))
        ours = [item for item in session.items if isinstance(item, PromptItem | UnchangedItem | UnchangedFiles)]
        self._known.difference_update(map(_id_of, ours))
        folders = ((item.parent, item.files) for item in ours if not isinstance(item, PromptItem))
        unchanged = {f"{at.nodeid}/{file}".lstrip("/") for at, files in folders if at is not None for file in files}
        gone = [each for each in self._known if str(each).partition("::")[0] in unchanged]  # from runs without a store
        self._known.difference_update(gone)


def _by_file(items: Iterable[pytest.Item]) -> Mapping[Path, Mapping[str, Any]]:
    """Return the ids of our items by their names, and these by file."""
    found: defaultdict[Path, dict[str, Any]] = defaultdict(dict)
    for item in items:
        if isinstance(item, PromptItem):
            found[item.path][item.nodeid.partition("::")[2]] = _id_of(item)
    return found


def _met(store: Store, path: Path) -> set[str]:
    """Return the names of the items of a file that any run met; the row is somebody else's."""
    row = store.row(MET, str(path))
    return {each for each in row if isinstance(each, str)} if isinstance(row, list) else set()


def _id_of(item: pytest.Item) -> Any:
    return getattr(item, "id", item.nodeid)  # since pytest 9.2 an id is more than its text

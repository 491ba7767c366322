"""The items that render a task for `promptfmt diff`, the only command that loads this plugin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.plugin.items.item import TaskItem
from pytest_promptfmt.plugin.items.task_node import TaskNode
from pytest_promptfmt.revisions.task_rendering import RenderingPlan, path_of, rendering_of
from pytest_promptfmt.study import Study


class RenderingItem(TaskItem):
    """Renders a task for a comparison, and writes the result; errors of the task are part of it."""

    kind = "Rendering"

    def __init__(self, *, plan: RenderingPlan, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def runtest(self) -> None:
        """Render and write."""
        study = Study(self.tested, self.run.folders.settings_of(self.tested), self.run.studies.of(self.tested).load)
        rendering = rendering_of(study, self.plan)
        path_of(Path(self.plan.folder), self.tested.id).write_text(
            json.dumps(rendering), "utf-8", errors="surrogateescape"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the plan."""
    parser.addoption("--promptfmt-renderings", type=Path, help="The plans of promptfmt diff for each task.")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add an item to each selected task that has a plan."""
    plans: Mapping[str, Any] = json.loads(config.getoption("promptfmt_renderings").read_text("utf-8"))
    items[:] = [*_with_renderings(items, plans)]


def _with_renderings(items: list[pytest.Item], plans: Mapping[str, Any]) -> Iterator[pytest.Item]:
    for item, following in zip(items, [*items[1:], None], strict=True):
        yield item
        node = item.parent
        is_last = following is None or following.parent is not node
        if is_last and isinstance(node, TaskNode) and node.error is None and node.task.name in plans:
            yield node.make(RenderingItem, "rendering", plan=RenderingPlan(**plans[node.task.name]))

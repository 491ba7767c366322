"""The items of commands: `verify` and `diff --harness` compare the requests of each task, `diff` renders some tasks.

Only these commands load this plugin. Each result is a JSON file in a folder; errors of a rendered task are part of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pytest_promptfmt.answers.tried_answers import scores_by_harness
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.json_values import data_of
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.plugin.items.item import LoadItem, TaskItem
from pytest_promptfmt.plugin.items.task_node import TaskNode
from pytest_promptfmt.revisions.task_rendering import RenderingPlan, path_of, rendering_of
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.request_comparison import compared_releases, compared_with_harness, whole_study
from pytest_promptfmt.tasks import use_package


class CommandItem(TaskItem):
    """Does some work with a task, which returns the path of the result, and the result."""

    kind = "Command"

    def __init__(self, *, work: Callable[[CommandItem], tuple[Path, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = work

    def runtest(self) -> None:
        """Work and write."""
        path, result = self.work(self)
        path.write_text(json.dumps(result), "utf-8", errors="surrogateescape")


def _compared(item: CommandItem) -> tuple[Path, Any]:
    """Compare with the named release, or with the installed harness, or score by the lm-eval of this process."""
    release, profiles = item.config.getoption("promptfmt_with"), item.run.folders.profiles_for(item.tested)
    if item.config.getoption("promptfmt_scored_by"):
        found = _scores(item.study)
    elif release:
        found = data_of(compared_releases(item.study, profiles, release_of(release)))
    else:
        found = data_of(compared_with_harness(item.study, profiles))
    name = digest_of(item.nodeid.encode("utf-8", "backslashreplace"))
    folder: Path = item.config.getoption("promptfmt_comparisons")
    return folder / f"{name}.json", {**found, "file": str(item.path)}


def _scores(study: Study) -> dict[str, Any]:
    """Return the scores of a task by the lm-eval of this process, or why there are none, as JSON has them."""
    made: dict[str, Any] = {"task": study.given.id, "scores": [], "problem": ""}
    try:
        return made | {"scores": scores_by_harness(whole_study(study))}
    except PromptfmtError as error:
        return made | {"problem": error.message}


def _rendered(plan: RenderingPlan, item: CommandItem) -> tuple[Path, Any]:
    study = Study(item.tested, item.run.folders.settings_of(item.tested), item.study.load)
    return path_of(Path(plan.folder), item.tested.id), rendering_of(study, plan)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of these commands."""
    parser.addoption("--promptfmt-comparisons", type=Path, help="The folder of results.")
    parser.addoption("--promptfmt-with", default="", help="The release to compare with.")
    parser.addoption("--promptfmt-scored-by", type=Path, help="The folder of the lm-eval that scores.")
    parser.addoption("--promptfmt-sample", type=int, default=0, help="The number of tasks to compare; 0: all.")
    parser.addoption("--promptfmt-renderings", type=Path, help="The renderings of each task that promptfmt diff needs.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the lm-eval that scores, before a conftest imports another one."""
    folder = early_config.known_args_namespace.promptfmt_scored_by
    if folder is not None:
        use_package(folder)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replace the items by comparisons, or add the renderings, each after the other items of its task."""
    plans = config.getoption("promptfmt_renderings")
    made = _comparisons(config, items) if plans is None else _renderings(items, json.loads(plans.read_text("utf-8")))
    items[:] = [*made]


def _comparisons(config: pytest.Config, items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield an item for each task, or for a sample of tasks that is always the same, after what cannot be read."""
    nodes: dict[str, Any] = {item.parent.nodeid: item.parent for item in items if isinstance(item.parent, TaskNode)}
    found = [node for node in nodes.values() if node.error is None and not node.is_variant]
    sample = config.getoption("promptfmt_sample") or len(found)
    chosen = sorted(found, key=lambda node: crc32(node.task.id.encode("utf-8", "backslashreplace")))[:sample]
    yield from (item for item in items if isinstance(item, LoadItem))
    yield from (node.make(CommandItem, "comparison", work=_compared) for node in found if node in chosen)


def _renderings(items: list[pytest.Item], plans: Mapping[str, Mapping[str, Any]]) -> Iterator[pytest.Item]:
    for item, following in zip(items, [*items[1:], None], strict=True):
        yield item
        node = item.parent
        is_last = following is None or following.parent is not node
        if is_last and isinstance(node, TaskNode) and node.error is None:
            plan = plans.get(str(item.path), {}).get(node.task.name)
            if plan is not None:
                yield node.make(CommandItem, "rendering", work=partial(_rendered, RenderingPlan(**plan)))

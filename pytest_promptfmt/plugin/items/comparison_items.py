"""The items that compare the requests of a task, for `promptfmt verify` and `promptfmt diff --harness`.

Only these commands load this plugin. Its items take the place of all others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pytest_promptfmt.answers.tried_answers import scores_by_harness
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.plugin.items.item import LoadItem, TaskItem
from pytest_promptfmt.plugin.items.task_node import TaskNode
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.request_comparison import compared_releases, compared_with_harness, whole_study
from pytest_promptfmt.tasks import use_harness


class ComparisonItem(TaskItem):
    """Compares the requests of a task, and writes the result to a folder."""

    kind = "Comparison"

    def runtest(self) -> None:
        """Compare and write, or write scores; `release` is the other one, "" for the installed lm-eval."""
        folder, release = self.config.getoption("promptfmt_comparisons"), self.config.getoption("promptfmt_with")
        study, profiles = self.run.studies.of(self.tested), self.run.folders.profiles_for(self.tested)
        if self.config.getoption("promptfmt_scored_by"):
            found = _scores(study)
        elif release:
            found = compared_releases(study, profiles, release_of(release)).to_json()
        else:
            found = compared_with_harness(study, profiles).to_json()
        name = digest_of(self.nodeid.encode("utf-8", "backslashreplace"))
        data = {"file": str(self.path), **found}
        Path(folder, f"{name}.json").write_text(json.dumps(data), "utf-8", errors="surrogateescape")


def _scores(study: Study) -> dict[str, Any]:
    """Return the scores of a task by the lm-eval of this process, or why there are none, as JSON has them."""
    made: dict[str, Any] = {"task": study.given.id, "scores": [], "problem": ""}
    try:
        return made | {"scores": scores_by_harness(whole_study(study))}
    except PromptfmtError as error:
        return made | {"problem": error.message}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of these commands."""
    parser.addoption("--promptfmt-comparisons", type=Path, help="The folder of results.")
    parser.addoption("--promptfmt-with", default="", help="The release to compare with.")
    parser.addoption("--promptfmt-scored-by", type=Path, help="The lm-eval that scores, by its folder.")
    parser.addoption("--promptfmt-sample", type=int, default=0, help="The number of tasks; 0: all.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the lm-eval that scores, before a conftest imports another one."""
    folder = early_config.known_args_namespace.promptfmt_scored_by
    if folder is not None:
        use_harness(folder)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replace the items by one for each task, or for a sample of tasks that is always the same."""
    nodes: dict[str, Any] = {item.parent.nodeid: item.parent for item in items if isinstance(item.parent, TaskNode)}
    found = [node for node in nodes.values() if node.error is None and not node.is_variant]
    sample = config.getoption("promptfmt_sample")
    if sample:
        chosen = sorted(found, key=lambda node: crc32(node.task.id.encode("utf-8", "backslashreplace")))[:sample]
        found = [node for node in found if node in chosen]
    items[:] = [
        *(item for item in items if isinstance(item, LoadItem)),
        *(node.make(ComparisonItem, "comparison") for node in found),
    ]

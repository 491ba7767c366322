"""The result of a run as one small JSON object, for scripts: the same categories and clusters that people see."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version
from typing import Any, Final

from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.wording import below

VERSION: Final = 1


def json_report(result: RunResult) -> str:
    """Return the result as JSON: `counts` of items by category, `clusters` with their members, `findings`, `skipped`.

    Paths are below the rootdir, with slashes.
    """
    rootdir, baseline = result.rootdir, result.baseline
    data: dict[str, Any] = {
        "version": VERSION,
        "pytest_promptfmt": version("pytest-promptfmt"),
        "command": shlex.join(["pytest", *result.arguments]),
        "exit": result.exit_status,
        "archetypes": list(result.archetypes),
        "counts": dict(sorted(result.counts.items())),
        "clusters": [cluster.to_json(rootdir) for cluster in result.clusters],
        "findings": [group.to_json(rootdir) for group in result.findings],
        "skipped": [{"reason": reason, "tasks": tasks} for reason, tasks in result.skipped.items()],
        "unrendered": {below(file, rootdir): sorted(tasks) for file, tasks in result.unrendered.items()},
        "not_run": list(result.not_run),
        "unmatched": list(result.unmatched),
        "accepted_by_baseline": baseline.accepted if baseline is not None else 0,
    }
    if result.defined is not None:
        data["defined"] = {below(file, rootdir): list(names) for file, names in result.defined.items()}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

# ruff: noqa: E402
"""The requests that the lm-eval on the search path makes of tasks that draw at random, each the first of a run.

`python drawing_side.py FOLDER`, with `PYTHONPATH` at a release or not. Prints JSON: name of the task to requests.
"""

from __future__ import annotations

import json
import os
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np

SPEC = find_spec("lm_eval")
assert SPEC is not None
assert SPEC.submodule_search_locations
sys.modules["lm_eval"] = package = ModuleType("lm_eval")  # its `__init__` imports torch
package.__path__ = [str(SPEC.submodule_search_locations[0])]

from lm_eval import tasks


def requests_of(folder: Path, name: str) -> list[Any]:
    """Return the arguments of the requests of each doc, as `lm_eval.simple_evaluate` makes them."""
    random.seed(0)
    np.random.seed(1234)  # as lm-eval does
    manager = tasks.TaskManager(include_path=str(folder), include_defaults=False)
    if hasattr(manager, "load"):
        task = manager.load([name])["tasks"][name]
    else:
        task = tasks.get_task_dict([name], manager)[name]
    task.set_fewshot_seed(1234)
    task.build_all_requests(limit=3, rank=0, world_size=1)
    found: list[list[Any]] = [[], [], []]
    for instance in task.instances:
        found[instance.doc_id].append(list(instance.arguments))
    return found


def main(folder: Path) -> None:
    datasets.disable_progress_bars()
    found = {}
    for file in sorted(folder.glob("*.yaml")):
        read, write = os.pipe()
        if not os.fork():
            datasets.config.HF_DATASETS_CACHE = folder / "cache" / file.stem
            with os.fdopen(write, "w") as out:
                json.dump(requests_of(folder, file.stem), out)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as made:
            found[file.stem] = json.loads(made.read() or "null")
        os.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

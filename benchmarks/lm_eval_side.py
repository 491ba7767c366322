"""Render tasks with the lm-eval that this Python finds: JSON lines in, JSON lines out.

A line in: `id`, `path` of a YAML file with one task, `docs`, which every split has, `shots` (null for the task's own)
and whether `process_docs` is applied. A line out: `id`, and `requests` of each doc, or the `error` that stopped it.
Columns that a function asks for and the docs lack are added as text, the same on every call.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

MOST_COLUMNS = 30


def config_of(path: str, *, process: bool) -> dict[str, Any]:
    """Return the configuration of a task file as this lm-eval reads it, without what decides where docs come from."""
    loader = importlib.import_module("lm_eval.tasks._yaml_loader")
    config: dict[str, Any] = loader.load_yaml(path, resolve_func=True)
    left_out = ["tag", "group", "task_list", "dataset_kwargs", "custom_dataset", *([] if process else ["process_docs"])]
    for key in left_out:
        config.pop(key, None)
    if isinstance(config.get("fewshot_config"), dict) and not process:
        config["fewshot_config"] = {k: v for k, v in config["fewshot_config"].items() if k != "process_docs"}
    return config


def requests_of(path: str, docs: list[dict[str, Any]], *, shots: int | None, process: bool) -> list[Any]:
    """Return the arguments of the requests."""
    import datasets
    import numpy as np
    from lm_eval.api.task import ConfigurableTask

    config = config_of(path, process=process)
    if shots is not None:
        config["num_fewshot"] = shots
    names = [config.get(name) for name in ("training_split", "validation_split", "test_split", "fewshot_split")]
    own = (config.get("fewshot_config") or {}).get("split")
    for _ in range(MOST_COLUMNS):
        rows = datasets.Dataset.from_list(docs)
        given = datasets.DatasetDict({name: rows for name in {*names, own} if name})
        datasets.load_dataset = lambda *_args, given=given, **_kwargs: given
        random.seed(0)  # as lm-eval does before a run
        np.random.seed(1234)
        try:
            task = ConfigurableTask(config=dict(config))
            task.set_fewshot_seed(1234)
            task.build_all_requests(limit=len(docs), rank=0, world_size=1)
        except KeyError as error:
            name = error.args[0] if error.args else None
            if not isinstance(name, str) or name in docs[0]:
                raise
            docs = [{**doc, name: f" Some {name} [{number}] "} for number, doc in enumerate(docs)]
        else:
            return [[instance.request_type, repr(instance.args)] for instance in task.instances]
    raise KeyError("columns without end")


def main() -> None:
    """Answer each line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what tasks and libraries print is no answer
    for line in sys.stdin:
        wanted = json.loads(line)
        answer: dict[str, Any] = {"id": wanted["id"]}
        try:
            known = {"shots": wanted["shots"], "process": wanted["process"]}
            answer["requests"] = requests_of(wanted["path"], wanted["docs"], **known)
        except BaseException as error:  # a module may even call sys.exit
            answer["error"] = f"{type(error).__name__}: {error}"[:300]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

"""The phrasing battery on lm-eval's whole task tree: verdicts by class, and the tasks that fail their own contract.

    python benchmarks/bench_scoring.py [--only GLOB] [--every 3] [--json tried.jsonl]

Every generation task of the installed lm_eval whose YAML needs no Python is tried with made-up docs (or its own), in
one process. `--json` writes a line for each task: what was tried, and each failing phrasing with its stages. Seconds
are processor time.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_promptfmt.answers.battery import try_answers
from pytest_promptfmt.answers.phrasing_verdicts import Tried
from pytest_promptfmt.core.errors import PromptfmtError, UnavailableError
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.rules.linter import check_scoring
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.scoring.filters import looks_for_answers
from pytest_promptfmt.tasks.task_index import TaskIndex, yaml_files


def needs_code(value: Any) -> bool:
    """Return whether a configuration holds a function anywhere."""
    if isinstance(value, Mapping):
        return any(map(needs_code, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(needs_code, value))
    return isinstance(value, FunctionRef)


def generation_tasks(root: Path, only: str) -> Iterator[Task]:
    """Yield the generation tasks of the folders that match, in the order of their files."""
    index = TaskIndex([root])
    for folder in (folder for folder in sorted(root.glob(only)) if folder.is_dir()):
        for path in yaml_files(folder):
            try:
                file = read_task_file(path, index)
            except PromptfmtError:
                continue
            for task in file.tasks if file is not None else ():
                if task.output_type == "generate_until" and not needs_code(task.config):
                    yield task


def record_of(task: Task, tried: Tried, seconds: float) -> dict[str, Any]:
    """Return what is written about one task."""
    return {
        "task": task.id,
        "file": str(task.path),
        "answers": tried.matrix.answers or tried.matrix.nothing,
        "filters": tried.matrix.pipelines,
        "extracts": looks_for_answers(task),
        "seconds": round(seconds, 3),
        "verdicts": Counter(
            f"{row.kind} {verdict.partition('(')[0].partition(' at ')[0]}"
            for row in tried.matrix.rows
            for verdict in row.verdicts
        ),
        "failing": [[row.kind, row.id, row.verdicts, row.evidence] for row in tried.matrix.failures],
    }


def main() -> None:
    """Try, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="only the folders of lm_eval/tasks that match")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th task, in the order of their files")
    parser.add_argument("--json", type=Path, default=Path(os.devnull), help="write what every task did to this file")
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        sys.exit("lm_eval is not installed: pip install --group parity")
    root = Path(spec.origin).parent / "tasks"
    settings = Settings(rootdir=root, profiles=(PLAIN,))
    selection = Selection(rules=known_rules(), select=("PF6", "PF109"), rootdir=root)
    verdicts: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    failing: dict[str, list[str]] = {}
    spent = 0.0
    with arguments.json.open("w", encoding="utf-8") as out:
        for task in islice(generation_tasks(root, arguments.only), 0, None, arguments.every):
            tasks["tasks"] += 1
            began = time.process_time()
            try:
                study = Study(task, settings)
                tried = try_answers(study)
                findings = check_scoring(study, selection, is_linted=False).findings
            except PromptfmtError as error:
                kind = "withheld" if isinstance(error, UnavailableError) else "not tried"
                tasks[kind] += 1
                out.write(json.dumps({"task": task.id, "file": str(task.path), kind: str(error)}) + "\n")
                continue
            finally:
                spent += time.process_time() - began
            record = record_of(task, tried, time.process_time() - began)
            record["findings"] = [[one.code, one.message, one.saw] for one in findings]
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
            verdicts += record["verdicts"]
            tasks["that look for answers"] += record["extracts"]
            for kind in sorted({kind for kind, *_ in record["failing"]}):
                failing.setdefault(kind, []).append(task.id)
            failing.setdefault("any class", []).extend([task.id] if record["failing"] else [])
            failing.setdefault("rules about scoring", []).extend([task.id] if findings else [])
    print(", ".join(f"{count:,} {name}" for name, count in tasks.items()), f"; {spent:.1f} s")
    for name, count in sorted(verdicts.items()):
        print(f"{count:9,} {name}")
    for kind, names in failing.items():
        print(f"{len(names):6,} tasks fail in {kind}")
    print("\nfail their contract:", *failing.get("contract", ()), sep="\n  ")


if __name__ == "__main__":
    main()

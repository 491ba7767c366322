"""`promptfmt diff` against lm-eval itself: a task is said to be changed exactly where lm-eval asks for something else.

Tasks that lm-eval ships are edited in ways that change a prompt and in ways that do not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.systems.task_files import load_tasks
from pytest_promptfmt.tasks.docs.doc_sources import load_docs

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

PER_EDIT = 20 if os.environ.get("PROMPTFMT_PARITY") == "all" else 2
SHOTS = 2
EDITS: Sequence[Callable[[str], str]] = (
    lambda text: text,
    lambda text: f"# a remark\n\n{text}\n# another\n",
    lambda text: text.replace("doc_to_text:", "doc_to_text:  "),
    lambda text: f"{text}\nfewshot_delimiter: '\\n\\n'\n",
    lambda text: f"{text}\ndescription: ''\n",
    lambda text: f"{text}\nfewshot_delimiter: '\\n'\n",
    lambda text: f"{text}\ndescription: 'Answer. '\n",
    lambda text: f"{text}\ntarget_delimiter: ''\n",
    lambda text: f"{text}\ngen_prefix: 'So'\n",
    lambda text: f"{text}\nmetric_list: [{{metric: acc}}]\n",
)
OWN_KEYS = (
    "task:",
    "num_fewshot:",
    "description:",
    "target_delimiter:",
    "fewshot_delimiter:",
    "gen_prefix:",
    "metric_list:",
    "metadata:",
)


def plain_tasks(count: int) -> list[str]:
    """Return the text of shipped tasks that stand in one file, need no code and have none of the edited keys."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.submodule_search_locations
    found = []
    for path in sorted((Path(spec.submodule_search_locations[0]) / "tasks").rglob("*.yaml")):
        text = path.read_text("utf-8")
        keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
        is_plain = {"task", "test_split", "doc_to_text", "dataset_path"} <= {*keys} and "group" not in keys
        if is_plain and not any(word in text for word in ("include:", "!function", "task_list", "doc_to_image", "!!")):
            for key in OWN_KEYS:
                text = without(text, key)
            found.append(text)
    assert len(found) >= count
    return found[:: len(found) // count][:count]


def without(text: str, key: str) -> str:
    """Return the text without a top-level key and the lines that belong to it."""
    kept: list[str] = []
    skips = False
    for line in text.splitlines(keepends=True):
        if line.startswith(key):
            skips = True
        elif line.strip() and line[0] not in " -#":
            skips = False
        if not skips:
            kept.append(line)
    return "".join(kept)


def asked(path: Path, docs: TaskDocs) -> list[Any]:
    """Return what lm-eval asks for the docs."""
    import datasets
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(str(path), resolve_func=True)
    names = ("training_split", "validation_split", "test_split", "fewshot_split")
    rows = [dict(doc) for doc in (*docs.evaluated, *docs.fewshot)]
    data = {config[name]: datasets.Dataset.from_list(rows) for name in names if config.get(name)}
    config = {key: value for key, value in config.items() if key not in ("tag", "dataset_kwargs")}
    task = ConfigurableTask(config={**config, "num_fewshot": SHOTS, "custom_dataset": lambda **_metadata: data})
    task.set_fewshot_seed(1234)
    task.build_all_requests(limit=2, rank=0, world_size=1)
    return [instance.args for instance in task.instances]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_what_is_said_to_be_changed_is_what_lm_eval_asks_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    files: dict[Path, str] = {}
    truth: dict[str, bool] = {}
    for number, text in enumerate(plain_tasks(PER_EDIT * len(EDITS))):
        name = f"t{number}"
        named = f"task: {name}\nnum_fewshot: {SHOTS}\n{text}"
        file = repository / f"{name}.yaml"
        file.write_text(named, "utf-8")
        [task] = load_tasks(file)
        docs = load_docs(task)
        before = asked(file, docs)
        files[file] = EDITS[number % len(EDITS)](named)
        other = tmp_path / file.name
        other.write_text(files[file], "utf-8")
        truth[name] = asked(other, docs) != before
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "one")
    for file, text in files.items():
        file.write_text(text, "utf-8")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    command = [sys.executable, "-m", "pytest_promptfmt", "diff", "main", "--profile", "plain", "--json"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    result: Mapping[str, Any] = json.loads(done.stdout)
    members = [member for cluster in result["clusters"] for member in cluster["members"]]
    told = {member["task"] for member in members if member["profile"]}  # what has none is how answers are scored
    assert told == {name for name, is_changed in truth.items() if is_changed}
    assert 0 < len(told) < len(truth)
    assert result["counts"]["passed"] == len(truth) - len(told) - result["unaffected_files"]
    assert result["unknown"] == []

"""`promptfmt diff` between two releases of lm-eval, against what lm-eval itself renders of both.

    python benchmarks/bench_diff.py --repository REPO v0.4.12 v0.4.13 --packages pk/0.4.12 pk/0.4.13

REPO is a git repository with the folder `lm_eval/tasks` of each release committed and tagged; the packages are folders
that hold the unpacked wheels. Each side is rendered by its own lm-eval, both with the docs made up for the old and with
those made up for the new task. A task is truly changed where any request differs. The result of an earlier run of
`promptfmt diff --json --profile plain` may be given with `--result`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import Unset
from pytest_promptfmt.revisions.git import Repository, files_below
from pytest_promptfmt.revisions.unaffected import single_tasks, sources_below
from pytest_promptfmt.systems.lm_eval.docs.doc_sources import load_docs
from pytest_promptfmt.systems.task_files import load_tasks

SIDE = Path(__file__).with_name("lm_eval_side.py")


def docs_of(path: Path) -> dict[str, list[dict[str, Any]]] | None:
    """Return docs made up for a task, by split; None where none can be made."""
    try:
        [task] = load_tasks(path, allow_code=True)
        docs = load_docs(task)
    except (PromptfmtError, ValueError):
        return None
    dataset, own = task.dataset, task.fewshot.split
    names = [dataset.training_split, dataset.validation_split, dataset.test_split, dataset.fewshot_split]
    splits = {
        name: [*docs.fewshot, *docs.evaluated] for name in (*names, None if isinstance(own, Unset) else own) if name
    }
    if dataset.evaluation_split is not None:
        splits[dataset.evaluation_split] = [*docs.evaluated, *docs.fewshot]
    return {name: [dict(doc) for doc in rows] for name, rows in splits.items()}


def rendered(package: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the answers of an lm-eval to these lines, by id."""
    told = "".join(json.dumps(line, default=str) + "\n" for line in lines)
    done = subprocess.run(
        [sys.executable, str(SIDE)],
        input=told,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(package.resolve())},
    )
    answers = (json.loads(line) for line in done.stdout.splitlines())
    return {answer.pop("id"): answer for answer in answers}


def said(result: Mapping[str, Any]) -> dict[str, str]:
    """Return what the tool says of each task: its category; tasks of more than one have the first."""
    told: dict[str, str] = {}
    for cluster in result["clusters"]:
        for member in cluster["members"]:
            told.setdefault(member["task"], cluster["category"])
    for name in result["rewritten"]:
        told.setdefault(name, "rewritten")
    for skipped in result["skipped"]:
        for name in skipped["tasks"]:
            told.setdefault(name, "not rendered")
    return told


def files_of(tree: Path) -> dict[str, str]:
    """Return the tasks of a tree that one file defines, with that file."""
    sources = single_tasks(sources_below(tree, files_below(tree)))
    counted = Counter(source.name for source in sources.values())
    return {source.name: path for path, source in sources.items() if counted[source.name] == 1}


def pairs(old: Mapping[str, str], new: Mapping[str, str], result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the tasks of both trees, also those that are said to have another name now: name, old and new path."""
    for name in old.keys() & new.keys():
        yield name, old[name], new[name]
    for cluster in result["clusters"]:
        if cluster["category"] == "renamed":
            for told in {member["task"] for member in cluster["members"]}:
                was, name = told.split(" → ")
                if was in old and name in new:
                    yield told, old[was], new[name]


def names_of(result: Mapping[str, Any], category: str) -> set[str]:
    """Return the tasks of a category."""
    return {m["task"] for cluster in result["clusters"] if cluster["category"] == category for m in cluster["members"]}


def main() -> None:
    """Print the table, and every task on which both disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs=2)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--packages", type=Path, nargs=2, required=True)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--unchanged", type=int, default=200, help="how many said to be the same are tried")
    options = parser.parse_args()
    if options.result is None:
        command = [sys.executable, "-m", "pytest_promptfmt", "diff", *options.revisions, "--profile", "plain", "--json"]
        result = json.loads(subprocess.run(command, cwd=options.repository, capture_output=True, check=False).stdout)
    else:
        result = json.loads(options.result.read_text("utf-8"))
    told = said(result)
    repository = Repository.around(options.repository)
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder, name).resolve() for name in ("old", "new")]
        for tree, revision in zip(trees, options.revisions, strict=True):
            repository.lay_out(repository.commit(revision), tree)
        old, new = files_of(trees[0]), files_of(trees[1])
        common = sorted(pairs(old, new, result))
        print(f"{len(common):,} tasks in both releases, under one name or two")
        gone, come = names_of(result, "obsolete"), names_of(result, "new")
        print(f"{len(gone):,} said to be gone, of which in the new release: {sorted(gone & new.keys())}")
        print(f"{len(come):,} said to be new, of which in the old release: {sorted(come & old.keys())}")
        same = [pair for pair in common if pair[0] not in told]
        chosen = [pair for pair in common if pair[0] in told]
        chosen += random.Random(1234).sample(same, min(options.unchanged, len(same)))
        compare(chosen, trees, options.packages, told)


def compare(
    chosen: Iterable[tuple[str, str, str]], trees: Sequence[Path], packages: Sequence[Path], told: Mapping[str, str]
) -> None:
    """Render what was chosen on both sides and print how often the tool and lm-eval agree."""
    lines: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    asked: dict[str, list[str]] = {}
    for name, *paths in chosen:
        asked[name] = []
        for side, (tree, path) in enumerate(zip(trees, paths, strict=True)):
            docs = docs_of(tree / path)
            if docs is None:
                continue
            asked[name].append(f"{name}/{side}")
            for number in (0, 1):
                place = str(trees[number] / paths[number])
                lines[number].append({"id": asked[name][-1], "path": place, "docs": docs})
    answers = [rendered(package, line) for package, line in zip(packages, lines, strict=True)]
    table: Counter[tuple[str, str]] = Counter()
    for name, ids in asked.items():
        sides = [(answers[0].get(key, {}), answers[1].get(key, {})) for key in ids]
        works = [pair for pair in sides if "requests" in pair[0] and "requests" in pair[1]]
        fails = [pair for pair in sides if ("requests" in pair[0]) != ("requests" in pair[1])]
        truth = "changed" if any(old != new for old, new in works) else "the same" if works else "not rendered"
        if not works and fails:
            truth = "rendered on one side alone"
        table[told.get(name, "the same"), truth] += 1
        if (told.get(name, "the same"), truth) not in {("changed", "changed"), ("the same", "the same")}:
            error = next((answer["error"] for pair in sides for answer in pair if "error" in answer), "")
            print(f"  {name}: said {told.get(name, 'the same')}, lm-eval: {truth} {error[:150]}")
    for (ours, theirs), count in sorted(table.items()):
        print(f"{ours:>14} | {theirs:<26} {count:6,}")


if __name__ == "__main__":
    main()

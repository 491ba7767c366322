"""What a change of this package changes for its users: two revisions run over the same tasks and templates.

    python scripts/diff_shades.py main                          # the work tree against main, over the galleries
    python scripts/diff_shades.py main --tree lm_eval/tasks --sample 300

Prints the findings that appear and disappear, the prompts and answers that differ, and what can no longer be read.
Exit code: 0 nothing, 1 something, 2 a revision did not run. Nothing in the trees themselves is written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
GALLERIES: Final = ("fixtures/tasks", "fixtures/helm", "fixtures/rules")
TASKS: Final = (".yaml", ".yml")
SHOWN: Final = 40
"""Lines of one part of the report."""

Result = Mapping[str, Any]


def main() -> int:
    """Run the script; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the revision to compare with")
    parser.add_argument("head", nargs="?", help="the other revision; without it the work tree")
    parser.add_argument("--tree", action="append", type=Path, help="a folder of tasks or chat templates; repeatable")
    parser.add_argument("--sample", type=int, metavar="N", help="about N task files of each tree, always the same ones")
    given = parser.parse_args()
    trees = [tree.resolve() for tree in given.tree or (ROOT / name for name in GALLERIES)]
    with tempfile.TemporaryDirectory(prefix="diff-shades-") as scratch:
        place = Path(scratch)
        folder = place / "trees"
        for number, tree in enumerate(trees):
            copied(tree, folder / f"{number}-{tree.name}", given.sample)
        (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        before = run(package_at(given.base, place / "base"), folder, place / "before.json", "--snapshot-update")
        head = ROOT if given.head is None else package_at(given.head, place / "head")
        after = run(head, folder, place / "after.json")
    lines = list(differences(before, after))
    print("\n".join(lines) or "no finding, prompt or verdict changes")
    return 1 if lines else 0


def copied(tree: Path, folder: Path, sample: int | None) -> None:
    """Copy a tree without its snapshots; of a `sample`, every n-th task file, and all files that are not tasks."""
    shutil.copytree(tree, folder, ignore=shutil.ignore_patterns("__prompts__", "__pycache__", ".*"))
    tasks = sorted(path for path in folder.rglob("*") if path.suffix in TASKS)
    if sample is not None and len(tasks) > sample:
        step = len(tasks) / sample
        kept = {tasks[int(number * step)] for number in range(sample)}
        for path in tasks:
            # What may be included by one that is kept stays: files with an underscore, and groups are cheap.
            if path not in kept and not path.name.startswith("_"):
                path.unlink()


def package_at(revision: str, folder: Path) -> Path:
    """Write the package as it is in a revision below a folder, and return that."""
    archive = subprocess.run(["git", "archive", revision, "pytest_promptfmt"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        sys.exit(f"git archive: {archive.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "--extract", f"--directory={folder}"], input=archive.stdout, check=True)
    return folder


def run(package: Path, folder: Path, result: Path, *options: str) -> Result:
    """Return the result of one revision over the copied trees, as `--promptfmt-json` writes it."""
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "--promptfmt", "-q", "--no-header", "--tb=no", "--no-summary"]
    command += ["--promptfmt-no-cache", "-p", "no:cacheprovider", "-o", "python_files=", f"--promptfmt-json={result}"]
    trees = sorted(path.name for path in folder.iterdir() if path.is_dir())  # chat templates are tested if named
    done = subprocess.run([*command, *options, *trees], cwd=folder, env=environment, stdout=sys.stderr.fileno())
    if done.returncode not in (0, 1) or not result.exists():
        print(f"{package}: pytest ended with {done.returncode}", file=sys.stderr)
        sys.exit(2)
    loaded: Result = json.loads(result.read_text("utf-8"))
    return loaded


def differences(before: Result, after: Result) -> Iterator[str]:
    """Yield what differs between two results; the second run was compared with the snapshots of the first."""
    old, new = findings_of(before), findings_of(after)
    yield from part("findings that appear", new - old)
    yield from part("findings that disappear", old - new)
    changed = Counter(
        f"{cluster['category']}: {cluster['title']} ({', '.join(tasks_of(cluster)[:3])})"
        for cluster in after["clusters"]
        if cluster["category"] != "error"
    )
    yield from part("prompts and answers", changed)
    yield from part("errors that appear", errors_of(after) - errors_of(before))
    yield from part("errors that disappear", errors_of(before) - errors_of(after))


def findings_of(result: Result) -> Counter[str]:
    """Return the findings of a run, one line for each rule, message, file and task."""
    return Counter(
        f"{group['code']} {group['severity']}: {group['message']}  {place['file']} {task}"
        for group in result["findings"]
        for place in group["places"]
        for task in place["tasks"]
    )


def errors_of(result: Result) -> Counter[str]:
    """Return what could not be read or rendered."""
    errors = (cluster for cluster in result["clusters"] if cluster["category"] == "error")
    return Counter(f"{cluster['title']}  {task}" for cluster in errors for task in tasks_of(cluster))


def tasks_of(cluster: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks of a cluster, each once."""
    return list(dict.fromkeys(str(member["task"]) for member in cluster["members"]))


def part(title: str, lines: Counter[str]) -> Iterator[str]:
    """Yield one part of the report, nothing where it is empty."""
    if lines:
        yield f"{title}: {lines.total():,}"
        yield from (f"  {line}" for line, _ in lines.most_common(SHOWN))
        if len(lines) > SHOWN:
            yield f"  … and {len(lines) - SHOWN:,} more"


if __name__ == "__main__":
    sys.exit(main())

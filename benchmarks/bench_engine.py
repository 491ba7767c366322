"""What a run costs: cold, with nothing changed, after one edit, and without remembering, on a part of lm-eval's tasks.

    python benchmarks/bench_engine.py [FOLDER ...]     # folders of lm_eval/tasks, by default arc mmlu bbh belebele
    python benchmarks/bench_engine.py --files 500 1000 2000     # how it grows: folders at random, of so many files

Processor time of pytest and all its workers, so that a busy machine matters less; ratios are of one run.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import lm_eval

from pytest_promptfmt.core.files import VARIABLE

TASKS = Path(lm_eval.__file__).parent / "tasks"
DEFAULT = ("arc", "mmlu", "bbh", "belebele")


def measured(root: Path, what: str, *options: str) -> float:
    """Print and return the processor time of one run, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "pytest", "--promptfmt", "tasks", "-q", "--ignore-glob=*.py", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = done.stdout.strip().splitlines()
    wall, megabytes = time.monotonic() - began, after.ru_maxrss / 1024
    print(
        f"{what:<34} {used:7.1f} s processor {wall:7.1f} s wall {megabytes:6.0f} MB  {lines[-1] if lines else ''}",
        flush=True,
    )
    return used


def own_cache(folder: Path) -> Path:
    """Let runs cache below a folder, and return where their outcomes will be."""
    os.environ[VARIABLE] = str(folder / "cache")
    return folder / "cache" / "outcomes"


def growth(counts: Sequence[int], seed: int) -> None:
    """Measure runs of more and more files; each has the folders of the one before, and some more."""
    folders = sorted(each for each in TASKS.iterdir() if each.is_dir())
    random.Random(seed).shuffle(folders)
    with tempfile.TemporaryDirectory() as folder:
        root, outcomes = Path(folder) / "project", own_cache(Path(folder))
        root.mkdir()
        (root / "pytest.ini").write_text("[pytest]\n", "utf-8")
        for count in sorted(counts):
            while folders and len(list((root / "tasks").rglob("*.yaml"))) < count:
                shutil.copytree(folders[-1], root / "tasks" / folders.pop().name)
            files = len(list((root / "tasks").rglob("*.yaml")))
            measured(root, f"{files:,} files, update", "--snapshot-update")
            time.sleep(3)  # younger files are not remembered
            shutil.rmtree(outcomes, ignore_errors=True)  # the update remembers, too
            cold = measured(root, f"{files:,} files, nothing known")
            measured(root, f"{files:,} files, nothing changed")
            warm = measured(root, f"{files:,} files, again")
            print(f"per file: {cold / files * 1000:.1f} ms, {warm / files * 1000:.2f} ms with nothing changed")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", default=DEFAULT)
    parser.add_argument("--files", type=int, nargs="+", help="measure how it grows with the number of files")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.files:
        growth(given.files, given.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        root.mkdir()
        own_cache(Path(folder))
        (root / "pytest.ini").write_text("[pytest]\n", "utf-8")
        for name in given.folders:
            shutil.copytree(TASKS / name, root / "tasks" / name)
        measured(root, "update", "--snapshot-update")
        time.sleep(3)  # younger files are not remembered
        without = measured(root, "verify, nothing remembered", "--promptfmt-no-cache")
        alone = measured(root, "the same in one process", "--promptfmt-no-cache", "--promptfmt-workers=0")
        measured(root, "verify, remembering")
        warm = measured(root, "nothing changed")
        edited = next(path for path in sorted(root.rglob("*.yaml")) if not path.name.startswith("_"))
        edited.write_text(edited.read_text("utf-8") + "\n# edited\n", "utf-8")
        one = measured(root, "one file edited")
        print(
            f"nothing changed: 1/{without / warm:.0f}; one edit: 1/{without / one:.0f}; "
            f"one process: {alone / without:.2f}"
        )


if __name__ == "__main__":
    main()

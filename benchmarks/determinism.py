"""Run a part of lm-eval's tasks twice, once beside busy loops: the results are the same, and so are the snapshots.

    python benchmarks/determinism.py [FOLDER ...] [--loops 8] [--every 1]     # folders of lm_eval/tasks

Compared are all outcomes, findings and messages of the JSON report, without the command line; nothing is remembered
from one run to the next. The second update writes into an empty folder, beside the loops.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lm_eval

TASKS = Path(lm_eval.__file__).parent / "tasks"
DEFAULT = ("arc", "gsm8k", "humaneval", "mbpp", "cruxeval", "bbh", "drop", "hendrycks_math", "squadv2", "truthfulqa")
LONGEST = 300


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Have so many processes work inside the block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def run(root: Path, files: list[str], *options: str) -> tuple[dict[str, Any], float]:
    """Return the JSON report of a run, and the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--promptfmt",
        "--promptfmt-no-cache",
        "-q",
        "--promptfmt-json=found.json",
    ]
    done = subprocess.run([*command, *options, *files], cwd=root, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(*done.stdout.strip().splitlines()[-1:], flush=True)
    found: dict[str, Any] = json.loads((root / "found.json").read_text("utf-8"))
    del found["command"], found["next_steps"]
    return found, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def snapshots(root: Path) -> dict[str, bytes]:
    """Return the content of every snapshot and lock."""
    found = [*root.rglob("__prompts__/**/*.txt"), *root.rglob("promptfmt.lock")]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def differences(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Yield each place where two values of JSON are not the same."""
    if first == second:
        return
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys([*first, *second]):
            yield from differences(first.get(key), second.get(key), f"{place}/{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    else:
        yield f"{place}: {str(first)[:LONGEST]} | {str(second)[:LONGEST]}"


def main() -> None:
    """Run, compare, print what differs, and exit with 1 where something does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", default=DEFAULT)
    parser.add_argument("--loops", type=int, default=8)
    parser.add_argument("--every", type=int, default=1, help="take one file of so many in each folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pytest.ini").write_text("[pytest]\n", "utf-8")
        for name in given.folders:
            shutil.copytree(TASKS / name, root / "tasks" / name)
        paths = [sorted((root / "tasks" / name).rglob("*.y*ml"))[:: given.every] for name in given.folders]
        files = [str(path.relative_to(root)) for each in paths for path in each if not path.name.startswith("_")]
        _, seconds = run(root, files, "--snapshot-update")
        first = snapshots(root)
        quiet, more = run(root, files)
        for each in root.rglob("__prompts__"):
            shutil.rmtree(each)
        with busy(given.loops):
            run(root, files, "--snapshot-update")
            second = snapshots(root)
            loud, _ = run(root, files)
    differing = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    places = [*differences(quiet, loud)]
    print(f"{len(files):,} files, {len(first):,} snapshots, {seconds + more:.0f} s of processor time for two runs")
    print(f"snapshots that differ: {len(differing)}; places of the results that differ: {len(places)}")
    print("\n".join([*differing, *places]))
    sys.exit(bool(differing or places))


if __name__ == "__main__":
    main()

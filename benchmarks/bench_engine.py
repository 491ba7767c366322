"""What a run costs: cold, with nothing changed, after one edit, and without remembering, on a part of lm-eval's tasks.

    python benchmarks/bench_engine.py [FOLDER ...]     # folders of lm_eval/tasks, by default arc mmlu bbh belebele

Processor time of pytest and all its workers, so that a busy machine matters less; ratios are of one run.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lm_eval

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


def main() -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pytest.ini").write_text("[pytest]\n", "utf-8")
        for name in sys.argv[1:] or DEFAULT:
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

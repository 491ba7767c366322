"""How the cost of a run grows with many docs, large files of docs, and many profiles: it must be linear.

    python benchmarks/bench_large.py [docs] [file] [profiles]     # all three by default

Each part runs growing projects cold and prints processor time and the memory of the largest process, per unit of growth
in relation to the first one. Exit code 1 when a unit costs more than 1.5 times as much in the largest project as in the
first, or when a file of docs that is ten times as large needs more memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measured import Measured, measured

from pytest_promptfmt.core.files import VARIABLE

LIMIT = 1.5
DOCS = (2_000, 5_000, 20_000)
MEGABYTES = (2, 20, 200)
PROFILES_AND_TASKS = ((10, 40), (25, 100), (50, 200))
Part = Callable[[Path, Any], tuple[Measured, float]]
TASK = """task: {name}
dataset_path: json
output_type: multiple_choice
test_split: test
doc_to_text: "Question {number}: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{[choices[0], choices[1], choices[2]]}}}}"
doc_to_target: label
"""


def write_docs(path: Path, count: int, padding: str = "") -> None:
    """Write so many docs as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            doc = {"question": f"Which of {number} stones rusts? {padding}", "choices": ["iron", "slate", "gold"]}
            file.write(json.dumps({**doc, "label": number % 3}) + "\n")


def run(project: Path, *options: str) -> Measured:
    """Return what a cold run of the folder took."""
    command = [sys.executable, "-m", "pytest", "--promptfmt", "tasks", "-q", "--promptfmt-no-cache", *options]
    return measured(command, project, {**os.environ, VARIABLE: str(project / "cache")})


def docs(project: Path, count: int) -> tuple[Measured, float]:
    """Run a task with so many docs."""
    (project / "tasks/stones.yaml").write_text(TASK.format(name="stones", number=1), "utf-8")
    write_docs(project / "tasks/stones.docs.jsonl", count)
    return run(project, f"--promptfmt-docs={count}"), count


def file(project: Path, megabytes: int) -> tuple[Measured, float]:
    """Run a task whose docs are in a file of this size, of which it needs the first few."""
    (project / "tasks/stones.yaml").write_text(TASK.format(name="stones", number=1), "utf-8")
    write_docs(project / "tasks/stones.docs.jsonl", megabytes * 500, padding="x" * 2_000)
    return run(project), 1


def profiles(project: Path, size: tuple[int, int]) -> tuple[Measured, float]:
    """Run so many tasks with so many profiles."""
    count, tasks = size
    defined = "".join(
        f"  p{number}: {{extends: chat-chatml, system_instruction: s{number}}}\n" for number in range(count)
    )
    names = ", ".join(f"p{number}" for number in range(count))
    (project / "promptfmt.yaml").write_text(f"profiles:\n{defined}default_profiles: [{names}]\n", "utf-8")
    for number in range(tasks):
        text = TASK.format(name=f"stones{number}", number=number)
        (project / f"tasks/stones{number}.yaml").write_text(text, "utf-8")
    return run(project), count * tasks


def grows(what: str, part: Part, sizes: Sequence[Any]) -> bool:
    """Measure a part, print it, and return whether a unit costs too much in the largest project."""
    ratios = {"time": 1.0, "memory": 1.0}
    first: dict[str, float] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tasks").mkdir()
            (Path(folder) / "pytest.ini").write_text("[pytest]\n", "utf-8")
            done, units = part(Path(folder), size)
        costs = {"time": done.processor_seconds / units, "memory": done.peak_megabytes / units}
        first = first or costs
        ratios = {name: cost / first[name] for name, cost in costs.items()}
        print(
            f"{what} {size!s:>10}: {done.processor_seconds:7.1f} s processor, {done.peak_megabytes:6.0f} MB; "
            f"per unit {ratios['time']:.2f} in time, {ratios['memory']:.2f} in memory; {done.output.splitlines()[-1]}",
            flush=True,
        )
    return max(ratios.values()) > LIMIT


PARTS: dict[str, tuple[Part, Sequence[Any]]] = {
    "docs": (docs, DOCS),
    "file": (file, MEGABYTES),
    "profiles": (profiles, PROFILES_AND_TASKS),
}


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    given = parser.parse_args()
    too_much = [name for name in given.parts or PARTS if grows(name, *PARTS[name])]
    return int(bool(too_much))


if __name__ == "__main__":
    sys.exit(main())

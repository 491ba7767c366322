"""A snapshot item beside a bare test of pytest and one with syrupy's fixture: the same texts, side by side in one run.

    python benchmarks/bench_peers.py [--tasks 1000] [--rounds 3]

So many tasks are written, and their snapshots for the profile `plain`. The peers are one parametrised test over the
very texts of these snapshots, which they are given: they read no YAML, make no docs and render nothing. Each side runs
with all of them and with one; the difference, divided by their number, is what one item takes. Processor time of all
processes, medians of the rounds; nothing but the plugins that a side needs is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from measured import measured

OURS: Final = ("-p", "syrupy", "-p", "pytest_promptfmt.plugin", "--promptfmt", "-p", "no:cacheprovider")
SIDES: Final[Mapping[str, Sequence[str]]] = {
    "bare pytest": ("-p", "no:cacheprovider", "test_bare.py"),
    "syrupy, one file for all": ("-p", "syrupy", "-p", "no:cacheprovider", "test_amber.py"),
    "syrupy, a file for each": ("-p", "syrupy", "-p", "no:cacheprovider", "test_files.py"),
    "pytest --promptfmt": (*OURS, "tasks"),
    "the same in one process": (*OURS, "tasks", "--promptfmt-workers=0"),
}
SETTINGS: Final = "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n"
TASK: Final = """\
task: {name}
dataset_path: nowhere/{name}
output_type: multiple_choice
test_split: test
doc_to_text: "Topic {number}. Question: {{{{question}}}}\\nChoices: {{{{choices|join(', ')}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
num_fewshot: 2
"""
TEST: Final = """\
import json
from pathlib import Path

import pytest
{imports}
TEXTS = json.loads(Path("texts.json").read_text("utf-8"))
{fixture}

@pytest.mark.parametrize("name", TEXTS)
def test_prompt(name{argument}):
    assert TEXTS[name] == {expected}
"""
_FILES: Final = """
class Text(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def own(snapshot):
    return snapshot.use_extension(Text)
"""
_IMPORTS: Final = "from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode\n"


def write_project(root: Path, count: int) -> None:
    """Write the tasks with their snapshots, the texts of these, the tests of the peers and what those expect."""
    (root / "pytest.ini").write_text(SETTINGS, "utf-8")
    (root / "tasks").mkdir(parents=True)
    for number in range(count):
        name = f"t{number:05}"
        (root / "tasks" / f"{name}.yaml").write_text(TASK.format(name=name, number=number), "utf-8")
    run(root, (*OURS, "tasks", "--snapshot-update"))
    texts = {path.parent.name: path.read_text("utf-8") for path in sorted(root.rglob("plain.txt"))}
    assert len(texts) == count
    (root / "texts.json").write_text(json.dumps(texts), "utf-8")
    (root / "expected.json").write_text(json.dumps(texts), "utf-8")
    bare = 'EXPECTED = json.loads(Path("expected.json").read_text("utf-8"))\n'
    for module, given in {
        "bare": {"imports": "", "fixture": bare, "argument": "", "expected": "EXPECTED[name]"},
        "amber": {"imports": "", "fixture": "", "argument": ", snapshot", "expected": "snapshot"},
        "files": {"imports": _IMPORTS, "fixture": _FILES, "argument": ", own", "expected": "own"},
    }.items():
        (root / f"test_{module}.py").write_text(TEST.format(**given), "utf-8")
    for side in ("syrupy, one file for all", "syrupy, a file for each"):
        run(root, (*SIDES[side], "--snapshot-update"))


def run(root: Path, options: Sequence[str]) -> float:
    """Return the processor time of a run in which one test for each task passes, in seconds."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPYCACHEPREFIX": str(root / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = measured([sys.executable, "-m", "pytest", "-q", *options], root, environment)
    assert f"{len(list(root.glob('tasks/*.yaml')))} passed" in done.output, done.output[-2000:]
    return done.processor_seconds


def main() -> None:
    """Measure, and print what an item takes on each side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        roots = {count: Path(folder) / str(count) for count in (1, given.tasks)}
        for count, root in roots.items():
            root.mkdir()
            write_project(root, count)
        used: dict[tuple[str, int], list[float]] = {(side, count): [] for side in SIDES for count in roots}
        for _ in range(given.rounds):
            for side, count in used:
                used[side, count].append(run(roots[count], SIDES[side]))
    items = {}
    for side in SIDES:
        whole, one = (statistics.median(used[side, count]) for count in (given.tasks, 1))
        items[side] = (whole - one) / (given.tasks - 1) * 1000
        print(f"{side:<26} {items[side]:6.2f} ms for an item; {one:.2f} s with one, {whole:.2f} s with {given.tasks:,}")
    ours = items["pytest --promptfmt"]
    ratios = (f"{ours / items[side]:.1f} times {side}" for side in list(SIDES)[:3])
    print(f"an item of pytest --promptfmt: {'; '.join(ratios)}")


if __name__ == "__main__":
    main()

"""Confined and free workers side by side: what the kernel's restrictions cost in a run, and whether verdicts differ.

    python benchmarks/bench_confinement.py TREE [--rounds 5] [--options=--promptfmt-shard=1/100]

The folder is copied, snapshots are made, and it is compared once with free and once with confined workers in each
round, without the cache. Printed: medians of processor and wall seconds, their ratio, and differing results. The copy
must not be below the folder for temporary files, where workers may write: `--folder` names another place.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from measured import Measured, measured

# A plugin of pytest, which is loaded before there are workers.
FREE = """
from pytest_promptfmt.engine import confinement
from pytest_promptfmt.plugin import session, worker_processes

confinement.possible = session.possible = worker_processes.possible = lambda: confinement.Possible(
    files=False, network=False
)
"""


def run(project: Path, scratch: Path, options: list[str], *, is_free: bool) -> tuple[Measured, object]:
    """Return the figures of a run and its result."""
    result = scratch / "result.json"
    command = [sys.executable, "-m", "pytest", "--promptfmt", "-q", "--promptfmt-no-cache", "-p", "no:cacheprovider"]
    plugin = ["-p", "promptfmt_free_workers"] if is_free else []
    environment = {**os.environ, "PYTHONPATH": str(scratch), "TMPDIR": str(scratch)}
    figures = measured([*command, *plugin, f"--promptfmt-json={result}", *options, "."], project, environment)
    found = json.loads(result.read_text("utf-8"))
    del found["command"], found["next_steps"]
    return figures, found


def main() -> None:
    """Compare the runs and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--options", type=shlex.split, default=[])
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as above:
        project, scratch = Path(above, "project"), Path(above, "scratch")
        shutil.copytree(given.tree, project)
        (project / "pytest.ini").write_text("[pytest]\n", "utf-8")
        scratch.mkdir()
        (scratch / "promptfmt_free_workers.py").write_text(FREE, "utf-8")
        run(project, scratch, ["--snapshot-update", *given.options], is_free=True)
        figures: dict[bool, list[Measured]] = {True: [], False: []}
        results = []
        for _ in range(given.rounds):
            for is_free in figures:
                taken, found = run(project, scratch, given.options, is_free=is_free)
                figures[is_free].append(taken)
                results.append(found)
    medians = {}
    for is_free, runs in figures.items():
        processor = statistics.median(each.processor_seconds for each in runs)
        wall = statistics.median(each.seconds for each in runs)
        medians[is_free] = processor
        print(f"{'free' if is_free else 'confined'}: {processor:.2f} s of processor time, {wall:.2f} s")
    print(f"ratio of processor time: {medians[False] / medians[True]:.3f}")
    print("the results are the same" if all(each == results[0] for each in results) else "THE RESULTS DIFFER")


if __name__ == "__main__":
    main()

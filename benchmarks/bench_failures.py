"""One edit that changes ten thousand snapshots: what the failing run costs beside the passing one.

    python benchmarks/bench_failures.py [--tasks 3400] [--folder FOLDER] [--rounds 1] [--workers 0] [--rules]

Tasks that share an included file are written, snapshots made for the default profiles, one delimiter of the shared
file is changed. Printed for each run: processor and wall seconds, peak memory, lines of output, distinct problems.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from measured import Measured, measured

BASE = """\
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nChoices: {{choices|join(', ')}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
num_fewshot: 2
"""
EDIT = ("join(', ')", "join('; ')")
REPORTS = ("html", "json", "markdown", "patch")


def write_project(project: Path, tasks: int) -> None:
    """Write the tasks, a hundred in a folder, and the file that all of them include."""
    (project / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (project / "tasks").mkdir()
    (project / "tasks" / "_base_yaml").write_text(BASE, "utf-8")
    for number in range(tasks):
        path = project / "tasks" / f"d{number // 100:02}" / f"t{number:04}.yaml"
        path.parent.mkdir(exist_ok=True)
        topic = f'description: "Topic {number // 100}, part {number % 100}.\\n\\n"'
        path.write_text(f"task: t{number:04}\ninclude: ../_base_yaml\ndataset_path: nowhere/topic\n{topic}\n", "utf-8")


def edit(project: Path, old: str, new: str) -> None:
    """Replace what stands in the shared file."""
    path = project / "tasks" / "_base_yaml"
    text = path.read_text("utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new), "utf-8")


def run_pytest(project: Path, *options: str) -> Measured:
    """Run the plugin in the project and return its figures."""
    pytest = [sys.executable, "-m", "pytest", "--promptfmt", "tasks", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(project / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return measured(pytest, project, environment)


def show(title: str, runs: list[Measured], passing: list[Measured] | None = None) -> None:
    """Print the medians of runs, and how they stand to those that pass."""
    processor = statistics.median(run.processor_seconds for run in runs)
    ratio = ""
    if passing:
        ratio = f", {processor / statistics.median(run.processor_seconds for run in passing):.2f} x passing"
    last = runs[-1]
    problems = last.output.partition("= prompt formats =")[2].count("\nchanged, ")
    print(
        f"{title}: {processor:.1f} s processor{ratio}, {statistics.median(run.seconds for run in runs):.1f} s wall, "
        f"peak {last.peak_megabytes:.0f} MB, {last.output.count(chr(10))} lines, "
        f"{problems} distinct problems, exit code {last.exit_code}\n    {last.output.strip().splitlines()[-1]}",
        flush=True,
    )


def main() -> None:
    """Write, update, verify, edit, verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3400)
    parser.add_argument("--folder", type=Path, help="keep the project in this new folder")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", default="0")
    parser.add_argument("--rules", action="store_true", help="apply the rules to every task as well")
    parser.add_argument("--edit", nargs=2, default=EDIT, metavar=("OLD", "NEW"), help="in the shared file")
    arguments = parser.parse_args()
    options = ["-n", arguments.workers]
    options += [] if arguments.rules else ["-o", "promptfmt_lint=false"]
    reports = [f"--promptfmt-{name}=report.{name}" for name in REPORTS]
    with tempfile.TemporaryDirectory() as temporary:
        project = arguments.folder or Path(temporary)
        project.mkdir(exist_ok=True)
        write_project(project, arguments.tasks)
        show("update", [run_pytest(project, *options, "--snapshot-update")])
        passing, failing, reporting = [], [], []
        for _ in range(arguments.rounds):
            passing.append(run_pytest(project, *options))
            edit(project, *arguments.edit)
            failing.append(run_pytest(project, *options))
            reporting.append(run_pytest(project, *options, *reports))
            edit(project, *reversed(arguments.edit))
        edit(project, *arguments.edit)
        show("passing", passing)
        show("failing", failing, passing)
        show("failing, all reports", reporting, passing)
        for name in REPORTS:
            print(f"    {name}: {(project / f'report.{name}').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

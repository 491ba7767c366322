"""Kill runs that update snapshots, at random moments: nothing is lost, nothing is left behind, the next run is right.

    python benchmarks/kills.py --kills 100 --whom parent|worker|both [--xdist 2] [--seed 1]

Each round writes the snapshots of a dozen tasks anew, in one of two states, and kills pytest, one of its workers, or
both, with SIGKILL. Afterwards every snapshot has the bytes of one of the two states, no process of the run is alive
after a moment, and an update that is let run ends in the wanted state, the same with remembered outcomes and without.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TASKS = 12
STATES = ("A:", "Answer:")
MARK = "promptfmt-kills-marker"
CHECKED_EVERY = 10
PATIENCE_SECONDS = 20.0

TASK = """\
task: t{number}
dataset_path: example/t
test_split: test
output_type: multiple_choice
include: _shared.yaml
doc_to_choice: ["yes", "no"]
doc_to_target: answer
"""


def write_state(root: Path, state: str) -> None:
    """Write the include that all tasks share."""
    (root / "_shared.yaml").write_text(f'doc_to_text: "Q {{{{question}}}}\\n{state}"\n', "utf-8")


def command(*options: str) -> list[str]:
    """Return the command line of a run; the marker tells its processes from all others."""
    return [sys.executable, "-m", "pytest", "--promptfmt", ".", "-q", "-o", f"cache_dir=.{MARK}", *options]


def run(root: Path, *options: str) -> int:
    """Return the exit status of a run that is left alone."""
    return subprocess.run(command(*options), cwd=root, capture_output=True, check=False).returncode


def snapshots(root: Path) -> dict[str, bytes]:
    """Return the content of every snapshot."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("__prompts__/*/*/*.txt"))}


def processes() -> list[int]:
    """Return the processes of runs that are alive."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and MARK.encode() in (place / "cmdline").read_bytes():
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(place.name)] if state != "Z" else []
        except (OSError, IndexError):
            continue
    return found


def kill_one_round(root: Path, whom: str, options: Sequence[str], chance: random.Random) -> None:
    """Start an update and kill it somewhere."""
    with subprocess.Popen(
        command("--snapshot-update", *options), cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as started:
        time.sleep(chance.uniform(0.2, 1.4))
        children = [pid for pid in processes() if pid != started.pid]
        victims = {"parent": [started.pid], "worker": children[:1], "both": [started.pid, *children[:1]]}[whom]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.wait()


def main() -> None:
    """Kill, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--whom", choices=("parent", "worker", "both"), default="parent")
    parser.add_argument("--xdist", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    options = ["-n", str(given.xdist)] if given.xdist else []
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n", "utf-8")
        for number in range(TASKS):
            (root / f"t{number}.yaml").write_text(TASK.format(number=number), "utf-8")
        whole = {}
        for state in STATES:
            write_state(root, state)
            assert run(root, "--snapshot-update") == 0
            whole[state] = snapshots(root)
        for number in range(given.kills):
            state = STATES[number % 2]
            write_state(root, state)
            kill_one_round(root, given.whom, options, chance)
            for name, content in snapshots(root).items():
                if content not in (whole[each].get(name) for each in STATES):
                    problems.append(f"round {number}: {name} is neither old nor new")
            if len(snapshots(root)) < len(whole[state]):
                problems.append(f"round {number}: a snapshot is gone")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while processes() and time.monotonic() < deadline:
                time.sleep(0.05)
            if processes():
                problems.append(f"round {number}: processes are left")
            if number % CHECKED_EVERY == CHECKED_EVERY - 1:
                same = run(root) == run(root, "--promptfmt-no-cache")
                ended = run(root, "--snapshot-update") == 0 and snapshots(root) == whole[state] and run(root) == 0
                if not same or not ended:
                    problems.append(f"round {number}: the next run is wrong")
        left = [path.name for path in root.rglob(".promptfmt-*.tmp")]
    print(f"{given.kills} kills of {given.whom}{' with xdist' if options else ''}: {len(problems)} problems")
    print(f"temporary files left after the last round: {len(left)}")
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

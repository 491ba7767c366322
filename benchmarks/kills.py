"""Kill runs at random moments: nothing is lost, nothing is left behind, the next run is right.

    python benchmarks/kills.py --kills 100 --whom parent|worker|both [--xdist 2] [--seed 1]

Each round updates the snapshots of a dozen tasks to one of two states, or compares them, and kills pytest, one of its
workers, or both, with SIGKILL. Only victims that were alive count. Afterwards every snapshot has the bytes of one of
the two states, and no process of the run is alive after a moment. From time to time an update that is left alone ends
in the wanted state, the same with remembered outcomes and without, and leaves no temporary file.
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
from contextlib import suppress
from pathlib import Path

TASKS = 12
STATES = ("A:", "Answer:")
MARK = f"KILLS_OF={os.getpid()}"
"""In the environment of every process of a run, those of pytest-xdist too."""

CHECKED_EVERY = 10
UPDATES = 0.7
"""The share of rounds that write; the others compare."""

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
    """Return the command line of a run."""
    return [sys.executable, "-m", "pytest", "--promptfmt", ".", "-q", *options]


def environment() -> dict[str, str]:
    """Return the environment of a run; the mark in it tells its processes from all others."""
    name, _, value = MARK.partition("=")
    return {**os.environ, name: value, "PYTEST_ADDOPTS": "-p no:hypothesispytest"}


def run(root: Path, *options: str) -> int:
    """Return the exit status of a run that is left alone."""
    done = subprocess.run(command(*options), cwd=root, env=environment(), capture_output=True, check=False)
    return done.returncode


def snapshots(root: Path) -> dict[str, bytes]:
    """Return the content of every snapshot."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("__prompts__/*/*/*.txt"))}


def processes() -> list[int]:
    """Return the processes of runs that are alive."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and MARK.encode() in (place / "environ").read_bytes().split(b"\0"):
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(place.name)] if state != "Z" else []
        except (OSError, IndexError):
            continue
    return found


def kill_one_round(root: Path, whom: str, options: Sequence[str], seconds: float) -> int:
    """Start a run, kill it after so many seconds, and return how many processes that hit."""
    hit = 0
    with subprocess.Popen(
        command(*options), cwd=root, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as started:
        time.sleep(seconds)
        children = [pid for pid in processes() if pid != started.pid]
        is_alive = started.poll() is None
        parent = [started.pid] if is_alive else []
        victims = {"parent": parent, "worker": children[-1:], "both": [*parent, *children[-1:]]}[whom]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit += 1
        started.wait()
    return hit


def main() -> None:
    """Kill, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--whom", choices=("parent", "worker", "both"), default="parent")
    parser.add_argument("--xdist", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop at the latest")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each run compiles the package again
    chance = random.Random(given.seed)
    options = ["-n", str(given.xdist)] if given.xdist else []
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        root.mkdir()
        os.environ["PROMPTFMT_CACHE_DIR"] = str(Path(folder) / "cache")
        (root / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n", "utf-8")
        for number in range(TASKS):
            (root / f"t{number}.yaml").write_text(TASK.format(number=number), "utf-8")
        whole = {}
        for state in STATES:
            write_state(root, state)
            assert run(root, "--snapshot-update") == 0
            whole[state] = snapshots(root)
        began = time.monotonic()
        run(root, "--snapshot-update", *options)
        seconds = time.monotonic() - began
        kills = updates = number = 0
        while kills < given.kills and time.monotonic() < until:
            number += 1
            state = STATES[number % 2]
            write_state(root, state)
            update = ["--snapshot-update"] if chance.random() < UPDATES else []
            if not kill_one_round(root, given.whom, [*options, *update], seconds * chance.uniform(0.2, 1.1)):
                continue
            kills += 1
            updates += bool(update)
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
            if kills % CHECKED_EVERY == 0:
                same = run(root) == run(root, "--promptfmt-no-cache")
                ended = run(root, "--snapshot-update") == 0 and snapshots(root) == whole[state] and run(root) == 0
                if not same or not ended:
                    problems.append(f"round {number}: the next run is wrong")
                if list(root.rglob(".promptfmt-*.tmp")):
                    problems.append(f"round {number}: a temporary file is left")
    how = f"{kills} kills of {given.whom}{' with xdist' if options else ''}, {updates} of them during updates"
    print(f"{how}; {number} runs begun; {len(problems)} problems")
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

"""Edit projects at random, and compare each time what a run that remembers finds with what a fresh one finds.

    python benchmarks/stale_outcomes.py --edits 10000 [--seed 1] [--seconds 3600]

Each project has some of the parts of `stale_parts.py`: includes, functions that import modules and an installed
package, code that opens a file or asks for a variable of the environment, docs, data files, groups, formats, filters
and recordings, a chat template with its tokenizer, rules and a conftest. An edit changes, breaks, empties, moves,
links, removes or adds one of its files, renames a folder, restores a file, changes one without changing its size and
times, goes back to an earlier state of all files, writes the snapshots, or installs another version of the package.
Then the project is asked once, in one of many ways, by a run that remembers, with workers and store.

Runs are made in processes that are forked from one that has imported all libraries. What a fresh run said of the same
files, asked in the same way, is not asked for again, except now and then, to see that it says the same. A difference of
results, exit status or, where pytest printed them, of the reports of items is a stale outcome.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from stale_counts import FILE_NAME as COUNTS
from stale_parts import PARTS, VARIABLE
from stale_project import OWN, Place, Project, State

import pytest_promptfmt.cli
import pytest_promptfmt.inputs.contents
from pytest_promptfmt.inputs import places

HERE: Final = str(Path(__file__).parent)
"""Where what starts the runs is: it is at work whenever anything is, and opens nothing."""

FOUND, LOG, MODULES = "found.json", "output.txt", "modules.json"
assert {FOUND, LOG, COUNTS} == {*OWN}
vars(pytest_promptfmt.inputs.contents)["_SETTLED_NS"] = 0  # as if two seconds lay between an edit and the next run
setattr(AssertionRewritingHook, "_warn_already_imported", lambda *_: None)  # noqa: B010  # of plugins that are imported here
_is_library = places._is_library
vars(places)["_is_library"] = lambda path, rootdir, own: path.startswith(HERE) or _is_library(path, rootdir, own)

EDITS_OF_A_PROJECT: Final = 60
PARTS_OF_A_PROJECT: Final = (3, 6)
AGAIN: Final = 0.02
"""How often a fresh run is made again of what is known."""

RETURNS: Final = 0.3
UPDATES: Final = 0.04
"""How often a trial goes back to an earlier state, and how often it writes the snapshots."""

MAIN_WAYS: Final = (
    ("pytest", "tasks"),
    ("pytest", "tasks"),
    ("pytest", "tasks"),
    ("check", "tasks"),
    ("check", "tasks"),
)
WAYS: Final[tuple[tuple[str, ...], ...]] = (
    ("check",),
    ("check", "tasks/plain"),
    ("check", "--profile", "plain", "tasks"),
    ("pytest",),
    ("pytest", "."),
    ("pytest", "tasks", "-v"),
    ("pytest", "tasks", "-k", "arc or wic or cola"),
    ("pytest", "tasks", "-k", "lint"),
    ("pytest", "tasks", "-m", "promptfmt_snapshot"),
    ("pytest", "tasks", "--promptfmt-task", "*c*"),
    ("pytest", "tasks/plain/arc.yaml"),
    ("pytest", "tasks/plain/arc.yaml::arc"),
    ("pytest", "tasks/plain/arc.yaml::arc::lint"),
    ("pytest", "tasks/plain"),
    ("pytest", "tasks/code", "tasks/plain"),
    ("pytest", "tasks", "--promptfmt-ignore", "PF2,XX1"),
    ("pytest", "tasks", "--promptfmt-profile", "plain"),
    ("pytest", "tasks", "--promptfmt-no-code"),
    ("pytest", "tasks", "--promptfmt-workers=2"),
)
_REPORTED: Final = re.compile(r"^(\S+?::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL)\b", re.MULTILINE)
_SYRUPY: Final = re.compile(r"^\d+ snapshots? .*$", re.MULTILINE)

Trial = tuple[State, str | None, tuple[str, ...]]
"""Files, the variable of the environment, and how they are asked."""


# -- runs --------------------------------------------------------------------------------------------------------------


def run(project: Place, way: tuple[str, ...], *options: str, modules: bool = False) -> int:
    """Return the exit status of a command, in a process that is forked from this one."""
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.chdir(project.root)
            output = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for number in (1, 2):
                os.dup2(output, number)
            sys.path[:0] = [str(project.root), str(project.root / "lib/site-packages")]
            sys.dont_write_bytecode = True
            if project.variable is not None:
                os.environ[VARIABLE] = project.variable
            code = _command(way, options)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 98
        except BaseException:  # noqa: BLE001, RUF100  # said in the output, and told by the status
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            if modules:
                files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
                inside = str(project.root)
                own = [name for name, file in files.items() if file and not file.startswith(inside)]
                (project.root / MODULES).write_text(json.dumps(own), "utf-8")
            os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _command(way: tuple[str, ...], options: tuple[str, ...]) -> int:
    program, *arguments = way
    if program == "pytest":
        return int(pytest.main(["--promptfmt", *arguments, "-q", f"--promptfmt-json={FOUND}", *options]))
    sys.argv = ["promptfmt", "check", *arguments, "--output-format", "json", *options]
    sys.stdout = open(FOUND, "w", encoding="utf-8")  # noqa: SIM115
    try:
        pytest_promptfmt.cli.main()
    finally:
        sys.stdout.flush()
    return 0


def found(project: Place, way: tuple[str, ...], *, fresh: bool) -> tuple[Any, str]:
    """Return all that a run found, and what it printed."""
    file = project.root / FOUND
    file.unlink(missing_ok=True)
    if way[0] == "check":
        code = run(project, way, *(("--no-cache",) if fresh else ()))
    elif fresh:
        code = run(project, way, "--promptfmt-no-cache", "--promptfmt-workers=0")
    else:
        code = run(project, way, *(() if "--promptfmt-workers=2" in way else ("--promptfmt-workers=1",)))
    written = file.read_text("utf-8") if file.exists() else ""
    what = json.loads(written) if written.startswith("{") else {}
    for name in ("command", "next_steps"):  # they quote the options
        what.pop(name, None)
    said = (project.root / LOG).read_text("utf-8", "replace")
    told = sorted(match.groups() for match in _REPORTED.finditer(said)) if "-v" in way else []
    return [code, what, told, _SYRUPY.findall(said)], said


def import_what_runs_import(project: Place) -> None:
    """Import the libraries that a run of this project imports, so that each forked process has them."""
    for way in (("pytest", "tasks"), ("check", "tasks")):
        options = ("--promptfmt-no-cache", "--promptfmt-workers=0") if way[0] == "pytest" else ("--no-cache",)
        run(project, way, *options, modules=True)
        for name in json.loads((project.root / MODULES).read_text("utf-8")):
            with suppress(Exception):
                importlib.import_module(name)
        (project.root / MODULES).unlink()
    gc.freeze()  # a fork need not look through what it never touches


# -- trials ------------------------------------------------------------------------------------------------------------


@dataclass
class Trials:
    """Projects that are edited and asked, and what came out."""

    root: Path
    always: Sequence[str] = ()
    chance: random.Random = field(default_factory=random.Random)
    edits: Counter[str] = field(default_factory=Counter)
    touched: Counter[str] = field(default_factory=Counter)
    memory: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    fresh: dict[str, Any] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    done: int = 0
    fresh_runs: int = 0

    def one_project(self, edits: int, until: float) -> None:
        """Lay out a project, edit it so many times, and compare after each edit."""
        others = sorted({*PARTS} - {*self.always})
        parts = [*self.always, *self.chance.sample(others, self.chance.randint(*PARTS_OF_A_PROJECT))]
        project = Project(self.root, self.chance, parts)
        project.begin()
        run(project, ("pytest", "tasks"), "--snapshot-update", "--promptfmt-workers=1")
        for _ in range(2):
            found(project, ("pytest", "tasks"), fresh=False)
        ways = [*MAIN_WAYS * 2, *self.chance.sample(WAYS, 4)]
        visited: list[Trial] = []
        history = [f"parts {', '.join(parts)}"]
        for _ in range(edits):
            if time.monotonic() > until:
                break
            way = self.chance.choice(ways)
            what = self.chance.random()
            if visited and what < RETURNS:
                state, variable, way = self.chance.choice(visited)
                project.become(state, variable)
                self.edits["return"] += 1
                history.append("return")
            elif what > 1 - UPDATES:
                run(project, ("pytest", "tasks"), "--snapshot-update", "--promptfmt-workers=1")
                self.edits["update"] += 1
                project.touched["snapshot"] += 1
                history.append("update")
            else:
                history.append(project.edit())
            visited.append((project.state(), project.variable, way))
            self._compare(project, visited[-1], history)
        self.edits += project.edits
        self.touched += project.touched

    def _compare(self, project: Project, trial: Trial, history: list[str]) -> None:
        way = trial[2]
        self.done += 1
        self.ways[" ".join(way)] += 1
        remembering, said = found(project, way, fresh=False)
        counts = project.root / COUNTS
        self.counted = Counter(json.loads(counts.read_text("utf-8")) if counts.exists() else {})
        self.memory += self.counted
        counts.unlink(missing_ok=True)
        key = hashlib.blake2b(
            repr((sorted(trial[0].items()), trial[1:])).encode("utf-8", "backslashreplace")
        ).hexdigest()
        known = self.fresh.get(key)
        if known is None or self.chance.random() < AGAIN:
            fresh, _ = found(project, way, fresh=True)
            counts.unlink(missing_ok=True)
            self.fresh_runs += 1
            if known is not None and known != fresh:
                self._report("TWO FRESH RUNS DIFFER", history, way, known, fresh)
            known = self.fresh[key] = fresh
        if remembering != known:
            self._report("STALE", history, way, remembering, known)
            print(said[-1500:], flush=True)

    def _report(self, what: str, history: list[str], way: tuple[str, ...], first: Any, second: Any) -> None:
        last = "; ".join([history[0], *history[1:][-6:]])
        self.stale.append(f"{what}: edit {self.done}, {' '.join(way)}; {last}; {dict(self.counted)}")
        print(f"{self.stale[-1]}\n{_difference(first, second)}", flush=True)


def main() -> None:
    """Edit and compare; print what was found, and exit with 1 where an outcome was stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop at the latest")
    parser.add_argument("--parts", nargs="+", default=[], choices=sorted(PARTS), help="what each project has")
    parser.add_argument("--first", type=int, default=0, help="the project to begin with, to see one again")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background: what was found is printed
    os.environ |= {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.environ["PYTEST_PLUGINS"] = "syrupy,pytest_promptfmt.plugin,stale_counts"
    os.environ.pop(VARIABLE, None)
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMPTFMT_CACHE_DIR"] = str(Path(folder) / "cache")
        root = Path(folder) / "project"
        everything = Project(root, random.Random(0), sorted(PARTS))
        everything.begin()
        import_what_runs_import(everything)
        trials = Trials(root, given.parts)
        with suppress(KeyboardInterrupt):
            for number in count(given.first):
                trials.chance = random.Random(f"{given.seed} {number}")
                trials.one_project(min(EDITS_OF_A_PROJECT, given.edits - trials.done), until)
                print(f"project {number}: {trials.done:,} edits, {len(trials.stale):,} stale outcomes", flush=True)
                if trials.done >= given.edits or time.monotonic() > until:
                    break
    for title, counter in (("edits", trials.edits), ("inputs", trials.touched), ("asked", trials.ways)):
        print(f"{title}: {', '.join(f'{number:,} {name}' for name, number in counter.most_common())}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    memory = ", ".join(f"{number:,} {name}" for name, number in trials.memory.most_common())
    print(f"by memory: {memory}; {trials.fresh_runs:,} fresh runs")
    print(
        f"seed {given.seed}: {trials.done:,} edits, {sum(each.ru_utime + each.ru_stime for each in used):,.0f} s of "
        f"processor time; {len(trials.stale):,} stale outcomes"
    )
    sys.exit(bool(trials.stale))


def _difference(first: Any, second: Any, place: str = "") -> str:
    if isinstance(first, dict) and isinstance(second, dict):
        key = next(key for key in [*first, *second] if first.get(key) != second.get(key))
        return _difference(first.get(key), second.get(key), f"{place}.{key}")
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        number = next(number for number, each in enumerate(first) if each != second[number])
        return _difference(first[number], second[number], f"{place}[{number}]")
    return f"  {place}: {str(first)[:300]} instead of {str(second)[:300]}"


if __name__ == "__main__":
    main()

"""Edit many small projects in one tree at random, and compare after each round what a run that remembers finds.

    python benchmarks/stale_together.py --edits 10000 [--seed 1] [--projects 100] [--seconds 3600]

The projects have the parts of `stale_outcomes.py` but those that concern a whole run (conftest, settings of pytest, an
installed package): that script tries these. In each round, each project is edited once, or goes back to an earlier
state. Then one run that remembers, with a worker and the store, is compared with a fresh one, so that an edit costs a
fraction of a run, and an outcome that is stale because of another project's edit is seen, too. Now and then the
snapshots are written, or the variable of the environment gets another value.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stale_counts import FILE_NAME as COUNTS
from stale_outcomes import _difference, found, import_what_runs_import, run
from stale_parts import PARTS, VARIABLE
from stale_project import Project, State

from pytest_promptfmt.tasks.harness import installed_harness

PARTS_OF_ALL: Final = ("rule", "conftest", "model")
"""Parts that change how the tasks of other projects are tested, or that need a long time."""

OF_A_RUN: Final = ("pytest.ini", "conftest.py", "tasks/conftest.py", "tasks/plain/test_own.py")
RETURNS, UPDATES, VARIABLES = 0.25, 0.1, 0.1
"""How often a project goes back to an earlier state; how often a round begins with an update, or another variable."""

WAYS: Final = (("pytest", "tasks"), ("pytest", "tasks"), ("check", "tasks"))
_MOST_STATES: Final = 5
_NAMING: Final = re.compile(rb"^((?:task|group|tag): )(.*)$", re.MULTILINE)
_PROJECT: Final = re.compile(r"\bp\d{3}\b")
_NAME: Final = re.compile(rb"\b(?!task\b|num_fewshot\b)[a-z]+\d?\b")
_IMPORTS: Final = ((b"import dep\n", b"import dep_of_code as dep\n"), (b"from tasks.code.helpers", b"from helpers"))


class ProjectInTree(Project):
    """A project below the rootdir: its tasks have names of their own, and its code imports from its own folder."""

    def begin(self) -> None:
        """Lay out the files in an empty folder."""
        super().begin()
        for name in (*OF_A_RUN, "tasks/a/first.yaml"):
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.root / "lib", ignore_errors=True)
        if "code" in self.parts:
            self._write("tasks/code/dep_of_code.py", b"END = '.0'\n")
        self.pristine = {name: content for name, content in self.state().items() if isinstance(content, bytes)}
        self.visited: list[State] = []

    def _write(self, name: str, content: bytes | str) -> None:
        if isinstance(content, bytes):
            suffix = b"_" + self.root.name.encode()
            if name.endswith(".yaml"):
                content = _NAMING.sub(lambda found: found[1] + _NAME.sub(rb"\g<0>" + suffix, found[2]), content)
            for old, new in _IMPORTS:
                content = content.replace(old, new)
        super()._write(name, content)

    def next(self) -> str:
        """Edit a file, or go back; return what was done."""
        if not self.files():
            self.begin()
            return "begun again"
        if self.visited and self.chance.random() < RETURNS:
            self.become(self.chance.choice(self.visited), None)
            self.edits["return"] += 1
            return "return"
        if self.chance.random() < 0.2:
            self.visited = [*self.visited, self.state()][-_MOST_STATES:]
        done = self.edit()
        for name in OF_A_RUN:
            (self.root / name).unlink(missing_ok=True)
        return done


@dataclass
class Tree:
    """The folder of all projects, and the variable of the environment."""

    root: Path
    variable: str | None = None

    def begin(self) -> None:
        """Write the settings of all projects."""
        self.root.mkdir(exist_ok=True)
        (self.root / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain\n", "utf-8")


def _rows_by_project(result: Any) -> dict[str, list[str]]:
    """Return the texts of a result by the project that they name."""
    found: dict[str, list[str]] = {}
    waiting = [("", result)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            waiting += ((f"{place}.{key}", each) for key, each in value.items())
        elif isinstance(value, list):
            waiting += ((place, each) for each in value)
        else:
            text = f"{place} {value!r}"
            for name in _PROJECT.findall(text):
                found.setdefault(name, []).append(text)
    return {name: sorted(rows) for name, rows in found.items()}


def main() -> None:
    """Edit and compare; print what was found, and exit with 1 where an outcome was stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--edits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--projects", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop at the latest")
    given = parser.parse_args()
    os.environ |= {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.environ["PYTEST_PLUGINS"] = "syrupy,pytest_promptfmt.plugin,stale_counts"
    os.environ.pop(VARIABLE, None)
    until = time.monotonic() + given.seconds
    chance = random.Random(given.seed)
    parts = sorted({*PARTS} - {*PARTS_OF_ALL})
    done = rounds = stale = 0
    memory: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMPTFMT_CACHE_DIR"] = str(Path(folder) / "cache")
        tree = Tree(Path(folder) / "project")
        tree.begin()
        counts = tree.root / COUNTS
        projects = [
            ProjectInTree(tree.root / f"tasks/p{number:03}", chance, chance.sample(parts, chance.randint(1, 3)))
            for number in range(given.projects)
        ]
        for project in projects:
            project.begin()
        import_what_runs_import(tree)
        if (harness := installed_harness()) is not None:
            harness.defining("nothing")  # so that each forked process knows its thousands of names
        run(tree, WAYS[0], "--snapshot-update", "--promptfmt-workers=1")
        while done < given.edits and time.monotonic() < until:
            if chance.random() < UPDATES:
                run(tree, WAYS[0], "--snapshot-update", "--promptfmt-workers=1")
            if chance.random() < VARIABLES:
                tree.variable = chance.choice((None, "a", "b"))
            edits = {project.root.name: project.next() for project in projects}
            done, rounds = done + len(edits), rounds + 1
            way = chance.choice(WAYS)
            remembering, said = found(tree, way, fresh=False)
            memory += Counter(json.loads(counts.read_text("utf-8")) if counts.exists() else {})
            fresh, _ = found(tree, way, fresh=True)
            counts.unlink(missing_ok=True)
            if remembering != fresh:
                before, after = map(_rows_by_project, (remembering, fresh))
                names = sorted(name for name in edits if before.get(name) != after.get(name))
                stale += max(1, len(names))
                print(f"STALE in round {rounds}: {_difference(remembering, fresh)}")
                for name in names[:5]:
                    print(f"  {name}: {edits[name]}")
                print(said[-500:], flush=True)
            if rounds % 10 == 1:
                print(
                    f"{done:,} edits, {stale:,} stale; exit {fresh[0]}, {len(str(fresh[1])):,} characters", flush=True
                )
    edited: Counter[str] = sum((project.edits for project in projects), Counter())
    touched: Counter[str] = sum((project.touched for project in projects), Counter())
    for title, counter in (("edits", edited), ("inputs", touched), ("by memory", memory)):
        print(f"{title}: {', '.join(f'{number:,} {name}' for name, number in counter.most_common())}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    print(
        f"seed {given.seed}: {done:,} edits in {rounds:,} rounds, {seconds:,.0f} s of processor time; {stale:,} stale"
    )
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()

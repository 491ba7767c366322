"""Faults of the machine and of files while pytest runs: nothing is lost, and a verdict is right or an error.

    python benchmarks/faults.py [--fault PATTERN] [--seed 1]

Each trial begins with four tasks whose snapshots are in state A. It causes one fault and runs pytest: to compare, with
the right verdict known from how the trial changed the files, or to write the snapshots of state B. Violations are

- a run that is green although a prompt differs, or that fails without a message about the fault;
- a snapshot that is gone, or neither that of state A nor that of state B;
- INTERNALERROR or a traceback of ours; a process or temporary file that is left;
- after the fault: a run with another verdict than without cached outcomes, or an update that does not work.

Full disks, read-only folders and errors of reading need a user namespace with mounts of its own (`unshare -Urm`); where
the kernel refuses that, those trials are skipped and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import forked_runs

STATES: Final = {"A": "A:", "B": "Answer:"}
MARK: Final = f"FAULTS_OF={os.getpid()}"
"""In the environment of every process of a run."""

PATIENCE_SECONDS: Final = 20.0
SETTLED_SECONDS: Final = 2.2
"""The age from which the times of a file prove that it has not changed, and its outcomes are found by them."""

TASK: Final = """\
task: t{number}
dataset_path: example/t
test_split: test
output_type: generate_until
include: _shared.yaml
doc_to_target: "{{{{answer}}}}"
"""
DOCS: Final = "".join(f'{{"question": "What is {number}?", "answer": "It is {number}."}}\n' for number in range(3))
CODE: Final = """\
import os, sys, time


def text(doc):
    {body}
    return f"Q {{doc['question']}}\\n{state}"
"""
INI: Final = "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n"
SETTINGS: Final = "docs: 2\nper_file_ignores:\n  '*.yaml': [PF202]\n"


@dataclass(frozen=True)
class Done:
    """A run that has ended: its exit status, and what it printed."""

    code: int
    said: str


@dataclass
class Trial:
    """One project and the fault that it meets; `problems` are the violations."""

    folder: Path
    chance: random.Random
    problems: list[str] = field(default_factory=list)
    runs: int = 0
    whole: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Return the rootdir."""
        return self.folder / "project"

    @property
    def cache(self) -> Path:
        """Return the folder of cached outcomes."""
        return self.folder / "cache"

    def begin(self, pristine: Path) -> None:
        """Copy the project, whose snapshots of both states are beside it."""
        for state in STATES:
            self.whole[state] = snapshots(pristine / state)
        shutil.copytree(pristine / "A", self.root)
        self.cache.mkdir(mode=0o700)

    def state(self, state: str) -> None:
        """Let the tasks be those of a state."""
        write_state(self.root, state)

    def code(self, body: str) -> None:
        """Let the code of a task do something else as well; its prompts stay the same."""
        write_code(self.root, "A", body)

    def environment(self, variables: Mapping[str, str] = {}) -> dict[str, str]:
        """Return the environment of a run; the mark in it tells its processes from all others."""
        name, _, value = MARK.partition("=")
        own = {name: value, "PYTEST_ADDOPTS": "-p no:hypothesispytest", "PROMPTFMT_CACHE_DIR": str(self.cache)}
        return {**os.environ, **own, **variables}

    def start(self, *options: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start a run."""
        self.runs += 1
        output = (self.folder / f"output-{self.runs}").open("wb")
        with output:
            return subprocess.Popen(
                [*more.pop("before", ()), *command(*options)],
                cwd=more.pop("root", self.root),
                env=self.environment(more.pop("variables", {})),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=more.pop("limit", None),
            )

    def end(self, started: subprocess.Popen[bytes], *, is_noisy: bool = False) -> Done:
        """Wait for a run, and look at what it printed; code of a task that `is_noisy` prints tracebacks itself."""
        code = started.wait(timeout=900)
        said = (self.folder / f"output-{self.runs}").read_text("utf-8", "replace")
        return self.looked_at(code, said, is_noisy=is_noisy)

    def looked_at(self, code: int, said: str, *, is_noisy: bool = False) -> Done:
        """Return a run that has ended, and note what it must not print."""
        for text in ("INTERNALERROR", "pytest_promptfmt/", *(() if is_noisy else ("Traceback (most recent",))):
            if text in said:
                self.problem(f"{text} in the output: {said[-1500:]}")
        return Done(code, said)

    def run(self, *options: str, is_noisy: bool = False, **more: Any) -> Done:
        """Return what a run did: a fork of a prepared process, unless it may leave processes or has limits."""
        if more or is_noisy:
            return self.end(self.start(*options, **more), is_noisy=is_noisy)
        done = forked_runs.run("pytest", *command(*options)[3:], folder=self.root, environment=self.environment())
        return self.looked_at(done.returncode, done.stdout + done.stderr)

    def problem(self, text: str) -> None:
        """Note a violation."""
        self.problems.append(text)

    def judge(self, done: Done, *, is_right: bool, says: str = "") -> None:
        """Check a verdict: a run may be green only if the prompts are right, and fail only for these or what it `says`.

        A run that is green has judged all of the four tasks, or reports the one that it has not.
        """
        if done.code == 0 and not is_right:
            self.problem(f"green, but a prompt differs: {done.said[-600:]}")
        if done.code == 0 and "4 snapshots passed." not in done.said and "skipped, 1 test" not in done.said:
            self.problem(f"green, but not all tasks were judged: {done.said[-600:]}")
        if done.code != 0 and is_right and not (says and re.search(says, done.said)):
            self.problem(f"ended with {done.code}, and does not say why: {done.said[-1500:]}")
        if done.code < 0:
            self.problem(f"ended by signal {-done.code}")

    def compare(self, *, is_right: bool = True, says: str = "", is_noisy: bool = False, **more: Any) -> Done:
        """Compare under the fault, and judge the verdict."""
        done = self.run(is_noisy=is_noisy, **more)
        self.judge(done, is_right=is_right, says=says)
        return done

    def update(self, says: str = "", **more: Any) -> Done:
        """Write the snapshots of state B under the fault: it has worked, or fails and says why."""
        self.state("B")
        done = self.run("--snapshot-update", **more)
        if done.code == 0 and snapshots(more.get("root", self.root)) != self.whole["B"]:
            self.problem(f"the update is green, but has not written everything: {done.said[-600:]}")
        if done.code != 0 and not (says and re.search(says, done.said)):
            self.problem(f"the update ended with {done.code}, and does not say why: {done.said[-1500:]}")
        return done

    def warm(self) -> Path:
        """Cache the outcomes, and return the file of the store."""
        time.sleep(SETTLED_SECONDS)
        self.run()
        if " unchanged" not in self.run().said:
            self.problem("nothing was cached")
        return next(self.cache.rglob("outcomes.sqlite"))

    def nothing_is_lost(self, root: Path | None = None) -> None:
        """Check that each snapshot has the content of one of the states."""
        now = snapshots(root or self.root)
        for name in self.whole["A"]:
            if now.get(name) not in (self.whole["A"][name], self.whole["B"][name]):
                self.problem(f"{name} is {'lost' if name not in now else 'neither old nor new'}")

    def is_over(self) -> None:
        """Check that the next runs are right, and that nothing is left of this one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in processes():
            self.problem(f"process {process} is left")
            os.kill(process, signal.SIGKILL)
        cached, fresh = self.run(), self.run("--promptfmt-no-cache")
        if cached.code != fresh.code:
            self.problem(f"{cached.code} with cached outcomes, {fresh.code} without")
        self.state("B")
        if self.run("--snapshot-update").code or snapshots(self.root) != self.whole["B"]:
            self.problem("the next update does not write state B")
        self.judge(self.run(), is_right=True)
        if left := [path.name for path in self.root.rglob(".promptfmt-*")]:
            self.problem(f"left behind: {left}")


def write_state(root: Path, state: str) -> None:
    """Write the include and the code that make all prompts."""
    (root / "_shared.yaml").write_text(f'doc_to_text: "Q {{{{question}}}}\\n{STATES[state]}"\n', "utf-8")
    write_code(root, state, "pass")


def write_code(root: Path, state: str, body: str) -> None:
    """Write the code of the task that has code."""
    (root / "prompts.py").write_text(CODE.format(body=body, state=STATES[state]), "utf-8")


def make_pristine(folder: Path) -> None:
    """Write the project in both states, with their snapshots."""
    trial = Trial(folder, random.Random(0))
    root = trial.root
    root.mkdir(parents=True)
    (root / "pytest.ini").write_text(INI, "utf-8")
    (root / "promptfmt.yaml").write_text(SETTINGS, "utf-8")
    for number in range(4):
        text = TASK.format(number=number) + ("doc_to_text: !function prompts.text\n" if number == 2 else "")
        (root / f"t{number}.yaml").write_text(text, "utf-8")
    (root / "t1.docs.jsonl").write_text(DOCS, "utf-8")
    for state in STATES:
        trial.state(state)
        done = trial.run("--snapshot-update")
        assert done.code == 0, done.said
        shutil.copytree(root, folder / state, ignore=shutil.ignore_patterns(".pytest_cache", "__pycache__"))
    assert len(snapshots(folder / "A")) == 4
    assert not trial.problems, trial.problems


def command(*options: str) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "pytest", "--promptfmt", ".", "-q", *options]


def snapshots(root: Path) -> dict[str, bytes]:
    """Return the content of every snapshot."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("__prompts__/*/*/*.txt"))}


def processes() -> list[int]:
    """Return the processes of runs that are alive."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            if place.name.isdigit() and MARK.encode() in (place / "environ").read_bytes().split(b"\0"):
                is_over = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                found += [] if is_over else [int(place.name)]
    return found


# -- faults ------------------------------------------------------------------------------------------------------------

FAULTS: Final[dict[str, Callable[[Trial], None]]] = {}
IN_NAMESPACE: Final[set[str]] = set()
"""The names of faults that need mounts of their own."""

UNWRITTEN: Final = (
    r"cannot be written|could not be written|No space left|File too large|Read-only file system|cannot write"
)


def fault(name: str, *, in_namespace: bool = False) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Register a fault by its name."""

    def register(cause: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert name not in FAULTS
        FAULTS[name] = cause
        if in_namespace:
            IN_NAMESPACE.add(name)
        return cause

    return register


@cache
def has_namespaces() -> bool:
    """Return whether this user may mount file systems in a namespace."""
    script = 'mount -t tmpfs -o size=64k tmpfs "$1" && mount --bind "$1" "$1"'
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(mounted(script, folder), capture_output=True, timeout=60)
        except OSError:
            return False
        return done.returncode == 0


def mounted(script: str, *arguments: str) -> list[str]:
    """Return the command of a shell in a namespace; `"$@"` are the arguments after a first `shift`."""
    return ["unshare", "-Urm", "bash", "-euc", script, "bash", *arguments]


# -- full disks and folders that cannot be written -----------------------------------------------------------------

FULL: Final = """project=$1 free=$2; shift 2
cp -a "$project" "$project.copy"
mount -t tmpfs -o size=2m tmpfs "$project"
cp -a "$project.copy/." "$project/"
head -c 4m /dev/zero > "$project/fill" 2> /dev/null || true
truncate -s "-$free" "$project/fill"
cd "$project"
code=0; "$@" || code=$?
rm -f "$project/fill"
cp -a "$project/." "$project.after"
exit $code
"""
"""Run in a file system with so many bytes left, and keep a copy of what is there afterwards."""


UNCOMPILED: Final = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python 3.11 itself leaves compiled files that are cut where a file cannot be written whole."""


def full_disk(trial: Trial, free: int, *options: str) -> None:
    """Update on a disk with so many bytes left."""
    trial.state("B")
    after = Path(f"{trial.root}.after")
    after.mkdir()
    before = mounted(FULL, str(trial.root), str(free))
    done = trial.run("--snapshot-update", *options, before=before, variables=UNCOMPILED)
    if done.code == 0 and snapshots(after) != trial.whole["B"]:
        trial.problem("the update is green, but has not written everything")
    if done.code != 0 and not re.search(UNWRITTEN, done.said):
        trial.problem(f"the update ended with {done.code}, and does not say why: {done.said[-1500:]}")
    trial.nothing_is_lost(after)
    shutil.rmtree(trial.root)
    shutil.copytree(after, trial.root)


for _free in (0, 4096, 8192, 16384):

    @fault(f"an update on a disk with {_free:,} bytes left", in_namespace=True)
    def _(trial: Trial, free: int = _free) -> None:
        full_disk(trial, free)


@fault("an update on a full disk, where reports are written too", in_namespace=True)
def _(trial: Trial) -> None:
    full_disk(trial, 0, "--promptfmt-json=r.json", "--promptfmt-html=r.html", "--promptfmt-write=markdown=r.md")


def limited_files(size: int) -> Callable[[], None]:
    """Return what lets a process write only files of so many bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


for _size in (0, 100, 1000, 5000):

    @fault(f"an update that may write only {_size:,} bytes of each file")
    def _(trial: Trial, size: int = _size) -> None:
        # The output is a file as well: it is cut, too, so that the snapshots and the status are judged.
        trial.state("B")
        done = trial.run("--snapshot-update", limit=limited_files(size), variables=UNCOMPILED)
        if done.code == 0 and snapshots(trial.root) != trial.whole["B"]:
            trial.problem("the update is green, but has not written everything")
        trial.nothing_is_lost()


def in_mounts(script: str, *places: Path) -> list[str]:
    """Return the command that mounts over places and then runs in the project."""
    names = " ".join(f"p{number}=$1; shift;" for number, _ in enumerate(places))
    return mounted(f'{names} {script}\ncd "$PROJECT"; exec "$@"', *map(str, places))


READ_ONLY: Final = 'mount --bind "$p0" "$p0"; mount -o remount,ro,bind "$p0"'
FULL_PLACE: Final = (
    'mount -t tmpfs -o size=16k,mode=700 tmpfs "$p0"; head -c 1m /dev/zero > "$p0/fill" 2> /dev/null || true'
)
NO_NAMES: Final = 'mount -t tmpfs -o nr_inodes=1,mode=700 tmpfs "$p0"'


def hindered(trial: Trial, script: str, place: Path, **variables: str) -> None:
    """Compare right and wrong prompts, and update, with something mounted over a place."""
    place.mkdir(parents=True, exist_ok=True)
    more: dict[str, Any] = {"before": in_mounts(script, place), "variables": {"PROJECT": str(trial.root), **variables}}
    trial.compare(is_right=True, **more)
    trial.update(UNWRITTEN, **more)
    trial.nothing_is_lost()
    trial.state("A" if snapshots(trial.root) == trial.whole["B"] else "B")
    trial.compare(is_right=False, **more)


@fault("a project that cannot be written", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, READ_ONLY, trial.root)


@fault("folders of snapshots that cannot be written", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, READ_ONLY, trial.root / "__prompts__")


@fault("one folder of snapshots that cannot be written", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, READ_ONLY, trial.root / "__prompts__/t1")


@fault("a cache that cannot be written", in_namespace=True)
def _(trial: Trial) -> None:
    trial.warm()
    hindered(trial, READ_ONLY, trial.cache)


@fault("a cache on a full disk", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, FULL_PLACE, trial.cache)


@fault("a cache without a free name", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, NO_NAMES, trial.cache)


@fault("a folder of temporary files that cannot be written", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, READ_ONLY, trial.folder / "tmp", TMPDIR=str(trial.folder / "tmp"))


@fault("a folder of temporary files on a full disk", in_namespace=True)
def _(trial: Trial) -> None:
    hindered(trial, FULL_PLACE, trial.folder / "tmp", TMPDIR=str(trial.folder / "tmp"))


# -- errors of reading -------------------------------------------------------------------------------------------------

UNREADABLE: Final = 'mount --bind /proc/$$/mem "$p0"'
"""The memory of a process is a file whose first bytes cannot be read: EIO."""

for _name in (
    "t0.yaml",
    "_shared.yaml",
    "t1.docs.jsonl",
    "prompts.py",
    "promptfmt.yaml",
    "__prompts__/t1/t1/plain.txt",
):

    @fault(f"{_name} gives an error of reading", in_namespace=True)
    def _(trial: Trial, name: str = _name) -> None:
        place = trial.root / name
        before = in_mounts(UNREADABLE, place)
        more: dict[str, Any] = {"before": before, "variables": {"PROJECT": str(trial.root)}}
        trial.compare(is_right=False, **more)
        trial.state("B")
        trial.run("--snapshot-update", **more)
        trial.nothing_is_lost()


@fault("the store gives an error of reading", in_namespace=True)
def _(trial: Trial) -> None:
    store = trial.warm()
    more: dict[str, Any] = {"before": in_mounts(UNREADABLE, store), "variables": {"PROJECT": str(trial.root)}}
    trial.compare(is_right=True, **more)
    trial.state("B")
    trial.compare(is_right=False, **more)


# -- locks -------------------------------------------------------------------------------------------------------------

for _how in ("EXCLUSIVE", "IMMEDIATE"):

    @fault(f"the store is locked by another process ({_how.lower()})")
    def _(trial: Trial, how: str = _how) -> None:
        store = trial.warm()
        with closing(sqlite3.connect(store)) as connection:
            connection.execute(f"BEGIN {how}")
            connection.execute("DELETE FROM rows")
            trial.compare(is_right=True)
            trial.state("B")
            trial.compare(is_right=False)
            trial.update()


@fault("the store has the journal of a run that was killed")
def _(trial: Trial) -> None:
    store = trial.warm()
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE rows SET content = content || ' '")
        content = store.read_bytes(), Path(f"{store}-journal").read_bytes()
    store.write_bytes(content[0])
    for journal in (content[1], content[1][: len(content[1]) // 2], b"garbage" * 99):
        Path(f"{store}-journal").write_bytes(journal)
        trial.compare(is_right=True)
    trial.state("B")
    trial.compare(is_right=False)


# -- clocks ------------------------------------------------------------------------------------------------------------


def set_times(root: Path, seconds: float) -> None:
    """Set the times of all files."""
    for path in (root, *root.rglob("*")):
        os.utime(path, (seconds, seconds))


for _title, _seconds in (("ten years ahead", time.time() + 3e8), ("of 1970", 1.0), ("before 1970", -1e6)):

    @fault(f"the times of all files are {_title}")
    def _(trial: Trial, seconds: float = _seconds) -> None:
        set_times(trial.root, seconds)
        trial.run()  # nothing is cached of files from the future
        set_times(trial.root, seconds)
        trial.compare(is_right=True)
        trial.state("B")
        set_times(trial.root, seconds)
        trial.compare(is_right=False)

    @fault(f"the times of the store are {_title}")
    def _(trial: Trial, seconds: float = _seconds) -> None:
        trial.warm()
        set_times(trial.cache, seconds)
        trial.compare(is_right=True)
        trial.state("B")
        trial.compare(is_right=False)


@fault("a file changes, but neither its size nor its time of change")
def _(trial: Trial) -> None:
    trial.warm()
    for name in (
        "_shared.yaml",
        "t1.docs.jsonl",
    ):  # Python itself takes compiled code by these two
        path = trial.root / name
        content, before = path.read_bytes(), path.stat()
        path.write_bytes(content.replace(b"Q", b"W").replace(b"What", b"When"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        trial.compare(is_right=False)
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        trial.compare(is_right=True)


# -- files that are cut ------------------------------------------------------------------------------------------------


def cuts(trial: Trial, content: bytes, count: int = 4) -> list[bytes]:
    """Return the beginnings of a content: empty, without its last byte, and cut anywhere."""
    places = {0, len(content) - 1, *(trial.chance.randrange(len(content)) for _ in range(count - 2))}
    return [content[:place] for place in sorted(places)]


def yaml_of(content: bytes) -> object:
    """Return the value of YAML, or the content where it has none."""
    import yaml

    try:
        return yaml.load(content.replace(b"!function ", b""), yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        return content


def docs_of(content: bytes) -> object:
    """Return the docs that a snapshot shows, or the content where they cannot be read."""
    try:
        return [json.loads(line) for line in content.splitlines()[:2]]  # those after them are not read
    except ValueError:
        return content


def cut_file(trial: Trial, name: str, meaning: Callable[[bytes], object]) -> None:
    """Cut a file of the project; the run may be green only if the rest has the same meaning."""
    path = trial.root / name
    whole = path.read_bytes()
    for content in cuts(trial, whole):
        path.write_bytes(content)
        done = trial.run()
        trial.judge(done, is_right=meaning(content) == meaning(whole), says=r"\d (?:failed|error)")
        trial.run("--snapshot-update")
        if len(snapshots(trial.root)) < 4:
            trial.problem(f"{name} cut at {len(content)}: a snapshot is lost")
        path.write_bytes(whole)
        for snapshot, written in trial.whole["A"].items():
            (trial.root / snapshot).write_bytes(written)


for _name, _meaning in (("t0.yaml", yaml_of), ("_shared.yaml", yaml_of), ("t1.docs.jsonl", docs_of)):

    @fault(f"{_name} is cut")
    def _(trial: Trial, name: str = _name, meaning: Callable[[bytes], object] = _meaning) -> None:
        cut_file(trial, name, meaning)


@fault("promptfmt.yaml is cut")
def _(trial: Trial) -> None:
    path = trial.root / "promptfmt.yaml"
    whole = path.read_bytes()
    for content in cuts(trial, whole):
        path.write_bytes(content)
        trial.compare(is_right=True, says=r"promptfmt\.yaml|docs changed")  # the number of docs is a setting
        trial.state("B")
        trial.compare(is_right=False)
        trial.state("A")
    path.write_bytes(whole)


@fault("pytest.ini is cut")
def _(trial: Trial) -> None:
    path = trial.root / "pytest.ini"
    whole = path.read_bytes()
    for content in cuts(trial, whole):
        path.write_bytes(content)
        trial.state("B")
        trial.compare(is_right=False, says="")
        trial.state("A")
        trial.run()
        trial.nothing_is_lost()
    path.write_bytes(whole)


@fault("a snapshot is cut")
def _(trial: Trial) -> None:
    path = trial.root / "__prompts__/t1/t1/plain.txt"
    whole = path.read_bytes()
    for content in cuts(trial, whole, 8):
        path.write_bytes(content)
        done = trial.run()
        trial.judge(done, is_right=content.rstrip() == whole.rstrip(), says=r"plain\.txt|failed")
    path.write_bytes(whole)


@fault("the store is cut")
def _(trial: Trial) -> None:
    store = trial.warm()
    whole = store.read_bytes()
    for content in cuts(trial, whole, 8):
        store.write_bytes(content)
        trial.compare(is_right=True)
        store.write_bytes(content)
        trial.state("B")
        trial.compare(is_right=False)
        trial.state("A")


@fault("pages of the store are exchanged, or are zeros")
def _(trial: Trial) -> None:
    store = trial.warm()
    whole = store.read_bytes()
    pages = [whole[at : at + 4096] for at in range(0, len(whole), 4096)]
    for _ in range(6):
        mixed = list(pages)
        one, other = trial.chance.randrange(len(mixed)), trial.chance.randrange(len(mixed))
        mixed[one], mixed[other] = mixed[other], trial.chance.choice((mixed[one], bytes(4096)))
        store.write_bytes(b"".join(mixed))
        trial.compare(is_right=True)
        store.write_bytes(b"".join(mixed))
        trial.state("B")
        trial.compare(is_right=False)
        trial.state("A")


BASELINE: Final = (
    b'{"pytest-promptfmt baseline": 1}\n'
    b'{"file": "t0.yaml", "task": "t0", "code": "PF201", "message": "m", "key": "0123456789abcdef"}\n'
)
LOCK: Final = b'tokenizers:\n  "a":\n    loader: "tokenizers 0.22"\n    content: "abc"\n'

for _name, _bytes, _option in (
    ("baseline.jsonl", BASELINE, ("--promptfmt-baseline=baseline.jsonl",)),
    ("promptfmt.lock", LOCK, ()),
):

    @fault(f"{_name} is cut")
    def _(trial: Trial, name: str = _name, whole: bytes = _bytes, options: tuple[str, ...] = _option) -> None:
        for content in cuts(trial, whole, 6):
            (trial.root / name).write_bytes(content)
            trial.judge(trial.run(*options), is_right=True, says=re.escape(name))
            trial.state("B")
            trial.judge(trial.run(*options), is_right=False)
            trial.state("A")
        (trial.root / name).unlink()


# -- several runs, and signals -----------------------------------------------------------------------------------------


@fault("two updates at once")
def _(trial: Trial) -> None:
    for state in "BABA":
        trial.state(state)
        both = [trial.start("--snapshot-update") for _ in range(2)]
        codes = [started.wait(timeout=900) for started in both]
        if codes != [0, 0] or snapshots(trial.root) != trial.whole[state]:
            trial.problem(f"two updates ended with {codes}")


@fault("an update and a comparison at once")
def _(trial: Trial) -> None:
    trial.state("B")
    both = [trial.start("--snapshot-update"), trial.start()]
    codes = [started.wait(timeout=900) for started in both]
    if codes[0] != 0 or codes[1] not in (0, 1) or snapshots(trial.root) != trial.whole["B"]:
        trial.problem(f"an update and a comparison ended with {codes}")


@fault("two comparisons at once with one store")
def _(trial: Trial) -> None:
    trial.warm()
    for state in "ABAB":
        trial.state(state)
        both = [trial.start() for _ in range(2)]
        codes = [started.wait(timeout=900) for started in both]
        if codes != [state == "B"] * 2:
            trial.problem(f"two comparisons of state {state} ended with {codes}")


def _ends_others(process: int) -> bool:
    """Return whether this is the process that ends the workers of a run that was killed, not a worker."""
    try:
        return b"\0-c\0" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return True


def workers_of(started: subprocess.Popen[bytes], patience: float = 30.0) -> list[int]:
    """Return the other processes of a run, once it has some that stay: not those that try what is possible here."""
    deadline = time.monotonic() + patience
    before: set[int] = set()
    while time.monotonic() < deadline and started.poll() is None:
        others = [pid for pid in processes() if pid != started.pid and not _ends_others(pid)]
        if lasting := [pid for pid in others if pid in before]:
            return lasting
        before = {*others}
        time.sleep(0.05)
    return []


@fault("a worker is stopped (SIGSTOP) for good")
def _(trial: Trial) -> None:
    trial.code("time.process_time() > 0 and time.sleep(1)")
    started = trial.start("--promptfmt-workers=1", "--promptfmt-no-cache")
    stopped = workers_of(started)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    trial.judge(trial.end(started), is_right=True, says="waited|without using|ended|did not finish|stopped")


@fault("all processes are stopped, and continue later")
def _(trial: Trial) -> None:
    started = trial.start("--promptfmt-no-cache")
    for _ in range(6):
        pids = processes()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
    trial.judge(trial.end(started), is_right=True)


for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):

    @fault(f"an update gets {_number.name}")
    def _(trial: Trial, number: signal.Signals = _number) -> None:
        for _ in range(3):
            trial.state("B")
            started = trial.start("--snapshot-update")
            workers_of(started)
            time.sleep(trial.chance.uniform(0, 0.3))
            started.send_signal(number)
            started.wait(timeout=900)
            trial.nothing_is_lost()
            trial.state("A")
            trial.run("--snapshot-update")


# -- memory and descriptors --------------------------------------------------------------------------------------------


@fault("the memory of the whole run ends")
def _(trial: Trial) -> None:
    for megabytes in (150, 250, 350):
        size = megabytes * 2**20

        def limit(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        trial.state("B")
        done = trial.run("--snapshot-update", limit=limit, is_noisy=True)
        if done.code == 0 and snapshots(trial.root) != trial.whole["B"]:
            trial.problem("the update is green, but has not written everything")
        trial.nothing_is_lost()
        trial.state("A")
        trial.run("--snapshot-update")


@fault("a task takes all memory that it may have")
def _(trial: Trial) -> None:
    trial.code("held = [bytearray(2**20) for _ in range(10**6)]")
    trial.compare(is_right=True, says="memory")
    if "3 passed" not in trial.run("--promptfmt-no-cache").said:
        trial.problem("other tasks were not judged")


@fault("there are few descriptors")
def _(trial: Trial) -> None:
    for count in (12, 20, 32):

        def limit(count: int = count) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

        done = trial.run(limit=limit, is_noisy=True)
        trial.judge(done, is_right=True, says="Too many open files|Errno 24|limits of open files")


# -- depth -------------------------------------------------------------------------------------------------------------

DEEP: Final[Mapping[str, tuple[str, str]]] = {
    "a template that calls itself": (
        "t0.yaml",
        "task: t0\ndataset_path: x\ntest_split: test\noutput_type: generate_until\ndoc_to_target: a\n"
        'doc_to_text: "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"\n',
    ),
    "a template of many brackets": (
        "t0.yaml",
        "task: t0\ndataset_path: x\ntest_split: test\noutput_type: generate_until\ndoc_to_target: a\n"
        f'doc_to_text: "{{{{ {"(" * 5000}1{")" * 5000} }}}}"\n',
    ),
    "YAML of many brackets": ("t0.yaml", f"task: t0\ndoc_to_text: {'[' * 20000}{']' * 20000}\n"),
    "YAML that holds itself": ("t0.yaml", "task: t0\nmetadata: &a {x: *a, y: [*a]}\ndoc_to_text: x\n"),
    "an include of itself": ("_shared.yaml", "include: _shared.yaml\ndoc_to_text: x\n"),
    "docs of many brackets": ("t1.docs.jsonl", f'{{"question": {"[" * 20000}{"]" * 20000}, "answer": "x"}}\n'),
    "settings of many brackets": ("promptfmt.yaml", f"docs: {'[' * 20000}{']' * 20000}\n"),
    "a snapshot of one long line": ("__prompts__/t0/t0/plain.txt", "  | " + "(" * 10**6 + "\n"),
}

for _title, _content in DEEP.items():

    @fault(f"depth: {_title}")
    def _(trial: Trial, content: tuple[str, str] = _content) -> None:
        name, text = content
        whole = (trial.root / name).read_bytes()
        (trial.root / name).write_text(text, "utf-8")
        trial.compare(is_right=False)
        trial.run("--snapshot-update")
        trial.nothing_is_lost() if name != "t0.yaml" and name[0] != "_" else None
        (trial.root / name).write_bytes(whole)
        trial.run("--snapshot-update")


# -- code of tasks -----------------------------------------------------------------------------------------------------

HARMLESS: Final[Mapping[str, str]] = {
    "a thread that does not end": "import threading; threading.Thread(target=time.sleep, args=(10**6,)).start()",
    "a thread that fails": "import threading; threading.Thread(target=lambda: 1 / 0).start()",
    "a thread that prints": "import threading; threading.Thread(target=lambda: print('x' * 999999)).start()",
    "an atexit that fails": "import atexit; atexit.register(lambda: 1 / 0)",
    "an atexit that ends the process": "import atexit; atexit.register(os._exit, 0)",
    "an atexit that waits": "import atexit; atexit.register(time.sleep, 10**6)",
    "a process that does not end": "import subprocess; subprocess.Popen(['sleep', '1000000'])",
    "a fork that does not end": "os.fork() or time.sleep(10**6)",
    "another folder": "os.chdir('/')",
    "a limit of recursion": "sys.setrecursionlimit(60)",
    "a signal handler": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "an alarm": "import signal; signal.signal(14, lambda *a: 1 / 0); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
    "closed output": "sys.stdout.close(); sys.stderr.close()",
    "no output": "sys.stdout = sys.stderr = None",
    "a deep recursion": "f = lambda n: n and f(n - 1)\n    try: f(10**6)\n    except RecursionError: pass",
    "a trace function": "sys.settrace(lambda *a: None)",
    "garbage collection without an end": "import gc; gc.set_threshold(1)",
    "other environment variables": "os.environ.clear()",
    "random numbers": "import random; random.seed(0); random.random()",
    "descriptors that are closed": "os.closerange(3, 256)",
}
"""Code that changes no prompt: the verdict is right, or the task is an error of its own."""

for _title, _body in HARMLESS.items():

    @fault(f"code of a task: {_title}")
    def _(trial: Trial, body: str = _body) -> None:
        trial.code(body)
        for _ in range(2):
            trial.compare(is_right=True, says=r"t2\b", is_noisy=True)
        (trial.root / "_shared.yaml").write_text("doc_to_text: other\n", "utf-8")
        trial.compare(is_right=False, is_noisy=True)


# -- files that change while they are read -----------------------------------------------------------------------------

CHANGING: Final = """import itertools, os, sys
path, one, other = sys.argv[1:]
contents = [open(name, "rb").read() for name in (one, other)]
for number in itertools.count():
    with open(path if number % 3 else path + ".new", "wb") as file:
        file.write(contents[number % 2])
    if not number % 3:
        os.replace(path + ".new", path)
"""


@contextmanager
def changing(trial: Trial, name: str, other: bytes) -> Iterator[None]:
    """Let a process write a file again and again inside the block, with its content and another."""
    path = trial.root / name
    whole = path.read_bytes()
    places = [trial.folder / "one", trial.folder / "other"]
    for place, content in zip(places, (whole, other), strict=True):
        place.write_bytes(content)
    with subprocess.Popen([sys.executable, "-c", CHANGING, *map(str, (path, *places))]) as writer:
        yield
        writer.kill()
    Path(f"{path}.new").unlink(missing_ok=True)
    path.write_bytes(whole)


for _name in ("t0.yaml", "_shared.yaml", "t1.docs.jsonl", "prompts.py", "__prompts__/t1/t1/plain.txt"):

    @fault(f"{_name} changes while it is read")
    def _(trial: Trial, name: str = _name) -> None:
        content = (trial.root / name).read_bytes()
        trial.warm()
        with changing(trial, name, content.replace(b"Q", b"W").replace(b"What", b"When").replace(b"answer", b"field")):
            for _ in range(4):
                done = trial.run()
                if done.code not in (0, 1):
                    trial.problem(f"ended with {done.code}: {done.said[-800:]}")
        time.sleep(SETTLED_SECONDS)
        trial.compare(is_right=True)


@fault("files are deleted while the run reads them")
def _(trial: Trial) -> None:
    for name in ("t1.docs.jsonl", "t0.yaml", "prompts.py", "__prompts__"):
        shutil.copytree(trial.root, trial.folder / "kept")
        started = trial.start()
        time.sleep(trial.chance.uniform(0.3, 1.2))
        path = trial.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        done = trial.end(started)
        if done.code not in (0, 1):
            trial.problem(f"ended with {done.code}: {done.said[-800:]}")
        shutil.rmtree(trial.root)
        (trial.folder / "kept").rename(trial.root)


# -- all of them -------------------------------------------------------------------------------------------------------


def problems_of(name: str, pristine: Path, seed: int) -> list[str]:
    """Return the violations of one trial."""
    with tempfile.TemporaryDirectory(prefix="promptfmt-faults-") as folder:
        trial = Trial(Path(folder).resolve(), random.Random(f"{seed} {name}"))
        trial.begin(pristine)
        FAULTS[name](trial)
        trial.state("A")
        trial.is_over()
        return trial.problems


def main() -> None:
    """Cause all faults, and print the violations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", default="", help="a pattern for the names of faults")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each run compiles the package again
    chosen = [name for name in FAULTS if re.search(given.fault, name)]
    skipped = [name for name in chosen if name in IN_NAMESPACE and not has_namespaces()]
    violations = 0
    with tempfile.TemporaryDirectory(prefix="promptfmt-faults-") as folder:
        make_pristine(Path(folder))
        for name in chosen:
            if name in skipped:
                continue
            began = time.monotonic()
            problems = problems_of(name, Path(folder), given.seed)
            print(f"{'bad' if problems else 'ok '} {time.monotonic() - began:5.1f} s  {name}", flush=True)
            for problem in problems:
                print(f"    {problem}", flush=True)
            violations += bool(problems)
    print(f"{len(chosen) - len(skipped)} faults, {violations} with violations, {len(skipped)} not possible here")
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()

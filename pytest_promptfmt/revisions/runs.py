"""Both revisions rendered by the plugin itself, so that settings, clusters and categories are those of a test run.

The first writes snapshots and a baseline of its errors, the second is compared with them. Each runs pytest in a
separate process: where this system can fork, a copy of this one, which has loaded pytest once for both, since loading
takes longer than a few prompts.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final, NoReturn

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.outcome import BaselineEntry
from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.results.baseline import ERROR, read_entries, write_baseline
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.revisions.git import WORK_TREE, Repository, files_below
from pytest_promptfmt.revisions.source_changes import differences, unreadable
from pytest_promptfmt.revisions.task_changes import (
    Judgement,
    Unknown,
    as_comparison,
    judge,
    judge_other,
    unseen_clusters,
    without,
)
from pytest_promptfmt.revisions.task_rendering import RenderingPlan
from pytest_promptfmt.revisions.trees import Trees, moves, single_tasks
from pytest_promptfmt.revisions.unaffected import TASK_SUFFIXES
from pytest_promptfmt.revisions.versions import VersionFinding, changed_parts, counted_parts, version_gate
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.snapshots.content import COLUMNS
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.snapshots.paths import DIRECTORY, SUFFIX, decode_name, encode_name, snapshot_folder

_ENDED_WELL: Final = (0, 1, 5)  # all passed, some failed, no tests
_USAGE_ERROR: Final = 4
_PROMPTS_ALONE: Final = "not promptfmt_extraction and not promptfmt_scoring and not promptfmt_recording"


class RevisionError(PromptfmtError):
    """A revision whose tasks could not be run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RevisionComparison:
    """The result of the second revision against the first, as `--promptfmt-json` writes it.

    `unknown` are the tasks that may have changed, `same` those that are written differently and gave the same text:
    name of the task to the difference and the number of docs. `unaffected` counts the task files that were not
    rendered, because none of their inputs changed. `versions` are changes of prompts and of versions that fit together,
    and those that do not.
    """

    old: str
    new: str
    result: Mapping[str, Any]
    unknown: Sequence[Unknown] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    unaffected: int = 0
    versions: tuple[VersionFinding, ...] = ()


def compare_revisions(
    old: str,
    new: str | None,
    *,
    paths: Sequence[str] = (),
    tasks: Sequence[str] = (),
    options: Sequence[str] = (),
    findings: bool = False,
) -> RevisionComparison:
    """Return what changed from revision `old` to `new`, or to the work tree where `new` is None.

    `paths` are relative to the working directory, `tasks` globs, `options` for pytest. With `findings`, findings that
    are new count too, and how answers are read. Raises GitError where git gives no answer, RevisionError where pytest
    fails, SettingsError for a revision that git does not know, and for a path or glob that neither side has.
    """
    here = Path.cwd().resolve()
    repository = Repository.around(here)
    inside = here.relative_to(repository.top)
    wanted = [_path_below(path, here, repository.top) for path in paths]
    commits = repository.commit(old), None if new is None else repository.commit(new)
    with TemporaryDirectory(prefix="promptfmt-") as folder, _without_collector():
        trees = Trees(repository, commits, Path(folder).resolve())
        for tree in (trees.before, trees.after):
            (tree / inside).mkdir(parents=True, exist_ok=True)
        for path in wanted:
            if not trees.has(path):
                raise SettingsError(f"neither revision has {path}", hint=did_you_mean(path.name, trees.beside(path)))
        sides = _Sides(trees, inside, wanted, tasks)
        globs = [word for glob in tasks for word in ("--promptfmt-task", glob)]
        result, unrendered, judgement = sides.compared([*globs, *options], findings=findings)
        comparison = as_comparison(result, old=old, new=new or WORK_TREE, unrendered_before=unrendered)
        comparison["command"] = shlex.join(["promptfmt", "diff", old, *([] if new is None else [new])])
        versions = version_gate(
            trees.before / inside,
            trees.after / inside,
            changed_parts(comparison["clusters"]),
            files=sides.old_names(result["defined"]),
            counts=counted_parts(trees.before / inside),
            differences=sides.differences,
            unknown=[
                *(each.task for each in judgement.unknown),
                *(each.task for each in judgement.changed if each.section == COLUMNS),
            ],
            unrendered={task for tasks in result["unrendered"].values() for task in tasks},
        )
        return RevisionComparison(
            old=old,
            new=new or WORK_TREE,
            result=comparison,
            unknown=judgement.unknown,
            same=judgement.same,
            unaffected=len(single_tasks({name: trees.sources[name] for name in trees.unaffected})),
            versions=versions,
        )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch the garbage collector off, which would walk the facts about thousands of files over and over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Sides:
    """Both trees, checked out; the second run gets the snapshots of the first."""

    def __init__(self, trees: Trees, inside: Path, paths: Sequence[PurePosixPath], tasks: Sequence[str]) -> None:
        self._before, self._after, self._inside, self._paths = trees.before, trees.after, inside, paths
        self._moves = dict(moves(trees))
        # A glob that no plain task matches may name a group; if not, the run reports it.
        names = [source.name for source in single_tasks(trees.sources).values()]
        self._all_match = all(any(fnmatchcase(name, glob) for name in names) for glob in tasks)
        if not self._all_match:
            trees.lay_out_all()
        self.unaffected = trees.unaffected
        moved = {new_file: old_file for old_file, new_file in self._moves.values()}
        affected = trees.sources.keys() - trees.unaffected
        # A task of a YAML file comes after a class of the same name: only a run shows whether that is a task.
        touched = (name for name in (*sorted(trees.modules), *sorted(affected)) if self._is_wanted(PurePosixPath(name)))
        found = differences(self._before, self._after, {name: moved.get(name, name) for name in touched})
        changed = {name for name in trees.changed if self._is_wanted(PurePosixPath(name))}
        both = sorted(changed & trees.blobs[0].keys() & trees.blobs[1].keys())
        written = {name: name for name in both if name.endswith(TASK_SUFFIXES)}
        self._unreadable = dict(unreadable(self._before, self._after, written))
        self._others = [name for name in both if name not in written]
        globs = [glob.partition("@")[0] for glob in tasks] if self._all_match else []
        self.differences = [each for each in found if not globs or any(fnmatchcase(each.new.name, g) for g in globs)]

    def old_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return files of the second tree with their names in the first, below the working directory."""
        moved = {self._below_cwd(new): self._below_cwd(old) for old, new in self._moves.values()}
        return {name: moved.get(name, name) for name in names}

    def _is_wanted(self, name: PurePosixPath) -> bool:
        """Return whether a file is below the paths that are compared."""
        return any(name.is_relative_to(path) for path in self._paths or (PurePosixPath(self._inside.as_posix()),))

    def compared(self, options: Sequence[str], *, findings: bool) -> tuple[dict[str, Any], set[str], Judgement]:
        """Return the result of the second tree, tasks of the first that could not be rendered, and a judgement.

        Those tasks are names, or files if no task is known.
        """
        baseline = self._before.with_name("baseline.jsonl")
        common = [] if findings else ["-o", "promptfmt_lint=false", "-m", _PROMPTS_ALONE]
        common += options
        # With an equals sign, or pytest would collect the file as a path and search the rootdir above it.
        common += [f"--promptfmt-baseline={baseline}", "--promptfmt-snapshots=all"]
        first = self._run(self._before, [*common, "--promptfmt-baseline-update=write", "--snapshot-update"])
        entries = read_entries(baseline) if baseline.exists() else ()
        write_baseline([self._followed(entry) for entry in entries], baseline)
        rendered = [*self._rendered(first)]
        self._hand_over()
        # The first revision decides which code may run and what may be downloaded.
        second = self._run(self._after, [*common, f"--promptfmt-trust={self._before / self._inside}"])
        if not self._all_match and second["unmatched"] and first["unmatched"]:
            raise SettingsError(second["unmatched"][0])
        second["removed"] = [prompt for prompt in rendered if self._is_removed(prompt, second["defined"])]
        errors = [entry for entry in entries if entry.code == ERROR]
        unrendered = {task for tasks in first["unrendered"].values() for task in tasks}
        judgement = self._judged(second, errors)
        return second, unrendered | {entry.task or entry.file for entry in errors}, judgement

    def _judged(self, result: dict[str, Any], errors: Sequence[BaselineEntry]) -> Judgement:
        """Return the verdicts on tasks that are written differently; changes that no snapshot shows join the result."""
        judgement = Judgement()
        members = [
            member
            for cluster in result["clusters"]
            if cluster["category"] not in ("obsolete", "header-only")
            for member in cluster["members"]
        ]
        shown = {member["task"] for member in members}
        reasons = {entry.task: entry.message for entry in errors}
        for skipped in result["skipped"]:
            reasons.update(dict.fromkeys(skipped["tasks"], skipped["reason"]))
        for difference in self.differences:
            file = self._below_cwd(difference.file)
            if file.endswith(".py") and difference.new.name not in result["defined"].get(file, ()):
                continue  # no task
            name = difference.new.name
            tasks = [task for task in result["defined"].get(file, ()) if task.partition("@")[0] == name]
            for task in dict.fromkeys(tasks or [name]):
                renderings = self._renderings(self._before), self._renderings(self._after)
                reason = reasons.get(task) or reasons.get(name, "")
                is_shown = bool(shown & {task, name})
                judge(judgement, replace(difference, file=file), task, renderings, shown=is_shown, reason=reason)
        for name, (task, failure) in self._unreadable.items():
            file = self._below_cwd(name)
            step = f"pytest --promptfmt {file} shows what stops it"
            reason = f"the file changed, and neither side can be read: {failure}"
            judgement.unknown.append(Unknown(task, file, reason, step))
        named = {each.file for each in judgement.unknown} | {each.file for each in judgement.changed}
        named |= {member["file"] for member in members}
        failed = {entry.file: entry for entry in errors}
        for name in self._others:
            file = self._below_cwd(name)
            tasks = [*result["defined"].get(file, ()), *([failed[file].task or file] if file in failed else [])]
            if tasks and file not in named:
                whys = [reasons[task] for task in tasks if task in reasons]
                why = whys[0] if whys else failed[file].message if file in failed else ""
                judge_other(judgement, tasks[0], file, (self._before / name, self._after / name), why)
        result["clusters"] = [*without(result["clusters"], judgement.only_names), *unseen_clusters(judgement.changed)]
        return judgement

    def _renderings(self, tree: Path) -> Path:
        return tree.with_name(f"{tree.name}.renderings")

    def _planned(self, tree: Path) -> list[str]:
        """Write the plan for a run to render the tasks that are written differently, and return its options."""
        if not self.differences:
            return []
        is_first = tree == self._before
        folder, other = self._renderings(tree), "" if is_first else str(self._renderings(self._before))
        folder.mkdir()
        plans = {
            each.new.name: asdict(
                RenderingPlan(
                    top=str(tree),
                    folder=str(folder),
                    other=other,
                    words=each.words(),
                    parts=each.parts(each.old if is_first else each.new),
                )
            )
            for each in self.differences
        }
        plan = tree.with_name(f"{tree.name}.plan")
        plan.write_text(json.dumps(plans), "utf-8", errors="surrogateescape")
        return ["-p", "pytest_promptfmt.plugin.items.rendering_items", f"--promptfmt-renderings={plan}"]

    def _run(self, tree: Path, options: Sequence[str]) -> dict[str, Any]:
        """Run pytest in a tree, for the paths that it has, and return the result with paths below the tree."""
        known = [os.path.relpath(tree / path, tree / self._inside) for path in self._paths if (tree / path).exists()]
        if self._paths and not known:
            none: dict[str, Any] = {"counts": {}, "clusters": [], "findings": [], "skipped": []}
            return {**none, "unrendered": {}, "unmatched": [], "defined": {}}
        left_out, result = tree.with_name(f"{tree.name}.left-out"), tree.with_name(f"{tree.name}.json")
        left_out.write_bytes(b"\0".join(os.fsencode(f"{tree}{os.sep}{name}") for name in sorted(self.unaffected)))
        outputs = [
            "--promptfmt-snapshots-beside",
            f"--promptfmt-json={result}",
            f"--promptfmt-leave-out={left_out}",
            *self._planned(tree),
        ]
        _run_pytest(tree / self._inside, [*outputs, *options], known)
        if not result.exists():
            raise RevisionError("pytest wrote no result; does a conftest.py of this revision disable its summary?")
        text = result.read_text("utf-8", "surrogateescape").replace(f"{tree}{os.sep}", "")
        found: dict[str, Any] = json.loads(text)
        if found["not_run"]:
            failed = f"{counted(len(found['not_run']), 'test')}, such as {found['not_run'][0]}"
            raise RevisionError(
                f"pytest could not set up {failed}",
                hint="run pytest --promptfmt to see why; perhaps a conftest.py or a plugin",
            )
        return found

    def _followed(self, entry: BaselineEntry) -> BaselineEntry:
        """Return the entry of a baseline where the file of its task is now."""
        old, new = self._moves.get(entry.task, ("", ""))
        return replace(entry, file=self._below_cwd(new)) if entry.file == self._below_cwd(old) else entry

    def _hand_over(self) -> None:
        """Move snapshots and locks that the first run wrote to where the second looks for them.

        Those of a task whose file has moved go where that file is now: it is still the same task.
        """
        for name in [*files_below(self._before)]:
            if PurePosixPath(name).name == LOCK_NAME:
                target = self._after / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._before / name, target)
        for folder in [*self._before.rglob(DIRECTORY)]:
            target = self._after / folder.relative_to(self._before)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(str(folder), str(target))
        for task, (old, new) in self._moves.items():
            source = snapshot_folder(self._after / old)
            for folder in [*source.iterdir()] if source.is_dir() else ():
                name = decode_name(folder.name)
                target = snapshot_folder(self._after / new) / folder.name
                if (name == task or name.startswith(f"{task}@")) and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(str(folder), str(target))

    def _rendered(self, result: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        """Yield task, profile and file of the prompts that were rendered of the first tree."""
        for file, tasks in result["defined"].items():
            for task in dict.fromkeys(tasks):
                snapshots = snapshot_folder(self._before / self._inside / file) / encode_name(task)
                for path in sorted(snapshots.glob(f"*{SUFFIX}")):
                    yield {"task": task, "profile": decode_name(path.name.removesuffix(SUFFIX)), "file": file}

    def _is_removed(self, prompt: Mapping[str, str], defined: Mapping[str, Sequence[str]]) -> bool:
        """Return whether no file of the second tree defines a task; an unreadable file may define it."""
        file = self._below_cwd(self._moves[prompt["task"]][1]) if prompt["task"] in self._moves else prompt["file"]
        if file in defined:
            return prompt["task"] not in defined[file]
        return not (self._after / self._inside / file).exists()

    def _below_cwd(self, name: str) -> str:
        below = "" if self._inside == Path() else f"{self._inside.as_posix()}/"
        return name.removeprefix(below)


def _path_below(path: str, here: Path, top: Path) -> PurePosixPath:
    absolute = Path(os.path.normpath(here / path))
    if not absolute.is_relative_to(top):
        raise SettingsError(f"{path} is outside the repository {display_path(top)}")
    return PurePosixPath(absolute.relative_to(top).as_posix())


def _run_pytest(folder: Path, options: Sequence[str], paths: Sequence[str]) -> None:
    """Run pytest in a folder. Raises RevisionError where it did not finish, SettingsError for wrong options."""
    # No ordinary tests, and none of the project's addopts, which are meant for these.
    quiet = ["-o", "python_files=", "-o", "addopts=", "-p", "no:cacheprovider", "-W", "ignore"]
    quiet += ["-q", "-q", "--no-header", "--tb=no", "--color=no"]
    # Without the variables of a CI job, so that no summary or annotation is written twice.
    left_out = {"PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    done = _pytest_process(folder, ["--promptfmt", *quiet, *options, *paths], environment)
    if done.returncode == _USAGE_ERROR:
        output = done.stderr.decode("utf-8", "replace").strip()
        raise SettingsError(output.removeprefix("ERROR: ").removeprefix("promptfmt: ")[-2000:])
    if done.returncode not in _ENDED_WELL:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise RevisionError(f"pytest ended with {done.returncode}: {output[-2000:]}")


# -- the process of pytest ---------------------------------------------------------------------------------------------


def _pytest_process(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Return how pytest ended in a folder, with what it printed."""
    if not _can_be_copied():
        command = [sys.executable, *(["-P"] if _is_safe() else []), "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, env=environment)
    _load(is_bare="PYTEST_DISABLE_PLUGIN_AUTOLOAD" in environment)
    with TemporaryFile() as output, TemporaryFile() as errors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: that of a spinner holds no lock of ours
            child = os.fork()
        if child == 0:
            _be_pytest(folder, arguments, environment, (output, errors))
        _, status = os.waitpid(child, 0)
        texts = [_read(file) for file in (output, errors)]
    return subprocess.CompletedProcess(["pytest"], os.waitstatus_to_exitcode(status), *texts)


@cache
def _can_be_copied() -> bool:
    """Return whether this process may be forked: pytest, and code of a project, have not run in it yet."""
    return CAN_FORK and "pytest" not in sys.modules


def _is_safe() -> bool:
    """Return whether modules in the folder of a run are not imported: with `python -P`, and where no code may run."""
    return sys.flags.safe_path or not gate.allows_code()


@cache
def _load(*, is_bare: bool) -> None:
    """Import pytest and the modules that it would load itself; the run reports those that cannot be imported."""
    from_pytest = [f"_pytest.{name}" for name in import_module("_pytest.config").default_plugins]
    named = [] if is_bare else [each.module for each in entry_points(group="pytest11")]
    for name in ("pytest", *from_pytest, *named, "pytest_promptfmt.plugin.session"):
        with suppress(Exception):
            import_module(name)
    known_rules()


def _be_pytest(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], outputs: tuple[IO[bytes], IO[bytes]]
) -> NoReturn:
    status = 1
    try:
        for number, file in enumerate(outputs, start=1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        pytest = import_module("pytest")
        sys.argv = [str(Path(str(pytest.__file__)).with_name("__main__.py")), *arguments]
        sys.path[: 0 if sys.flags.safe_path else 1] = [] if _is_safe() else [str(folder)]
        gc.freeze()
        gc.enable()
        status = int(pytest.main([*arguments]))
    except BaseException:  # noqa: BLE001, RUF100  # it must not unwind into the copy of the caller
        with suppress(BaseException):
            traceback.print_exc()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()

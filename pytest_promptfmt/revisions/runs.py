"""Both revisions rendered by the plugin itself, so that settings, clusters and categories are those of a test run.

The first writes snapshots and a baseline of its errors, the second is compared with them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

from pytest_promptfmt.core.errors import SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.outcome import CATEGORIES, BaselineEntry
from pytest_promptfmt.results.baseline import ERROR, read_entries, write_baseline
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.revisions.git import WORK_TREE, Repository, RevisionError, files_below
from pytest_promptfmt.revisions.rewritten import rewritten
from pytest_promptfmt.revisions.unaffected import (
    TaskSource,
    changed_files,
    single_tasks,
    sources_below,
    unaffected_files,
)
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.snapshots.paths import DIRECTORY, SUFFIX, decode_name, encode_name, snapshot_folder

_ENDED_WELL: Final = (0, 1, 5)  # all passed, some failed, no tests
_USAGE_ERROR: Final = 4
_PROMPTS_ALONE: Final = "not promptfmt_extraction and not promptfmt_scoring and not promptfmt_recording"
_SIDES: Final = re.compile(r"^--- .*\n\+\+\+ now$", re.MULTILINE)
_SHOWN_OF_NEW: Final = ("+", "…")
"""Lines of the text about a missing snapshot that show the prompts; the first names the format of the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The result of the second revision against the first, as `--promptfmt-json` writes it.

    `rewritten` are tasks that could not be rendered, but whose keys about prompts changed: name of the task to those
    keys. `unaffected` is how many task files were not rendered, because nothing that their prompts depend on changed.
    """

    old: str
    new: str
    result: Mapping[str, Any]
    rewritten: Mapping[str, Sequence[str]]
    unaffected: int = 0


def compare_revisions(
    old: str,
    new: str | None,
    *,
    paths: Sequence[str] = (),
    tasks: Sequence[str] = (),
    options: Sequence[str] = (),
    checks: bool = False,
) -> Comparison:
    """Return what changed from revision `old` to `new`, or to the work tree where `new` is None.

    `paths` are relative to the working directory, `tasks` globs, `options` for pytest. With `checks`, findings that
    are new count too, and how answers are read. Raises RevisionError where git or pytest fails, SettingsError for a
    revision that git does not know, and for a path or glob that neither side has.
    """
    here = Path.cwd().resolve()
    repository = Repository.around(here)
    inside = here.relative_to(repository.top)
    wanted = [_path_below(path, here, repository.top) for path in paths]
    commits = repository.commit(old), None if new is None else repository.commit(new)
    with TemporaryDirectory(prefix="promptfmt-") as folder:
        scratch = Path(folder).resolve()
        before, after = scratch / "a", scratch / "b"
        repository.lay_out(commits[0], before)
        if commits[1] is None:
            repository.copy_work_tree(after)
        else:
            repository.lay_out(commits[1], after)
        for tree in (before, after):
            _remove_snapshots(tree)
            (tree / inside).mkdir(parents=True, exist_ok=True)
        _check_paths(wanted, before, after)
        sides = _Sides(before, after, inside, wanted, tasks)
        globs = [word for glob in tasks for word in ("--promptfmt-task", glob)]
        result, unrendered = sides.compared([*globs, *options], checks=checks)
        comparison = as_comparison(result, old=old, new=new or WORK_TREE, unrendered_before=unrendered)
        comparison["command"] = shlex.join(["promptfmt", "diff", old, *([] if new is None else [new])])
        files = sides.old_names(result["unrendered"])
        return Comparison(
            old=old,
            new=new or WORK_TREE,
            result=comparison,
            rewritten=dict(rewritten(before / inside, after / inside, files)),
            unaffected=len(sides.unaffected),
        )


class _Sides:
    """Both trees, checked out; the second run gets the snapshots of the first."""

    def __init__(
        self, before: Path, after: Path, inside: Path, paths: Sequence[PurePosixPath], tasks: Sequence[str]
    ) -> None:
        self._before, self._after, self._inside, self._paths = before, after, inside, paths
        changed = changed_files(before, after)
        old, new = sources_below(before, changed), sources_below(after, files_below(after))
        words = {
            name: frozenset[str]().union(*(side[name].texts for side in (old, new) if name in side)) for name in changed
        }
        sources, earlier = single_tasks(new), single_tasks(old)
        self._moves = dict(_moves(before, earlier, sources))
        # A glob that no plain task matches may be meant for a group; if not, the run has to report it.
        self._all_match = all(any(fnmatchcase(source.name, glob) for source in sources.values()) for glob in tasks)
        self.unaffected = unaffected_files(after, words, sources, earlier) if self._all_match else frozenset[str]()

    def compared(self, options: Sequence[str], *, checks: bool) -> tuple[dict[str, Any], set[str]]:
        """Return the result of the second tree, and which tasks and files of the first could not be rendered."""
        baseline = self._before.with_name("baseline.jsonl")
        common = [] if checks else ["-o", "promptfmt_lint=false", "-m", _PROMPTS_ALONE]
        common += options
        # With an equals sign, or pytest would collect the file as a path and search the rootdir above it.
        common += [f"--promptfmt-baseline={baseline}"]
        first = self._run(self._before, [*common, "--promptfmt-baseline-update=write", "--snapshot-update"])
        entries = read_entries(baseline) if baseline.exists() else ()
        write_baseline([self._followed(entry) for entry in entries], baseline)
        rendered = [*self._rendered(first)]
        self._hand_over()
        # What may run or be downloaded is not up to the revision that is looked at.
        second = self._run(self._after, [*common, f"--promptfmt-trust={self._before / self._inside}"])
        if not self._all_match and second["unmatched"] and first["unmatched"]:
            raise SettingsError(second["unmatched"][0])
        second["removed"] = [prompt for prompt in rendered if self._is_removed(prompt, second["defined"])]
        errors = [entry for entry in entries if entry.code == ERROR]
        unrendered = {task for tasks in first["unrendered"].values() for task in tasks}
        return second, unrendered | {entry.task or entry.file for entry in errors}

    def _run(self, tree: Path, options: Sequence[str]) -> dict[str, Any]:
        """Run pytest in a tree, for the paths that it has, and return the result with paths below the tree."""
        known = [os.path.relpath(tree / path, tree / self._inside) for path in self._paths if (tree / path).exists()]
        if self._paths and not known:
            none: dict[str, Any] = {"counts": {}, "clusters": [], "findings": [], "skipped": []}
            return {**none, "unrendered": {}, "unmatched": [], "defined": {}}
        left_out, result = tree.with_name(f"{tree.name}.left-out"), tree.with_name(f"{tree.name}.json")
        left_out.write_bytes(b"\0".join(os.fsencode(tree / name) for name in sorted(self.unaffected)))
        outputs = [f"--promptfmt-json={result}", f"--promptfmt-leave-out={left_out}"]
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

    def old_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return the files of the second tree to what they were called in the first."""
        moved = {self._below_cwd(new): self._below_cwd(old) for old, new in self._moves.values()}
        return {name: moved.get(name, name) for name in names}

    def _below_cwd(self, name: str) -> str:
        below = "" if self._inside == Path() else f"{self._inside.as_posix()}/"
        return name.removeprefix(below)


def _moves(
    before: Path, earlier: Mapping[str, TaskSource], sources: Mapping[str, TaskSource]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the tasks that another file defines now: name of the task to the old and new file."""
    now: dict[str, list[str]] = {}
    then: dict[str, list[str]] = {}
    for found, names in ((sources, now), (earlier, then)):
        for name, source in found.items():
            names.setdefault(source.name, []).append(name)
    for task, files in then.items():
        new = now.get(task, [])
        if len(files) == len(new) == 1 and files != new and not (before / new[0]).exists():
            yield task, (files[0], new[0])


def _path_below(path: str, here: Path, top: Path) -> PurePosixPath:
    absolute = Path(os.path.normpath(here / path))
    if not absolute.is_relative_to(top):
        raise SettingsError(f"{path} is outside the repository {display_path(top)}")
    return PurePosixPath(absolute.relative_to(top).as_posix())


def _check_paths(paths: Sequence[PurePosixPath], before: Path, after: Path) -> None:
    for path in paths:
        if not any((tree / path).exists() for tree in (before, after)):
            names = {entry.name for tree in (before, after) for entry in (tree / path).parent.glob("*")}
            raise SettingsError(f"neither revision has {path}", hint=did_you_mean(path.name, names))


def _remove_snapshots(tree: Path) -> None:
    for folder in [*tree.rglob(DIRECTORY)]:
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)


def _run_pytest(folder: Path, options: Sequence[str], paths: Sequence[str]) -> None:
    """Run pytest in a folder. Raises RevisionError where it did not finish, SettingsError for wrong options."""
    # No ordinary tests, and none of the options that a project always passes: those are about running tests.
    quiet = ["-o", "python_files=", "-o", "addopts=", "-p", "no:cacheprovider", "-W", "ignore"]
    quiet += ["-q", "-q", "--no-header", "--tb=no", "--color=no"]
    command = [sys.executable, "-m", "pytest", "--promptfmt", *quiet, *options, *paths]
    done = subprocess.run(command, cwd=folder, capture_output=True, env=_environment())
    if done.returncode == _USAGE_ERROR:
        output = done.stderr.decode("utf-8", "replace").strip()
        raise SettingsError(output.removeprefix("ERROR: ").removeprefix("promptfmt: ")[-2000:])
    if done.returncode not in _ENDED_WELL:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise RevisionError(f"pytest ended with {done.returncode}: {output[-2000:]}")


def _environment() -> dict[str, str]:
    """Return the environment without the variables of a CI job, so that no summary or annotation is written twice."""
    left_out = {"PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def as_comparison(
    result: Mapping[str, Any], *, old: str, new: str, unrendered_before: Collection[str]
) -> dict[str, Any]:
    """Return the result with clusters that name tasks instead of snapshot files, and the revisions.

    `result["removed"]` are the prompts of tasks that no file defines any more. `unrendered_before` are tasks, or files,
    that the old revision has and that could not be rendered there: they are new only in that they render now.
    """
    old, new = short_name(old), short_name(new)
    clusters: list[dict[str, Any]] = []
    renamed: list[dict[str, str]] = []
    for cluster in result["clusters"]:
        if cluster["category"] == "renamed":
            renamed += _renamed(cluster)
        elif cluster["category"] == "new":
            clusters += _new(cluster, old, unrendered_before)
        elif cluster["category"] != "obsolete":
            detail = _SIDES.sub(lambda _match: f"--- {old}\n+++ {new}", cluster["detail"])
            detail = detail.removeprefix(cluster["title"]).lstrip("\n")  # of an error the hint is left
            clusters.append({**cluster, "detail": detail})
    found_again = {(prompt["old"], prompt["profile"]) for prompt in renamed}
    removed = [prompt for prompt in result["removed"] if (prompt["task"], prompt["profile"]) not in found_again]
    if renamed:
        members = [{name: prompt[name] for name in ("task", "profile", "file")} for prompt in renamed]
        clusters.append(_cluster("renamed", "the same prompts under another name", members))
    if removed:
        clusters.append(_cluster("obsolete", f"tasks that {new} does not have", removed))
    counts = {name: count for name, count in result["counts"].items() if name not in CATEGORIES}
    for cluster in clusters:
        counts[cluster["category"]] = counts.get(cluster["category"], 0) + cluster["items"]
    clusters.sort(key=lambda cluster: (CATEGORIES.index(cluster["category"]), -cluster["items"]))
    kept = {name: value for name, value in result.items() if name not in ("removed", "defined", "unmatched")}
    return {**kept, "counts": dict(sorted(counts.items())), "clusters": clusters}


def short_name(revision: str) -> str:
    """Return a short form of a revision: of a whole commit id the first characters."""
    return revision[:10] if len(revision) >= 40 and not revision.strip("0123456789abcdef") else revision


def _renamed(cluster: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    path = PurePosixPath(cluster["title"].removeprefix("renamed ").partition(" → ")[0])
    old = decode_name(path.parent.name)
    for member in cluster["members"]:
        yield {**member, "old": old, "task": f"{old} → {member['task']}"}


def _new(cluster: Mapping[str, Any], old: str, unrendered: Collection[str]) -> Iterator[dict[str, Any]]:
    sides: dict[str, list[dict[str, str]]] = {}
    for member in cluster["members"]:
        name = member["task"].partition("@")[0]
        was_there = member["task"] in unrendered or name in unrendered or member["file"] in unrendered
        title = f"tasks that could not be rendered in {old}" if was_there else f"tasks that {old} does not have"
        sides.setdefault(title, []).append(member)
    shown = [line for line in cluster["detail"].splitlines() if line[:1] in _SHOWN_OF_NEW][1:]
    for title, members in sides.items():
        # The text is that of the first of all; where that is not among these, they have none.
        has_text = members[0] == cluster["members"][0]
        yield _cluster("new", title, members, detail="\n".join(shown) if has_text else "")


def _cluster(category: str, title: str, members: Iterable[Mapping[str, str]], *, detail: str = "") -> dict[str, Any]:
    # The first is the one whose text is shown.
    first, *others = members
    listed = [first, *sorted(others, key=lambda member: (member["task"], member["profile"]))]
    tasks = len({member["task"] for member in listed})
    head = {"category": category, "title": title, "detail": detail, "docs": 0}
    return {**head, "items": len(listed), "tasks": tasks, "members": listed}

"""Both revisions rendered by the plugin itself, so that settings, clusters and categories are those of a test run.

The first writes snapshots and a baseline of its errors, the second is compared with them.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.outcome import BaselineEntry
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.results.baseline import ERROR, read_entries, write_baseline
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.revisions.affected import TASK_SUFFIXES, single_tasks
from pytest_promptfmt.revisions.git import WORK_TREE, Repository, files_below
from pytest_promptfmt.revisions.pytest_process import MEMBERS, RevisionError, run_pytest
from pytest_promptfmt.revisions.source_changes import differences, unreadable
from pytest_promptfmt.revisions.task_changes import as_comparison, short_name, unseen_clusters, without
from pytest_promptfmt.revisions.task_rendering import RenderingPlan
from pytest_promptfmt.revisions.trees import Renaming, Trees, renamings
from pytest_promptfmt.revisions.verdicts import SOME_DOCS, Judgement, Place, Unknown, judge, judge_other
from pytest_promptfmt.revisions.versions import VersionFinding, changed_parts, counted_parts, repeated, version_gate
from pytest_promptfmt.snapshots.content import COLUMNS
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.snapshots.paths import BESIDE, DIRECTORY, SUFFIX, decode_name, encode_name
from pytest_promptfmt.systems import systems_for

_PROMPTS_ALONE: Final = "not promptfmt_extraction and not promptfmt_scoring and not promptfmt_recording"


@dataclass(frozen=True, kw_only=True, slots=True)
class RevisionComparison:
    """The result of the second revision against the first, as `--promptfmt-json` writes it.

    `unknown` are the tasks that may have changed, `same` those that are written differently and gave the same text:
    name of the task to the difference and the number of docs. `other_docs` are those whose docs come from elsewhere:
    name of the task to the keys. `unaffected` counts the task files that were not
    rendered, because none of their inputs changed. `pointers` are files of Git LFS whose content this clone does not
    have. `versions` are changes of prompts and of versions that fit together, and those that do not.
    """

    old: str
    new: str
    result: Mapping[str, Any]
    unknown: Sequence[Unknown] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    other_docs: Mapping[str, str] = field(default_factory=dict)
    unaffected: int = 0
    pointers: Sequence[str] = ()
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
    names = f"{short_name(old)}:", f"{repository.top}{os.sep}" if new is None else f"{short_name(new)}:"
    with TemporaryDirectory(prefix="promptfmt-") as folder, _without_collector(), _naming_sides(Path(folder), names):
        trees = Trees(repository, commits, Path(folder).resolve(), may_be_empty=not options)  # else pytest checks them
        for tree in (trees.before, trees.after):
            (tree / inside).mkdir(parents=True, exist_ok=True)
        for path in wanted:
            if not trees.has(path):
                hint = (
                    did_you_mean(path.name, trees.beside(path))
                    or f"to find the commits with this path: `git log --all -- {path}`"
                )
                raise SettingsError(f"{path} is in neither revision", hint=hint)
        sides = _Sides(trees, inside, wanted, tasks)
        pointers = trees.pointers()
        globs = [word for glob in tasks for word in ("--promptfmt-task", glob)]
        result, unrendered, judgement = sides.compared([*globs, *options], findings=findings)
        comparison = as_comparison(result, old=old, new=new or WORK_TREE, unrendered_before=unrendered)
        versions = version_gate(
            trees.before / inside,
            trees.after / inside,
            changed_parts(comparison["clusters"]),
            files=sides.old_names(result["defined"]),
            counts=counted_parts(trees.before / inside),
            differences=[replace(each, file=sides.below_cwd(each.file)) for each in sides.differences],
            unknown=[
                *((each.file, each.task) for each in judgement.unknown),
                *((each.file, each.task) for each in judgement.changed if each.section in (COLUMNS, SOME_DOCS)),
                *judgement.other_docs,
            ],
            unrendered={(file, task) for file, tasks in result["unrendered"].items() for task in tasks},
        )
        return RevisionComparison(
            old=old,
            new=new or WORK_TREE,
            result=comparison,
            unknown=judgement.unknown,
            same=_labelled(judgement.same, result["defined"]),
            other_docs=_labelled(judgement.other_docs, result["defined"]),
            unaffected=len(trees.unaffected & single_tasks(trees.affected.named).keys()),
            pointers=pointers,
            versions=versions,
        )


def _labelled(notes: Mapping[Place, str], defined: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return notes by the names of tasks, with the file of each name that several files define."""
    several = repeated((file, name) for file, names in defined.items() for name in names)
    return {f"{name} ({file})" if name in several else name: note for (file, name), note in notes.items()}


@contextmanager
def _naming_sides(scratch: Path, names: tuple[str, str]) -> Iterator[None]:
    """Name files of both trees in errors as git does, `HEAD:promptfmt.yaml`; those of the work tree by their path."""
    try:
        yield
    except PromptfmtError as error:
        for side, name in zip("ab", names, strict=True):
            tree = f"{scratch.resolve() / side}{os.sep}"
            error.message = error.message.replace(tree, name)
            if error.position is not None:
                error.position = replace(error.position, path=Path(str(error.position.path).replace(tree, name)))
        raise


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
        self._trees, self._before, self._after = trees, trees.before, trees.after
        self._inside, self._paths = inside, paths
        self._renamings = {
            (self.below_cwd(file), task): each
            for (file, task), each in renamings(trees).items()
            if task == each.task or all(self._is_wanted(PurePosixPath(file)) for file in each[:2])
        }
        names = single_tasks(trees.affected.named).values()
        # A glob that no plain task matches may name a group; if not, the run reports it.
        self._all_match = all(any(fnmatchcase(name, glob) for name in names) for glob in tasks)
        if not self._all_match:
            trees.lay_out_all()
        self._moved = {each.new_file: each.old_file for each in self._renamings.values()}
        # A task of a YAML file comes after a class of the same name: only a run shows whether that is a task.
        touched = (
            name
            for name in (*sorted(trees.affected.modules), *sorted(trees.affected.names))
            if self._is_wanted(PurePosixPath(name))
        )
        found = differences(self._before, self._after, {name: self._moved.get(name, name) for name in touched})
        changed = {name for name in trees.changed if self._is_wanted(PurePosixPath(name))}
        both = sorted(changed & trees.blobs[0].keys() & trees.blobs[1].keys())
        written = {name: name for name in both if name.endswith(TASK_SUFFIXES)}
        self._unreadable = dict(unreadable(self._before, self._after, written))
        self._others = [name for name in both if name not in written]
        globs = [glob.partition("@")[0] for glob in tasks] if self._all_match else []
        self.differences = [each for each in found if not globs or any(fnmatchcase(each.new.name, g) for g in globs)]

    def old_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return files of the second tree with their names in the first, below the working directory."""
        moved = {self.below_cwd(new): self.below_cwd(old) for new, old in self._moved.items()}
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
        second["followed"] = [self._now(prompt) for prompt in rendered]
        second["removed"] = [
            prompt
            for prompt, now in zip(rendered, second["followed"], strict=True)
            if self._is_removed(now, second["defined"])
        ]
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
        shown = {(member["file"], member["task"]) for member in members}
        reasons = {entry.task: entry.message for entry in errors}
        for skipped in result["skipped"]:
            reasons.update(dict.fromkeys(skipped["tasks"], skipped["reason"]))
        for difference in self.differences:
            file = self.below_cwd(difference.file)
            if file.endswith(".py") and difference.new.name not in result["defined"].get(file, ()):
                continue  # no task
            name = difference.new.name
            tasks = [task for task in result["defined"].get(file, ()) if task.partition("@")[0] == name]
            for task in dict.fromkeys(tasks or [name]):
                renderings = [self._renderings(tree, difference.file) for tree in (self._before, self._after)]
                reason = reasons.get(task) or reasons.get(name, "")
                is_shown = bool(shown & {(file, task), (file, name)})
                judge(
                    judgement,
                    replace(difference, file=file),
                    task,
                    (renderings[0], renderings[1]),
                    shown=is_shown,
                    reason=reason,
                )
        for name, (task, failure) in self._unreadable.items():
            file = self.below_cwd(name)
            step = f"run pytest --promptfmt {file} to see the error"
            reason = f"the file changed, but it cannot be read in either revision: {failure}"
            judgement.unknown.append(Unknown(task, file, reason, step))
        named = {each.file for each in judgement.unknown} | {each.file for each in judgement.changed}
        named |= {member["file"] for member in members}
        failed = {entry.file: entry for entry in errors}
        for name in self._others:
            file = self.below_cwd(name)
            tasks = [*result["defined"].get(file, ()), *([failed[file].task or file] if file in failed else [])]
            if tasks and file not in named:
                whys = [reasons[task] for task in tasks if task in reasons]
                why = whys[0] if whys else failed[file].message if file in failed else ""
                judge_other(judgement, tasks[0], file, (self._before / name, self._after / name), why)
        result["clusters"] = [*without(result["clusters"], judgement.only_names), *unseen_clusters(judgement.changed)]
        return judgement

    def _renderings(self, tree: Path, file: str) -> Path:
        """Return the folder of the renderings of a file of the second tree: two files may define one name."""
        return tree.with_name(f"{tree.name}.renderings") / digest_of(os.fsencode(file))

    def _planned(self, tree: Path) -> list[str]:
        """Write the plan for a run to render the tasks that are written differently, and return its options."""
        if not self.differences:
            return []
        is_first = tree == self._before
        plans: dict[str, dict[str, Any]] = {}
        for each in self.differences:
            folder = self._renderings(tree, each.file)
            folder.mkdir(parents=True, exist_ok=True)
            file = self._moved.get(each.file, each.file) if is_first else each.file
            plans.setdefault(f"{tree}{os.sep}{file}", {})[each.new.name] = asdict(
                RenderingPlan(
                    top=str(tree),
                    folder=str(folder),
                    other="" if is_first else str(self._renderings(self._before, each.file)),
                    words=each.words(),
                    parts=each.parts(each.old if is_first else each.new),
                    rows=any(change.key == "process_docs" for change in each.changes),
                    scores=any(change.code for change in each.of("reading")),
                )
            )
        plan = tree.with_name(f"{tree.name}.plan")
        plan.write_text(json.dumps(plans), "utf-8", errors="surrogateescape")
        return ["-p", "pytest_promptfmt.plugin.items.command_items", f"--promptfmt-renderings={plan}"]

    def _run(self, tree: Path, options: Sequence[str]) -> dict[str, Any]:
        """Run pytest in a tree, for the paths that it has, and return the result with paths below the tree."""
        known = [os.path.relpath(tree / path, tree / self._inside) for path in self._paths if (tree / path).exists()]
        if self._trees.is_same or (self._paths and not known):
            none: dict[str, Any] = {"counts": {}, "clusters": [], "findings": [], "skipped": []}
            return {**none, "unrendered": {}, "unmatched": [], "defined": {}}
        left_out, result = tree.with_name(f"{tree.name}.left-out"), tree.with_name(f"{tree.name}.json")
        parts = {f"{name}{MEMBERS}" for name in self._trees.affected.partly}
        names = sorted({*self._trees.unaffected, *self._idle_folders(tree), *parts})
        left_out.write_bytes(b"\0".join(os.fsencode(f"{tree}{os.sep}{name}") for name in names))
        outputs = [
            "--promptfmt-snapshots-beside",
            f"--promptfmt-json={result}",
            f"--promptfmt-leave-out={left_out}",
            *self._planned(tree),
        ]
        run_pytest(tree / self._inside, [*outputs, *options], known)
        if not result.exists():
            raise RevisionError(
                "pytest wrote no result, perhaps because a conftest.py of this revision disables the summary of pytest"
            )
        text = result.read_text("utf-8", "surrogateescape").replace(f"{tree}{os.sep}", "")
        found: dict[str, Any] = json.loads(text)
        if found["not_run"]:
            raise RevisionError(
                f"{counted(len(found['not_run']), 'test')} did not run, such as {found['not_run'][0]}",
                hint="to see why, run pytest --promptfmt. The cause can be a conftest.py or a plugin",
            )
        return found

    def _idle_folders(self, tree: Path) -> Iterator[str]:
        """Yield the uppermost folders of a tree in which nothing is tested: pytest would search each of them."""
        files = self._trees.laid_out(tree) if self._trees.unaffected else ()
        folders = {PurePosixPath(name).parent for name in files}
        tested = {PurePosixPath(name).parent for name in files if self._may_be_tested(name)}
        known, entered = ({above for each in some for above in (each, *each.parents)} for some in (folders, tested))
        yield from (str(folder) for folder in known - entered if folder.parent in entered)

    def _may_be_tested(self, name: str) -> bool:
        if name.endswith(".py"):
            return name in self._trees.affected.modules or name.rpartition("/")[2] == "conftest.py"
        return name not in self._trees.unaffected and bool(systems_for(Path(name)))

    def _renamed(self, file: str, task_id: str) -> tuple[Renaming, str] | None:
        """Return where a task@format of the first side is now, and under which name; None where nothing changed.

        Its file is below the working directory.
        """
        for name in (task_id, task_id.rpartition("@")[0]):
            found = self._renamings.get((file, name))
            if found is not None:
                return found, found.task + task_id.removeprefix(name)
        return None

    def _followed(self, entry: BaselineEntry) -> BaselineEntry:
        """Return the entry of a baseline where its task is now."""
        found = self._renamed(entry.file, entry.task)
        if found is None:
            return entry
        return replace(entry, file=self.below_cwd(found[0].new_file), task=found[1])

    def _now(self, prompt: Mapping[str, str]) -> dict[str, str]:
        """Return a prompt of the first side with the name and file of its task now, and with the old ones."""
        found = self._renamed(prompt["file"], prompt["task"])
        now = {} if found is None else {"task": found[1], "file": self.below_cwd(found[0].new_file)}
        return {**prompt, "old": prompt["task"], "old_file": prompt["file"], **now}

    def _hand_over(self) -> None:
        """Move snapshots and locks that the first run wrote to where the second looks for them.

        Those of a task with another file or name now go where it is now: it is still the same task.
        """
        for name in [*files_below(self._before)]:
            if PurePosixPath(name).name == LOCK_NAME:
                target = self._after / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)  # it may be a hard link of the other one
                shutil.copyfile(self._before / name, target)
        for folder in [*self._before.rglob(DIRECTORY)]:
            target = self._after / folder.relative_to(self._before)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(str(folder), str(target))
        for old_file in dict.fromkeys(each.old_file for each in self._renamings.values()):
            source = BESIDE.folder(self._after / old_file)
            for folder in sorted(source.iterdir()) if source.is_dir() else ():
                found = self._renamed(self.below_cwd(old_file), decode_name(folder.name))
                if found is not None:
                    target = BESIDE.folder(self._after / found[0].new_file) / encode_name(found[1])
                    if not target.exists():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.move(str(folder), str(target))

    def _rendered(self, result: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        """Yield task, profile and file of the prompts that were rendered of the first tree."""
        for file, tasks in result["defined"].items():
            for task in dict.fromkeys(tasks):
                snapshots = BESIDE.folder(self._before / self._inside / file) / encode_name(task)
                for path in sorted(snapshots.glob(f"*{SUFFIX}")):
                    yield {"task": task, "profile": decode_name(path.name.removesuffix(SUFFIX)), "file": file}

    def _is_removed(self, now: Mapping[str, str], defined: Mapping[str, Sequence[str]]) -> bool:
        """Return whether no file of the second tree defines a task; an unreadable file may define it."""
        if now["file"] in defined:
            return now["task"] not in defined[now["file"]]
        return not (self._after / self._inside / now["file"]).exists()

    def below_cwd(self, name: str) -> str:
        """Return the name of a file of a tree below the working directory."""
        below = "" if self._inside == Path() else f"{self._inside.as_posix()}/"
        return name.removeprefix(below)


def _path_below(path: str, here: Path, top: Path) -> PurePosixPath:
    absolute = Path(os.path.normpath(here / path))
    if not absolute.is_relative_to(top):
        raise SettingsError(f"{path} is outside the repository {display_path(top)}")
    return PurePosixPath(absolute.relative_to(top).as_posix())

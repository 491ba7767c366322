"""Both sides of a comparison as folders, with the files that rendering may need, and the tasks that were renamed."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from pytest_promptfmt.revisions.affected import (
    IDLE_SUFFIXES,
    Affected,
    bytes_of,
    is_searched,
    is_setting,
    single_tasks,
)
from pytest_promptfmt.revisions.git import Repository, is_pointer, link_file, place_files
from pytest_promptfmt.snapshots.paths import DIRECTORY

_SIDECAR: Final = re.compile(r"\.docs(?:\.[^/]+)?\.jsonl$")
"""The end of the path of docs next to a task, or in the tree of docs."""


class Trees:
    """The folders `before` and `after`, and the known facts about the files of both sides.

    `affected` has the task files of the second side that a change may affect; `unaffected` are files that need no
    rendering. The folders, if they `may_be_empty`, have only settings where `is_same`: all tests have the same
    inputs on both sides.
    """

    def __init__(
        self, repository: Repository, commits: tuple[str, str | None], scratch: Path, *, may_be_empty: bool = False
    ) -> None:
        self.before, self.after = scratch / "a", scratch / "b"
        self._repository, self._commits = repository, commits
        self.blobs = tuple(
            {name: blob for name, blob in repository.blobs(commit).items() if DIRECTORY not in name.split("/")}
            for commit in commits
        )
        self._absent = {*self.blobs[0], *self.blobs[1]}
        self.changed = frozenset(name for name in self._absent if self.blobs[0].get(name) != self.blobs[1].get(name))
        for tree in (self.before, self.after):
            tree.mkdir()
        wanted = [{name: blob for name, blob in side.items() if is_searched(name)} for side in self.blobs]
        self._texts = repository.contents(wanted[1])
        earlier = repository.contents({name: blob for name, blob in wanted[0].items() if name in self.changed})
        self.affected = found = Affected(self._texts, self.changed, earlier)
        self.unaffected = found.tasks - found.names
        idle = {name for name in self.changed if name.endswith(IDLE_SUFFIXES)}
        self.is_same = may_be_empty and not found.names and idle == self.changed
        self._lay_out({*filter(is_setting, self._absent)})
        if self.is_same:
            return
        if found.may_read_tasks():
            self._lay_out({*self._absent})
        else:
            self._lay_out(self._absent & self.changed | found.needed(self._absent))
        self._share_docs()

    def _share_docs(self) -> None:
        """Copy docs that only one side has to the other, so that both sides render the same docs."""
        folders = (self.before, self.after)
        for (source, target), (own, others) in zip(
            (folders, folders[::-1]), (self.blobs, self.blobs[::-1]), strict=True
        ):
            for name in sorted(own.keys() - others.keys()):
                if _SIDECAR.search(name) and (source / name).is_file() and not (source / name).is_symlink():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source / name, target / name)

    def has(self, path: PurePosixPath) -> bool:
        """Return whether a side has a file or folder of this path."""
        text = path.as_posix()
        return text == "." or any(name == text or name.startswith(f"{text}/") for side in self.blobs for name in side)

    def beside(self, path: PurePosixPath) -> set[str]:
        """Return the names in the folder of a path."""
        above = path.parent
        names = (PurePosixPath(name) for side in self.blobs for name in side)
        return {name.parts[len(above.parts)] for name in names if name.is_relative_to(above)}

    def lay_out_all(self) -> None:
        """Add the files that are the same, and count none as unaffected."""
        self.unaffected, self.is_same = frozenset(), False
        self.affected.partly.clear()
        self._lay_out({*self._absent})

    def pointers(self) -> list[str]:
        """Replace pointers of Git LFS, and return those whose content this clone does not have."""
        read = {name for name in self._texts.keys() - self.changed if not is_pointer(self._texts[name])}
        fill = self._repository.fill_pointers
        return sorted({name for tree in (self.before, self.after) for name in fill(tree, self.laid_out(tree) - read)})

    def laid_out(self, tree: Path) -> set[str]:
        """Return the files that a side has in its folder."""
        return self.blobs[tree == self.after].keys() - self._absent

    def _lay_out(self, names: Iterable[str]) -> None:
        wanted = {*names}
        if not wanted:
            return
        self._absent -= wanted
        (old, new), (before, after) = self._commits, self.blobs
        same = {name for name in wanted if before.get(name) == after.get(name)}
        self._repository.lay_out(new, self.after, wanted & after.keys())
        place_files(self.after, self.before, same, link_file)
        self._repository.lay_out(old, self.before, (wanted & before.keys()) - same)


# -- tasks with another name or file -----------------------------------------------------------------------------------

_ALIKE: Final = 0.75
"""The share of equal lines from which a file counts as another one under a new name: git has 0.5; these are short."""

_MOST_PAIRS: Final = 200_000


class Renaming(NamedTuple):
    """Where the first revision has a task, and where, and under which name, the second one has it."""

    old_file: str
    new_file: str
    task: str


def renamings(trees: Trees) -> dict[tuple[str, str], Renaming]:
    """Return the tasks that have another file or name now, by their files and names in the first revision."""
    now, then = single_tasks(trees.affected.named), single_tasks(trees.affected.earlier)
    counts = Counter(now.values()), Counter(then.values())
    files = {task: file for file, task in now.items() if counts[0][task] == 1 and file not in trees.blobs[0]}
    moved = {file: task for file, task in then.items() if task in files and counts[1][task] == 1}
    found = {(file, task): Renaming(file, files[task], task) for file, task in moved.items()}
    known = {*then.values(), *(now[file] for file in now.keys() - trees.changed)}
    gone = {file: task for file, task in then.items() if task not in counts[0]}
    come = {file: task for file, task in now.items() if file in trees.changed and task not in known}
    for file in gone.keys() & come.keys():
        found[file, gone.pop(file)] = Renaming(file, file, come.pop(file))
    for old, new in _alike(_lines(trees.before, gone), _lines(trees.after, come), gone, come):
        found[old, gone[old]] = Renaming(old, new, come[new])
    return found


def _lines(tree: Path, files: Collection[str]) -> dict[str, frozenset[bytes]]:
    return {file: frozenset(bytes_of(tree / file).splitlines()) for file in files}


def _alike(
    gone: Mapping[str, frozenset[bytes]],
    come: Mapping[str, frozenset[bytes]],
    old_names: Mapping[str, str],
    new_names: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield pairs of files, those most alike first; each file once."""
    if len(gone) * len(come) > _MOST_PAIRS:
        return
    pairs = [
        (share, SequenceMatcher(None, old_names[old], new_names[new]).ratio(), old, new)
        for old, lines in gone.items()
        for new, others in come.items()
        if (share := 2 * len(lines & others) / (len(lines) + len(others) or 1)) >= _ALIKE
    ]
    left, right = {*gone}, {*come}
    for _, _, old, new in sorted(pairs, reverse=True):
        if old in left and new in right:
            left.remove(old)
            right.remove(new)
            yield old, new

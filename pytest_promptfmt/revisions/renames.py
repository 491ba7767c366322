"""Tasks that have another name or file in the second revision: their prompts are compared all the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Final, NamedTuple

from pytest_promptfmt.revisions.affected import bytes_of
from pytest_promptfmt.revisions.trees import Trees, moves, single_tasks

_ALIKE: Final = 0.75
"""The share of equal lines from which a file counts as another one under a new name: git has 0.5; these are short."""

_MOST_PAIRS: Final = 200_000


class Renaming(NamedTuple):
    """Where the first revision has a task, and where, and under which name, the second one has it."""

    old_file: str
    new_file: str
    task: str


def renamings(trees: Trees) -> dict[str, Renaming]:
    """Return the tasks that have another file or name now, by their names in the first revision."""
    found = {task: Renaming(old, new, task) for task, (old, new) in moves(trees)}
    now, then = (single_tasks(sources) for sources in (trees.sources, trees.earlier))
    names = {source.name for source in now.values()}
    known = {source.name for source in then.values()} | {now[file].name for file in now.keys() - trees.changed}
    gone = {file: source.name for file, source in then.items() if source.name not in names}
    come = {file: source.name for file, source in now.items() if file in trees.changed and source.name not in known}
    for file in gone.keys() & come.keys():
        found[gone.pop(file)] = Renaming(file, file, come.pop(file))
    for old, new in _alike(_lines(trees.before, gone), _lines(trees.after, come), gone, come):
        found[gone[old]] = Renaming(old, new, come[new])
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

"""Calls of git: the commit that a revision names, and the files of a commit or of the work tree, written to a folder.

The repository is not changed: neither the work tree, nor the index, nor a branch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean

WORK_TREE = "the work tree"
"""The name of the files as they are now."""


class RevisionError(PromptfmtError):
    """A revision that git cannot provide, or whose tasks could not be run."""


@dataclass(frozen=True, slots=True)
class Repository:
    """The work tree around a folder; `top` is its uppermost folder."""

    top: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """Return the repository that a folder lies in; raises RevisionError with git's words where there is none."""
        top = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
        return cls(top.resolve())

    def commit(self, revision: str) -> str:
        """Return the id of the commit that a revision names; raises SettingsError for an unknown revision."""
        try:
            if not revision or revision.startswith("-"):
                raise RevisionError("an option is not a revision")
            return _git(self.top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
        except RevisionError:
            raise SettingsError(f"unknown revision {revision!r}", hint=self._hint(revision)) from None

    def commits_between(self, old: str, new: str, files: Iterable[Path]) -> list[str]:
        """Return the commits from one revision to another that touch some files, as `abcdef1 subject`, newest first.

        Nothing where the repository does not have both, or the files lie elsewhere.
        """
        names = [str(file) for file in files if file.is_relative_to(self.top)]
        try:
            commits = [self.commit(revision) for revision in (old, new)]
            lines = (
                _git(self.top, "log", "--format=%h %s", f"{commits[0]}..{commits[1]}", "--", *names) if names else b""
            )
        except PromptfmtError:
            return []
        return lines.decode("utf-8", "replace").splitlines()

    def _hint(self, revision: str) -> str | None:
        if not revision:
            return None
        if ".." in revision:
            old, new = revision.split("...")[:2] if "..." in revision else revision.split("..")[:2]
            old = f"$(git merge-base {old or 'HEAD'} {new or 'HEAD'})" if "..." in revision else old or "HEAD"
            return f"give the two revisions as two arguments: promptfmt diff {old} {new or 'HEAD'}"
        if (self.top / revision).exists():
            return f"that is a path: use --path {revision}, after the revision to compare with"
        names = _git(self.top, "for-each-ref", "--format=%(refname:short)").decode("utf-8", "replace").split()
        remote = next((name for name in names if name.endswith(f"/{revision}")), None)
        if remote is not None:
            return f"did you mean {remote!r}?"
        close = did_you_mean(revision, names)
        if close is not None:
            return close
        if _git(self.top, "rev-parse", "--is-shallow-repository").strip() == b"true":
            return "this clone is shallow: git fetch --unshallow, in a workflow fetch-depth: 0"
        return None if names else "the repository has no commit yet"

    def lay_out(self, commit: str, target: Path) -> None:
        """Write the files of a commit below `target`, which is made, as a checkout would write them.

        Not through git archive, which leaves out what is marked export-ignore.
        """
        target.mkdir()
        index = target.with_name(f"{target.name}.index")
        environment = {**os.environ, "GIT_INDEX_FILE": str(index), "GIT_ATTR_SOURCE": commit}
        _git(self.top, "read-tree", commit, environment=environment)
        _git(self.top, "checkout-index", "--all", "--quiet", f"--prefix={target}/", environment=environment)
        _drop_links_that_leave(target)

    def copy_work_tree(self, target: Path) -> None:
        """Copy what git tracks, and what it does not ignore, as it is now, below `target`, which is made."""
        target.mkdir()
        listed = _git(self.top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in dict.fromkeys(os.fsdecode(listed).split("\0")):
            source = self.top / name
            if name and (source.is_symlink() or source.is_file()):
                copy = target / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)
        _drop_links_that_leave(target)


def files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files and links below a folder, relative to it, with slashes."""
    top = str(folder)
    for root, folders, names in os.walk(folder):
        inside = os.path.relpath(root, top)
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]  # noqa: PTH114
        for name in (*names, *links):
            yield (name if inside == os.curdir else f"{inside}/{name}").replace(os.sep, "/")


def _drop_links_that_leave(folder: Path) -> None:
    """Remove links to places outside: rendering writes beside the tasks, and must not do so in the real work tree."""
    top = folder.resolve()
    for name in [*files_below(folder)]:
        path = folder / name
        if path.is_symlink() and not _leads_into(path, top):
            path.unlink()


def _leads_into(link: Path, top: Path) -> bool:
    try:
        return link.resolve().is_relative_to(top)
    except (OSError, RuntimeError):  # a circle
        return False


def _git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, env=environment)
    except FileNotFoundError:
        raise RevisionError("git is not installed") from None
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        raise RevisionError(message or f"git {arguments[0]} ended with {done.returncode}")
    return done.stdout

"""Calls of git: the commit that a revision names, and the files of a commit or of the work tree, written to a folder.

The repository is not changed: neither the work tree, nor the index, nor a branch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
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
        """Return the repository around a folder; raises RevisionError with git's message outside of one."""
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

    def default_base(self) -> tuple[str, str]:
        """Return the revision to compare the work tree with where none is named, and why it is that one.

        HEAD where files have changed since, or else the commit where this branch left the default branch. Raises
        SettingsError if this commit is unknown.
        """
        if _git(self.top, "status", "--porcelain"):
            return "HEAD", "it has uncommitted changes"
        default = self._default_branch()
        try:
            base = _git(self.top, "merge-base", "HEAD", default).decode().strip() if default else ""
        except RevisionError:
            base = ""
        if not base:
            missing = f"no commit that this branch shares with {default}" if default else "no default branch"
            raise SettingsError(f"found {missing}", hint="name a revision: promptfmt diff REV")
        has_own = base != self.commit("HEAD")
        return base, f"this branch left {default} there" if has_own else f"no commit here is missing from {default}"

    def _default_branch(self) -> str:
        """Return the branch that pull requests go to, "" if this clone does not have it."""
        with suppress(RevisionError):
            return _git(self.top, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD").decode().strip()
        for name in ("origin/main", "origin/master", "main", "master"):
            with suppress(RevisionError):
                _git(self.top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
                return name
        return ""

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

    def blobs(self, commit: str | None) -> dict[str, str]:
        """Return the files of a commit, or of the work tree, which has what git does not ignore, with ids of contents.

        Links have the id of the path that they lead to. Submodules have none, and are left out.
        """
        if commit is not None:
            return dict(_listed(_tree(self.top, commit), place=2))
        found = dict(_listed(_git(self.top, "ls-files", "--stage", "-z"), place=1))
        others = _git(self.top, "ls-files", "-z", "--others", "--exclude-standard")
        for name in (*_names(others), *_names(_git(self.top, "diff-files", "--name-only", "-z"))):
            path = self.top / name
            if path.is_symlink() or path.is_file():
                content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
                mode = "120000" if path.is_symlink() else "file"
                found[name] = f"{mode} {_blob_id(content)}"
            else:
                found.pop(name, None)
        return found

    def lay_out(self, commit: str | None, target: Path, names: Iterable[str]) -> None:
        """Write files of a commit, or of the work tree, below `target`, as a checkout would write them.

        Not through git archive, which leaves out what is marked export-ignore. Links to places outside are left out:
        rendering writes next to the tasks, and must not do so in the real work tree.
        """
        target.mkdir(exist_ok=True)
        if commit is None:
            for name in names:
                copy = target / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.top / name, copy, follow_symlinks=False)
        else:
            index = target.with_name(f"{target.name}.index")
            environment = {**os.environ, "GIT_INDEX_FILE": str(index), "GIT_ATTR_SOURCE": commit}
            wanted = {*map(os.fsencode, names)}
            listed = b"\0".join(wanted)
            # An index of these files and what git knows of their line ends: one of all takes longer than the rest.
            entries = (line for line in _tree(self.top, commit).split(b"\0") if _is_of(line, wanted))
            _git(self.top, "update-index", "-z", "--index-info", environment=environment, given=b"\0".join(entries))
            prefix = f"--prefix={target}/"
            _git(self.top, "checkout-index", "-z", "--stdin", "--quiet", prefix, environment=environment, given=listed)
        _drop_links_that_leave(target)


@lru_cache(maxsize=2)
def _tree(top: Path, commit: str) -> bytes:
    """Return the list of a commit's files."""
    return _git(top, "ls-tree", "-r", "-z", commit)


def _is_of(line: bytes, wanted: Collection[bytes]) -> bool:
    name = line.partition(b"\t")[2]
    return name in wanted or name == b".gitattributes" or name.endswith(b"/.gitattributes")


def _listed(listing: bytes, *, place: int) -> Iterator[tuple[str, str]]:
    """Yield the path and id of each file in a list of git, where the id is at a place of the words before the tab."""
    for line in listing.split(b"\0"):
        words, _, name = line.partition(b"\t")
        parts = words.decode("ascii").split(" ")
        if name and parts[0] != "160000":
            mode = parts[0] if parts[0] == "120000" else "file"
            yield os.fsdecode(name), f"{mode} {parts[place]}"


def _blob_id(content: bytes) -> str:
    """Return the id that git gives to content; in a repository of SHA-256 it is merely another one."""
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _names(listing: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listing.split(b"\0") if name]


def files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files and links below a folder, relative to it, with slashes."""
    top = str(folder)
    for root, folders, names in os.walk(folder):
        inside = os.path.relpath(root, top)
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]  # noqa: PTH114
        for name in (*names, *links):
            yield (name if inside == os.curdir else f"{inside}/{name}").replace(os.sep, "/")


def _drop_links_that_leave(folder: Path) -> None:
    """Remove links to places outside of a folder."""
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


def _git(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, given: bytes | None = None
) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, env=environment, input=given)
    except FileNotFoundError:
        raise RevisionError("git is not installed") from None
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        raise RevisionError(message or f"git {arguments[0]} ended with {done.returncode}")
    return done.stdout

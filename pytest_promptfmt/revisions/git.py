"""Revisions of a repository: the commit that a name means, and files of it or of the work tree, written to a folder.

The repository is not changed: neither the work tree, nor the index, nor a branch. `core/git.py` makes the calls.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha1
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean
from pytest_promptfmt.core.git import GitError, git, work_tree

WORK_TREE = "the work tree"
"""The name of the files as they are now."""

_CHUNK = 2**20

# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, "The Pointer"
_POINTER: Final = b"version https://git-lfs.github.com/spec/v1\n"
_OBJECT: Final = re.compile(rb"^oid sha256:(?P<id>(?P<first>..)(?P<second>..)[0-9a-f]{60})$", re.MULTILINE)
_MAX_POINTER: Final = 1024


@dataclass(frozen=True, slots=True)
class Repository:
    """The work tree around a folder; `top` is its uppermost folder."""

    top: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """Return the repository around a folder; raises GitError outside of one, and where git refuses it."""
        return cls(work_tree(folder))

    def commit(self, revision: str) -> str:
        """Return the id of the commit that a revision names; raises SettingsError for an unknown revision."""
        try:
            if not revision or revision.startswith("-"):
                raise GitError("a revision does not begin with '-'")
            return git(self.top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
        except GitError:
            raise SettingsError(f"unknown revision {revision!r}", hint=self._hint(revision)) from None

    def default_base(self) -> tuple[str, str]:
        """Return the revision to compare the work tree with where none is named, and why it is that one.

        HEAD where files have changed since, or else the commit where this branch left the default branch. Raises
        SettingsError if this commit is unknown.
        """
        if git(self.top, "status", "--porcelain", "--ignore-submodules=all"):
            return "HEAD", "there are uncommitted changes"
        default = self._default_branch()
        try:
            base = git(self.top, "merge-base", "HEAD", default).decode().strip() if default else ""
        except GitError:
            base = ""
        if not base:
            missing = f"this branch shares no commit with {default}" if default else "there is no default branch"
            raise SettingsError(missing, hint="name a revision: promptfmt diff REV")
        has_own = base != self.commit("HEAD")
        return base, f"the last commit shared with {default}" if has_own else f"every commit here is also in {default}"

    def _default_branch(self) -> str:
        """Return the branch that pull requests go to, "" if this clone does not have it."""
        with suppress(GitError):
            return git(self.top, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD").decode().strip()
        for name in ("origin/main", "origin/master", "main", "master"):
            with suppress(GitError):
                git(self.top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
                return name
        return ""

    def commits_between(self, old: str, new: str, files: Iterable[Path]) -> list[str]:
        """Return the commits from one revision to another that touch some files, as `abcdef1 subject`, newest first.

        Nothing where the repository does not have both, or the files lie elsewhere.
        """
        names = [str(file) for file in files if file.is_relative_to(self.top)]
        try:
            commits = [self.commit(revision) for revision in (old, new)]
            lines = git(self.top, "log", "--format=%h %s", "..".join(commits), "--", *names) if names else b""
        except PromptfmtError:
            return []
        return lines.decode("utf-8", "replace").splitlines()

    def _hint(self, revision: str) -> str | None:
        if not revision:
            return None
        if ".." in revision:
            old, new = revision.split("...")[:2] if "..." in revision else revision.split("..")[:2]
            old = f"$(git merge-base {old or 'HEAD'} {new or 'HEAD'})" if "..." in revision else old or "HEAD"
            return f"write the two revisions as separate arguments: promptfmt diff {old} {new or 'HEAD'}"
        if (self.top / revision).exists():
            return f"this is a path, not a revision. Write --path {revision} after the revision"
        names = git(self.top, "for-each-ref", "--format=%(refname:short)").decode("utf-8", "replace").split()
        remote = next((name for name in names if name.endswith(f"/{revision}")), None)
        if remote is not None:
            return f"did you mean {remote!r}?"
        close = did_you_mean(revision, names)
        if close is not None:
            return close
        if git(self.top, "rev-parse", "--is-shallow-repository").strip() == b"true":
            return (
                "this clone is shallow, so old commits are missing. Run git fetch "
                "--unshallow, or set fetch-depth: 0 in the workflow"
            )
        return "`git log --all --oneline` lists all commits" if names else "the repository has no commit yet"

    def blobs(self, commit: str | None) -> dict[str, str]:
        """Return the files of a commit, or of the work tree, which has what git does not ignore, with ids of contents.

        Links have the id of the path that they lead to. Submodules have none, and are left out.
        """
        if commit is not None:
            return dict(_listed(_tree(self.top, commit), place=2))
        found = dict(_listed(self._index(), place=1))
        others = git(self.top, "ls-files", "-z", "--others", "--exclude-standard")
        changed = git(self.top, "diff-files", "--name-only", "-z", "--no-ext-diff", "--ignore-submodules=all")
        for name in (*_names(others), *_names(changed)):
            blob = self._blob(name)
            if blob is not None:
                found[name] = blob
            else:
                found.pop(name, None)
        return found

    def _index(self) -> bytes:
        """Return the list of the files in the index."""
        return git(self.top, "ls-files", "--stage", "-z")

    def _blob(self, name: str) -> str | None:
        """Return the id of a file or link of the work tree; None for anything else, and for what is behind a link."""
        path = self.top / name
        try:
            if path.parent.resolve() != path.parent:
                return None
            if path.is_symlink():
                target = os.fsencode(path.readlink())
                return f"120000 {_blob_id([target], len(target))}"
            with gate.open_file(path) as file:
                chunks = iter(partial(file.read, _CHUNK), b"")
                return f"file {_blob_id(chunks, os.fstat(file.fileno()).st_size)}"
        except OSError:
            return None

    def contents(self, blobs: Mapping[str, str]) -> dict[str, bytes]:
        """Return the contents of files with these ids as `blobs` returns them; others are read in the work tree."""
        ids = {blob.partition(" ")[2] for blob in blobs.values() if blob.startswith("file ")}
        output = git(self.top, "cat-file", "--batch", "--buffer", given="".join(f"{each}\n" for each in ids).encode())
        found: dict[str, bytes] = {}
        start = 0
        while start < len(output):
            end = output.index(b"\n", start)
            each, kind, *size = output[start:end].decode().split(" ")
            start = end + 1
            if kind == "blob":
                found[each] = output[start : start + int(size[0])]
                start += int(size[0]) + 1
        known = ((name, blob.partition(" ")[2]) for name, blob in blobs.items())
        return {name: found[blob] if blob in found else self._read(name) for name, blob in known}

    def _read(self, name: str) -> bytes:
        with suppress(OSError):
            return gate.read_bytes(self.top / name)
        return b""

    def lay_out(self, commit: str | None, target: Path, names: Iterable[str]) -> None:
        """Write files of a commit, or of the work tree, below `target`, as a checkout would write them.

        No filter is run: files of Git LFS are the pointers that git has. Not through git archive, which leaves out
        what is marked export-ignore. Links to places outside are left out: rendering writes next to the tasks, and must
        not do so in the real work tree.
        """
        target.mkdir(exist_ok=True)
        wanted = {*names}
        if not wanted:
            return
        if commit is not None:
            self._check_out(_tree(self.top, commit), target, wanted)
        else:
            absent = {name for name in wanted if not os.path.lexists(self.top / name)}  # by a sparse checkout
            place_files(self.top, target, wanted - absent, partial(shutil.copyfile, follow_symlinks=False))
            if absent:
                self._check_out(self._index(), target, absent)
        _drop_links_that_leave(target, wanted)

    def fill_pointers(self, folder: Path, names: Iterable[str]) -> list[str]:
        """Replace those of some files in a folder that are pointers of Git LFS by the content that this clone has.

        Returns those that are left.
        """
        found = dict(_pointers(folder, names))
        if not found:
            return []
        common = os.fsdecode(git(self.top, "rev-parse", "--git-common-dir").removesuffix(b"\n"))
        objects = (self.top / common).resolve() / "lfs/objects"
        left = []
        for name, pointer in sorted(found.items()):
            match = _OBJECT.search(pointer)
            stored = objects.joinpath(*(match[part].decode() for part in ("first", "second", "id"))) if match else None
            if stored is not None and stored.resolve() == stored and stored.is_file():
                shutil.copyfile(stored, folder / name)
            else:
                left.append(name)
        return left

    def _check_out(self, listing: bytes, target: Path, names: Iterable[str]) -> None:
        """Write files of a list of git below `target`, with an index of their own."""
        wanted = {*names}
        # An index of these files and what git knows of their line ends: one of all takes longer than the rest.
        # Attributes are read from there, because the folder as work tree has none, or the same.
        lines = _lines(listing)
        attributes = {name for name in lines if name.rpartition("/")[2] == ".gitattributes"}
        entries = os.fsencode("\0".join(lines[name] for name in wanted | attributes if name in lines))
        variables = {"GIT_INDEX_FILE": str(target.with_name(f"{target.name}.index")), "GIT_WORK_TREE": str(target)}
        git(self.top, "update-index", "-z", "--index-info", variables=variables, given=entries)
        given = os.fsencode("\0".join(wanted))
        git(self.top, "checkout-index", "-z", "--stdin", "--quiet", variables=variables, given=given)


@lru_cache(maxsize=2)
def _tree(top: Path, commit: str) -> bytes:
    """Return the list of a commit's files."""
    return git(top, "ls-tree", "-r", "-z", commit)


@lru_cache(maxsize=3)
def _lines(listing: bytes) -> dict[str, str]:
    """Return the lines of a list of git by the paths of files."""
    return {line.partition("\t")[2]: line for line in _names(listing)}


def _listed(listing: bytes, *, place: int) -> Iterator[tuple[str, str]]:
    """Yield the path and id of each file in a list of git, where the id is at a place of the words before the tab."""
    for name, line in _lines(listing).items():
        parts = line.partition("\t")[0].split(" ")
        if parts[0] != "160000":
            mode = parts[0] if parts[0] == "120000" else "file"
            yield name, f"{mode} {parts[place]}"


def _blob_id(chunks: Iterable[bytes], size: int) -> str:
    """Return the id that git gives to content; in a repository of SHA-256 it is merely another one."""
    digest = sha1(b"blob %d\0" % size, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _names(listing: bytes) -> list[str]:
    return [name for name in os.fsdecode(listing).split("\0") if name]


def files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files and links below a folder, relative to it, with slashes."""
    top = str(folder)
    for root, folders, names in os.walk(folder):
        inside = os.path.relpath(root, top)
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]  # noqa: PTH114
        for name in (*names, *links):
            yield (name if inside == os.curdir else f"{inside}/{name}").replace(os.sep, "/")


def place_files(source: Path, target: Path, names: Iterable[str], place: Callable[[str, str], object]) -> None:
    """Call `place` with the path of each file below `source` and its path below `target`, whose folder exists then."""
    found = [name for name in names if os.path.lexists(f"{source}{os.sep}{name}")]
    for folder in {name.rpartition("/")[0] for name in found}:
        Path(target, folder).mkdir(parents=True, exist_ok=True)
    for name in found:
        place(f"{source}{os.sep}{name}", f"{target}{os.sep}{name}")


def link_file(source: str, target: str) -> None:
    """Give a file a second path, or copy it where the file system has one path for each file."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copyfile(source, target, follow_symlinks=False)


def _pointers(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield those of some files in a folder that are pointers of Git LFS, with what they hold."""
    for name in names:
        if not name.endswith((".yaml", ".yml", ".py", ".md")) and not (path := folder / name).is_symlink():
            with suppress(OSError):
                if path.stat().st_size <= _MAX_POINTER and is_pointer(content := gate.read_bytes(path)):
                    yield name, content


def is_pointer(content: bytes) -> bool:
    """Return whether this is a file of Git LFS without its content."""
    return content.startswith(_POINTER)


def _drop_links_that_leave(folder: Path, names: Iterable[str]) -> None:
    """Remove those of these files in a folder that are links to places outside of it."""
    top = folder.resolve()
    for path in (folder / name for name in names):
        if path.is_symlink() and not _leads_into(path, top):
            path.unlink()


def _leads_into(link: Path, top: Path) -> bool:
    try:
        with suppress(FileNotFoundError, NotADirectoryError):  # a link to nothing
            link.stat()
        return link.resolve().is_relative_to(top)
    except OSError:  # a circle, which Python 3.13 resolves
        return False

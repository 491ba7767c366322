"""The changes that the newest revisions of tokenizers and chat templates on the hub would make here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.tokenizer_sources import commit_on_hub, download_tokenizer, find_source
from pytest_promptfmt.snapshots.content import snapshot_document
from pytest_promptfmt.snapshots.document import write_document
from pytest_promptfmt.snapshots.lock import Locked
from pytest_promptfmt.study import ProfileView

_DIGITS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """A tokenizer or template of the hub: its `name` here, and its commit, empty if unknown.

    `copy` is the file or folder of the repository under test that it was copied to, None for what is in the cache.
    """

    name: str
    repository: str
    revision: str
    copy: Path | None = None

    def newest(self) -> str:
        """Return the commit that the hub has now; raises TokenizerError."""
        return commit_on_hub(self.repository)

    def here(self) -> Path:
        """Return the file or folder as it is used here; of the cache it is fetched where it is missing."""
        return self.copy or download_tokenizer(self.repository, self.revision)

    def there(self, commit: str) -> Path:
        """Return the same of another commit, downloaded; raises TokenizerError."""
        folder = download_tokenizer(self.repository, commit)
        return folder / self.copy.name if self.copy is not None and self.copy.is_file() else folder

    def with_files_of(self, profile: Profile, place: Path) -> Profile | None:
        """Return a profile with the files of a place for those that are used here; None for one that uses none."""
        has_tokenizer = profile.tokenizer is not None and self._uses(Path(profile.tokenizer), profile.tokenizer)
        file = profile.template_file if profile.template_file and self._uses(profile.template_file, "") else None
        if not has_tokenizer and file is None:
            return None
        changed = replace(profile, name=f"{profile.name} {place}")
        if has_tokenizer:
            changed = replace(changed, tokenizer=str(place if place.is_dir() else place.parent))
        if file is not None and (taken := place if place.is_file() else place / file.name).is_file():
            changed = replace(changed, chat_template=taken.read_text("utf-8"), template_file=taken)
        return changed

    def _uses(self, path: Path, written: str) -> bool:
        if self.copy is not None:
            return path == self.copy or path.is_relative_to(self.copy)
        return written == self.name or written.partition("@")[0] == self.repository


def followed(locked: Locked, rootdir: Path) -> Iterator[Followed]:
    """Yield the entries of the lock with an origin, except tokenizers whose names pin a commit."""
    for name, entry in locked.tokenizers.items():
        repository, _, revision = entry.origin.partition("@")
        if repository and "@" not in name:
            yield Followed(name=name, repository=repository, revision=revision)
    for path, origin in locked.origins.items():
        yield Followed(name=path, repository=origin.repository, revision=origin.revision, copy=_below(rootdir, path))


def _below(rootdir: Path, path: str) -> Path:
    """Return a path that a lock names, which may not lead out of the rootdir, through a link either."""
    place = gate.named(rootdir, path)
    if not place.resolve().is_relative_to(rootdir.resolve()):
        raise SettingsError(f"promptfmt.lock lists {path!r}, which is outside the rootdir")
    return place


def content_of(path: Path) -> str:
    """Return a digest of a file, or of a folder's files that decide about tokens and templates."""
    if not path.exists():
        raise SettingsError(f"there is no {path}", hint="name a template or a folder with a tokenizer")
    whole = find_source(path).digest() if path.is_dir() else hashlib.sha256(gate.read_bytes(path)).hexdigest()
    return whole[:_DIGITS]


def is_same(here: Path, there: Path) -> bool:
    """Return whether the files here equal those of a commit; other files of the commit do not count."""
    if here.is_file():
        return there.is_file() and gate.read_bytes(here) == there.read_bytes()
    names = [file.relative_to(here.resolve()) for file in find_source(here).files]
    return all(
        (there / name).is_file() and (there / name).read_bytes() == gate.read_bytes(here / name) for name in names
    )


def changed_tasks(views: Iterable[ProfileView], one: Followed, there: Path) -> tuple[list[str], int]:
    """Return the tasks with profiles whose prompts or tokens another commit changes, and how many were compared.

    A task that cannot be rendered with it has changed; one that cannot be rendered now is not compared.
    """
    changed, seen, here = [], 0, one.here()
    for view in views:
        before, after = (_seen(view, one.with_files_of(view.profile, place)) for place in (here, there))
        if before is None or after is None or before.failure is not None:
            continue
        seen += 1
        if after.failure is not None or _text(before) != _text(after):
            changed.append(f"{view.study.given.id} [{view.name}]")
    return changed, seen


def _seen(view: ProfileView, profile: Profile | None) -> ProfileView | None:
    return ProfileView(view.study, profile, name=view.name) if profile is not None else None


def _text(view: ProfileView) -> str:
    return write_document(snapshot_document(view))

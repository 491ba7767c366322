"""All contact with syrupy, 5.5 to 7: its assertion compares, writes, counts and merges; files are named and found here.

syrupy calls an extension's class methods for other tests too, so each of them returns nothing for a location that is
not a `PromptLocation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from syrupy.assertion import AssertionResult, SnapshotAssertion
from syrupy.data import Snapshot, SnapshotCollection, SnapshotCollections
from syrupy.exceptions import TaintedSnapshotError
from syrupy.extensions.base import AbstractSyrupyExtension
from syrupy.location import PyTestLocation
from syrupy.report import SnapshotReport

from pytest_promptfmt.core.errors import Position, SnapshotError
from pytest_promptfmt.snapshots.changes import SnapshotComparison, State, compare
from pytest_promptfmt.snapshots.document import Document, UnknownVersionError
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots, is_snapshot_location
from pytest_promptfmt.snapshots.paths import (
    DIRECTORY,
    SUFFIX,
    SnapshotPath,
    Tree,
    delete_snapshot,
    read_snapshot,
    write_snapshot,
)

if TYPE_CHECKING:
    import pytest


Counted = Literal["matched", "created", "updated", "failed"]
"""How syrupy counts a comparison."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one snapshot test.

    `written` is whether the file was created or rewritten. `comparison` holds both texts and documents; it is None once
    the snapshot passed, to keep large runs small. `renamed_from` is an obsolete file with the same content as a missing
    one. `would_write` is the text that --snapshot-update would write, None where it would not change the file.
    `not_adopted` is whether the snapshot is missing and may be, `is_partial` whether stored scores were not compared.
    """

    state: State
    path: Path
    passed: bool
    written: bool = False
    error: SnapshotError | None = None
    comparison: SnapshotComparison | None = None
    renamed_from: Path | None = None
    would_write: str | None = None
    not_adopted: bool = False
    is_partial: bool = False


def syrupy_is_active(config: pytest.Config) -> bool:
    """Return whether syrupy was loaded and has added its options (not `-p no:syrupy`)."""
    return hasattr(config.option, "update_snapshots")


def check(
    config: pytest.Config,
    item: pytest.Item,
    place: SnapshotPath,
    document: Document,
    *,
    expected: ExpectedSnapshots,
    narrowed_run: bool = False,
    may_be_missing: bool = False,
) -> Verdict:
    """Compare a rendered document with its stored snapshot, and write it when syrupy's options demand it.

    A difference only in the header passes, and sections about the task may be missing.
    `--snapshot-update` writes both, and rewrites a damaged file, unless docs would be lost (`narrowed_run`) or a newer
    version of the format wrote it. A snapshot that `may_be_missing` neither passes nor fails, unknown to syrupy.
    """
    path = Path(place.path)
    try:
        stored = read_snapshot(place.path)
    except OSError as problem:
        unread = f"the snapshot cannot be read: {problem.strerror or problem}"
        return Verdict(state="damaged", path=path, passed=False, error=SnapshotError(unread, position=Position(path)))
    comparison = compare(stored, document, path, narrowed_run=narrowed_run)
    is_current = comparison.text == comparison.stored or not config.option.update_snapshots
    if comparison.state == "equal" and is_current:
        count(config, item, place, "matched", expected=expected)
        return Verdict(state="equal", path=path, passed=True, is_partial=comparison.is_partial)
    writes = config.option.update_snapshots or config.option.update_new_snapshots_only
    if may_be_missing and not writes and comparison.state == "missing" and expected.obsolete_like(document) is None:
        return Verdict(state="missing", path=path, passed=False, not_adopted=True)
    error = comparison.error
    is_newer, loses_docs = isinstance(error, UnknownVersionError), error is not None and narrowed_run
    is_writable = not is_newer and not loses_docs
    update = bool(config.option.update_snapshots) and is_writable
    if error is not None and loses_docs and not is_newer and config.option.update_snapshots:
        error = SnapshotError(
            error.message, position=error.position, hint="rewrite the file in a run that tests all docs"
        )
    assertion = SnapshotAssertion(
        session=config._syrupy,  # type: ignore[attr-defined]  # where syrupy keeps its session
        extension_class=PromptExtension,
        test_location=PromptLocation(item, place, expected),
        update_snapshots=update,
        update_new_snapshots_only=bool(config.option.update_new_snapshots_only),
    )
    keep_header = comparison.state == "header-only" and not update
    passed = assertion == (comparison.stored if keep_header else comparison.text)
    result = assertion.executions[0]
    raised = result.exception
    if not hasattr(AbstractSyrupyExtension, "write_immediately"):  # syrupy 5 writes at the end of its process's session
        session: Any = config._syrupy  # type: ignore[attr-defined]  # as above
        try:
            session.flush_snapshot_write_queue()
        except OSError as failure:
            session._queued_snapshot_writes.clear()
            raised, passed = failure, False
    written = bool(result.created or result.updated) and not isinstance(raised, OSError)
    if isinstance(raised, OSError):
        error = SnapshotError(f"the snapshot cannot be written: {raised}", position=Position(path))
    elif raised is not None and not isinstance(raised, TaintedSnapshotError):
        raise raised
    # syrupy keeps every result to the end of the run; its report needs only the names.
    result.asserted_data = result.recalled_data = None
    return Verdict(
        state=comparison.state,
        path=path,
        passed=passed,
        written=written,
        error=None if passed else error,
        comparison=None if passed else comparison,
        renamed_from=expected.obsolete_like(document) if comparison.state == "missing" and not passed else None,
        would_write=comparison.text if is_writable and not written else None,
        is_partial=comparison.is_partial,
    )


def cover(config: pytest.Config, tree: Tree, places: Iterable[Path]) -> None:
    """Let syrupy clean up the snapshots of the folders that the command line names where they are elsewhere."""
    given = getattr(config.option, "file_or_dir", ())  # `--help` parses no paths
    if given and tree.mirror is not None:
        folders = [tree.directory(place.absolute()).parent for place in places if place.is_dir()]
        config.option.file_or_dir = [*given, *map(str, folders)]


def taken(config: pytest.Config) -> list[Counted]:
    """Return what syrupy is to count of the comparisons since the last call, and let it forget them in this process."""
    assertions = config._syrupy._assertions  # type: ignore[attr-defined]  # as above
    found = [_counted(result) for each in assertions for result in each.executions.values()]
    assertions.clear()
    return found


def count(
    config: pytest.Config, item: pytest.Item, place: SnapshotPath, counted: Counted, *, expected: ExpectedSnapshots
) -> None:
    """Let syrupy count a comparison without making one: another process or an earlier run made it."""
    location = PromptLocation(item, place, expected)
    assertion = SnapshotAssertion(
        session=config._syrupy,  # type: ignore[attr-defined]  # as above
        extension_class=PromptExtension,
        test_location=location,
        update_snapshots=False,
    )
    assertion.executions[0] = AssertionResult(
        snapshot_location=place.path,
        snapshot_name=place.name,
        asserted_data=None,
        recalled_data=None,
        created=counted == "created",
        updated=counted == "updated",
        success=counted != "failed",
        exception=None,
        test_location=location,
    )


def add_counts(config: pytest.Config, counts: Mapping[Counted, int]) -> None:
    """Add to syrupy's report, once it is made, what was not counted one by one.

    That takes longer than many an item, and syrupy keeps each to the end of the run.
    """
    report = config._syrupy.report  # type: ignore[attr-defined]  # as above
    for counted, number in counts.items() if report is not None else ():
        if number:
            getattr(report, counted).add(_Number(number))


class _Number(SnapshotCollection):
    """Snapshots of which only the number is known."""

    def __init__(self, number: int) -> None:
        super().__init__(location="")
        self._number = number

    def __len__(self) -> int:
        return self._number


def _counted(result: AssertionResult) -> Counted:
    if result.created or result.updated:
        return "created" if result.created else "updated"
    return "matched" if result.success else "failed"


def obsolete_snapshots(config: pytest.Config) -> tuple[Path, ...]:
    """Return our files that syrupy found unused once the run is over, and has not deleted."""
    report = config._syrupy.report  # type: ignore[attr-defined]  # as above
    is_off = getattr(report, "disable_unused_snapshots", False)  # new in syrupy 6
    if report is None or is_off or report.should_delete_unused_snapshots:
        return ()
    places = (found.location for found in report.unused if is_snapshot_location(found.location))
    return tuple(sorted(Path(place) for place in places))


class PromptLocation(PyTestLocation):
    """Where an item's snapshot lies, known beforehand. Compared by identity: syrupy uses locations as keys."""

    place: SnapshotPath
    expected: ExpectedSnapshots

    def __init__(self, item: pytest.Item, place: SnapshotPath, expected: ExpectedSnapshots) -> None:
        values = {
            "item": item,
            "nodename": item.name,
            "testname": place.name,
            "methodname": place.name,
            "modulename": "",
            "filepath": place.path,
            "place": place,
            "expected": expected,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the base class is a frozen dataclass

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def snapshot_name(self) -> str:
        """Return the name that syrupy lists the snapshot by."""
        return self.place.name

    def matches_snapshot_name(self, snapshot_name: str) -> bool:
        """Return whether this is the name of our snapshot."""
        return snapshot_name == self.place.name

    def matches_snapshot_location(self, snapshot_location: str) -> bool:
        """Return whether this is the file of our snapshot."""
        return snapshot_location == self.place.path


class PromptExtension(AbstractSyrupyExtension):
    """One snapshot in one file, exact bytes, written whole or not at all."""

    snapshot_dirname = DIRECTORY
    file_extension = SUFFIX.removeprefix(".")
    write_immediately = True

    def serialize(self, data: Any, **_filters: Any) -> str:
        """Return the text, which is serialized already."""
        return str(data)

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, **_index: Any) -> str:
        """Return the snapshot's name; there is one per item, so the index does not count."""
        return test_location.snapshot_name

    @classmethod
    def get_location(cls, *, test_location: PyTestLocation, **_index: Any) -> str:
        """Return the file of our item, and nothing for other tests."""
        return test_location.place.path if isinstance(test_location, PromptLocation) else ""

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """Return the same name for all our items, so that syrupy looks for obsolete files once in a run."""
        return DIRECTORY if isinstance(test_location, PromptLocation) else ""

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        """Return whether the file is that of our item."""
        return isinstance(test_location, PromptLocation) and test_location.place.path == snapshot_location

    def is_snapshot_location(self, *, location: str) -> bool:
        """Return whether the file could be one of ours."""
        return is_snapshot_location(location)

    def discover_snapshots(self, *, test_location: PyTestLocation, **_ignored: Any) -> SnapshotCollections:
        """Return the files that no task defines: what merely did not run is not offered for deletion."""
        found = SnapshotCollections()
        if isinstance(test_location, PromptLocation):
            for path in test_location.expected.obsolete():
                found.add(self.read_snapshot_collection(snapshot_location=str(path)))
        return found

    def read_snapshot_collection(self, *, snapshot_location: str) -> SnapshotCollection:
        """Return the file as a collection of its one snapshot."""
        path = Path(snapshot_location)
        collection = SnapshotCollection(location=snapshot_location)
        collection.add(Snapshot(name=f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}"))
        return collection

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_names: Any) -> str | None:
        """Return the file's text; raises TaintedSnapshotError, which counts as different, when it is not UTF-8."""
        stored = read_snapshot(snapshot_location)
        if stored is None:
            return None
        try:
            return stored.decode()
        except UnicodeDecodeError:
            raise TaintedSnapshotError(stored.decode(errors="replace")) from None

    @classmethod
    def write_snapshot_collection(cls, *, snapshot_collection: SnapshotCollection, **_order: Any) -> None:
        """Write the one snapshot of the collection."""
        for snapshot in snapshot_collection:
            write_snapshot(snapshot_collection.location, str(snapshot.data))

    def delete_snapshots(self, *, snapshot_location: str, **_names: Any) -> None:
        """Delete the file, and the folders that it leaves empty."""
        if not is_snapshot_location(snapshot_location):
            return
        delete_snapshot(Path(snapshot_location))


if not hasattr(SnapshotReport, "_directory_selection_allows_cleanup"):
    # Before syrupy 7, a file is unused in a run of given folders only if its name is that of a test file that ran.
    _by_name = SnapshotReport._ran_items_match_location

    def _match(self: SnapshotReport, snapshot_location: str) -> bool:
        return is_snapshot_location(snapshot_location) or _by_name(self, snapshot_location)

    SnapshotReport._ran_items_match_location = _match  # type: ignore[method-assign]

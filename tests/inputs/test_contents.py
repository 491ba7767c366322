"""Inputs by their contents: what counts as the same, and which stamps prove it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_promptfmt.inputs import contents
from pytest_promptfmt.inputs.contents import ABSENT, FOLDER, OTHER, Contents, Input
from pytest_promptfmt.inputs.facts import HUB, PLATFORM, PROCESSORS, is_fact, named_fact
from pytest_promptfmt.inputs.places import digest_of

LONG_AGO = 1_600_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that has not changed for long, in a folder that has not, either."""
    path = tmp_path / "folder/file"
    path.parent.mkdir()
    path.write_text("one", "utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))
    os.utime(path.parent, (LONG_AGO, LONG_AGO))
    time.sleep(2 * contents._TICK_NS / 1e9)  # the times of the change itself are now, within a tick of the clock
    return path


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_SETTLED_NS", 0)


def kept(path: Path | str) -> list[object]:
    """Return an input as a store keeps it: JSON knows no tuples."""
    return [list(part) if isinstance(part, tuple) else part for part in Contents().input(str(path))]


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_link(file: Path) -> None:
    file.rename(f"{file}2")
    file.symlink_to(f"{file}2")


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda file: file, True),
    "a touch": (Path.touch, True),
    "the same text again": (lambda file: file.write_text("one", "utf-8"), True),
    "another text": (lambda file: file.write_text("two", "utf-8"), False),
    "no file": (Path.unlink, False),
    "a folder": (replace_by_folder, False),
    "a link to the same text": (replace_by_link, False),
    "a pipe": (replace_by_pipe, False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_is_the_same_by_its_text_and_its_place(file: Path, change: str) -> None:
    before = kept(file)
    edit, is_same = CHANGES[change]
    edit(file)
    assert Contents().is_same(before) is is_same


@pytest.mark.parametrize(
    ("name", "counts"), [("file2", True), ("sub/", True), (".hidden", False), ("__pycache__/", False)]
)
def test_a_folder_is_the_same_by_the_names_in_it(file: Path, name: str, counts: bool) -> None:
    before = kept(f"{file.parent}/")
    file.write_text("other", "utf-8")
    assert Contents().is_same(before), "the content of files does not count"
    new = file.parent / name
    if name.endswith("/"):
        new.mkdir()
    else:
        new.write_text("", "utf-8")
    assert Contents().is_same(before) is not counts
    assert Contents().input(str(file.parent))[1] == FOLDER, "without a slash no name counts"


def test_a_link_in_a_folder_counts_with_its_target(file: Path) -> None:
    (file.parent / "link").symlink_to("file")
    before = kept(f"{file.parent}/")
    assert before[2] is None, "its stamp does not show where links lead"
    (file.parent / "link").unlink()
    (file.parent / "link").symlink_to("file2")
    assert not Contents().is_same(before)


@pytest.mark.usefixtures("_at_once")
def test_a_file_is_read_again_only_where_its_stamp_differs(file: Path) -> None:
    path, _, stamp = Contents().input(str(file))
    assert Contents().is_same([path, "any digest", stamp]), "the stamp is believed"
    file.write_text("two", "utf-8")
    assert not Contents().is_same([path, "any digest", stamp])


def test_the_stamp_of_a_file_that_has_just_changed_is_not_kept(file: Path) -> None:
    file.write_text("two", "utf-8")
    assert Contents().input(str(file))[2] is None


@pytest.mark.parametrize(
    ("row", "is_same"),
    [
        ((), False),
        (["p"], False),
        ([1, "2", None], False),
        (["p", None, None], False),
        (["p", OTHER, None], False),
        ("abc", False),
        (["p", ABSENT, 3], True),
    ],
)
def test_only_a_row_that_is_an_input_can_be_the_same(row: list[object], is_same: bool) -> None:
    assert Contents().is_same(row) is is_same


def test_inputs_that_changed_since_the_run_began_are_not_kept(file: Path) -> None:
    found = Contents()
    assert [each[0] for each in found.all([str(file)]) or ()] == [str(file)]
    file.write_text("two", "utf-8")
    assert found.all([str(file)]) is None
    later = Contents()
    later.input(str(file.parent / "absent"))
    (file.parent / "absent").write_text("", "utf-8")
    assert later.all([str(file.parent / "absent")]) is None


def test_absent_paths_that_others_imply_are_left_out(file: Path) -> None:
    folder = file.parent

    def paths(*given: Path | str) -> list[str]:
        return [each[0] for each in Contents().all(map(str, given)) or ()]

    assert paths(folder / "gone") == [f"{folder}/gone"]
    assert paths(folder / "gone", f"{folder}/") == [f"{folder}/"], "the names in the folder count"
    assert paths(folder / ".gone", f"{folder}/") == [f"{folder}/", f"{folder}/.gone"], "this name does not"
    assert paths(folder / "a/b/c", folder / "a/d") == [f"{folder}/a"], "the folder above is absent, too"


def test_an_absent_path_may_be_implied_by_a_folder_that_is_known_apart(file: Path) -> None:
    absent, folder = str(file.with_name("gone.txt")), f"{file.parent}/"
    assert [*Contents().without_implied({absent})] == [absent]
    assert [*Contents().without_implied({absent}, {folder})] == []
    assert [*Contents().without_implied({str(file)}, {folder})] == [str(file)]


def test_a_folder_that_was_taken_has_to_keep_its_names_to_the_end(file: Path) -> None:
    found = Contents()
    found.take(f"{file.parent}/")
    (file.parent / "__pycache__").mkdir()
    assert found.all([f"{file.parent}/"]) is not None
    (file.parent / "new").write_text("", "utf-8")
    assert found.all([f"{file.parent}/"]) is None


@pytest.mark.usefixtures("_at_once")
def test_stamps_of_unchanged_paths_are_those_of_a_later_run(file: Path) -> None:
    paths = [str(file), f"{file.parent}/", f"{file.parent}/absent", PLATFORM]
    before = Contents()
    for path in paths:
        before.input(path)
    stamps = before.stamps(paths)
    assert stamps is not None
    assert Contents().stamps_now(paths, lambda _: True) == stamps
    assert Contents().stamps_now(paths, lambda _: False) != stamps, "facts are shared by all folders"
    assert Contents().stamps_now(paths[:3], lambda _: False) == Contents().stamps_now(paths[:3], lambda _: True)
    file.touch()
    assert Contents().stamps_now(paths, lambda _: True) != stamps


@pytest.mark.usefixtures("_at_once")
def test_folders_into_which_a_run_writes_have_stamps_if_no_other_name_came(file: Path) -> None:
    read, later = Contents(), Contents()
    folder, snapshot = f"{file.parent}/", file.parent / "__prompts__/stem/task/plain.txt"
    for each in (read, later):
        each.take(folder)
    snapshot.parent.mkdir(parents=True)
    snapshot.write_text("one", "utf-8")
    read.wrote(str(snapshot), digest_of(b"one"))
    inputs = [folder, *(f"{each}/" for each in snapshot.parents[:3]), str(snapshot)]
    assert read.all([folder, str(snapshot)]) is not None
    assert read.stamps(inputs) == Contents().stamps_now(inputs, lambda _: False)
    assert read.holds_same_names(folder)
    later.wrote(str(snapshot), digest_of(b"one"))
    (file.parent / "other").touch()
    assert later.stamps(inputs) is None
    begun = Contents()
    (file.parent / "third").touch()
    begun.take(folder)
    assert not begun.holds_same_names(folder)


@pytest.mark.usefixtures("_at_once")
def test_a_folder_into_which_a_run_writes_may_have_another_new_name(file: Path) -> None:
    contents, folder, lock = Contents(), f"{file.parent}/", file.parent / "promptfmt.lock"
    contents.take(folder)
    assert contents.holds_same_names(folder)
    (file.parent / "other.yaml").touch()
    lock.write_text("one", "utf-8")
    contents.wrote(str(lock), digest_of(b"one"))
    assert not contents.holds_same_names(folder)


def test_a_file_that_has_just_changed_has_no_stamp(file: Path) -> None:
    file.write_text("two", "utf-8")
    assert Contents().stamps([str(file)]) is None


def test_facts_are_inputs_by_their_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OF_A_TEST", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = [named_fact("variable", "OF_A_TEST"), named_fact("program", "of-a-test"), PLATFORM, PROCESSORS, HUB]
    assert all(map(is_fact, facts))
    before: dict[str, Input] = {fact: Contents().input(fact) for fact in facts}
    assert all(Contents().is_same(each) for each in before.values())
    monkeypatch.setenv("OF_A_TEST", "2")
    (tmp_path / "of-a-test").write_text("#!/bin/sh\n", "utf-8")
    (tmp_path / "of-a-test").chmod(0o755)
    assert [fact for fact in facts if not Contents().is_same(before[fact])] == facts[:2]

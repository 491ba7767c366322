"""The lock file: written and read back, damage named by line, and in words what an upgrade changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.core.outcome import UsedTokenizer
from pytest_promptfmt.core.release import LATEST, release_of
from pytest_promptfmt.snapshots.lock import Lock, Locked, LockedOrigin, lock_text, read_lock, what_changed, write_lock

USED = UsedTokenizer(name="m/a b", loader="tokenizers 1", content="0a")
FETCHED = replace(USED, name="é", origin="owner/name@01")
ORIGIN = LockedOrigin(repository="owner/tasks", revision="", content="0b")
WHOLE = Locked({"m/a b": USED, "é": FETCHED}, {"tasks/x": ORIGIN}, "0.4.9")


@pytest.mark.parametrize("locked", [Locked(), WHOLE, replace(WHOLE, origins={}), replace(WHOLE, lm_eval="")])
def test_a_lock_is_read_back_as_it_was_written_in_an_order_of_its_own(locked: Locked, tmp_path: Path) -> None:
    write_lock(tmp_path / "promptfmt.lock", locked)
    assert read_lock(tmp_path / "promptfmt.lock") == locked
    turned = replace(locked, tokenizers=dict([*locked.tokenizers.items()][::-1]))
    assert lock_text(turned) == (tmp_path / "promptfmt.lock").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("origins: {}\n", 1, "not a lock file"),
        ("tokenizers: {}\nmore: 1\n", 1, "not a lock file"),
        ("tokenizers: []\n", 1, "not a lock file"),
        ("tokenizers: {}\nlm_eval: 0.4\n", 1, "not a lock file"),
        ("tokenizers:\n  a: {loader: x}\n", 2, "invalid entry 'a'"),
        ("tokenizers:\n  a: {loader: x, content: y, more: z}\n", 2, "invalid entry 'a'"),
        ("tokenizers:\n  a: {loader: x, content: 1}\n", 2, "invalid entry 'a'"),
        ("tokenizers:\n  1: {loader: x, content: y}\n", 2, "invalid entry 1"),
        ("tokenizers:\n  a: x\n", 2, "invalid entry 'a'"),
        ("tokenizers: {}\norigins:\n  a: {repository: x, content: y}\n", 3, "invalid entry 'a'"),
        ("tokenizers: {}\n<<<<<<< ours\n", 3, "not valid YAML"),
    ],
)
def test_damage_is_named_with_its_line_and_what_to_do(text: str, line: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.lock"
    path.write_text(text, "utf-8")
    with pytest.raises(SnapshotError, match=says) as caught:
        read_lock(path)
    assert caught.value.position is not None
    assert (caught.value.position.path, caught.value.position.line) == (path, line)
    assert "--snapshot-update" in (caught.value.hint or "")


def test_no_file_is_an_empty_lock_and_a_link_to_nothing_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.lock"
    assert read_lock(path) == Locked()
    path.symlink_to("nothing")
    with pytest.raises(SnapshotError, match="No such file"):
        read_lock(path)


@pytest.mark.parametrize(
    ("before", "changes", "said"),
    [
        (None, {}, ""),
        (FETCHED, {}, ""),
        (FETCHED, {"loader": "tokenizers 2"}, "tokenizers 1 -> tokenizers 2"),
        (FETCHED, {"content": "0c"}, "files changed (0a -> 0c)"),
        (FETCHED, {"origin": "owner/name@02"}, "owner/name@01 -> owner/name@02"),
        (FETCHED, {"origin": ""}, "owner/name@01 -> "),
        (USED, {"name": "m/a b"}, ""),  # where it comes from was not known before
        (FETCHED, {"loader": "x", "content": "0c"}, "tokenizers 1 -> x, files changed (0a -> 0c)"),
    ],
)
def test_what_changed_is_told_in_a_phrase(before: UsedTokenizer | None, changes: dict[str, str], said: str) -> None:
    assert what_changed(before, replace(FETCHED, **changes)) == said


def test_a_note_says_whether_the_tokenizer_itself_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.lock"
    write_lock(path, Locked({USED.name: USED}))
    lock = Lock(path)
    same, other = lock.note(USED), lock.note(replace(USED, loader="tokenizers 2"))
    assert (same.is_change, same.text) == (False, "m/a b is the same as in promptfmt.lock (tokenizers 1)")
    assert (other.is_change, other.text) == (True, "m/a b: tokenizers 1 -> tokenizers 2")
    assert (
        lock.note(FETCHED).text
        == "é: promptfmt.lock has no entry for this tokenizer. In this run, the tokenizer was loaded with tokenizers 1"
    )
    path.write_text("- damaged\n", "utf-8")
    damaged = Lock(path)
    assert damaged.locked.tokenizers == {}
    assert "the file must be a mapping" in damaged.note(USED).text


def test_a_run_names_what_is_out_of_date_equal_changes_once(tmp_path: Path) -> None:
    path, old, new = tmp_path / "promptfmt.lock", release_of("0.4.9"), LATEST
    names = ("a", "b", "c")
    write_lock(path, Locked({name: replace(USED, name=name) for name in names}, lm_eval=old.version))
    seen = {name: replace(USED, name=name, loader="tokenizers 2" if name != "c" else USED.loader) for name in names}
    assert [*Lock(path, new).out_of_date(seen)] == [
        "promptfmt.lock is out of date (a, b: tokenizers 1 -> tokenizers 2). To update the file, use --snapshot-update",
        "the snapshots were made as in lm-eval 0.4.9, but this run renders as lm-eval "
        f"{new.version}. To render as before, use --promptfmt-lm-eval 0.4.9",
    ]
    assert [*Lock(path, old).out_of_date({})] == []


@pytest.mark.parametrize("only_new", [False, True])
def test_entries_that_the_run_did_not_use_are_kept_and_only_new_ones_are_added_where_asked_for(
    only_new: bool, tmp_path: Path
) -> None:
    path = tmp_path / "promptfmt.lock"
    write_lock(path, Locked({"a": replace(USED, name="a"), "b": replace(USED, name="b")}, {"x": ORIGIN}))
    seen = {"b": replace(USED, name="b", content="0c"), "c": replace(USED, name="c")}
    lines = [*Lock(path).renew(seen, only_new=only_new)]
    kept = read_lock(path)
    assert {name: entry.content for name, entry in kept.tokenizers.items()} == {
        "a": "0a", "b": "0a" if only_new else "0c", "c": "0a",
    }  # fmt: skip
    assert kept.origins == {"x": ORIGIN}
    assert lines == ([] if only_new else ["promptfmt.lock was updated, b: files changed (0a -> 0c)"])
    assert Lock(path).would_write(kept.tokenizers) is None
    assert Lock(path).would_write({"d": replace(USED, name="d")}) is not None


def test_a_damaged_lock_is_replaced_only_where_tokenizers_were_seen(tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.lock"
    path.write_text("- damaged\n", "utf-8")
    for each in ({}, {USED.name: USED}):
        lock = Lock(path)
        assert lock.locked.tokenizers == {}
        assert (lock.would_write(each) is not None) == bool(each)
        lines = [*lock.renew(each)]
        assert [line.partition(":")[0] for line in lines] == (["promptfmt.lock was replaced"] if each else [])
    assert read_lock(path).tokenizers == {USED.name: USED}


def test_a_release_is_kept_only_where_its_prompts_differ_from_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "promptfmt.lock"
    for release, written in ((release_of("0.4.9"), "0.4.9"), (LATEST, "")):
        [*Lock(path, release).renew({USED.name: USED})]
        assert read_lock(path).lm_eval == written

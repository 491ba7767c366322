"""Patches are judged by git itself: applied in a repository, they have to give exactly the wanted files."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.results.pending import Edit, git_patch, read_edits, write_pending
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.writers import WRITERS

LINES = st.lists(st.sampled_from([b"a", b"b  ", b"\xff\r", b"", b"doc 1", b"-- x"]), max_size=12)
CONTENTS = st.builds(lambda lines, end: b"\n".join(lines) + end, LINES, st.sampled_from([b"", b"\n"]))
NAMES = ("plain.txt", "with blank.txt", "späße «x».txt", 'quote".txt', "back\\slash.txt", "tab\there.txt")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def apply(repository: Path, patch: bytes) -> None:
    if patch:
        done = subprocess.run(["git", "apply", "-"], cwd=repository, input=patch, capture_output=True)
        assert done.returncode == 0, done.stderr.decode() + patch.decode("latin-1")


@settings(max_examples=40)
@given(files=st.dictionaries(st.sampled_from(NAMES), st.tuples(CONTENTS | st.none(), CONTENTS | st.none()), min_size=3))
def test_git_applies_the_patch_and_every_byte_is_as_it_was_to_be(
    repository: Path, files: dict[str, tuple[bytes | None, bytes | None]]
) -> None:
    edits = []
    for name, (old, new) in files.items():
        path = repository / "tasks" / name
        path.unlink(missing_ok=True)
        if old is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(old)
        edits.append(Edit(path=path, old=old, new=new))
    apply(repository, git_patch(edits, repository))
    for edit in edits:
        assert (edit.path.read_bytes() if edit.path.exists() else None) == edit.new


@pytest.mark.parametrize("content", [(None, b"x\n"), (b"x\n", None), (b"x\n", b"y\n")])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a b~.txt", "a b~.txt"),
        ("a\x7f.txt", '"a\\177.txt"'),
        ("a\x1f.txt", '"a\\037.txt"'),
        ("é e.txt", '"\\303\\251 e.txt"'),
        ('a".txt', '"a\\042.txt"'),
        ("a\\.txt", '"a\\134.txt"'),
    ],
)
def test_names_are_in_quotes_where_git_quotes_them_and_a_space_ends_with_a_tab(
    name: str, shown: str, content: tuple[bytes | None, bytes | None], tmp_path: Path
) -> None:
    old, new = content
    begin, name_end = (shown[:1], shown[1:]) if shown[0] == '"' else ("", shown)
    before, after = f"{begin}a/{name_end}", f"{begin}b/{name_end}"
    tab = "\t" if name == shown else ""
    head, *_ = git_patch([Edit(path=tmp_path / name, old=old, new=new)], tmp_path).decode().partition("@@")
    assert head.splitlines() == [
        f"diff --git {before} {after}",
        *(["new file mode 100644"] if old is None else ["deleted file mode 100644"] if new is None else []),
        "--- /dev/null" if old is None else f"--- {before}{tab}",
        "+++ /dev/null" if new is None else f"+++ {after}{tab}",
    ]


def test_a_long_file_with_a_change_at_either_end_is_patched_in_two_hunks(repository: Path) -> None:
    path = repository / "long.txt"
    lines = [f"line {number}\n".encode() for number in range(400)]
    old, new = b"".join(lines), b"".join([b"first\n", *lines[1:-1], b"last without end"])
    path.write_bytes(old)
    patch = git_patch([Edit(path=path, old=old, new=new)], repository)
    assert patch.count(b"\n@@ ") == 2
    assert len(patch.splitlines()) < 30
    apply(repository, patch)
    assert path.read_bytes() == new


def test_files_outside_the_repository_are_left_out_and_named(tmp_path: Path) -> None:
    outside = Edit(path=tmp_path / "elsewhere.txt", old=None, new=b"x\n")
    inside = Edit(path=tmp_path / "repository" / "here.txt", old=None, new=b"x\n")
    result = RunResult(rootdir=tmp_path / "repository", edits=(outside, inside))
    assert b"elsewhere" not in WRITERS["patch"].content(result)
    assert WRITERS["patch"].summary(result).startswith("a patch of 1 file, without ")
    assert "elsewhere.txt" in WRITERS["patch"].summary(result)


def test_pending_edits_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    edits = [
        Edit(
            path=tmp_path / "__prompts__/a/ä/plain.txt",
            old=None,
            new=b"new\r\n",
            category="new",
            task="a",
            profile="plain",
        ),
        Edit(path=tmp_path / "__prompts__/b/b/plain.txt", old=b"\xff", new=None, category="obsolete", title="nobody's"),
    ]
    (tmp_path / "pending.jsonl").write_text(write_pending(edits, tmp_path), "utf-8")
    assert read_edits(tmp_path / "pending.jsonl", tmp_path) == edits


@pytest.mark.parametrize("line", ["{", "{}", "3", '{"path": 1, "old": 2, "new": 3}'])
def test_another_file_is_no_list_of_pending_edits(line: str, tmp_path: Path) -> None:
    (tmp_path / "pending.jsonl").write_text(line + "\n", "utf-8")
    with pytest.raises(SettingsError, match=r"pending\.jsonl:1: not a line of pending snapshots"):
        read_edits(tmp_path / "pending.jsonl", tmp_path)

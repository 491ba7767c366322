"""Versions of tasks against changes: which was forgotten, and the edit of one number in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.revisions.versions import (
    PARTS,
    VersionFinding,
    bumps,
    changed_parts,
    next_version,
    version_gate,
    write_bumps,
)

TASK = "task: a\noutput_type: generate_until\ndoc_to_text: x\nmetadata: {version: 2}\n"


def gate(
    tmp_path: Path, old: str, new: str, changed: dict[tuple[str, str], Any], **options: Any
) -> list[tuple[str, tuple[str, ...]]]:
    for side, text in (("before", old), ("after", new)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.yaml").write_text(text, "utf-8")
    options = {"files": {"a.yaml": "a.yaml"}, "counts": PARTS} | options
    found = version_gate(tmp_path / "before", tmp_path / "after", changed, **options)
    return [(finding.kind, finding.parts) for finding in found]


@pytest.mark.parametrize(
    ("edit", "changed", "options", "expected"),
    [
        ((), {}, {}, []),
        ((), {("a.yaml", "a"): {"text"}}, {}, [("elsewhere", ("text",))]),
        ((), {("a.yaml", "a@mcqa"): {"target", "text"}}, {}, [("elsewhere", ("text", "target"))]),
        ((), {("a.yaml", "a"): {"text"}}, {"counts": ["stops"]}, []),
        ((), {}, {"unknown": [("a.yaml", "a")]}, [("unsure", ("text",))]),
        (("version: 2", "version: 3"), {("a.yaml", "a"): {"text"}}, {}, [("raised", ("text",))]),
        (("version: 2", "version: 3"), {}, {}, [("alone", ())]),
        (("version: 2", "version: 3"), {}, {"unknown": [("a.yaml", "a")]}, [("raised", ("text",))]),
        (("version: 2", "version: 3"), {}, {"unrendered": [("a.yaml", "a")]}, []),
    ],
)
def test_each_change_is_set_against_the_version(
    tmp_path: Path,
    edit: tuple[str, str],
    changed: dict[tuple[str, str], Any],
    options: dict[str, Any],
    expected: list[Any],
) -> None:
    assert gate(tmp_path, TASK, TASK.replace(*edit) if edit else TASK, changed, **options) == expected


def test_a_change_without_a_version_is_missing_one_and_no_error(tmp_path: Path) -> None:
    bare = TASK.replace("metadata: {version: 2}\n", "")
    assert gate(tmp_path, bare, bare, {("a.yaml", "a"): {"text"}}) == [("missing", ("text",))]


def test_groups_inside_a_group_pass_a_change_on_to_it(tmp_path: Path) -> None:
    group = "group: all\nmetadata: {version: 1}\ntask:\n  - group: inner\n    task: [a, {task: b}]\n  - c\n"
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "all.yaml").write_text(group, "utf-8")
        for name in "abc":
            task = f"task: {name}\noutput_type: generate_until\ndoc_to_text: x\nmetadata: {{version: 2}}\n"
            (tmp_path / side / f"{name}.yaml").write_text(task, "utf-8")
    files = {name: name for name in ("all.yaml", "a.yaml", "b.yaml", "c.yaml")}
    found = version_gate(
        tmp_path / "before", tmp_path / "after", {("b.yaml", "b"): {"text"}}, files=files, counts=PARTS
    )
    assert [(finding.kind, finding.tasks) for finding in found] == [("elsewhere", ("b",)), ("members", ("all",))]


def test_the_sections_of_a_result_are_parts_and_tokens_and_columns_are_none() -> None:
    sections = ["prompt, line 2", "generate", "tokens of chat", "columns", "continuations 2 of 4"]
    members = [{"task": "a", "file": "a.yaml", "sections": [each.partition(",")[0] for each in sections]}]
    clusters = [{"category": "changed", "members": members}, {"category": "new", "members": [{"task": "b"}]}]
    assert changed_parts(clusters) == {("a.yaml", "a"): {"text", "stops", "request"}}


@pytest.mark.parametrize(
    ("version", "following"),
    [(1, "2"), (1.0, "2.0"), ("v1.2.9", "v2.0.0"), (99, "100"), ("spring", None), ("1.x", None), (True, None)],
)
def test_the_next_version_has_the_same_notation(version: object, following: str | None) -> None:
    assert next_version(version) == following


def forgotten(name: str, line: int, column: int) -> VersionFinding:
    place = Position(Path(name), line, column)
    return VersionFinding(kind="kept", tasks=("a",), parts=("text",), before=1, after=1, place=place)


@pytest.mark.parametrize(
    ("name", "text", "place", "raised"),
    [
        ("a.yaml", "metadata:\n  version: 1.0  # mine\n", (2, 3), "metadata:\n  version: 2.0  # mine\n"),
        ("a.yaml", "metadata: {version: '9'}\r\n", (1, 12), "metadata: {version: '10'}\r\n"),
        ("a.yaml", "metadata: {é: 0, version: 1}\n", (1, 18), "metadata: {é: 0, version: 2}\n"),
        ("a.py", "class Own:\n    VERSION = 1\n", (2, 15), "class Own:\n    VERSION = 2\n"),
    ],
)
def test_a_version_is_raised_without_changing_another_byte(
    tmp_path: Path, name: str, text: str, place: tuple[int, int], raised: str
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    made, refused = bumps([forgotten(name, *place)], tmp_path, tmp_path)
    assert (tmp_path / name).read_bytes() == text.encode(), "nothing is written yet"
    write_bumps(made, tmp_path)
    assert (refused, (tmp_path / name).read_bytes().decode()) == ([], raised)


def test_two_versions_of_a_file_are_raised_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{a: {version: 9}, b: {version: 9}}\n", "utf-8")
    made, _ = bumps([forgotten("a.yaml", 1, 6), forgotten("a.yaml", 1, 23)], tmp_path, tmp_path)
    assert [bump.after for bump in made] == [b"{a: {version: 10}, b: {version: 10}}\n"]
    assert made[0].diff[-2:] == ["-{a: {version: 9}, b: {version: 9}}", "+{a: {version: 10}, b: {version: 10}}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one: &n 1\nversion: *n\n", "not a number, so it cannot be raised"),
        ("one: 1\nversion: spring\n", "not a number, so it cannot be raised"),
        ("one: 1\nversion: [\n", "not a number, so it cannot be raised"),
        (None, "the version cannot be raised: "),
    ],
)
def test_a_version_that_is_no_plain_number_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "a.yaml").write_text(text, "utf-8")
    made, [refused] = bumps([forgotten("a.yaml", 2, 1)], tmp_path, tmp_path)
    assert message in str(refused)
    assert not made or made[0].before == made[0].after


def test_a_file_behind_a_link_or_outside_of_the_repository_is_never_edited(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("version: 1\n", "utf-8")
    top = tmp_path / "repository"
    top.mkdir()
    (top / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    findings = [forgotten("link.yaml", 1, 1), forgotten("../outside.yaml", 1, 1)]
    made, refused = bumps(findings, top, top)
    assert made == []
    assert all("a link, or outside the repository" in str(each) for each in refused)
    assert len(refused) == 2

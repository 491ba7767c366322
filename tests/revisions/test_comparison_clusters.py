"""The clusters of a comparison: named by tasks of both sides, sorted, and counted by category."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_promptfmt.revisions.task_changes import as_comparison, short_name, without


def member(task: str, profile: str = "plain", file: str = "tasks/a.yaml") -> dict[str, str]:
    return {"task": task, "profile": profile, "file": file}


def cluster(category: str, *members: dict[str, str], title: str = "a title", detail: str = "") -> dict[str, Any]:
    sizes = {"items": len(members), "tasks": len({each["task"] for each in members})}
    return {"category": category, "title": title, "detail": detail, "docs": 0, **sizes, "members": [*members]}


def compared(*clusters: dict[str, Any], lost: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    empty = {"followed": [], "removed": [], "defined": {}, "unrendered": {}, "counts": {"passed": 2, "changed": 9}}
    result = {**empty, "clusters": [*clusters], **more}
    return as_comparison(result, old="before", new="after", unrendered_before=lost)


@pytest.mark.parametrize(
    ("revision", "shown"),
    [
        ("a" * 40, "a" * 10),
        ("0123456789abcdef" * 4, "0123456789"),
        ("a" * 39, "a" * 39),
        ("g" * 40, "g" * 40),
        ("main", "main"),
    ],
)
def test_only_a_whole_commit_id_is_shortened(revision: str, shown: str) -> None:
    assert short_name(revision) == shown


def test_a_new_task_shows_its_prompt_without_the_name_of_the_file_format() -> None:
    detail = "there is no snapshot yet\n+pytest-promptfmt snapshot 1\n+| Q: x\n context\n\u2026 and more"
    new = cluster("new", member("a"), member("b"), detail=detail)
    [only] = compared(new)["clusters"]
    assert only["title"] == "tasks that before does not have"
    assert only["detail"] == "+| Q: x\n\u2026 and more"
    assert only["members"] == [member("a"), member("b")]


@pytest.mark.parametrize("lost", ["b", "b@cot", "tasks/b.yaml"])
def test_a_task_that_could_not_be_rendered_before_is_told_apart_from_a_new_one(lost: str) -> None:
    name = "b@cot" if "@" in lost else "b"
    new = cluster("new", member("a"), member(name, file="tasks/b.yaml"), detail="none\n+head\n+text")
    first, second = compared(new, lost=(lost,))["clusters"]
    assert (first["title"], first["detail"]) == ("tasks that before does not have", "+text")
    assert (second["title"], second["detail"]) == ("tasks that could not be rendered in before", "")


def test_both_names_of_a_renamed_task_are_shown_and_it_is_neither_new_nor_removed() -> None:
    renamed = cluster("renamed", member("new_name"), title="renamed tasks/__prompts__/a/old_name/plain.txt \u2192 x")
    result = compared(renamed, removed=[member("old_name"), member("gone")])
    same, removed = result["clusters"]
    assert (same["category"], same["title"]) == ("renamed", "the snapshot has another name, but the same prompts")
    assert [each["task"] for each in same["members"]] == ["old_name \u2192 new_name"]
    assert (removed["category"], removed["title"]) == ("obsolete", "tasks that after does not have")
    assert [each["task"] for each in removed["members"]] == ["gone"]
    assert result["counts"] == {"obsolete": 1, "passed": 2, "renamed": 1}


def test_a_change_of_a_renamed_task_names_both_and_its_sides_are_the_revisions() -> None:
    followed = [{**member("new_name"), "old": "old_name", "old_file": "tasks/a.yaml"}]
    changed = cluster("changed", member("new_name"), title="a title", detail="a title\n\n--- stored\n+++ now\n-x\n+y")
    header = cluster("header-only", member("new_name"))
    [only] = compared(changed, header, followed=followed)["clusters"]
    assert only["detail"] == "--- before\n+++ after\n-x\n+y"
    assert [each["task"] for each in only["members"]] == ["old_name \u2192 new_name"]


def test_a_renamed_task_whose_prompts_are_the_same_is_told_unless_it_failed() -> None:
    followed = [
        {**member(name, file="tasks/a.yaml"), "old": f"old_{name}", "old_file": "tasks/a.yaml"}
        for name in ("a", "b", "c", "d")
    ]
    defined = {"tasks/a.yaml": ["a", "b", "d"]}
    failing = cluster("error", member("b"))
    result = compared(failing, followed=followed, defined=defined, unrendered={"tasks/a.yaml": ["d"]})
    error, same = result["clusters"]
    assert error["category"] == "error"
    assert [each["task"] for each in same["members"]] == ["old_a \u2192 a"]


def test_clusters_come_by_category_then_by_size_and_are_counted() -> None:
    found = compared(
        cluster("changed", member("a")),
        cluster("error", member("b")),
        cluster("changed", member("c"), member("d"), title="more"),
        cluster("obsolete", member("e")),
        cluster("header-only", member("f")),
    )
    assert [(each["category"], each["items"]) for each in found["clusters"]] == [
        ("error", 1), ("changed", 2), ("changed", 1), ("header-only", 1),
    ]  # fmt: skip
    assert found["counts"] == {"changed": 3, "error": 1, "header-only": 1, "passed": 2}
    assert "followed" not in found


def test_the_first_member_stays_first_and_the_others_are_sorted() -> None:
    new = cluster("new", member("z"), member("b"), member("a", "plain"), member("a", "chat"))
    [only] = compared(new)["clusters"]
    assert [(each["task"], each["profile"]) for each in only["members"]] == [
        ("z", "plain"), ("a", "chat"), ("a", "plain"), ("b", "plain"),
    ]  # fmt: skip
    assert (only["items"], only["tasks"]) == (4, 3)


def test_prompts_of_some_tasks_are_left_out_of_clusters_of_one_category() -> None:
    clusters = [
        cluster("changed", member("a"), member("b")),
        cluster("changed", member("a")),
        cluster("new", member("a")),
    ]
    left, new = without(clusters, [("tasks/a.yaml", "a")])
    assert [each["task"] for each in left["members"]] == ["b"]
    assert (left["items"], left["tasks"]) == (1, 1)
    assert new == clusters[2]

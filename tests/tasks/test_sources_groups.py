from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks.task_file import TaskFile
from pytest_promptfmt.tasks.task_index import TaskIndex

CHILD = "doc_to_text: '{{q}}'\ndoc_to_target: a\nnum_fewshot: 1\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def read_group(folder: Path, name: str = "g") -> TaskFile:
    file = read_task_file(folder / f"{name}.yaml", TaskIndex([folder]))
    assert file is not None
    assert file.kind == "group"
    return file


def refused(folder: Path, name: str = "g") -> SourceError:
    with pytest.raises(SourceError) as caught:
        read_group(folder, name)
    return caught.value


def shots(file: TaskFile) -> dict[str, int | None]:
    return {task.name: task.num_fewshot for task in file.tasks}


def test_members_taken_over_unchanged_yield_nothing(tmp_path: Path) -> None:
    write(
        tmp_path, a=f"task: a\ntag: t\n{CHILD}", g="group: g\ntask: [a, t, {task: a, num_fewshot: 1, task_alias: A}]\n"
    )
    file = read_group(tmp_path)
    assert file.tasks == ()
    assert file.names == ("g",)
    assert file.unresolved == ()


def test_member_keys_win_over_outer_groups_over_group_keys_over_the_task(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=f"task: a\n{CHILD}",
        inner="group: inner\nnum_fewshot: 2\ndescription: inner\ntask: [a, {task: a, num_fewshot: 4}]\n",
        outer="group: outer\nnum_fewshot: 3\ntask: [inner]\n",
    )
    assert shots(read_group(tmp_path, "inner")) == {"inner.a": 4}
    (task,) = read_group(tmp_path, "outer").tasks
    assert (task.name, task.num_fewshot, task.description) == ("outer.inner.a", 4, "inner")
    write(tmp_path, inner="group: inner\nnum_fewshot: 2\ntask: [a]\n")
    assert shots(read_group(tmp_path, "outer")) == {"outer.inner.a": 3}
    write(tmp_path, outer="group: outer\nnum_fewshot: 3\ntask: [{group: inner, num_fewshot: 5}]\n")
    assert shots(read_group(tmp_path, "outer")) == {"outer.inner.a": 5}


def test_a_changed_key_points_at_the_group_and_the_rest_at_the_task(tmp_path: Path) -> None:
    write(
        tmp_path, a=f"task: a\n{CHILD}", g="group: g\ntask:\n  - task: a\n    fewshot_config:\n      sampler: first_n\n"
    )
    (task,) = read_group(tmp_path).tasks
    assert task.group == "g"
    assert task.path == tmp_path / "g.yaml"
    assert task.position("fewshot_config", "sampler") == Position(tmp_path / "g.yaml", 5, 7)
    assert task.position("doc_to_text") == Position(tmp_path / "a.yaml", 2, 1)


def test_a_tag_expands_to_its_tasks_by_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        b=f"task: b\ntag: [t, u]\n{CHILD}",
        a=f"task: a\ntag: t\n{CHILD}",
        g="group: g\nnum_fewshot: 5\ntask: [t]\n",
    )
    assert list(shots(read_group(tmp_path))) == ["g.a", "g.b"]


def test_inline_groups_and_inline_tasks_are_named_with_dots(tmp_path: Path) -> None:
    write(
        tmp_path,
        base="dataset_path: json\n" + CHILD,
        g="group: g\ntask:\n  - group: i\n    task:\n      - {task: x, include: base.yaml, tag: s, num_fewshot: 7}\n"
        "  - {task: y, doc_to_text: q, doc_to_target: a}\n",
    )
    file = read_group(tmp_path)
    assert shots(file) == {"g.i.x": 7, "g.y": None}
    assert any("because it has `include`" in note for note in file.notes)
    task = file.tasks[0]
    assert task.doc_to_text == "{{q}}"
    assert task.position("doc_to_text") == Position(tmp_path / "base.yaml", 2, 1)
    assert task.position("num_fewshot") == Position(tmp_path / "g.yaml", 5, 47)


def test_an_include_of_a_known_member_counts_less_than_its_task(tmp_path: Path) -> None:
    write(tmp_path, a=f"task: a\n{CHILD}", g="group: g\ntask:\n  - task: a\n    include: base.yaml\n")
    (tmp_path / "base.yaml").write_text("num_fewshot: 7\ndescription: shared\n", "utf-8")
    file = read_group(tmp_path)
    (task,) = file.tasks
    assert (task.name, task.num_fewshot, task.description) == ("g.a", 1, "shared")
    assert task.position("description") == Position(tmp_path / "base.yaml", 2, 1)
    assert any("because it has `include`" in note for note in file.notes)


def test_an_inline_include_that_is_missing_points_at_the_member(tmp_path: Path) -> None:
    write(tmp_path, g="group: g\ntask:\n  - task: x\n    include: nowhere\n")
    error = refused(tmp_path)
    assert error.position == Position(tmp_path / "g.yaml", 4, 5)


def test_members_that_no_file_defines_are_kept_as_unresolved(tmp_path: Path) -> None:
    write(tmp_path, g="group: g\nnum_fewshot: 3\ntask: [no_task, {task: nobodys, num_fewshot: 2}, no_task]\n")
    file = read_group(tmp_path)
    assert file.unresolved == ("no_task", "nobodys")
    assert file.tasks == ()


def test_a_task_twice_in_one_group_keeps_the_last_as_lm_eval_does(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=f"task: a\n{CHILD}",
        g="group: g\ntask: [{task: a, num_fewshot: 2}, {task: a, num_fewshot: 3}]\n",
    )
    file = read_group(tmp_path)
    assert shots(file) == {"g.a": 3}
    assert any("defined twice" in note for note in file.notes)


def test_own_settings_in_metadata_matter_and_versions_do_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=f"task: a\n{CHILD}",
        g="group: g\ntask: [{task: a, metadata: {version: 2}}]\n",
        h="group: h\ntask: [{task: a, metadata: {promptfmt: {docs: []}}}]\n",
    )
    assert read_group(tmp_path).tasks == ()
    assert list(shots(read_group(tmp_path, "h"))) == ["h.a"]


def test_one_and_true_are_different_values(tmp_path: Path) -> None:
    write(tmp_path, a=f"task: a\n{CHILD}", g="group: g\nnum_fewshot: true\ntask: [a]\n")
    assert list(shots(read_group(tmp_path))) == ["g.a"]


def test_a_group_without_a_list_of_members_is_noted(tmp_path: Path) -> None:
    write(tmp_path, g="group: g\ntask: a\n")
    file = read_group(tmp_path)
    assert file.tasks == ()
    assert "it has no members" in file.notes[0]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("group: g\ntask:\n  - dataset_path: x\n", 3, "needs the key `task` or `group`"),
        ("group: g\ntask:\n  - 5\n", 3, "a name or a mapping, but this one is 5"),
        ("group: g\ntask:\n  - task: [a, b]\n", 3, "must be one name"),
        ("group: [g]\ntask: [a]\n", 1, "use `tag:` instead"),
        ("group:\ntask: [a]\n", 1, "must be text"),
        (
            "group: g\ntask: [a]\naggregate_metric_list:\n  - metric: acc\n    weight_by_sice: true\n",
            5,
            "weight_by_size",
        ),
        ("group: g\ntask: [a]\naggregate_metric_list: {metric: acc, aggregation: median}\n", 3, "must be mean"),
        ("group: g\ntask: [a]\naggregate_metric_list: [acc]\n", 3, "with the key `metric`"),
        ("group: g\nnum_fewshots: 3\ntask:\n  - a\n", 2, "did you mean 'num_fewshot'?"),
    ],
)
def test_groups_of_the_wrong_shape_are_refused_with_their_place(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    write(tmp_path, a=f"task: a\n{CHILD}", g=text)
    error = refused(tmp_path)
    assert said in str(error)
    assert error.position is not None
    assert (error.position.path.name, error.position.line) == ("g.yaml", line)


def test_a_group_that_is_no_file_is_refused_without_a_place() -> None:
    with pytest.raises(
        SourceError, match="a member of a group must be a name or a mapping, but this one is 1"
    ) as caught:
        load_tasks({"group": "g", "task": [1]})
    assert caught.value.position is None


def test_groups_that_contain_each_other_are_refused(tmp_path: Path) -> None:
    write(
        tmp_path,
        g="group: g\nnum_fewshot: 1\ntask: [h]\n",
        h="group: h\ntask: [i]\n",
        i="group: i\ntask:\n  - g\n",
        self="group: self\ntask: [self]\n",
    )
    assert "g -> h -> i -> g" in refused(tmp_path).message
    assert "h -> i -> g -> h" in refused(tmp_path, "h").message
    assert "self -> self" in refused(tmp_path, "self").message


def test_groups_that_multiply_are_refused(tmp_path: Path) -> None:
    files = {f"g{n}": f"group: g{n}\ntask: [{', '.join([f'g{n + 1}'] * 9)}]\n" for n in range(1, 12)}
    write(tmp_path, g="group: g\nnum_fewshot: 1\ntask: [g1]\n", plain="group: plain\ntask: [g1]\n", **files)
    assert "more than 100,000 members" in refused(tmp_path).message
    assert read_group(tmp_path, "plain").tasks == ()


def test_the_first_file_keeps_a_name_and_the_index_tells_of_the_other(tmp_path: Path) -> None:
    write(tmp_path, a=f"task: x\ntag: t\n{CHILD}", b=f"\ntask: x\n{CHILD}", c=f"task: t\n{CHILD}")
    index = TaskIndex([tmp_path])
    entry = index.find("x")
    assert entry is not None
    assert entry.position == Position(tmp_path / "a.yaml", 1, 1)
    dropped = [found for name in "abc" for found in index.duplicates_in(tmp_path / f"{name}.yaml")]
    assert [(found.name, found.first.kind, found.dropped.position) for found in dropped] == [
        ("x", "task", Position(tmp_path / "b.yaml", 2, 1)),
        ("t", "tag", Position(tmp_path / "c.yaml", 1, 1)),
    ]


def test_a_folder_added_later_wins_and_a_folder_inside_another_is_read_once(tmp_path: Path) -> None:
    for name in ("one", "two", "one/sub"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, x=f"task: {name.replace('/', '_') if 'sub' in name else 'x'}\n{CHILD}")
    index = TaskIndex([tmp_path / "one"])
    index.add(tmp_path / "one" / "sub")
    first = index.find("x")
    index.add(tmp_path / "two")
    second = index.find("x")
    assert first is not None
    assert second is not None
    assert (first.file, second.file) != (None, None)
    assert second.position == Position(tmp_path / "two" / "x.yaml", 1, 1)
    assert index.find("one_sub") is not None
    assert not any(index.duplicates_in(path) for path in tmp_path.rglob("*.yaml"))


def test_a_broken_file_is_left_out_of_the_index_with_its_error(tmp_path: Path) -> None:
    write(tmp_path, a="task: a\ndoc_to_text: 'x\n", b=f"task: b\n{CHILD}", c="jobs: 'x\n")
    index = TaskIndex([tmp_path])
    assert list(index.names) == ["b"]
    assert list(index.errors) == [tmp_path / "a.yaml"]


def test_a_group_finds_its_neighbours_without_an_index(tmp_path: Path) -> None:
    write(tmp_path, a=f"task: a\n{CHILD}", g="group: g\nnum_fewshot: 9\ntask: [a]\n")
    file = read_task_file(tmp_path / "g.yaml")
    assert file is not None
    assert shots(file) == {"g.a": 9}

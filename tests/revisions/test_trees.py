"""Both sides of a comparison as folders: what git has and what cannot have changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from promptfmt_command import git, write_task

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.git import GitError
from pytest_promptfmt.revisions.affected import single_tasks
from pytest_promptfmt.revisions.git import Repository
from pytest_promptfmt.revisions.trees import Renaming, Trees, renamings

Compared = Callable[[], Trees]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with tasks that share an include, a module behind another, a group and a task alone."""
    folder = tmp_path / "repository"
    for name in ("included", "also_included", "coded", "alone", "grouped"):
        write_task(folder, name)
    tasks = folder / "tasks"
    (tasks / "_shared").write_text('doc_to_text: "Q: {{question}}\\nA:"\n', "utf-8")
    for name in ("included", "also_included"):
        _replace(tasks / f"{name}.yaml", 'doc_to_text: "Q: {{question}}\\nA:"', "include: _shared")
    (tasks / "wording.py").write_text("import cue\n\ndef text(doc):\n    return cue.CUE\n", "utf-8")
    (tasks / "cue.py").write_text("CUE = 'Why?'\n", "utf-8")
    _replace(tasks / "coded.yaml", '"Q: {{question}}\\nA:"', "!function wording.text")
    (tasks / "group.yml").write_text("group: some\ntask: [grouped]\n", "utf-8")
    (tasks / "README.md").write_text("Tasks.\n", "utf-8")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


@pytest.fixture
def compared(repository: Path, tmp_path: Path) -> Compared:
    """Return a function that compares HEAD with the work tree, each time in new folders."""
    count = iter(range(100))

    def compare() -> Trees:
        scratch = tmp_path / f"scratch{next(count)}"
        scratch.mkdir()
        commits = (found := Repository.around(repository)).commit("HEAD"), None
        return Trees(found, commits, scratch.resolve(), may_be_empty=True)

    return compare


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def affected(trees: Trees) -> set[str]:
    return {Path(name).stem for name in trees.affected.names}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tasks/README.md", "Other words.\n", set()),
        ("tasks/_shared", 'doc_to_text: "# {{question}}"\n', {"included", "also_included"}),
        ("tasks/cue.py", "CUE = 'How?'\n", {"coded"}),
        ("tasks/alone.docs.jsonl", '{"question": "Who?", "answer": "Ada"}\n', {"alone"}),
        ("tasks/grouped.yaml", "task: grouped\ndoc_to_text: x\n", {"grouped", "group"}),
        ("tasks/twin.yaml", "task: alone\ndoc_to_text: x\n", {"alone", "twin"}),
        ("promptfmt.yaml", "docs: 1\n", {"included", "also_included", "coded", "alone", "grouped", "group"}),
        ("conftest.py", "", {"included", "also_included", "coded", "alone", "grouped", "group"}),
    ],
)
def test_only_tasks_that_are_made_of_a_changed_file_need_rendering(
    repository: Path, compared: Compared, name: str, text: str, expected: set[str]
) -> None:
    (repository / name).write_text(text, "utf-8")
    assert affected(compared()) == expected


def test_data_that_code_may_read_affects_the_tasks_of_that_code(repository: Path, compared: Compared) -> None:
    (repository / "tasks/cue.py").write_text("CUE = open('cue.txt').read()\n", "utf-8")
    git(repository, "commit", "-qam", "two")
    (repository / "tasks/cue.txt").write_text("Why?", "utf-8")
    assert affected(compared()) == {"coded"}


def test_an_include_of_any_name_is_no_data_of_other_tasks(repository: Path, compared: Compared) -> None:
    (repository / "tasks/reading.py").write_text("def text(doc):\n    return open('_shared_data').read()\n", "utf-8")
    for name, key in (("patterned", "data_files: '*.json'"), ("reading", "description: !function reading.text")):
        (repository / f"tasks/{name}.yaml").write_text(f"task: {name}\ndoc_to_text: x\n{key}\n", "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    (repository / "tasks/_shared").write_text('doc_to_text: "# {{question}}"\n', "utf-8")
    assert affected(compared()) == {"included", "also_included"}


def test_data_that_a_pattern_finds_affects_a_task_and_regular_expressions_find_none(
    repository: Path, compared: Compared
) -> None:
    for name, key in (("found", "data_files: 'données/[a-z]*.json'"), ("read", 'pattern: "(?<=is )(.*)$"')):
        (repository / f"tasks/{name}.yaml").write_text(f"task: {name}\ndoc_to_text: x\n{key}\n", "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    (repository / "données").mkdir()
    (repository / "données/a.json").write_text("{}", "utf-8")
    assert affected(compared()) == {"found"}


def test_files_that_are_the_same_are_laid_out_only_where_rendering_needs_them(
    repository: Path, compared: Compared
) -> None:
    (repository / "tasks/cue.py").write_text("CUE = 'How?'\n", "utf-8")
    trees = compared()
    names = {path.name for path in trees.after.rglob("*") if path.is_file()}
    assert {"coded.yaml", "wording.py", "cue.py"} <= names
    assert not {"alone.yaml", "included.yaml", "grouped.yaml"} & names
    assert [(tree / "tasks/cue.py").read_text("utf-8") for tree in (trees.before, trees.after)] == [
        "CUE = 'Why?'\n",
        "CUE = 'How?'\n",
    ]
    trees.lay_out_all()
    assert (trees.after / "tasks/alone.yaml").is_file()
    assert trees.unaffected == frozenset()


@pytest.mark.parametrize(
    ("edited", "settings", "expected"),
    [
        ("alone.yaml", "docs: 2\n", set()),
        ("alone.yaml", "docs: 2\nrules: [tasks/other/cues.py]\n", {"cues.py"}),
        ("wording.py", "docs: 2\n", {"cues.py", "_base"}),
    ],
)
def test_code_and_includes_of_other_tasks_are_laid_out_for_tasks_with_code(
    repository: Path, compared: Compared, edited: str, settings: str, expected: set[str]
) -> None:
    write_task(repository, "other/far")
    (repository / "tasks/other/cues.py").write_text("CUE = 'Where?'\n", "utf-8")
    (repository / "tasks/other/_base").write_text("target_delimiter: ' '\n", "utf-8")
    (repository / "promptfmt.yaml").write_text(settings, "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    with (repository / "tasks" / edited).open("a", encoding="utf-8") as file:
        file.write("# a remark\n")
    trees = compared()
    assert {path.name for path in (trees.after / "tasks/other").glob("*")} == expected


def test_an_include_gives_a_task_the_tag_by_which_a_group_lists_it(repository: Path, compared: Compared) -> None:
    (repository / "tasks/_shared").write_text('tag: shared\ndoc_to_text: "Q: {{question}}\\nA:"\n', "utf-8")
    (repository / "tasks/group.yml").write_text("group: some\ntask:\n  - shared\n", "utf-8")
    git(repository, "commit", "-qam", "two")
    (repository / "tasks/included.yaml").write_text("include: _shared\ntask: included\n", "utf-8")
    trees = compared()
    assert affected(trees) == {"included", "group"}
    assert trees.affected.partly == {"tasks/group.yml"}
    (repository / "tasks/group.yml").write_text("group: other\ntask:\n  - shared\n", "utf-8")
    trees = compared()
    assert {"also_included.yaml", "included.yaml"} <= {path.name for path in (trees.after / "tasks").iterdir()}


@pytest.mark.parametrize(
    "written", ['include: ["_sh\\x61red"]', "x: &base _shared\ninclude: *base", "include:\n  - ./_shared"]
)
def test_names_that_are_written_in_another_way_are_followed(repository: Path, compared: Compared, written: str) -> None:
    _replace(repository / "tasks/included.yaml", "include: _shared", written)
    git(repository, "commit", "-qam", "two")
    wide = repository / "tasks/also_included.yaml"
    wide.write_text(wide.read_text("utf-8"), "utf-16")
    git(repository, "commit", "-qam", "three")
    (repository / "tasks/_shared").write_text('doc_to_text: "# {{question}}"\n', "utf-8")
    assert affected(compared()) == {"included", "also_included"}


def test_the_files_that_a_removed_task_included_are_laid_out(repository: Path, compared: Compared) -> None:
    (repository / "tasks/_shared").write_text("include: _base\n", "utf-8")
    (repository / "tasks/_base").write_text('doc_to_text: "{{question}}"\n', "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    for name in ("included.yaml", "also_included.yaml"):
        (repository / "tasks" / name).unlink()
    trees = compared()
    assert {*single_tasks(trees.affected.earlier).values()} == {"included", "also_included"}


def test_two_commits_are_compared_as_the_work_tree_is(repository: Path, tmp_path: Path) -> None:
    (repository / "tasks/cue.py").write_text("CUE = 'How?'\n", "utf-8")
    (repository / "tasks/cue.txt").write_text("Why?", "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    (repository / "tasks/alone.yaml").write_text("task: alone\ndoc_to_text: x\n", "utf-8")
    found = Repository.around(repository)
    (tmp_path / "scratch").mkdir()
    trees = Trees(found, (found.commit("HEAD~1"), found.commit("HEAD")), tmp_path / "scratch")
    assert affected(trees) == {"coded"}


def test_docs_that_one_side_has_are_given_to_both(repository: Path, compared: Compared) -> None:
    (repository / "tasks/alone.docs.jsonl").write_text('{"question": "Who?"}\n', "utf-8")
    trees = compared()
    assert (trees.before / "tasks/alone.docs.jsonl").read_text("utf-8") == '{"question": "Who?"}\n'


def test_a_task_whose_file_has_another_name_has_moved(repository: Path, compared: Compared) -> None:
    (repository / "tasks/deep").mkdir()
    (repository / "tasks/alone.yaml").rename(repository / "tasks/deep/single.yaml")
    moved = Renaming("tasks/alone.yaml", "tasks/deep/single.yaml", "alone")
    assert renamings(compared()) == {("tasks/alone.yaml", "alone"): moved}


def test_the_work_tree_has_the_ids_of_a_commit_with_the_same_content(repository: Path) -> None:
    found = Repository.around(repository)
    assert found.blobs(None) == found.blobs(found.commit("HEAD"))
    (repository / ".gitignore").write_text("*.log\n", "utf-8")
    (repository / "run.log").write_text("", "utf-8")
    (repository / "tasks/alone.yaml").unlink()
    names = found.blobs(found.commit("HEAD")).keys() ^ found.blobs(None).keys()
    assert names == {".gitignore", "tasks/alone.yaml"}


def test_links_are_laid_out_unless_they_lead_outside(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (repository / "inside.yaml").symlink_to("tasks/alone.yaml")
    (repository / "away").symlink_to(tmp_path / "outside")
    (repository / "circle").symlink_to("circle")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "links")
    found = Repository.around(repository)
    for number, commit in enumerate((found.commit("HEAD"), None)):
        target = tmp_path / f"target{number}"
        found.lay_out(commit, target, found.blobs(commit))
        links = {path.name for path in target.iterdir() if path.is_symlink()}
        assert links == {"inside.yaml"}
        assert (target / "tasks/alone.yaml").read_bytes() == (repository / "tasks/alone.yaml").read_bytes()
    assert git(repository, "status", "--short") == ""


def test_commits_between_two_revisions_are_those_that_touch_the_files(repository: Path) -> None:
    found = Repository.around(repository)
    first = found.commit("HEAD")
    (repository / "tasks/alone.yaml").write_text("task: alone\n", "utf-8")
    git(repository, "commit", "-qam", "edit one")
    (repository / "tasks/cue.py").write_text("CUE = ''\n", "utf-8")
    git(repository, "commit", "-qam", "edit another")
    lines = found.commits_between(first, "HEAD", [found.top / "tasks/alone.yaml"])
    assert [line.partition(" ")[2] for line in lines] == ["edit one"]
    assert found.commits_between("nowhere", "HEAD", [found.top / "tasks/alone.yaml"]) == []
    assert found.commits_between(first, "HEAD", [Path("/elsewhere")]) == []


@pytest.mark.parametrize(
    ("revision", "hint"),
    [
        ("mian", "did you mean 'main'?"),
        ("main..topic", "promptfmt diff main topic"),
        ("main...", "promptfmt diff $(git merge-base main HEAD) HEAD"),
        ("tasks", "Write --path tasks"),
        ("--all", None),
        ("", None),
    ],
)
def test_an_unknown_revision_has_a_hint(repository: Path, revision: str, hint: str | None) -> None:
    with pytest.raises(SettingsError) as caught:
        Repository.around(repository).commit(revision)
    assert caught.value.message == f"unknown revision {revision!r}"
    assert hint is None or hint in str(caught.value.hint)


def test_a_folder_outside_of_a_repository_has_git_s_message(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="not in a git repository"):
        Repository.around(tmp_path)

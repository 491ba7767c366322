from pathlib import Path

import pytest
from slices import needs

from pytest_promptfmt.snapshots.document import DocRecord, Document, Section, read_document, write_document
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots


def defined(name: str, format_: str | None = None) -> tuple[str, str, str | None]:
    return (name if format_ is None else f"{name}@{format_}"), name, format_


def text(prompt: str, task: str = "arc") -> str:
    return write_document(Document({"task": task}, (DocRecord(1, (Section("prompt", prompt),)),)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two task files and snapshots of three."""
    for stem in ("arc", "boolq"):
        (tmp_path / f"{stem}.yaml").touch()
    for file in (
        "arc/arc@mcqa/plain",
        "arc/arc@mcqa/chat-5shot",
        "arc/arc@cloze/plain",
        "arc/old/plain",
        "boolq/boolq/plain",
        "gone/gone/plain",
    ):
        path = tmp_path / "__prompts__" / f"{file}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(file), "utf-8")
    return tmp_path


def obsolete(expected: ExpectedSnapshots, folder: Path) -> list[str]:
    return [path.relative_to(folder / "__prompts__").as_posix() for path in expected.obsolete()]


def test_nothing_is_obsolete_before_anything_was_read(folder: Path) -> None:
    assert ExpectedSnapshots().obsolete() == ()


def test_tasks_that_a_read_file_does_not_define_are_obsolete(folder: Path) -> None:
    expected = ExpectedSnapshots()
    expected.define(folder / "arc.yaml", [defined("arc", "mcqa")])
    assert obsolete(expected, folder) == ["arc/arc@cloze/plain.txt", "arc/old/plain.txt"]


def test_formats_tried_on_a_task_without_format_are_not_obsolete(folder: Path) -> None:
    expected = ExpectedSnapshots()
    expected.define(folder / "arc.yaml", [defined("arc"), defined("old")])
    assert obsolete(expected, folder) == []


def test_unknown_profiles_are_obsolete_once_the_known_ones_are_told(folder: Path) -> None:
    expected = ExpectedSnapshots()
    expected.define(folder / "arc.yaml", [defined("arc", "mcqa"), defined("arc", "cloze"), defined("old")])
    assert obsolete(expected, folder) == []
    expected.set_profiles(["chat"])
    assert obsolete(expected, folder) == ["arc/arc@cloze/plain.txt", "arc/arc@mcqa/plain.txt", "arc/old/plain.txt"]


def test_snapshots_of_a_task_file_that_is_gone_are_obsolete_in_visited_folders(folder: Path) -> None:
    expected = ExpectedSnapshots()
    expected.visit(folder / "__prompts__")
    assert obsolete(expected, folder) == ["gone/gone/plain.txt"]


@pytest.mark.parametrize("name", ["gone.yml", pytest.param("gone.json", marks=needs("helm")), "gone.py"])
def test_a_file_that_could_own_the_snapshots_keeps_them(folder: Path, name: str) -> None:
    (folder / name).touch()
    expected = ExpectedSnapshots()
    expected.visit(folder / "__prompts__")
    assert obsolete(expected, folder) == []


def test_a_folder_shared_with_a_file_that_was_not_read_is_left_alone(folder: Path) -> None:
    (folder / "arc.yml").touch()
    expected = ExpectedSnapshots()
    expected.define(folder / "arc.yaml", [defined("arc", "mcqa")])
    assert obsolete(expected, folder) == []
    expected.define(folder / "arc.yml", [defined("old")])
    assert obsolete(expected, folder) == ["arc/arc@cloze/plain.txt"]


def test_only_files_that_are_snapshots_are_obsolete(folder: Path) -> None:
    notes = folder / "__prompts__" / "gone" / "gone"
    (notes / "README.txt").write_text("notes")
    (notes / "plain.md").write_text(text("x"), "utf-8")
    (notes / ".promptfmt-1-0.tmp").write_text(text("x"), "utf-8")
    (notes / ".hidden.txt").write_text(text("x"), "utf-8")
    (folder / "__prompts__" / ".gitattributes").write_text("* -text")
    (folder / "__prompts__" / "loose.txt").write_text(text("x"), "utf-8")
    expected = ExpectedSnapshots()
    expected.visit(folder / "__prompts__")
    assert obsolete(expected, folder) == ["gone/gone/plain.txt"]


def test_links_are_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "task").mkdir()
    (elsewhere / "task" / "plain.txt").write_text(text("x"), "utf-8")
    (folder / "__prompts__" / "linked").symlink_to(elsewhere, target_is_directory=True)
    expected = ExpectedSnapshots()
    expected.visit(folder / "__prompts__")
    assert obsolete(expected, folder) == ["gone/gone/plain.txt"]


def test_an_obsolete_file_that_shows_the_same_is_found_whatever_its_header(folder: Path) -> None:
    expected = ExpectedSnapshots()
    expected.visit(folder / "__prompts__")
    renamed = read_document(text("gone/gone/plain", task="new"), folder)
    assert expected.obsolete_like(renamed) == folder / "__prompts__/gone/gone/plain.txt"
    assert expected.obsolete_like(read_document(text("something else"), folder)) is None


def test_renames_are_not_guessed_among_equals(folder: Path) -> None:
    (folder / "__prompts__/gone/gone/chat.txt").write_text(text("gone/gone/plain"), "utf-8")
    expected = ExpectedSnapshots()
    expected.visit(folder / "__prompts__")
    assert expected.obsolete_like(read_document(text("gone/gone/plain"), folder)) is None

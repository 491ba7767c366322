import signal
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.location import PyTestLocation

from pytest_promptfmt.snapshots.document import DocRecord, Document, Section, write_document
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.extension import PromptExtension, PromptLocation
from pytest_promptfmt.snapshots.paths import BESIDE

TEXT = write_document(Document({"task": "arc"}, (DocRecord(1, (Section("prompt", "a\n ⟨"),)),)))


def location(request: pytest.FixtureRequest, task_file: Path) -> PromptLocation:
    expected = ExpectedSnapshots()
    return PromptLocation(request.node, expected.claim(task_file, "arc", "plain"), expected)


def write(place: PromptLocation, text: str) -> None:
    PromptExtension.write_snapshot(snapshot_location=place.place.path, snapshots=[(text, place, 0)])


def test_tests_of_others_have_nothing_here(request: pytest.FixtureRequest) -> None:
    foreign, extension = PyTestLocation(request.node), PromptExtension()
    assert list(extension.discover_snapshots(test_location=foreign)) == []
    assert extension.dirname(test_location=foreign) == ""
    assert extension.get_location(test_location=foreign, index=0) == ""
    assert not extension.matches_test_location(test_location=foreign, snapshot_location="x/__prompts__/a/a/plain.txt")
    assert not extension.is_snapshot_location(location="tests/__snapshots__/test_x/test_y.txt")


def test_locations_are_different_keys_even_when_alike(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert len({location(request, tmp_path / "arc.yaml") for _ in range(2)}) == 2


@pytest.mark.filterwarnings("error")
def test_what_is_written_is_read_byte_for_byte(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = location(request, tmp_path / "arc.yaml")
    write(place, TEXT)
    file = BESIDE.path(tmp_path / "arc.yaml", "arc", "plain")
    assert file.read_bytes() == TEXT.encode()
    assert PromptExtension().read_snapshot(test_location=place, index=0, session_id="") == TEXT
    assert [path.name for path in file.parent.iterdir()] == ["plain.txt"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = location(request, tmp_path / "arc.yaml")
    write(place, TEXT)

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        write(place, "new")
    folder = Path(place.place.path).parent
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("plain.txt", TEXT.encode())]


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    code = (
        "import itertools, sys\n"
        "from pytest_promptfmt.core import writing\n"
        "for number in itertools.count():\n"
        "    writing.write(sys.argv[1], str(number % 10) * 2_000_000)\n"
        "    print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    content = file.read_bytes()
    assert len(content) == 2_000_000
    assert len(set(content)) == 1


def test_deleting_removes_folders_that_become_empty(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = location(request, tmp_path / "arc.yaml")
    write(place, TEXT)
    PromptExtension().delete_snapshots(snapshot_location=place.place.path, snapshot_names=set())
    assert list(tmp_path.iterdir()) == []


def test_deleting_keeps_folders_that_hold_something_else(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = location(request, tmp_path / "arc.yaml")
    write(place, TEXT)
    (tmp_path / "__prompts__" / "README.md").touch()
    PromptExtension().delete_snapshots(snapshot_location=place.place.path, snapshot_names=set())
    assert [path.name for path in (tmp_path / "__prompts__").iterdir()] == ["README.md"]


def test_nothing_outside_a_snapshot_folder_is_deleted(tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    file.touch()
    PromptExtension().delete_snapshots(snapshot_location=str(file), snapshot_names=set())
    assert file.exists()
